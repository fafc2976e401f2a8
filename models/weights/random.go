package weights

import "patchbay/engine"

// Random makes the tensors of a model without a file, for measuring: bf16 numbers from -1/32 to 1/32 that all tensors
// share, so that a model of any size takes the memory of its largest tensor.
func Random(list []Declared) *Set {
	most := int64(0)
	for _, d := range list {
		most = max(most, d.Params())
	}
	const period = 1<<16 + 1 // prime: rows of a matrix differ
	values := make([]float32, period)
	state := uint32(1)
	for i := range values {
		state = state*1664525 + 1013904223 // Numerical Recipes, 3rd edition, 7.1.4
		values[i] = float32(int32(state)) / (1 << 36)
	}
	size := engine.BF16.Size()
	data := make([]byte, size*max(int(most), period))
	engine.Narrow(data[:size*period], values, engine.BF16)
	for have := size * period; have < len(data); have *= 2 {
		copy(data[have:], data[:have])
	}
	tensors := make(map[string]Stored, len(list))
	for _, d := range list {
		tensors[d.Name] = Stored{DType: engine.BF16, Shape: d.Shape, Data: data[:size*int(d.Params())]}
	}
	return FromMap(tensors)
}
