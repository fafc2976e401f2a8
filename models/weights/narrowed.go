package weights

import "patchbay/engine"

// For returns the same tensors for activations of type d: where that is bf16, matrices and convolutions of f32 are
// rounded to it as they are read, since devices multiply those much faster. Vectors stay as they are.
func (s *Set) For(d engine.DType) *Set {
	if d != engine.BF16 {
		return s
	}
	return s.view(func(name string, t Stored) (string, Stored, bool) {
		if t.DType == engine.F32 && len(t.Shape) > 1 {
			t = t.as(engine.BF16)
		}
		return name, t, true
	})
}

// Widened returns the same tensors with matrices of i8 as d (f32 or bf16), for what multiplies them with activations
// that are not rounded: text encoders.
func (s *Set) Widened(d engine.DType) *Set {
	return s.view(func(name string, t Stored) (string, Stored, bool) {
		if t.DType == engine.I8 && t.usable() {
			t = t.as(d)
		}
		return name, t, true
	})
}
