package cpu

/*
#include "cpu.h"
*/
import "C"

import "patchbay/engine"

// LayerNorm computes y = (x-mean)*rsqrt(var+eps)*w + b over the last dimension; see engine.Ops.
func (o *Ops) LayerNorm(y, x, w, b engine.Tensor, eps float32) {
	const op = "LayerNorm"
	engine.CheckLayerNorm(y, x, w, b)
	if y.Len() == 0 {
		return
	}
	defer o.done()
	s := spaceOf(y, 1)
	o.rowWise(C.pb_ew{
		dtype: C.int32_t(y.DType), op: C.PB_LAYER_NORM, value: C.float(eps), y: s.view(o, op, y), a: s.view(o, op, x),
		b: s.vector(o, op, w), c: s.vector(o, op, b),
	}, s)
}

// RMSNorm computes y = x*rsqrt(mean(x^2)+eps)*w over the last dimension; see engine.Ops.
func (o *Ops) RMSNorm(y, x, w engine.Tensor, eps float32) {
	const op = "RMSNorm"
	engine.CheckRMSNorm(y, x, w)
	if y.Len() == 0 {
		return
	}
	defer o.done()
	s := spaceOf(y, 1)
	o.rowWise(C.pb_ew{
		dtype: C.int32_t(y.DType), op: C.PB_RMS_NORM, value: C.float(eps), y: s.view(o, op, y),
		a: s.view(o, op, x), b: s.vector(o, op, w),
	}, s)
}

// AdaLN computes y = (x-mean)*rsqrt(var+eps)*(1+scale) + shift; see engine.Ops.
func (o *Ops) AdaLN(y, x, shift, scale engine.Tensor, eps float32) {
	const op = "AdaLN"
	engine.CheckAdaLN(y, x, shift, scale)
	if y.Len() == 0 {
		return
	}
	g := groupsOf(shift, scale)
	if g == 0 { // different groupings: item by item
		for i := range y.Dim(0) {
			o.AdaLN(y.Slice(0, i, i+1), x.Slice(0, i, i+1), groupRow(shift, i, y.Dim(0)), groupRow(scale, i, y.Dim(0)), eps)
		}
		return
	}
	defer o.done()
	s := spaceOf(y, g)
	o.rowWise(C.pb_ew{
		dtype: C.int32_t(y.DType), op: C.PB_ADA_LN, value: C.float(eps), y: s.view(o, op, y), a: s.view(o, op, x),
		b: s.modulation(o, op, scale), c: s.modulation(o, op, shift),
	}, s)
}

// GatedAdd computes y = x + gate*(r + bias); see engine.Ops.
func (o *Ops) GatedAdd(y, x, gate, r, bias engine.Tensor) {
	const op = "GatedAdd"
	engine.CheckGatedAdd(y, x, gate, r, bias)
	if y.Len() == 0 {
		return
	}
	defer o.done()
	s := spaceOf(y, groupsOf(gate))
	e := C.pb_ew{
		dtype: C.int32_t(y.DType), op: C.PB_GATED_ADD, y: s.view(o, op, y), a: s.view(o, op, x), b: s.view(o, op, r),
		c: s.modulation(o, op, gate), d: s.vector(o, op, bias),
	}
	if gate.IsZero() && bias.IsZero() {
		o.pointWise(e, s)
		return
	}
	o.rowWise(e, s)
}

// Add computes y = a + b, b repeated where it has dimensions of size 1; see engine.Ops.
func (o *Ops) Add(y, a, b engine.Tensor) {
	const op = "Add"
	engine.CheckAdd(y, a, b)
	if y.Len() == 0 {
		return
	}
	defer o.done()
	s := spaceOf(y, 1)
	o.pointWise(C.pb_ew{
		dtype: C.int32_t(y.DType), op: C.PB_ADD, y: s.view(o, op, y), a: s.view(o, op, a),
		b: s.view(o, op, b),
	}, s)
}

// Activate computes y = act(x); see engine.Ops.
func (o *Ops) Activate(y, x engine.Tensor, act engine.Act) {
	const op = "Activate"
	engine.CheckActivate(y, x, act)
	if y.Len() == 0 {
		return
	}
	defer o.done()
	s := spaceOf(y, 1)
	o.pointWise(C.pb_ew{
		dtype: C.int32_t(y.DType), op: C.PB_ACT, act: C.int32_t(act), y: s.view(o, op, y),
		a: s.view(o, op, x),
	}, s)
}

// ActivateMul computes y = act(a) * b; see engine.Ops.
func (o *Ops) ActivateMul(y, a, b engine.Tensor, act engine.Act) {
	const op = "ActivateMul"
	engine.CheckActivateMul(y, a, b, act)
	if y.Len() == 0 {
		return
	}
	defer o.done()
	s := spaceOf(y, 1)
	o.pointWise(C.pb_ew{
		dtype: C.int32_t(y.DType), op: C.PB_ACT_MUL, act: C.int32_t(act), y: s.view(o, op, y),
		a: s.view(o, op, a), b: s.view(o, op, b),
	}, s)
}
