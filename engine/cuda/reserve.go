//go:build cgo

package cuda

import (
	"errors"
	"fmt"

	"patchbay/engine"
	"patchbay/engine/cuda/dnn"
)

// Reserve implements engine.Reserver. It chooses how products and attention are computed and takes scratch memory for
// the most demanding call, the pinned memory of uploads, and that of two concurrent downloads. It waits for the device
// if the scratch memory grows.
func (o *Ops) Reserve(calls *engine.Recorder) error {
	for p := range calls.Products {
		for _, part := range o.parts(&p) {
			o.routeOf(&part)
		}
	}
	for i := range calls.Attentions {
		if a := &calls.Attentions[i]; o.sdpa.takes(a) && !o.fixed {
			o.plan(a)
		}
	}
	if o.Err() != nil {
		return o.Sync()
	}
	bytes := int(o.Scratch(calls))
	fixed := max(room(calls.Moving), o.graphs.fixed.bytes)
	if fixed > o.graphs.fixed.bytes {
		o.Drop()
	}
	if err := errors.Join(o.graphs.fixed.need(fixed), o.mem.need(bytes-fixed)); err != nil {
		return fmt.Errorf("%s: take %d MB of scratch memory: %w", o.Location(), bytes>>20, err)
	}
	if err := o.ReservePinned(calls.Uploads+calls.Gathered > 0, calls.Read*engine.F32.Size()); err != nil {
		return fmt.Errorf("%s: take pinned memory: %w", o.Location(), err)
	}
	return nil
}

// Scratch implements engine.Reserver: the workspaces of cuBLASLt and cuDNN wherever they may be chosen, and the scratch
// memory of our kernels. A 1x1 convolution needs none for pixels but counts like the others.
func (o *Ops) Scratch(calls *engine.Recorder) int64 {
	bytes := max(o.mem.bytes, room(4*calls.Gathered), room(16*groupSlices*calls.Groups))
	product := func(p *engine.Product) int {
		kernelBytes := ownRoom(p)
		if pl, ok := o.dev.planOf(p); ok {
			return max(kernelBytes, o.dev.planRoom(p, &pl))
		}
		return kernelBytes
	}
	for p := range calls.Products {
		for _, part := range o.parts(&p) {
			bytes = max(bytes, widenedTileRoom(&p, &part)+product(&part))
		}
	}
	for i := range calls.Attentions {
		a := &calls.Attentions[i]
		if o.sdpa.takes(a) {
			bytes = max(bytes, room(dnn.Space))
		}
		if a.D > attendMost && a.DType == engine.BF16 && a.Lk > 0 {
			bytes = max(bytes, scoreRoom(o.scoreRows(a.Lq, a.Lk), a.Lk, a.D))
		}
	}
	for _, c := range calls.Convs {
		if c.Pixels > 0 {
			size, ld := c.DType.Size(), rowStride(c.K)
			rows := c.Width * o.convLines(c.Height, c.Width, c.K, size)
			bytes = max(bytes, room(rows*ld*size)+product(&engine.Product{ // dense rows, weights of the same type
				Batch: 1, Rows: rows, N: c.N, K: c.K, Ranks: c.Ranks, X: [2]int{0, ld}, Y: [2]int{0, rowStride(c.N)},
				XType: c.DType, YType: c.DType, Weight: c.DType, Added: c.Ranks > 0, Bias: true,
				Residual: [2]int{0, rowStride(c.N)},
			}))
		}
	}
	return int64(bytes + max(room(calls.Moving), o.graphs.fixed.bytes))
}

// Workspace implements engine.Reserver: the workspace of cuBLASLt, and widened rows.
func (o *Ops) Workspace(blocks bool) int64 {
	bytes := 0
	if o.dev.lt != nil {
		bytes = room(o.dev.lt.Space)
	}
	if blocks {
		bytes += room(o.widenedTile)
	}
	return int64(bytes)
}
