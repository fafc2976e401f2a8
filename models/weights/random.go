package weights

import "patchbay/engine"

// Random returns tensors of a model without a file, for benchmarks: bf16 numbers from -1/32 to 1/32, repeating with a
// prime period. They are generated on demand.
func Random(list []Declared) *Set {
	const period = 1<<16 + 1
	values := make([]float32, period)
	state := uint32(1)
	for i := range values {
		state = state*1664525 + 1013904223 // Numerical Recipes, 3rd edition, 7.1.4
		values[i] = float32(int32(state)) / (1 << 36)
	}
	size := engine.BF16.Size()
	block := make([]byte, size*period)
	engine.Narrow(block, values, engine.BF16)
	fill := func(dst []byte, lo, _ int) {
		for at := size * (lo % period); len(dst) > 0; at = 0 {
			dst = dst[copy(dst, block[at:]):]
		}
	}
	tensors := make(map[string]Stored, len(list))
	for _, d := range list {
		tensors[d.Name] = Stored{DType: engine.BF16, Shape: d.Shape, make: fill}
	}
	return FromMap(tensors)
}
