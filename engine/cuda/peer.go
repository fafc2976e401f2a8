//go:build cgo

package cuda

/*
#include "shim.h"
#include "kernels/args.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"patchbay/engine"
)

// links are the other devices whose streams exchange memory with those of one.
type links struct {
	mu    sync.Mutex
	peers map[*Device]bool // true: their memory can be read from here
}

// sync waits for the streams of all of them. What they report is for their own ranks.
func (l *links) sync() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for dev := range l.peers {
		_ = dev.Sync()
	}
}

// reaches reports whether kernels and copies on dev can use the memory of peer.
func (dev *Device) reaches(peer *Device) bool {
	if dev == peer {
		return true
	}
	dev.links.mu.Lock()
	defer dev.links.mu.Unlock()
	return dev.links.peers[peer]
}

// sumPiece is how many bytes of a part that cannot be read where it lies are added up at a time.
const sumPiece = 1 << 20

// Join prepares Take and Sum: access to the memory of the devices of peers is switched on where there is any, and
// memory is taken to bring parts of sums to where there is none. Streams of at most 32 ranks add up.
func (o *Ops) Join(peers []*Ops) error {
	if len(peers) > C.PB_MAX_PARTS {
		return fmt.Errorf("%s: %d ranks in one group, at most %d", o.Location(), len(peers), int(C.PB_MAX_PARTS))
	}
	missing := 0
	for _, p := range peers {
		if p.dev == o.dev {
			continue
		}
		var reaches C.int
		if err := try(func(e *C.pb_error) { C.pb_peer(o.dev.c, p.dev.c, &reaches, e) }); err != nil {
			return fmt.Errorf("%s: reach %s: %w", o.Location(), p.Location(), err)
		}
		if reaches == 0 {
			missing++
		}
		o.dev.links.mu.Lock()
		if o.dev.links.peers == nil {
			o.dev.links.peers = map[*Device]bool{}
		}
		o.dev.links.peers[p.dev] = reaches != 0
		o.dev.links.mu.Unlock()
	}
	return o.mem.need(missing * room(sumPiece))
}

// Beside makes another stream on the same device, which is closed with this one. Calls that use both come from one
// goroutine at a time.
func (o *Ops) Beside() (*Ops, error) {
	b, err := o.dev.NewOps()
	if err == nil {
		o.aside = append(o.aside, b)
	}
	return b, err
}

// inbox is memory that exchanges bring parts of sums into. It grows without giving back what it was: that would wait
// for devices, which may be waiting for this one.
type inbox struct {
	all   []uint64 // the last one is in use
	bytes int
}

// Inbox returns memory that is the stream's until its next Inbox.
func (o *Ops) Inbox(bytes int) (engine.Buf, error) {
	if in := &o.inbox; bytes > in.bytes {
		bytes = max(bytes, 2*in.bytes)
		at, err := o.dev.alloc(bytes)
		if err != nil {
			return engine.Buf{}, err
		}
		in.all, in.bytes = append(in.all, at), bytes
	}
	return engine.Buf{Dev: o.inbox.all[len(o.inbox.all)-1]}, nil
}

// free gives all of it back.
func (in *inbox) free(dev *Device) error {
	var errs []error
	for _, at := range in.all {
		errs = append(errs, dev.free(at))
	}
	return errors.Join(errs...)
}

// Break makes err what every wait for results returns from now on, unless the stream has an error of its own: what it
// was to receive did not come. It is safe from any goroutine.
func (o *Ops) Break(err error) { o.broken.CompareAndSwap(nil, &err) }

// ending is what Break was given first, nil if it was not called.
func (o *Ops) ending() error {
	if e := o.broken.Load(); e != nil {
		return *e
	}
	return nil
}

// Err returns the first error of the stream so far, without a wait.
func (o *Ops) Err() error { return o.err }

// Take copies src, which belongs to a stream of another rank, to dst: contiguous tensors of equal type and length. Both
// streams' devices have joined.
func (o *Ops) Take(dst, src engine.Tensor, from *Ops) {
	to, at, bytes := uint64(address("Take", dst)), uint64(address("Take", src)), dst.Bytes()
	o.bring(to, at, bytes, from.dev)
}

// bring enqueues a copy from a device.
func (o *Ops) bring(to, at uint64, bytes int, from *Device) {
	switch {
	case bytes == 0 || o.err != nil:
	case o.dev.reaches(from):
		o.move(to, at, bytes)
	default:
		o.note(try(func(e *C.pb_error) {
			C.pb_move_peer(o.dev.c, o.stream, C.uint64_t(to), from.c, C.uint64_t(at), C.uint64_t(bytes), e)
		}))
	}
}

// Sum computes dst = parts[0] + parts[1] + ... in this order: contiguous tensors of equal type (f32, bf16 or f64) and
// length, where part i belongs to the stream of[i]; dst may be one of them. f32 and bf16 are added in f32 and rounded
// once.
func (o *Ops) Sum(dst engine.Tensor, parts []engine.Tensor, of []*Ops) {
	size, count := dst.DType.Size(), dst.Len()
	if count == 0 || o.err != nil {
		return
	}
	step, missing := count, 0
	for _, from := range of {
		if !o.dev.reaches(from.dev) {
			step = min(step, sumPiece/size)
			missing++
		}
	}
	k := typed(kSum, dst.DType)
	if dst.DType == engine.F64 {
		k = kSumF64
	}
	to := uint64(address("Sum", dst))
	for at := 0; at < count; at += step {
		n := min(step, count-at)
		if err := o.mem.need(missing * room(sumPiece)); err != nil {
			o.note(err)
			return
		}
		a := &o.args.sum
		*a = C.struct_pb_sum{dst: C.pb_u64(to + uint64(at*size)), count: C.pb_i64(n), parts: C.int(len(parts))}
		all := uint64(a.dst)
		for i, p := range parts {
			src := uint64(address("Sum", p)) + uint64(at*size)
			if !o.dev.reaches(of[i].dev) {
				here := o.mem.take(sumPiece)
				o.bring(here, src, n*size, of[i].dev)
				src = here
			}
			a.src[i] = C.pb_u64(src)
			all |= src
		}
		if all%16 == 0 {
			a.vec = 1
		}
		o.flat(k, (n+7)/8, unsafe.Pointer(a))
	}
}
