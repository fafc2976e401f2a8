package cpu

/*
#cgo noescape pb_run_copy
#cgo nocallback pb_run_copy
#cgo noescape pb_run_gather
#cgo nocallback pb_run_gather
#cgo noescape pb_run_mean
#cgo nocallback pb_run_mean
#include "cpu.h"
*/
import "C"

import (
	"unsafe"

	"patchbay/engine"
)

// Upload copies src into dst, which is contiguous f32 or bf16.
func (o *Ops) Upload(dst engine.Tensor, src []float32) {
	engine.CheckUpload(dst, len(src))
	o.Copy(flat(dst), engine.FromF32(src, len(src)))
}

// Download copies src, contiguous f32 or bf16, to dst at once; the Pending has nothing to wait for.
func (o *Ops) Download(dst []float32, src engine.Tensor) engine.Pending {
	engine.CheckDownload(len(dst), src)
	o.Copy(engine.FromF32(dst, len(dst)), flat(src))
	return engine.NewPending(nil)
}

// flat views a contiguous tensor as one row.
func flat(t engine.Tensor) engine.Tensor {
	size := t.DType.Size()
	b := t.Buf
	if b.Host != nil {
		b.Host = b.Host[min(t.Off*size, len(b.Host)):]
	}
	return engine.NewTensor(b, t.DType, t.Len())
}

// Copy copies and converts between tensors of equal shape and any strides; see engine.Ops.
func (o *Ops) Copy(dst, src engine.Tensor) {
	engine.CheckCopy(dst, src)
	if dst.Len() == 0 {
		return
	}
	defer o.done()
	s := o.space("Copy", dst, 1)
	c := C.pb_copy{
		dst: s.view(dst), src: s.view(src), dst_last: C.int64_t(dst.Stride(-1)),
		src_last:  C.int64_t(src.Stride(-1)),
		dst_dtype: C.int32_t(dst.DType), src_dtype: C.int32_t(src.DType),
	}
	if dst.DType == src.DType { // no conversion: copied by element size
		c.dst_dtype = -C.int32_t(dst.DType.Size())
		c.src_dtype = c.dst_dtype
	}
	if s.n == 1 {
		c.dst_last, c.src_last = 1, 1
	}
	o.copyRows(c, s, dst.DType.Size(), src.DType.Size())
}

// copyRows runs a copy. Dense rows without gaps between them are joined, and a long one is split.
func (o *Ops) copyRows(c C.pb_copy, s space, dstSize, srcSize int) {
	if c.dst_last == 1 && c.src_last == 1 {
		s.flatten(&c.dst, &c.src)
		if s.d == [4]int{1, 1, 1, 1} && s.n >= smallElems {
			whole, tail := s.n/rowChunk, s.n%rowChunk
			last := c
			last.dst.p += C.uint64_t(whole * rowChunk * dstSize)
			last.src.p += C.uint64_t(whole * rowChunk * srcSize)
			c.dst.s[3], c.src.s[3] = rowChunk, rowChunk
			o.copyRows(last, space{d: s.d, n: tail}, dstSize, srcSize)
			s.d[3], s.n = whole, rowChunk
		}
	}
	rows := s.set(&c.rows)
	o.rowTasks(rows, s.n, func(r0, r1 int) {
		c := c
		c.rows.r0, c.rows.r1 = C.int64_t(r0), C.int64_t(r1)
		C.pb_run_copy(o.k, &c)
	})
}

// Fill sets every element of dst, f32 or bf16.
func (o *Ops) Fill(dst engine.Tensor, v float32) {
	engine.CheckFill(dst)
	e, s := o.into("Fill", C.PB_FILL, dst, 1)
	if dst.DType == engine.F32 {
		e.value = C.float(v)
		o.pointWise(e, s)
		return
	}
	defer o.done()
	value := []uint16{engine.BF16FromF32(v)}
	c := C.pb_copy{
		dst: e.y, dst_last: 1, src: C.pb_view{p: o.pin(unsafe.Pointer(&value[0]))},
		dst_dtype: -2, src_dtype: -2,
	}
	o.copyRows(c, s, 2, 2)
}

// Gather copies table rows y[i] = table[ids[i]], converted to the type of y; see engine.Ops.
func (o *Ops) Gather(y, table engine.Tensor, ids []int32) {
	const op = "Gather"
	engine.CheckGather(y, table, ids)
	if y.Len() == 0 {
		return
	}
	defer o.done()
	g := C.pb_gather{
		y: o.addr(op, y), table: o.addr(op, table), ids: o.pin(unsafe.Pointer(&ids[0])), lut: o.table(table.DType),
		y_s: C.int64_t(y.Stride(0)), table_s: C.int64_t(table.Stride(0)), e: C.int64_t(y.Dim(1)),
		dtype:   C.int32_t(table.DType),
		y_dtype: C.int32_t(y.DType),
	}
	o.rowTasks(y.Dim(0), y.Dim(1), func(r0, r1 int) {
		g := g
		g.r0, g.r1 = C.int64_t(r0), C.int64_t(r1)
		C.pb_run_gather(o.k, &g)
	})
}

// MeanRows computes y[b] = mean over l of x[b, l]; see engine.Ops.
func (o *Ops) MeanRows(y, x engine.Tensor) {
	const op = "MeanRows"
	engine.CheckMeanRows(y, x)
	if y.Len() == 0 {
		return
	}
	defer o.done()
	e := x.Dim(2)
	m := C.pb_mean{dtype: C.int64_t(x.DType), ls: C.int64_t(x.Stride(1)), l: C.int64_t(x.Dim(1))}
	to, from := o.addr(op, y), o.addr(op, x)
	blocks, size := (e+63)/64, x.DType.Size()
	o.rowTasks(y.Dim(0)*blocks, x.Dim(1)*64, func(r0, r1 int) {
		for r := r0; r < r1; r++ {
			m := m
			b := r / blocks
			m.y, m.x = to+C.uint64_t(size*b*y.Stride(0)), from+C.uint64_t(size*b*x.Stride(0))
			m.c0, m.c1 = C.int64_t(r%blocks*64), C.int64_t(min(e, (r%blocks+1)*64))
			C.pb_run_mean(o.k, &m)
		}
	})
}
