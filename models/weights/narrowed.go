package weights

import "patchbay/engine"

// Narrowed returns the same tensors with matrices and convolutions of f32 rounded to bf16 as they are read, for devices
// that multiply those much faster. Vectors stay as they are.
func (s *Set) Narrowed() *Set {
	out := make(map[string]Stored, len(s.tensors))
	for name, t := range s.tensors {
		if from := t; t.DType == engine.F32 && len(t.Shape) > 1 {
			t.DType, t.Data, t.Scale = engine.BF16, nil, 0
			t.make = func(dst []byte, lo, hi int) {
				v := make([]float32, min(hi-lo, wideChunk))
				for at := lo; at < hi; at += len(v) {
					v = v[:min(len(v), hi-at)]
					from.wide(v, at)
					engine.Narrow(dst[2*(at-lo):], v, engine.BF16)
				}
			}
		}
		out[name] = t
	}
	return FromMap(out)
}
