//go:build cgo

package cuda

/*
#include "kernels/args.h"
*/
import "C"

import (
	"encoding/binary"
	"math"
	"math/bits"
	"unsafe"

	"patchbay/engine"
	"patchbay/engine/cuda/driver"
)

// Copy implements engine.Ops: a plain copy where both sides are contiguous, else a kernel, in 16-byte pieces where
// strides allow.
func (o *Ops) Copy(dst, src engine.Tensor) {
	engine.CheckCopy(dst, src)
	if dst.Len() == 0 {
		return
	}
	if dst.DType == src.DType && dst.Contiguous() && src.Contiguous() {
		o.Move(uint64(address("Copy", dst)), uint64(address("Copy", src)), dst.Bytes())
		return
	}
	o.strided(dst, src)
}

// strided copies with a kernel.
func (o *Ops) strided(dst, src engine.Tensor) {
	if dst.Len() > math.MaxInt32 {
		for i := range dst.Dim(0) {
			o.strided(dst.Index(0, i), src.Index(0, i))
		}
		return
	}
	a, size := &o.args.copy, dst.DType.Size()
	*a = C.struct_pb_copy{
		dst: address("Copy", dst), src: address("Copy", src), size: C.int(size),
		count: C.pb_i64(dst.Len()),
	}
	for i := range 5 {
		a.dims[i] = 1
	}
	first := 5 - dst.Dims()
	for i := range dst.Dims() {
		a.dims[first+i], a.ds[first+i], a.ss[first+i] = C.int(dst.Dim(i)), C.pb_i64(dst.Stride(i)), C.pb_i64(src.Stride(i))
	}
	k, per := kCopy, 16/size
	switch {
	case dst.DType == engine.BF16 && src.DType == engine.F32:
		k, per = kCopyNarrow, 8
	case dst.DType == engine.F32 && src.DType == engine.BF16:
		k, per = kCopyWiden, 8
	}
	if k != kCopy {
		a.size = 1
	}
	if dst.RowContiguous() && src.RowContiguous() && dst.Dim(-1)%per == 0 && inSteps(&dst, per) && inSteps(&src, per) {
		for i := range 4 {
			a.ds[i] /= C.pb_i64(per)
			a.ss[i] /= C.pb_i64(per)
		}
		a.ds[4], a.ss[4] = 1, 1
		a.dims[4] /= C.int(per)
		a.count /= C.pb_i64(per)
		a.size = 8
		if k == kCopy {
			a.size = 16
		}
	}
	o.copyBy(k)
}

// copyBy launches o.args.copy: it makes one dimension of two where both sides step through them alike, and prepares
// divisions by the others.
func (o *Ops) copyBy(k kernel) {
	a := &o.args.copy
	at := 4 // the outermost dimension that is kept
	for i := 3; i >= 0; i-- {
		switch n := C.pb_i64(a.dims[at]); {
		case a.dims[i] == 1:
		case n == 1 || a.ds[i] == n*a.ds[at] && a.ss[i] == n*a.ss[at]:
			if n == 1 {
				a.ds[at], a.ss[at] = a.ds[i], a.ss[i]
			}
			a.dims[at] *= a.dims[i]
		default:
			at--
			a.dims[at], a.ds[at], a.ss[at] = a.dims[i], a.ds[i], a.ss[i]
		}
	}
	var to, from C.pb_i64 // the last offsets; strides of graphs' rows may be negative
	for i := range a.dims {
		if i < at {
			a.dims[i] = 1
		}
		n := C.pb_i64(a.dims[i] - 1)
		to, from = to+n*max(a.ds[i], -a.ds[i]), from+n*max(a.ss[i], -a.ss[i])
		// Granlund, Montgomery: Division by Invariant Integers using Multiplication, 1994, fig. 4.1
		d := uint64(a.dims[i])
		l := bits.Len64(d - 1)
		a.magic[i], a.shift[i] = C.uint((1<<32)*(1<<l-d)/d+1), C.uint(l)
	}
	if max(to, from) <= math.MaxInt32 {
		a.near = 1
	}
	o.flat(k, int(a.count), unsafe.Pointer(a))
}

