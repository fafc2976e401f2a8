package cpu

/*
#include "cpu.h"
*/
import "C"

import "patchbay/engine"

// LayerNorm computes y = (x-mean)*rsqrt(var+eps)*w + b over the last dimension; see engine.Ops.
func (o *Ops) LayerNorm(y, x, w, b engine.Tensor, eps float32) {
	engine.CheckLayerNorm(y, x, w, b)
	e, s := o.into("LayerNorm", C.PB_LAYER_NORM, y, 1)
	e.value, e.a, e.b, e.c = C.float(eps), s.view(x), s.vector(w), s.vector(b)
	o.rowWise(e, s)
}

// RMSNorm computes y = x*rsqrt(mean(x^2)+eps)*w over the last dimension; see engine.Ops.
func (o *Ops) RMSNorm(y, x, w engine.Tensor, eps float32) {
	engine.CheckRMSNorm(y, x, w)
	e, s := o.into("RMSNorm", C.PB_RMS_NORM, y, 1)
	e.value, e.a, e.b = C.float(eps), s.view(x), s.vector(w)
	o.rowWise(e, s)
}

// AdaLN computes y = (x-mean)*rsqrt(var+eps)*(1+scale) + shift; see engine.Ops.
func (o *Ops) AdaLN(y, x, shift, scale engine.Tensor, eps float32) {
	engine.CheckAdaLN(y, x, shift, scale)
	g := modulationRows(shift, scale)
	if g == 0 { // different groupings: item by item
		for i := range y.Dim(0) {
			o.AdaLN(y.Slice(0, i, i+1), x.Slice(0, i, i+1), modulationRow(shift, i, y.Dim(0)),
				modulationRow(scale, i, y.Dim(0)), eps)
		}
		return
	}
	e, s := o.into("AdaLN", C.PB_ADA_LN, y, g)
	e.value, e.a, e.b, e.c = C.float(eps), s.view(x), s.modulation(scale), s.modulation(shift)
	o.rowWise(e, s)
}

// GatedAdd computes y = x + gate*(r + bias); see engine.Ops.
func (o *Ops) GatedAdd(y, x, gate, r, bias engine.Tensor) {
	engine.CheckGatedAdd(y, x, gate, r, bias)
	e, s := o.into("GatedAdd", C.PB_GATED_ADD, y, modulationRows(gate))
	e.a, e.b, e.c, e.d = s.view(x), s.view(r), s.modulation(gate), s.vector(bias)
	if gate.IsZero() && bias.IsZero() {
		o.pointWise(e, s)
		return
	}
	o.rowWise(e, s)
}

// Add computes y = a + b, b repeated where it has dimensions of size 1; see engine.Ops.
func (o *Ops) Add(y, a, b engine.Tensor) {
	engine.CheckAdd(y, a, b)
	e, s := o.into("Add", C.PB_ADD, y, 1)
	e.a, e.b = s.view(a), s.view(b)
	o.pointWise(e, s)
}

// Activate computes y = act(x); see engine.Ops.
func (o *Ops) Activate(y, x engine.Tensor, act engine.Act) {
	engine.CheckActivate(y, x, act)
	e, s := o.into("Activate", C.PB_ACT, y, 1)
	e.act, e.a = C.int32_t(act), s.view(x)
	o.pointWise(e, s)
}

// ActivateMul computes y = act(a) * b; see engine.Ops.
func (o *Ops) ActivateMul(y, a, b engine.Tensor, act engine.Act) {
	engine.CheckActivateMul(y, a, b, act)
	e, s := o.into("ActivateMul", C.PB_ACT_MUL, y, 1)
	e.act, e.a, e.b = C.int32_t(act), s.view(a), s.view(b)
	o.pointWise(e, s)
}
