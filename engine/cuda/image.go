//go:build cgo

package cuda

/*
#include "kernels/args.h"
*/
import "C"

import (
	"unsafe"

	"patchbay/engine"
)

// groupSlices is the most pieces that the pixels of one group are summed in.
const groupSlices = 64

// GroupNormStats implements engine.Ops: every block sums one slice, then the slices are added up in order. No atomics,
// so that the sums of a picture are the same in every run.
func (o *Ops) GroupNormStats(stats, x engine.Tensor, groups int) {
	const op = "GroupNormStats"
	engine.CheckGroupNormStats(stats, x, groups)
	if stats.Len() == 0 {
		return
	}
	pixels := x.Dim(1) * x.Dim(2)
	a := &o.args.group
	*a = C.struct_pb_group{
		x: address(op, x), stats: address(op, stats), sb: C.pb_i64(stats.Stride(0)), sg: C.pb_i64(stats.Stride(1)),
		batch: C.int(x.Dim(0)), height: C.int(x.Dim(1)), width: C.int(x.Dim(2)), c: C.int(x.Dim(3)), groups: C.int(groups),
		slices: C.int(min(groupSlices, max(1, pixels/64))),
	}
	a.xb, a.xy, a.xx = strides3(x)
	items := x.Dim(0) * groups
	bytes := 16 * items * int(a.slices)
	if err := o.mem.need(room(bytes)); err != nil {
		o.Note(err)
		return
	}
	a.part = C.pb_u64(o.mem.take(bytes))
	o.launch(typed(kGroupPart, x.DType), int(a.slices), items, 1, threads, 16*threads/32, unsafe.Pointer(a))
	o.flat(kGroupSum, 2*items, unsafe.Pointer(a))
}

// GroupNormApply implements engine.Ops.
func (o *Ops) GroupNormApply(y, x, stats, w, b engine.Tensor, count int, eps float32, act engine.Act) {
	const op = "GroupNormApply"
	engine.CheckGroupNormApply(y, x, stats, w, b, count, act)
	if y.Len() == 0 {
		return
	}
	a := &o.args.group
	*a = C.struct_pb_group{
		x: address(op, x), y: address(op, y), stats: address(op, stats), w: address(op, w), b: address(op, b),
		sb: C.pb_i64(stats.Stride(0)), sg: C.pb_i64(stats.Stride(1)), count: C.pb_i64(count),
		eps: C.float(eps), act: C.int(act),
		batch: C.int(x.Dim(0)), height: C.int(x.Dim(1)), width: C.int(x.Dim(2)), c: C.int(x.Dim(3)),
		groups: C.int(stats.Dim(1)),
		vec:    pieces(y, x, w, b),
	}
	a.xb, a.xy, a.xx = strides3(x)
	a.yb, a.yy, a.yx = strides3(y)
	items := x.Dim(0) * stats.Dim(1)
	if err := o.mem.need(room(8 * items)); err != nil {
		o.Note(err)
		return
	}
	a.part = C.pb_u64(o.mem.take(8 * items))
	o.flat(kGroupFactors, items, unsafe.Pointer(a))
	o.flat(typed(kGroupApply, y.DType), y.Dim(0)*y.Dim(1)*y.Dim(2)*((y.Dim(3)+7)/8), unsafe.Pointer(a))
}

// strides3 returns the strides of the dimensions before the last of a picture.
func strides3(t engine.Tensor) (b, y, x C.pb_i64) {
	return C.pb_i64(t.Stride(0)), C.pb_i64(t.Stride(1)), C.pb_i64(t.Stride(2))
}