// inSteps reports whether t can be read in steps of n elements: its address is a multiple of 16 bytes and its strides
// are multiples of n.
func inSteps(t *engine.Tensor, n int) bool {
	if (t.Buf.Dev+uint64(t.Off*t.DType.Size()))%16 != 0 {
		return false
	}
	for i := range t.Dims() - 1 {
		if t.Dim(i) > 1 && t.Stride(i)%n != 0 {
			return false
		}
	}
	return true
}

// Upsample2x implements engine.Ops: the rows of each parity are copied with every pixel repeated.
func (o *Ops) Upsample2x(y, x engine.Tensor) {
	engine.CheckUpsample2x(y, x)
	if y.Len() == 0 {
		return
	}
	twice := x.Unsqueeze(3).Broadcast(3, 2) // [B, Y, X, 2, C]
	lines := y.Split(1, x.Dim(1), 2)        // [B, Y, 2, 2X, C]
	for parity := range 2 {
		o.strided(lines.Index(2, parity).Split(2, x.Dim(2), 2), twice)
	}
}

func (o *Ops) Gather(y, table engine.Tensor, ids []int32) {
	engine.CheckGather(y, table, ids)
	if y.Len() == 0 {
		return
	}
	const most = driver.SlotBytes / 4
	if len(ids) > most {
		panic(&engine.ShapeError{Op: "Gather", Rule: "at most 2^21 rows", Shapes: y.String()})
	}
	if err := o.mem.need(room(4 * len(ids))); err != nil {
		o.Note(err)
		return
	}
	p, err := o.Slot()
	if err != nil {
		o.Note(err)
		return
	}
	for i, id := range ids {
		binary.LittleEndian.PutUint32(p.Bytes[4*i:], uint32(id))
	}
	at := o.mem.take(4 * len(ids))
	o.Send(at, p, 4*len(ids))
	o.args.gather = C.struct_pb_gather{
		y: address("Gather", y), table: address("Gather", table), ids: C.pb_u64(at), ys: C.pb_i64(y.Stride(0)),
		ts:   C.pb_i64(table.Stride(0)),
		rows: C.int(y.Dim(0)), cols: C.int(y.Dim(1)), from: C.int(table.DType),
	}
	o.flat(typed(kGather, y.DType), y.Len(), unsafe.Pointer(&o.args.gather))
}

func (o *Ops) MeanRows(y, x engine.Tensor) {
	engine.CheckMeanRows(y, x)
	o.args.mean = C.struct_pb_mean{
		y: address("MeanRows", y), x: address("MeanRows", x), ys: C.pb_i64(y.Stride(0)), xb: C.pb_i64(x.Stride(0)),
		xl:    C.pb_i64(x.Stride(1)),
		batch: C.int(x.Dim(0)), l: C.int(x.Dim(1)), cols: C.int(x.Dim(2)),
	}
	o.flat(typed(kMean, y.DType), y.Len(), unsafe.Pointer(&o.args.mean))
}

func (o *Ops) Quantise(q, scale, x engine.Tensor) {
	engine.CheckQuantise(q, scale, x)
	o.quantise("Quantise", kQuantise, q, scale, x)
}

func (o *Ops) Dequantise(y, q, scale engine.Tensor) {
	engine.CheckDequantise(y, q, scale)
	o.quantise("Dequantise", kDequantise, q, scale, y)
}

func (o *Ops) quantise(op string, k kernel, q, scale, x engine.Tensor) {
	if x.Len() == 0 {
		return
	}
	a := &o.args.quantise
	*a = C.struct_pb_quantise{r: rowsOf(op, x)}
	a.x, a.q = viewOf(op, &a.r, x), viewOf(op, &a.r, q)
	a.scale = C.struct_pb_view{at: address(op, scale), div: 1}
	for i := range scale.Dims() {
		a.scale.stride[slot(i, scale.Dims())] = C.pb_i64(scale.Stride(i))
	}
	o.flat(typed(k, x.DType), 32*int(a.r.rows), unsafe.Pointer(a))
}
