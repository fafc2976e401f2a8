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

// pageBytes is the unit in which memory is mapped.
const pageBytes = 4096

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// mapped returns the bytes of the pages that n bytes take.
func mapped(n int) int64 { return int64(roundUp(max(n, 1), pageBytes)) }

func mapBytes(n int) unsafe.Pointer { return C.pb_map(C.int64_t(mapped(n))) }

func unmapBytes(p unsafe.Pointer, n int) { C.pb_unmap(p, C.int64_t(mapped(n))) }

// Alloc maps zeroed pages. Pages that are never touched cost nothing.
func (o *Ops) Alloc(bytes int) (engine.Buf, error) {
	if bytes < 0 {
		return engine.Buf{}, fmt.Errorf("cpu: cannot allocate %d bytes", bytes)
	}
	if err := o.ledger.Take(mapped(bytes)); err != nil {
		return engine.Buf{}, err
	}
	p := mapBytes(bytes)
	if p == nil {
		o.ledger.Give(mapped(bytes))
		return engine.Buf{}, fmt.Errorf("cpu: the system refused %d bytes of memory", bytes)
	}
	return engine.Buf{Host: unsafe.Slice((*byte)(p), bytes)}, nil
}

// Free gives the pages of Alloc back to the system. b must be the whole Buf; the zero Buf is ignored.
func (o *Ops) Free(b engine.Buf) {
	if b.Host != nil {
		unmapBytes(unsafe.Pointer(unsafe.SliceData(b.Host)), len(b.Host))
		o.ledger.Give(mapped(len(b.Host)))
	}
}

// Sync implements engine.Ops: calls have run when they return.
func (*Ops) Sync() error { return nil }

// block is memory outside the Go heap. It grows on demand and never shrinks.
type block struct {
	p      unsafe.Pointer
	n      int
	ledger *engine.Ledger
}

// need returns at least n bytes, 64-byte aligned, with undefined contents.
func (b *block) need(n int) unsafe.Pointer {
	if n > b.n {
		b.free()
		n = roundUp(n+n/4, pageBytes) // a little more, so that slowly growing shapes do not map every time
		if err := b.ledger.Take(mapped(n)); err != nil {
			panic(fmt.Errorf("cpu: scratch memory: %w", err))
		}
		if b.p = mapBytes(n); b.p == nil {
			b.ledger.Give(mapped(n))
			panic(fmt.Errorf("cpu: the system refused %d bytes of scratch memory", n))
		}
		b.n = n
	}
	return b.p
}

func (b *block) free() {
	if b.p != nil {
		unmapBytes(b.p, b.n)
		b.ledger.Give(mapped(b.n))
	}
	*b = block{ledger: b.ledger}
}

// scratch is the working memory of an Ops: one set per worker, and blocks that all workers of a call share.
type scratch struct {
	worker []workerScratch
	small  block // results of adapters, group norm tables
	words  block // rows of 8 bits and their scales, or rows times factors of inputs
	zeros  block // never written
	kv     block // packed keys and values
}

type workerScratch struct {
	a, c block
	wide block    // widened words of block-quantized weights
	tile int      // the task block whose rows a holds packed, -1: none
	_    [32]byte // keeps the next worker's tile off this cache line
}

func newScratch(workers int, l *engine.Ledger) *scratch {
	none := block{ledger: l}
	s := &scratch{worker: make([]workerScratch, workers), small: none, words: none, zeros: none, kv: none}
	for i := range s.worker {
		s.worker[i].a, s.worker[i].c, s.worker[i].wide = none, none, none
	}
	return s
}

func (s *scratch) free() {
	for i := range s.worker {
		s.worker[i].a.free()
		s.worker[i].c.free()
		s.worker[i].wide.free()
	}
	s.small.free()
	s.words.free()
	s.zeros.free()
	s.kv.free()
}

func numOf(p unsafe.Pointer) C.uint64_t { return C.uint64_t(uintptr(p)) }
