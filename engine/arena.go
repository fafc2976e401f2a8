package engine

import "fmt"

// Arena hands out tensors from one piece of memory in stack order and never frees single ones. A measuring arena has no
// memory: it only finds the peak, so that a real one can be made of exactly that size.
type Arena struct {
	name      string
	buf       Buf
	size      int // bytes; 0 when measuring
	top, peak int
	measuring bool
	released  func(Tensor) // called with every released range (tests poison it), may be nil
}

// arenaAlign is the alignment of every tensor in bytes: a cache line and the widest vector register.
const arenaAlign = 64

// NewArena makes an arena over buf of the given size; name occurs in its errors.
func NewArena(name string, buf Buf, bytes int) *Arena {
	return &Arena{name: name, buf: buf, size: bytes}
}

// NewMeasuringArena makes an arena without memory for a recording pass: Alloc never fails and Peak tells what a real
// one needs.
func NewMeasuringArena(name string) *Arena { return &Arena{name: name, measuring: true} }

// OnRelease registers f, which is called with every range that Release gives back, as a u8 tensor. Package deferred
// poisons it there.
func (a *Arena) OnRelease(f func(Tensor)) { a.released = f }

// Alloc returns an uninitialized contiguous tensor. It panics with *ArenaError when the arena is full: sizes are
// planned, so that is a bug in the plan.
func (a *Arena) Alloc(dtype DType, shape ...int) Tensor {
	n := dtype.Size()
	for _, s := range shape {
		n *= s
	}
	from := a.top
	top := from + (n+arenaAlign-1)/arenaAlign*arenaAlign
	if !a.measuring && top > a.size {
		panic(&ArenaError{Name: a.name, Need: top, Have: a.size})
	}
	a.top, a.peak = top, max(a.peak, top)
	if a.measuring {
		return NewTensor(Buf{}, dtype, shape...)
	}
	return NewTensor(a.buf.Piece(from, n), dtype, shape...)
}

// Mark returns the current top of the stack.
func (a *Arena) Mark() int { return a.top }

// Release gives back everything allocated since mark. Those tensors must not be used by later calls of the same stream.
func (a *Arena) Release(mark int) {
	if mark > a.top {
		panic(&ArenaError{Name: a.name, Need: mark, Have: a.top})
	}
	if a.released != nil && !a.measuring && a.top > mark {
		a.released(NewTensor(a.buf.Piece(mark, a.top-mark), U8, a.top-mark))
	}
	a.top = mark
}

// Peak returns the largest number of bytes that were in use at once.
func (a *Arena) Peak() int { return a.peak }

func (a *Arena) Measuring() bool { return a.measuring }

// ArenaError is the panic value of a full arena.
type ArenaError struct {
	Name       string
	Need, Have int // bytes
}

// Error names the arena, the bytes needed and the bytes available.
func (e *ArenaError) Error() string {
	return fmt.Sprintf("arena %s: needs %d bytes, has %d", e.Name, e.Need, e.Have)
}
