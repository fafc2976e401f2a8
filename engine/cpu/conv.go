package cpu

/*
#include "cpu.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"patchbay/engine"
)

// maxTaps is the most taps that conv.h handles.
const maxTaps = 256

// Conv2D convolves x [B, Y, X, C] with w [N, KY*KX*C] into y [B, Y', X', N]; see engine.Ops. At most 256 taps and 31
// adapters, whose Down is a convolution like the weight and whose Up is [N, R].
func (o *Ops) Conv2D(y, x engine.Tensor, w *engine.Weight, a engine.ConvArgs) {
	engine.CheckConv2D(y, x, w, a)
	if a.KY*a.KX > maxTaps {
		panic(&engine.ShapeError{
			Op: "Conv2D", Rule: fmt.Sprintf("at most %d kernel positions", maxTaps),
			Shapes: fmt.Sprint(a.KY, a.KX),
		})
	}
	if y.Len() == 0 {
		return
	}
	defer o.done()
	o.wantLayout("Conv2D", w, x.Dim(3))
	g := C.pb_gemm{
		batch: C.int64_t(y.Dim(0)), rows: C.int64_t(y.Dim(1) * y.Dim(2)), n: C.int64_t(w.N()),
		y: o.addr("Conv2D", y), res: o.addr("Conv2D", a.Residual), bias: o.addr("Conv2D", w.Bias),
		scale: C.float(scaleOf(w.Base)), gate_per: 1,
		y_dtype: C.int64_t(y.DType),
		y_bs:    C.int64_t(y.Stride(0)), y_ys: C.int64_t(y.Stride(1)), y_ls: C.int64_t(y.Stride(2)),
		taps: C.int64_t(a.KY * a.KX), ky: C.int64_t(a.KY), kx: C.int64_t(a.KX), stride: C.int64_t(a.Stride),
		top: C.int64_t(a.Top), left: C.int64_t(a.Left),
		in_y: C.int64_t(x.Dim(1)), in_x: C.int64_t(x.Dim(2)), c_in: C.int64_t(x.Dim(3)),
		out_y: C.int64_t(y.Dim(1)), out_x: C.int64_t(y.Dim(2)), x_ys: C.int64_t(x.Stride(1)),
	}
	if r := a.Residual; !r.IsZero() {
		g.res_bs, g.res_ys, g.res_ls = C.int64_t(r.Stride(0)), C.int64_t(r.Stride(1)), C.int64_t(r.Stride(2))
	}
	o.segs[0] = C.pb_seg{
		x: o.addr("Conv2D", x), bs: C.int64_t(x.Stride(0)), ls: C.int64_t(x.Stride(2)),
		w: panelAddr(w.Base), k: C.int64_t(w.K()), dtype: C.int32_t(w.Base.DType), x_dtype: C.int32_t(x.DType),
	}
	o.adapters("Conv2D", &g, w, func(t C.uint64_t, ad engine.Adapter) {
		d, r := g, C.int64_t(ad.Down.N)
		d.n, d.y, d.res, d.bias, d.scale, d.y_dtype = r, t, 0, 0, adapterScale(w, ad), C.PB_F32
		d.y_bs, d.y_ys, d.y_ls = g.rows*r, g.out_x*r, r
		o.down[0] = o.segs[0]
		o.conv(d, o.innerFactor(ad))
	})
	o.conv(g, o.segs[:g.nseg])
}

// convCut divides a convolution into tasks of ty x tx output pixels by panels panels: across x down blocks of pixels
// per picture, and splits ranges of panels.
type convCut struct {
	ty, tx, across, down, panels, splits int
}

// cutConv takes blocks of about two taskRows of pixels: wide enough for full tiles, at least two rows high where that
// fits, so that border rows are not copied too often. Pictures too small to keep all workers busy get lower blocks,
// then fewer columns per task.
func (o *Ops) cutConv(outY, outX, batch, panels, threads int) convCut {
	c := convCut{across: (outX + taskRows - 1) / taskRows}
	c.tx = (outX + c.across - 1) / c.across
	c.across = (outX + c.tx - 1) / c.tx
	perRow := (c.tx + o.mr - 1) / o.mr
	high := (2*taskRows/o.mr + perRow - 1) / perRow
	for c.ty = max(1, min(outY, high, maxTiles/perRow)); ; c.ty = (c.ty + 1) / 2 {
		c.down = (outY + c.ty - 1) / c.ty
		if c.ty == 1 || c.down*c.across*batch >= 4*threads {
			break
		}
	}
	c.splits = 1
	if threads > 1 {
		c.splits = min(panels, max(1, (4*threads+c.down*c.across*batch-1)/(c.down*c.across*batch)))
	}
	c.panels = (panels + c.splits - 1) / c.splits
	c.splits = (panels + c.panels - 1) / c.panels
	return c
}

// conv runs the convolution g; segs[0] is the picture.
func (o *Ops) conv(g C.pb_gemm, segs []C.pb_seg) {
	g.seg, g.nseg = o.pin(unsafe.Pointer(&segs[0])), C.int64_t(len(segs))
	batch, outY, outX := int(g.batch), int(g.out_y), int(g.out_x)
	panels := (int(g.n) + o.nr - 1) / o.nr
	threads := o.threadsFor(float64(g.batch*g.rows*g.n) * float64(segs[0].k))
	c := o.cutConv(outY, outX, batch, panels, threads)
	s := int(g.stride)
	tiles := c.ty * ((c.tx + o.mr - 1) / o.mr)
	rows, cols := (c.ty-1)*s+int(g.ky), ((c.tx-1)*s+int(g.kx)+s-1)/s
	aFloats := rows * s * cols * roundUp(int(g.c_in), o.vw)
	for _, f := range segs[1:] {
		aFloats += tiles * o.mr * roundUp(int(f.k), o.vw)
	}
	g.kc, g.chunk = C.int64_t(depth(tiles)), chunk
	if len(segs) == 1 && C.int64_t(o.steps(&segs[0])) <= g.kc {
		g.chunk = o.together(&segs[0])
	}
	perItem := c.down * c.across
	o.fresh()
	each(threads, batch*perItem*c.splits, func(worker, task int) {
		g := g
		block, split := task/c.splits, task%c.splits
		by, bx := block%perItem/c.across, block%c.across
		g.b = C.int64_t(block / perItem)
		g.oy0, g.oy1 = C.int64_t(by*c.ty), C.int64_t(min(outY, (by+1)*c.ty))
		g.ox0, g.ox1 = C.int64_t(bx*c.tx), C.int64_t(min(outX, (bx+1)*c.tx))
		g.p0, g.p1 = C.int64_t(split*c.panels), C.int64_t(min(panels, (split+1)*c.panels))
		o.task(&g, worker, block, aFloats, tiles)
	})
}
