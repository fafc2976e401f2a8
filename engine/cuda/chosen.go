//go:build cgo

package cuda

// chosen counts what was computed which way: products of linear layers and convolutions by cuBLASLt and by our kernels,
// shapes for which the two disagree, products with f16 weights that meet bf16 activations; attention by cuDNN and by
// our kernels, shapes that cuDNN has no plan for, and shapes for which the two disagree.
type chosen struct {
	library, own, refused, rounded                int64
	attended, attendedOwn, unplanned, misattended int64
}

// Chosen implements engine.Chooser.
func (o *Ops) Chosen() map[string]int64 {
	return map[string]int64{
		"linear by cuBLASLt": o.chosen.library, "linear by own kernels": o.chosen.own,
		"shapes that cuBLASLt gets wrong": o.chosen.refused, "products that lose 3 bits of f16": o.chosen.rounded,
		"attention by cuDNN": o.chosen.attended, "attention by own kernels": o.chosen.attendedOwn,
		"shapes without a plan of cuDNN": o.chosen.unplanned, "shapes that cuDNN gets wrong": o.chosen.misattended,
		"evaluations by graphs": o.graphs.count.launched, "graphs that CUDA refuses": o.graphs.count.refused,
	}
}
