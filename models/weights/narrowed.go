package weights

import "patchbay/engine"

// For returns the same tensors for activations of type d. If d is bf16, f32 matrices and convolutions are rounded to
// bf16 as they are read, since devices multiply those much faster. Vectors are unchanged.
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

// Dequantized returns the same tensors with i8 matrices widened to d (f32 or bf16), for models that multiply them by
// activations that are not quantized: text encoders.
func (s *Set) Dequantized(d engine.DType) *Set {
	return s.view(func(name string, t Stored) (string, Stored, bool) {
		if t.DType == engine.I8 && t.usable() {
			t = t.as(d)
		}
		return name, t, true
	})
}
