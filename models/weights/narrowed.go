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

// Rounded returns the same tensors rounded to an fp8 type: all that hold plain numbers, vectors too, to the nearest,
// ties to even, as ComfyUI's weight_dtype does. What is too large is no number any more (E5M2: infinite).
func (s *Set) Rounded(d engine.DType) *Set {
	return s.view(func(name string, t Stored) (string, Stored, bool) {
		if t.DType != d && t.DType <= engine.F8E5M2 && t.Plain() {
			t = t.as(d)
		}
		return name, t, true
	})
}

// Plain reports whether the numbers of s are stored one by one, without scales.
func (s Stored) Plain() bool {
	return s.packed == nil && s.Scales == nil && s.inputs == nil && (s.Scale == 0 || s.Scale == 1)
}

// Unrounded returns the same tensors for models that multiply i8 matrices, as bf16, by activations that are not
// quantized: text encoders.
func (s *Set) Unrounded() *Set {
	return s.view(func(name string, t Stored) (string, Stored, bool) {
		t.unrounded = t.DType == engine.I8
		return name, t, true
	})
}

// Dequantized returns the same tensors with i8 matrices widened to d (f32 or bf16), for comparisons.
func (s *Set) Dequantized(d engine.DType) *Set {
	return s.view(func(name string, t Stored) (string, Stored, bool) {
		if t.DType == engine.I8 && t.usable() {
			t = t.as(d)
		}
		return name, t, true
	})
}
