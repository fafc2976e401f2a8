package engine

import "slices"

// CheckQuantise panics unless the operands fit Ops.Quantise.
func CheckQuantise(q, scale, x Tensor) {
	rule := activation(x, x)
	if rule == "" {
		rule = quantised(q, scale, x)
	}
	if rule == "" && (repeated(q) || repeated(scale)) {
		rule = "an output must not be broadcast"
	}
	if rule != "" {
		fail("Quantise", rule, "q scale x", q, scale, x)
	}
}

// CheckDequantise panics unless the operands fit Ops.Dequantise.
func CheckDequantise(y, q, scale Tensor) {
	rule := output(y)
	if rule == "" {
		rule = quantised(q, scale, y)
	}
	if rule != "" {
		fail("Dequantise", rule, "y q scale", y, q, scale)
	}
}

// quantised returns the rule that q and scale break as the 8-bit form of x, or "".
func quantised(q, scale, x Tensor) string {
	switch {
	case q.IsZero() || scale.IsZero():
		return "operand is absent"
	case q.DType != F8E4M3 || !q.RowContiguous():
		return "q must be f8_e4m3 with a contiguous last dimension"
	case !SameShape(q, x):
		return "q must have the shape of the activations"
	case scale.DType != F32 || x.Dims() < 2 || !slices.Equal(scale.Shape(), x.Shape()[:x.Dims()-1]):
		return "scale must be f32, one for each row: the shape without the last dimension"
	case Overlaps(q, x) || Overlaps(scale, x) || Overlaps(q, scale):
		return "operands must not overlap"
	}
	return ""
}
