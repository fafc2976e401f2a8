package forecast

// stack adds up allocations of an arena in stack order.
type stack struct {
	value     int // bytes of one activation
	top, peak int64
}

// alloc allocates n activations.
func (s *stack) alloc(n int) { s.take(n, s.value) }

// f32 allocates n values that are f32 whatever the activations are: tables, vectors, modulations.
func (s *stack) f32(n int) { s.take(n, 4) }

// take allocates n values of the given size in bytes, rounded up as engine.Arena does.
func (s *stack) take(n, bytes int) {
	const align = 64
	s.top += (int64(n)*int64(bytes) + align - 1) / align * align
	s.peak = max(s.peak, s.top)
}

// f32Scratch allocates f32 values and releases them.
func (s *stack) f32Scratch(sizes ...int) {
	mark := s.top
	for _, n := range sizes {
		s.f32(n)
	}
	s.top = mark
}

// projected returns the size of the f32 temporary for a result of n activations, 0 where activations are f32
// themselves.
func (s *stack) projected(n int) int {
	if s.value == 4 {
		return 0
	}
	return n
}

// scratch allocates activations and releases them.
func (s *stack) scratch(sizes ...int) {
	mark := s.top
	for _, n := range sizes {
		s.alloc(n)
	}
	s.top = mark
}
