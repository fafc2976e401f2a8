package weights

import "patchbay/engine"

// Narrowed returns the same tensors with matrices and convolutions of f32 rounded to bf16 as they are read, for devices
// that multiply those much faster. Vectors stay as they are.
func (s *Set) Narrowed() *Set {
	out := make(map[string]Stored, len(s.tensors))
	for name, t := range s.tensors {
		if t.DType == engine.F32 && len(t.Shape) > 1 {
			t = t.as(engine.BF16)
		}
		out[name] = t
	}
	return FromMap(out)
}

// Widened returns the same tensors with matrices of i8 as d (f32 or bf16), for what multiplies them with activations
// that are not rounded: text encoders.
func (s *Set) Widened(d engine.DType) *Set {
	out := make(map[string]Stored, len(s.tensors))
	for name, t := range s.tensors {
		if t.DType == engine.I8 && t.usable() {
			t = t.as(d)
		}
		out[name] = t
	}
	return FromMap(out)
}
