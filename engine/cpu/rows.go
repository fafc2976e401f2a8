package cpu

/*
#cgo noescape pb_run_ew
#cgo nocallback pb_run_ew
#include "cpu.h"
*/
import "C"

import "patchbay/engine"

const (
	rowChunk   = 1 << 14 // elements of the pieces that a long row is split into
	smallElems = 1 << 16 // smaller element-wise calls stay on the caller's goroutine
)

// space is the common row space of the operands of a call: up to four leading dimensions and rows of n elements. Where
// groups > 1 the batch is split into [groups, B/groups], so that a stride selects modulation rows.
type space struct {
	o      *Ops
	op     string // of the call
	d      [4]int
	n      int
	groups int
}

// space returns the row space of y. groups is 1 unless y is [B, L, E].
func (o *Ops) space(op string, y engine.Tensor, groups int) space {
	s := space{o: o, op: op, d: [4]int{1, 1, 1, 1}, n: y.Dim(-1), groups: groups}
	for i := range y.Dims() - 1 {
		s.d[5-y.Dims()+i] = y.Dim(i)
	}
	if groups > 1 {
		s.d[1], s.d[2] = groups, y.Dim(0)/groups
	}
	return s
}

// into returns the arguments and the row space of an element-wise call with the output y.
func (o *Ops) into(op string, code C.int32_t, y engine.Tensor, groups int) (C.pb_ew, space) {
	s := o.space(op, y, groups)
	return C.pb_ew{dtype: C.int32_t(y.DType), op: code, y: s.view(y)}, s
}

// view describes t, which has the rank of the output, in the row space; dimensions of size 1 are broadcast.
func (s *space) view(t engine.Tensor) C.pb_view {
	v := s.vector(t)
	for i := range t.Dims() - 1 {
		if t.Dim(i) > 1 {
			v.s[5-t.Dims()+i] = C.int64_t(t.Stride(i))
		}
	}
	if s.groups > 1 && t.Dims() == 3 {
		v.s[1] = v.s[2] * C.int64_t(s.d[2])
	}
	return v
}

// vector describes t [E], the same for all rows.
func (s *space) vector(t engine.Tensor) C.pb_view { return C.pb_view{p: s.o.addr(s.op, t)} }

// modulation describes t [G, E]; G is 1 or the space's groups.
func (s *space) modulation(t engine.Tensor) C.pb_view {
	v := s.vector(t)
	if !t.IsZero() && t.Dim(0) > 1 {
		v.s[1] = C.int64_t(t.Stride(0))
	}
	return v
}

// modulationRows returns the number of groups of modulation operands, 0 where two differ and neither is 1.
func modulationRows(ts ...engine.Tensor) int {
	g := 1
	for _, t := range ts {
		if t.IsZero() || t.Dim(0) == 1 || t.Dim(0) == g {
			continue
		}
		if g > 1 {
			return 0
		}
		g = t.Dim(0)
	}
	return g
}

// modulationRow returns the row of t [G, E] that item i of a batch uses, as [1, E].
func modulationRow(t engine.Tensor, i, batch int) engine.Tensor {
	if t.IsZero() {
		return t
	}
	at := i / (batch / t.Dim(0))
	return t.Slice(0, at, at+1)
}

// set writes the space into r and returns its number of rows.
func (s space) set(r *C.pb_rows) (rows int) {
	rows = 1
	for i, d := range s.d {
		r.d[i] = C.int64_t(d)
		rows *= d
	}
	r.n = C.int64_t(s.n)
	return rows
}

// flatten merges the last leading dimension into the rows for as long as no operand has gaps between them.
func (s *space) flatten(views ...*C.pb_view) {
	for range 4 {
		for _, v := range views {
			if v.p != 0 && s.d[3] > 1 && v.s[3] != C.int64_t(s.n) {
				return
			}
		}
		s.n *= s.d[3]
		s.d = [4]int{1, s.d[0], s.d[1], s.d[2]}
		for _, v := range views {
			v.s = [4]C.int64_t{0, v.s[0], v.s[1], v.s[2]}
		}
	}
}

// rowWise runs an operation on whole rows and ends the call (see done).
func (o *Ops) rowWise(e C.pb_ew, s space) {
	defer o.done()
	o.rows(e, s)
}

func (o *Ops) rows(e C.pb_ew, s space) {
	rows := s.set(&e.rows)
	o.rowTasks(rows, s.n, func(r0, r1 int) {
		e := e
		e.rows.r0, e.rows.r1 = C.int64_t(r0), C.int64_t(r1)
		C.pb_run_ew(o.k, &e)
	})
}

// pointWise runs an operation whose elements are independent and of one type, so that rows may be joined and split, and
// ends the call (see done).
func (o *Ops) pointWise(e C.pb_ew, s space) {
	defer o.done()
	views := []*C.pb_view{&e.y, &e.a, &e.b, &e.c, &e.d}
	s.flatten(views...)
	if s.d != [4]int{1, 1, 1, 1} || s.n < smallElems {
		o.rows(e, s)
		return
	}
	tail, whole, size := s.n%rowChunk, s.n/rowChunk, engine.DType(e.dtype).Size()
	last := e
	for _, v := range []*C.pb_view{&last.y, &last.a, &last.b, &last.c, &last.d} {
		if v.p != 0 {
			v.p += C.uint64_t(size * whole * rowChunk)
		}
	}
	for _, v := range views {
		v.s[3] = rowChunk
	}
	s.d[3], s.n = whole, rowChunk
	o.rows(e, s)
	if tail > 0 {
		o.rows(last, space{d: [4]int{1, 1, 1, 1}, n: tail})
	}
}

// rowTasks splits rows of elems elements each into tasks; small calls stay on the caller's goroutine.
func (o *Ops) rowTasks(rows, elems int, do func(r0, r1 int)) {
	if rows == 0 || elems == 0 {
		return
	}
	total := rows * elems
	n := min(rows, 4*o.threads, total/rowChunk)
	if o.threads == 1 || n < 2 || total < smallElems {
		do(0, rows)
		return
	}
	each(o.threads, n, func(_, t int) { do(rows*t/n, rows*(t+1)/n) })
}
