//go:build cgo

package cuda

/*
#include "dnn.h"
#include "lt.h"
#include "shim.h"
#include "kernels/args.h"
*/
import "C"

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"patchbay/engine"
)

var (
	_ engine.Ops      = (*Ops)(nil)
	_ engine.Located  = (*Ops)(nil)
	_ engine.Reserver = (*Ops)(nil)
	_ engine.Marker   = (*Ops)(nil)
	_ engine.Stamper  = (*Ops)(nil)
	_ engine.Chooser  = (*Ops)(nil)
	_ engine.Replayer = (*Ops)(nil)
	_ engine.Fixer    = (*Ops)(nil)
)

// Ops is one stream of a device. Calls return when their kernels are enqueued. One goroutine uses a value at a time;
// what a Download returns may be waited for on another. The first error of the driver stays until Sync has returned it
// and comes out of every Wait before; no call does anything meanwhile.
type Ops struct {
	dev    *Device
	stream C.uint64_t
	args   *arguments
	mem    scratch
	// most bytes of scratch for the rows of a convolution or the scores of two-product attention, see stripBytes
	strip int
	wide  int // most bytes of scratch for rows of a weight in blocks, see wideBytes
	up    ring
	// of Pack: its stream, made when it is first needed, and device memory that rows are widened from
	weights C.uint64_t
	staged  scratch
	down    []*pinned // free buffers of downloads, guarded by nothing: Wait hands its buffer back through done
	done    chan *pinned
	marks   marks
	clock   clock
	aside   []*Ops // see Beside
	plans   map[C.pb_lt_shape]*C.pb_lt_plan
	sdpa    sdpa
	fixed   bool // one kernel a pair of types, whatever the rows
	chosen
	graphs graphs
	inbox  inbox
	err    error

	broken atomic.Pointer[error] // see Break
}

// arguments is where calls put what a launch needs. It holds no Go pointers, so that C may read it, and it is made
// once: no call allocates.
type arguments struct {
	pointwise C.struct_pb_pointwise
	norm      C.struct_pb_norm
	heads     C.struct_pb_heads
	copy      C.struct_pb_copy
	pack      C.struct_pb_pack
	gather    C.struct_pb_gather
	mean      C.struct_pb_mean
	quantise  C.struct_pb_quantise
	linear    C.struct_pb_linear
	round     C.struct_pb_round
	attend    C.struct_pb_attend
	merge     C.struct_pb_merge
	sum       C.struct_pb_sum
	softmax   C.struct_pb_softmax
	im2col    C.struct_pb_im2col
	group     C.struct_pb_group
	e         C.pb_error
}

// stripBytes is 256 MB: some hundred lines of the largest picture, work enough for any GPU.
const stripBytes = 256 << 20

// NewOps makes a stream on the device.
func (dev *Device) NewOps() (*Ops, error) {
	o := &Ops{dev: dev, strip: stripBytes, wide: wideBytes, args: new(arguments), done: make(chan *pinned, 64)}
	o.sdpa.dnn, o.sdpa.plans = dev.dnn, map[C.pb_dnn_shape]*C.pb_dnn_plan{}
	o.graphs.fixed.dev, o.graphs.eager = dev, dev.Eager
	o.mem.dev, o.staged.dev, o.up.dev, o.plans = dev, dev, dev, map[C.pb_lt_shape]*C.pb_lt_plan{}
	if err := try(func(e *C.pb_error) { C.pb_stream_new(dev.c, &o.stream, e) }); err != nil {
		return nil, err
	}
	place, err := dev.places.take(dev)
	if err != nil {
		return nil, errors.Join(err, try(func(e *C.pb_error) { C.pb_stream_free(dev.c, o.stream, e) }))
	}
	o.marks.place = place
	return o, nil
}

// CountHost has pinned memory that is taken from now on, by all Ops of the device, count as memory of the process.
func (o *Ops) CountHost(l *engine.Ledger) { o.dev.host.Store(l) }

// Close waits for the stream and gives back what the Ops holds; memory of Alloc and Pack is the caller's to free.
func (o *Ops) Close() error {
	errs := []error{o.drain()}
	for _, b := range o.aside {
		errs = append(errs, b.Close())
	}
	for _, p := range o.plans {
		if p != nil {
			C.pb_lt_plan_free(o.dev.blas.c, p)
		}
	}
	errs = append(errs, o.sdpa.free(), o.graphs.free(o), o.mem.free(), o.staged.free(), o.inbox.free(o.dev), o.up.free())
	o.takeBack()
	for _, p := range o.down {
		errs = append(errs, o.dev.release(p))
	}
	errs = append(errs, o.clock.free(o.dev))
	o.dev.places.put(o.marks.place)
	o.dev.points.drop(o)
	if o.weights != 0 {
		errs = append(errs, try(func(e *C.pb_error) { C.pb_stream_free(o.dev.c, o.weights, e) }))
	}
	return errors.Join(append(errs, try(func(e *C.pb_error) { C.pb_stream_free(o.dev.c, o.stream, e) }))...)
}

