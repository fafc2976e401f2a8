//go:build cgo

package cuda

/*
#include "kernels/args.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"patchbay/engine"
)

// sumPiece is the number of bytes that are copied here and added at a time of a part that this device cannot read
// directly.
const sumPiece = 1 << 20

// Join prepares Take and Sum: it enables access to the memory of the devices of peers where it is possible, and takes
// scratch memory to copy parts of sums from the others. It returns an error if there are more than 32 peers.
func (o *Ops) Join(peers []*Ops) error {
	if len(peers) > C.PB_MAX_PARTS {
		return fmt.Errorf("%s: %d ranks in one group, at most %d", o.Location(), len(peers), int(C.PB_MAX_PARTS))
	}
	missing := 0
	for _, p := range peers {
		if err := o.Reach(p.Stream); err != nil {
			return fmt.Errorf("%s: reach %s: %w", o.Location(), p.Location(), err)
		}
		if !o.Reaches(p.Stream) {
			missing++
		}
	}
	return o.mem.need(missing * room(sumPiece))
}

// Beside makes another stream on the same device, which is closed with this one. It is for exchanges beside
// computation: they do not wait for the tail of what runs. Calls that involve both must come from one goroutine at a
// time.
func (o *Ops) Beside() (*Ops, error) {
	b, err := o.dev.newOps(true)
	if err == nil {
		o.aside = append(o.aside, b)
	}
	return b, err
}

// Sum computes dst = parts[0] + parts[1] + ... in this order, where part i belongs to the stream of[i] and dst may be
// one of the parts. All are contiguous tensors of equal type (f32, bf16 or f64) and length. f32 and bf16 are added in
// f32 and rounded once.
func (o *Ops) Sum(dst engine.Tensor, parts []engine.Tensor, of []*Ops) {
	size, count := dst.DType.Size(), dst.Len()
	if count == 0 || o.Err() != nil {
		return
	}
	step, missing := count, 0
	for _, from := range of {
		if !o.Reaches(from.Stream) {
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
			o.Note(err)
			return
		}
		a := &o.args.sum
		*a = C.struct_pb_sum{dst: C.pb_u64(to + uint64(at*size)), count: C.pb_i64(n), parts: C.int(len(parts))}
		all := uint64(a.dst)
		for i, p := range parts {
			src := uint64(address("Sum", p)) + uint64(at*size)
			if !o.Reaches(of[i].Stream) {
				staging := o.mem.take(sumPiece)
				o.Bring(staging, src, n*size, of[i].Stream)
				src = staging
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
