//go:build cgo

package cuda

/*
#include "kernels/args.h"
*/
import "C"

import (
	"math"
	"unsafe"

	"patchbay/engine"
)

// rowsOf describes the rows of y: its outermost dimension first, the others behind, so that modulation rows can count
// items (see perItems).
func rowsOf(op string, y engine.Tensor) C.struct_pb_rows {
	r := C.struct_pb_rows{dims: [4]C.int{1, 1, 1, 1}, cols: C.int(y.Dim(-1))}
	rows := 1
	outer := y.Dims() - 1
	for i := range outer {
		r.dims[slot(i, outer)] = C.int(y.Dim(i))
		rows *= y.Dim(i)
	}
	if rows > math.MaxInt32 || y.Dim(-1) > math.MaxInt32 {
		panic(&engine.ShapeError{Op: op, Rule: "at most 2^31 rows and columns", Shapes: y.String()})
	}
	r.rows = C.int(rows)
	return r
}

// slot is where dimension i of outer ones stands in pb_rows.dims.
func slot(i, outer int) int {
	if i == 0 {
		return 0
	}
	return 4 - outer + i
}

// viewOf describes one operand of the same rows; dimensions of size 1 where rows has more are repeated.
func viewOf(op string, r *C.struct_pb_rows, t engine.Tensor) C.struct_pb_view {
	v := C.struct_pb_view{at: address(op, t), div: 1}
	if t.IsZero() {
		return v
	}
	outer := t.Dims() - 1
	for i := range outer {
		if s := slot(i, outer); t.Dim(i) > 1 || r.dims[s] == 1 {
			v.stride[s] = C.pb_i64(t.Stride(i))
		}
	}
	return v
}

// modulationOf describes modulation rows [G, E] of batch items.
func modulationOf(op string, t engine.Tensor, batch int) C.struct_pb_view {
	v := C.struct_pb_view{at: address(op, t), div: 1}
	if !t.IsZero() {
		v.stride[0] = C.pb_i64(t.Stride(0))
		v.div = C.pb_i64(max(1, batch/t.Dim(0)))
	}
	return v
}

// vectorOf describes one row for all.
func vectorOf(op string, t engine.Tensor) C.struct_pb_view {
	return C.struct_pb_view{at: address(op, t), div: 1}
}

// pieces reports whether every operand present can be accessed in 16-byte pieces along its last dimension: its address
// and its strides.
func pieces(ts ...engine.Tensor) C.int {
	for i := range ts {
		if !inPieces(&ts[i]) {
			return 0
		}
	}
	return 1
}

func inPieces(t *engine.Tensor) bool {
	if t.IsZero() {
		return true
	}
	size := t.DType.Size()
	if t.Dim(-1)%8 != 0 || (t.Buf.Dev+uint64(t.Off*size))%16 != 0 {
		return false
	}
	for i := range t.Dims() - 1 {
		if t.Dim(i) > 1 && t.Stride(i)*size%16 != 0 {
			return false
		}
	}
	return true
}

// pointwise launches o.args.pointwise, whose operation and operands but y are set.
func (o *Ops) pointwise(op string, y engine.Tensor) {
	a := &o.args.pointwise
	a.y = viewOf(op, &a.r, y)
	o.flat(typed(kPointwise, y.DType), int(a.r.rows)*((int(a.r.cols)+7)/8), unsafe.Pointer(a))
}

// Fill implements engine.Ops.
func (o *Ops) Fill(dst engine.Tensor, v float32) {
	engine.CheckFill(dst)
	if dst.Len() == 0 {
		return
	}
	a := &o.args.pointwise
	*a = C.struct_pb_pointwise{r: rowsOf("Fill", dst), op: C.PB_FILL, value: C.float(v)}
	a.r.vec = pieces(dst)
	o.pointwise("Fill", dst)
}

// Add implements engine.Ops.
func (o *Ops) Add(y, x, b engine.Tensor) {
	engine.CheckAdd(y, x, b)
	if y.Len() == 0 {
		return
	}
	a := &o.args.pointwise
	*a = C.struct_pb_pointwise{r: rowsOf("Add", y), op: C.PB_ADD}
	a.r.vec = pieces(y, x, b)
	a.a, a.b = viewOf("Add", &a.r, x), viewOf("Add", &a.r, b)
	o.pointwise("Add", y)
}

// GatedAdd implements engine.Ops.
func (o *Ops) GatedAdd(y, x, gate, r, bias engine.Tensor) {
	engine.CheckGatedAdd(y, x, gate, r, bias)
	if y.Len() == 0 {
		return
	}
	a := &o.args.pointwise
	*a = C.struct_pb_pointwise{r: rowsOf("GatedAdd", y), op: C.PB_GATED, bias: address("GatedAdd", bias)}
	a.r.vec = pieces(y, x, gate, r, bias)
	a.a, a.b, a.gate = viewOf("GatedAdd", &a.r, x), viewOf("GatedAdd", &a.r, r), modulationOf("GatedAdd", gate, y.Dim(0))
	o.pointwise("GatedAdd", y)
}

// Activate implements engine.Ops.
func (o *Ops) Activate(y, x engine.Tensor, act engine.Act) {
	engine.CheckActivate(y, x, act)
	if y.Len() == 0 {
		return
	}
	a := &o.args.pointwise
	*a = C.struct_pb_pointwise{r: rowsOf("Activate", y), op: C.PB_ACT, act: C.int(act)}
	a.r.vec = pieces(y, x)
	a.a = viewOf("Activate", &a.r, x)
	o.pointwise("Activate", y)
}

// ActivateMul implements engine.Ops.
func (o *Ops) ActivateMul(y, x, b engine.Tensor, act engine.Act) {
	engine.CheckActivateMul(y, x, b, act)
	if y.Len() == 0 {
		return
	}
	a := &o.args.pointwise
	*a = C.struct_pb_pointwise{r: rowsOf("ActivateMul", y), op: C.PB_ACT_MUL, act: C.int(act)}
	a.r.vec = pieces(y, x, b)
	a.a, a.b = viewOf("ActivateMul", &a.r, x), viewOf("ActivateMul", &a.r, b)
	o.pointwise("ActivateMul", y)
}
