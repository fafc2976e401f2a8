//go:build cgo

package cpu

/*
#cgo noescape pb_run_quantise
#cgo nocallback pb_run_quantise
#include "cpu.h"
*/
import "C"

import "math"

// rounded replaces x of s by its rows rounded to 8 bits and returns the address of their scales. It performs the same
// operations in the same order as ref.QuantiseRow, so every level gives the same bits.
func (o *Ops) rounded(s *C.pb_seg, rows leading, rotated int) (scales C.uint64_t) {
	count, k, words := rows.batch*rows.rows, int(s.k), (int(s.k)+3)/4
	if !o.dot {
		words *= 2
	}
	at := numOf(o.mem.words.need(4 * count * (words + 1)))
	q := C.pb_quant{
		x: s.x, bs: s.bs, ls: s.ls, rows: C.int64_t(rows.rows), k: s.k, words: at,
		scales: at + C.uint64_t(4*count*words), x_dtype: C.int64_t(s.x_dtype), rotated: C.int64_t(rotated),
	}
	if rotated > 0 {
		q.norm = C.float(1 / math.Sqrt(float64(rotated)))
	}
	per := max(1, rowChunk/max(k, 1))
	each(o.threadsFor(float64(count)*float64(k)), (count+per-1)/per, func(worker, task int) {
		q := q
		q.tmp = numOf(o.mem.worker[worker].a.need(4 * roundUp(k+3, o.vw)))
		q.r0, q.r1 = C.int64_t(task*per), C.int64_t(min(count, (task+1)*per))
		C.pb_run_quantise(o.k, &q)
	})
	s.x, s.k, s.x_dtype = q.words, C.int64_t(words), C.PB_F32
	s.bs, s.ls = C.int64_t(rows.rows*words), C.int64_t(words)
	return q.scales
}
