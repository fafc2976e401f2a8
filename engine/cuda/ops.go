//go:build cgo

package cuda

/*
#include "kernels/args.h"
*/
import "C"

import (
	"errors"
	"unsafe"

	"patchbay/engine"
	"patchbay/engine/cuda/dnn"
	"patchbay/engine/cuda/driver"
	"patchbay/engine/cuda/lt"
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

// Ops computes on a stream of a device. One goroutine uses a value at a time.
type Ops struct {
	*driver.Stream
	dev  *Device
	args *arguments
	mem  scratch
	// most bytes of scratch for the rows of a convolution or the scores of two-product attention, see stripBytes
	strip       int
	widenedTile int            // most bytes of scratch for widened rows of a weight, see widenedTileBytes
	staged      scratch        // of Pack: device memory with the rows to widen
	aside       []*Ops         // see Beside
	fetches     *driver.Stream // of Fetch; nil before the first
	products    choices[lt.Shape, lt.Matmul]
	sdpa        sdpa
	fixed       bool // see Fix
	held        held // see launchHeld
	chosen
	graphs graphs
}

// arguments holds the arguments of a launch. It has no Go pointers, so that C may read it, and is made once, so that no
// call allocates.
type arguments struct {
	pointwise C.struct_pb_pointwise
	norm      C.struct_pb_norm
	added     C.struct_pb_norm_added
	pair      C.struct_pb_norm_pair
	heads     C.struct_pb_heads
	heldSum   C.struct_pb_pointwise // of what is held back, as is added, see launchHeld
	heldHeads C.struct_pb_heads
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
}

// stripBytes is 256 MiB: some hundred lines of the largest picture, enough work for any GPU.
const stripBytes = 256 << 20

// NewOps makes a stream on the device.
func (dev *Device) NewOps() (*Ops, error) { return dev.newOps(false) }

func (dev *Device) newOps(urgent bool) (*Ops, error) {
	s, err := dev.NewStream(urgent)
	if err != nil {
		return nil, err
	}
	o := &Ops{Stream: s, dev: dev, strip: stripBytes, widenedTile: widenedTileBytes, args: new(arguments)}
	o.sdpa.lib, o.sdpa.plans = dev.dnn, choices[engine.AttentionShape, dnn.Execution]{}
	o.graphs.fixed.dev, o.graphs.eager = dev.Device, dev.Eager
	o.mem.dev, o.staged.dev, o.products = dev.Device, dev.Device, choices[lt.Shape, lt.Matmul]{}
	o.mem.flush = o.launchHeld
	o.Postpone(o.launchHeld)
	return o, nil
}

// Close waits for the stream and releases what the Ops holds; memory of Alloc and Pack is the caller's to free.
func (o *Ops) Close() error {
	errs := []error{o.Drain(), o.endFetches()}
	for _, b := range o.aside {
		errs = append(errs, b.Close())
	}
	for _, p := range o.products {
		o.dev.lt.Drop(p)
	}
	return errors.Join(append(errs, o.sdpa.free(), o.graphs.free(o), o.mem.free(), o.staged.free(), o.Stream.Close())...)
}

// Name returns "cuda".
func (*Ops) Name() string { return "cuda" }

func (o *Ops) Device() *Device { return o.dev }

// chosen counts how calls were computed: products of linear layers and convolutions by cuBLASLt and by our kernels,
// shapes on which the two disagree, shapes about which cuBLASLt could not be asked, products of f16 weights with bf16
// activations; attention by cuDNN and by our kernels, shapes for which cuDNN has no plan, and shapes on which the two
// disagree.
type chosen struct {
	library, kernels, refused, unplannedProducts, rounded     int64
	attended, attendedKernels, unplanned, attentionMismatches int64
}

func (o *Ops) Chosen() map[string]int64 {
	pageable := o.Pageable()
	if o.fetches != nil {
		pageable += o.fetches.Pageable()
	}
	return map[string]int64{
		"linear by cuBLASLt": o.chosen.library, "linear by own kernels": o.chosen.kernels,
		"shapes that cuBLASLt gets wrong": o.chosen.refused, "products that lose 3 bits of f16": o.chosen.rounded,
		"attention by cuDNN": o.chosen.attended, "attention by own kernels": o.chosen.attendedKernels,
		"shapes that cuBLASLt fails on":            o.chosen.unplannedProducts,
		"shapes without a plan of cuDNN":           o.chosen.unplanned,
		"shapes that cuDNN gets wrong":             o.chosen.attentionMismatches,
		"copies through memory that is not pinned": pageable,
		"evaluations by graphs":                    o.graphs.count.launched,
		"graphs that CUDA refuses":                 o.graphs.count.refused,
	}
}

// launch enqueues kernel k (see driver.Stream.Launch); args points into o.args.
func (o *Ops) launch(k kernel, x, y, z, threads, shared int, args unsafe.Pointer) {
	o.Launch(o.dev.functions[k], x, y, z, threads, shared, args)
}

// threads is the size of the blocks of most kernels.
const threads = 256

// flat launches a grid-stride kernel with one thread per item and at most waves blocks per multiprocessor. It does
// nothing if there are no items.
func (o *Ops) flat(k kernel, items int, args unsafe.Pointer) {
	const waves = 32
	if items == 0 {
		return
	}
	o.launch(k, min((items+threads-1)/threads, waves*o.dev.Multiprocessors), 1, 1, threads, 0, args)
}

// typed returns the variant of k for activations of type d.
func typed(k kernel, d engine.DType) kernel {
	if d == engine.F32 {
		return k + 1
	}
	return k
}

// address returns the address of the first element of t, 0 for absent tensors.
func address(op string, t engine.Tensor) C.pb_u64 { return C.pb_u64(driver.Address(op, t)) }