// Name returns "cuda".
func (*Ops) Name() string { return "cuda" }

// Device returns the device of the stream.
func (o *Ops) Device() *Device { return o.dev }

// Location implements engine.Located with "cuda:N".
func (o *Ops) Location() string { return o.dev.Location() }

// DeviceMemory implements engine.Located. Memory that other processes use is not free.
func (o *Ops) DeviceMemory() (free, total int64, err error) { return o.dev.Memory() }

// Sync waits until everything enqueued has run and returns the first error. Unless the device is lost, the stream can
// be used again then: calls that were left out are the caller's to repeat.
func (o *Ops) Sync() error {
	if err := o.drain(); err != nil {
		return err
	}
	return o.ending()
}

// drain is Sync of a stream that may be broken.
func (o *Ops) drain() error {
	o.dev.waits.Add(1)
	o.note(try(func(e *C.pb_error) { C.pb_stream_sync(o.dev.c, o.stream, e) }))
	err := o.err
	if !errors.Is(err, engine.ErrDeviceLost) {
		o.err = nil
	}
	return err
}

// note keeps the first error.
func (o *Ops) note(err error) {
	if o.err == nil {
		o.err = err
	}
}

// Alloc implements engine.Ops; the memory is zero for every stream when it returns.
func (o *Ops) Alloc(bytes int) (engine.Buf, error) {
	at, err := o.dev.alloc(bytes)
	if err != nil {
		return engine.Buf{}, err
	}
	o.set(at, 0, bytes)
	if err := o.drain(); err != nil {
		return engine.Buf{}, errors.Join(err, o.dev.free(at))
	}
	return engine.Buf{Dev: at}, nil
}

// Free implements engine.Ops. It waits for the whole device first, because other streams may be using the memory.
func (o *Ops) Free(b engine.Buf) {
	if b.Dev != 0 {
		o.note(o.dev.free(b.Dev))
	}
}

// launch enqueues kernel k. grid is at least 1 in every direction; args points into o.args.
func (o *Ops) launch(k kernel, x, y, z, threads, shared int, args unsafe.Pointer) {
	if o.err != nil {
		return
	}
	o.dev.launches.Add(1)
	if C.pb_launch(o.dev.c, o.stream, o.dev.functions[k], C.uint(x), C.uint(y), C.uint(z), C.uint(threads), C.uint(shared),
		args, &o.args.e) != 0 {
		o.note(errorOf(&o.args.e))
	}
}

// threads is the size of the blocks of most kernels.
const threads = 256

// flat launches a grid-stride kernel with one thread an item, at most waves blocks a multiprocessor.
func (o *Ops) flat(k kernel, items int, args unsafe.Pointer) {
	const waves = 32
	o.launch(k, min((items+threads-1)/threads, waves*o.dev.Multiprocessors), 1, 1, threads, 0, args)
}

// typed returns the variant of k for activations of type d.
func typed(k kernel, d engine.DType) kernel {
	if d == engine.F32 {
		return k + 1
	}
	return k
}

// address returns where the first element of t is, 0 for absent tensors.
func address(op string, t engine.Tensor) C.pb_u64 {
	if t.IsZero() || t.Len() == 0 {
		return 0
	}
	if t.Buf.Dev == 0 {
		panic(&engine.ShapeError{Op: op, Rule: "operands of the cuda backend lie in device memory", Shapes: t.String()})
	}
	return C.pb_u64(t.Buf.Dev + uint64(t.Off*t.DType.Size()))
}

// move, set and send enqueue copies: between places of the device, of one value, and from pinned memory.
func (o *Ops) move(dst, src uint64, bytes int) {
	if bytes > 0 && o.err == nil {
		o.note(try(func(e *C.pb_error) {
			C.pb_move(o.dev.c, o.stream, C.uint64_t(dst), C.uint64_t(src), C.uint64_t(bytes), e)
		}))
	}
}

func (o *Ops) set(dst uint64, value byte, bytes int) {
	if bytes > 0 && o.err == nil {
		o.note(try(func(e *C.pb_error) {
			C.pb_set(o.dev.c, o.stream, C.uint64_t(dst), C.int(value), C.uint64_t(bytes), e)
		}))
	}
}

func (o *Ops) send(dst uint64, p *pinned, bytes int) {
	if bytes == 0 || o.err != nil {
		return
	}
	o.note(try(func(e *C.pb_error) {
		C.pb_upload(o.dev.c, o.stream, C.uint64_t(dst), p.at, C.uint64_t(bytes), e)
	}))
	o.record(p)
}

// record marks p as in use until the stream gets here.
func (o *Ops) record(p *pinned) {
	o.note(try(func(e *C.pb_error) { C.pb_event_record(o.dev.c, p.event, o.stream, e) }))
	p.used = true
}
