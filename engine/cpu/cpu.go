// Package cpu implements engine.Ops in C, one variant per instruction set, chosen when the program starts.
//
// The C code is in engine/cpu/kernels: levels generic (portable), avx2, avx512, avx512bf16 and amx. Package emulated
// has the last three in portable code, so that their packing and tails are tested everywhere. The Go files here check
// operands, split a call into tasks and run these on goroutines. A C call is one task; there is no thread pool and no
// spinning.
//
// Weights keep the width of their file (f32, bf16, f16, fp8, blocks) and are widened in registers or in the first-level
// cache; the scale of fp8 is applied to the finished sums. A Packed fits the levels of one panel width and is shared by
// any number of Ops.
//
// Activations are f32 or bf16, call by call. With bf16, sums, norms, gates and tables are still f32, and a result is
// rounded once, when it is stored. Levels avx512bf16 and amx multiply bf16 activations with bf16 weights, and queries
// with keys and probabilities with values, directly (vdpbf16ps, tdpbf16ps); everything else, and every other level,
// widens rows of bf16 while it copies them and computes in f32. docs/cpu.md has the levels.
package cpu

/*
#cgo CFLAGS: -std=c11 -O2 -Wall -Wextra
#cgo nocallback pb_run_peak
#cgo nocallback pb_run_dot_peak
#include "cpu.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"patchbay/engine"
	"patchbay/engine/cpu/kernels"
)

var _ engine.Ops = (*Ops)(nil)

// Config says how a backend computes.
type Config struct {
	Threads int    // goroutines a call may use; 0: GOMAXPROCS
	Level   string // "", generic, avx2, avx512, avx512bf16 or amx; "": the best of this CPU
	// Kernels replaces the kernels of Level if its Table is set. Tests use it for emulated levels.
	Kernels kernels.Level
	// Ledger counts the mapped memory of all Ops of the process together; nil: it is not counted.
	Ledger *engine.Ledger
}

// Ops is the CPU backend. Calls have run when they return. One goroutine uses a value at a time. Weights packed by one
// Ops fit all others of the same panel width.
type Ops struct {
	k          *C.pb_kernels
	threads    int
	level      string
	vw, mr, nr int
	dot        bool      // multiplies bf16 with bf16 directly
	panels     C.int64_t // that such a product, or one of int8, takes at a time
	mem        *scratch
	ledger     *engine.Ledger
	keep       []unsafe.Pointer // operands of the current call, see addr
	fp8        [2][256]uint16   // E4M3 and E5M2 as bf16
	e4m3       [256]float32
	segs       [C.PB_MAX_SEG]C.pb_seg // factors of the current product
	down       [1]C.pb_seg            // the factor of an adapter's inner product
}

// Levels lists the instruction-set levels that this CPU runs, best last.
func Levels() []string {
	var names []string
	for _, l := range kernels.Levels() {
		if l.Table != nil {
			names = append(names, l.Name)
		}
	}
	return names
}

// choose returns the level that c names.
func choose(c Config) (kernels.Level, error) {
	if c.Kernels.Table != nil {
		return c.Kernels, nil
	}
	have := Levels()
	if c.Level == "" {
		c.Level = have[len(have)-1]
	}
	for _, l := range kernels.Levels() {
		if l.Name == c.Level && l.Table == nil {
			return l, fmt.Errorf("cpu: this CPU lacks level %q (it has %s)", c.Level, strings.Join(have, ", "))
		}
		if l.Name == c.Level {
			return l, nil
		}
	}
	return kernels.Level{}, fmt.Errorf("cpu: unknown level %q (this CPU has %s)", c.Level, strings.Join(have, ", "))
}

// New makes a backend. It fails when the CPU lacks the level or Threads is negative.
func New(c Config) (*Ops, error) {
	if c.Threads < 0 {
		return nil, fmt.Errorf("cpu: threads is %d (allowed: 0 for all processors, or more)", c.Threads)
	}
	if c.Threads == 0 {
		c.Threads = runtime.GOMAXPROCS(0)
	}
	level, err := choose(c)
	if err != nil {
		return nil, err
	}
	k := (*C.pb_kernels)(level.Table)
	o := &Ops{
		k: k, threads: c.Threads, level: level.Name, vw: int(k.vw), mr: int(k.mr), nr: int(k.nr),
		dot: k.dot != 0, panels: C.int64_t(k.panels),
		mem: newScratch(c.Threads, c.Ledger), ledger: c.Ledger,
	}
	runtime.AddCleanup(o, func(m *scratch) { m.free() }, o.mem)
	for i := range 256 {
		o.e4m3[i] = engine.F32FromF8E4M3(uint8(i))
		o.fp8[0][i] = engine.BF16FromF32(engine.F32FromF8E4M3(uint8(i)))
		o.fp8[1][i] = engine.BF16FromF32(engine.F32FromF8E5M2(uint8(i)))
	}
	return o, nil
}

// Name returns "cpu/" and the level.
func (o *Ops) Name() string { return "cpu/" + o.level }

// Threads returns how many goroutines a call may use.
func (o *Ops) Threads() int { return o.threads }

// Peak runs independent fused multiply-adds on the calling goroutine and returns the floating point operations done:
// what one core can do at best, for speed ratios. A round is a few hundred operations.
func (o *Ops) Peak(rounds int) float64 { return float64(C.pb_run_peak(o.k, C.int64_t(rounds))) }

// PeakBF16 is Peak with multiply-adds of bf16 pairs, where the level has them; elsewhere it is Peak.
func (o *Ops) PeakBF16(rounds int) float64 {
	return float64(C.pb_run_dot_peak(o.k, C.int64_t(rounds)))
}

// addr returns the address of t's first element, 0 for absent tensors. The kernels get addresses as numbers, so the
// pointer is also kept on the heap until done: that keeps the memory alive and, if it would be on a goroutine's stack,
// makes it escape to the heap.
func (o *Ops) addr(op string, t engine.Tensor) C.uint64_t {
	if t.IsZero() || t.Len() == 0 {
		return 0
	}
	if t.Buf.Host == nil {
		panic(&engine.ShapeError{Op: op, Rule: "operands of the cpu backend lie in host memory", Shapes: t.String()})
	}
	return o.pin(unsafe.Pointer(&t.Buf.Host[t.Off*t.DType.Size()]))
}

// pin keeps p alive until done and returns its address.
func (o *Ops) pin(p unsafe.Pointer) C.uint64_t {
	o.keep = append(o.keep, p)
	return C.uint64_t(uintptr(p))
}

// done forgets the operands of the call.
func (o *Ops) done() {
	clear(o.keep)
	o.keep = o.keep[:0]
}
