package engine

import "fmt"

// weightType reports whether weights and the tables of Gather may be stored as d. Weights may also be I8.
func weightType(d DType) bool { return d <= F8E5M2 }

// maxDepth8 is the largest K for which a sum of products of 8-bit numbers, one of them offset by 128, cannot overflow
// an int32.
const maxDepth8 = 65536

// CheckPack returns an error unless m is a matrix whose rows lie inside m.Data and c (channels of a convolution, 0 for
// none) divides K. Unlike the other checks it does not panic: a matrix comes from a file.
func CheckPack(m Matrix, c int) error {
	row := m.Row
	if row == 0 {
		row = m.K
	}
	switch {
	case !weightType(m.DType) && m.DType != I8:
		return fmt.Errorf("pack: dtype %s is no weight type (allowed: f32, bf16, f16, f8_e4m3, f8_e5m2, i8)", m.DType)
	case m.DType == I8 && (len(m.Scales) != m.N || c != 0 || m.K > maxDepth8):
		return fmt.Errorf("pack: matrix [%d, %d] of i8 has %d factors and %d channels, want one for each row, none and "+
			"K <= %d", m.N, m.K, len(m.Scales), c, maxDepth8)
	case m.DType != I8 && (m.Scales != nil || m.Rotated != 0):
		return fmt.Errorf("pack: only i8 has factors of rows and rotations, not %s", m.DType)
	case m.N < 0 || m.K < 0 || row < m.K:
		return fmt.Errorf("pack: matrix [%d, %d] with rows %d elements apart", m.N, m.K, row)
	case c < 0 || c > 0 && m.K%c != 0:
		return fmt.Errorf("pack: %d channels do not divide K = %d", c, m.K)
	}
	if rule := RotationRule(m.Rotated, m.K); rule != "" {
		return fmt.Errorf("pack: matrix [%d, %d] rotated in groups of %d: %s", m.N, m.K, m.Rotated, rule)
	}
	if b := m.Blocks; b != nil && (m.DType > BF16 || c != 0 || m.K%b.Elements != 0 || row%b.Elements != 0) {
		return fmt.Errorf("pack: matrix [%d, %d] of %s with rows %d elements apart and %d channels: want rows of whole "+
			"blocks of %d, no channels, and bf16 or f32 to widen to", m.N, m.K, b.Name, row, c, b.Elements)
	}
	if need := m.rowBytes((m.N-1)*row) + m.rowBytes(m.K); m.N > 0 && len(m.Data) < need {
		return fmt.Errorf("pack: matrix [%d, %d] of %s needs %d bytes, got %d", m.N, m.K, m.DType, need, len(m.Data))
	}
	return nil
}

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
