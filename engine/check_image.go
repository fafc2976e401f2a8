package engine

// CheckConv2D panics unless the operands fit Ops.Conv2D.
func CheckConv2D(y, x Tensor, w *Weight, a ConvArgs) {
	if rule := convRule(y, x, w, a); rule != "" {
		failProduct("Conv2D", rule, y, x, w, a.Residual, Tensor{})
	}
}

func convRule(y, x Tensor, w *Weight, a ConvArgs) string {
	if rule := productRule(y, x, w, a.Residual); rule != "" {
		return rule
	}
	switch {
	case w.Base.DType == I8 || w.Base.Blocks != nil:
		return "weights of 8 bits and in blocks are for Linear"
	case x.rank != 4 || y.rank != 4 || x.shape[0] != y.shape[0]:
		return "x must be [B, Y, X, C] and y [B, Y', X', N]"
	case a.KY < 1 || a.KX < 1 || a.Stride < 1:
		return "KY, KX and Stride must be at least 1"
	case min(a.Top, a.Bottom, a.Left, a.Right) < 0:
		return "padding must not be negative"
	case w.K() != a.KY*a.KX*x.shape[3]:
		return "K of the weight must be KY*KX*C"
	case w.N() != y.shape[3]:
		return "the last dimension of y must be N of the weight"
	case y.shape[1] != convSize(x.shape[1]+a.Top+a.Bottom, a.KY, a.Stride) ||
		y.shape[2] != convSize(x.shape[2]+a.Left+a.Right, a.KX, a.Stride):
		return "Y' must be (Y+Top+Bottom-KY)/Stride+1, X' likewise"
	}
	return ""
}

// convSize returns the number of kernel positions in n padded pixels, 0 when the kernel does not fit.
func convSize(n, kernel, stride int) int {
	if n < kernel {
		return 0
	}
	return (n-kernel)/stride + 1
}

// CheckGroupNormStats panics unless the operands fit Ops.GroupNormStats.
func CheckGroupNormStats(stats, x Tensor, groups int) {
	rule := activation(x, x)
	if rule == "" {
		rule = groupRule(stats, x)
	}
	if rule == "" && stats.shape[1] != groups {
		rule = "stats must be [B, G, 2] f64"
	}
	if rule != "" {
		fail("GroupNormStats", rule, "stats x", stats, x)
	}
}

// CheckGroupNormApply panics unless the operands fit Ops.GroupNormApply.
func CheckGroupNormApply(y, x, stats, w, b Tensor, count int, act Act) {
	rule := pair(y, x)
	if rule == "" {
		rule = groupRule(stats, x)
	}
	switch {
	case rule != "":
	case w.IsZero() || b.IsZero() || !vector(w, x.shape[3]) || !vector(b, x.shape[3]):
		rule = "w and b must be [C] f32"
	case count < 1:
		rule = "count must be at least 1"
	case act > Sigmoid:
		rule = "unknown activation"
	}
	if rule != "" {
		fail("GroupNormApply", rule, "y x stats w b", y, x, stats, w, b)
	}
}

func groupRule(stats, x Tensor) string {
	switch {
	case x.rank != 4:
		return "x must be [B, Y, X, C]"
	case stats.rank != 3 || stats.DType != F64 || stats.shape[0] != x.shape[0] || stats.shape[2] != 2 ||
		!stats.RowContiguous():
		return "stats must be [B, G, 2] f64"
	case stats.shape[1] < 1 || x.shape[3]%stats.shape[1] != 0:
		return "groups must divide the channels"
	}
	return ""
}

// CheckUpsample2x panics unless the operands fit Ops.Upsample2x.
func CheckUpsample2x(y, x Tensor) {
	rule := reshaped(y, x)
	switch {
	case rule != "":
	case x.rank != 4 || y.rank != 4 || y.shape[0] != x.shape[0] || y.shape[1] != 2*x.shape[1] ||
		y.shape[2] != 2*x.shape[2] || y.shape[3] != x.shape[3]:
		rule = "x must be [B, Y, X, C] and y [B, 2Y, 2X, C]"
	case Overlaps(y, x):
		rule = "y must not alias x"
	}
	if rule != "" {
		fail("Upsample2x", rule, "y x", y, x)
	}
}
