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
	case m.DType == I8 && m.Scale != 0 && m.Scale != 1:
		return fmt.Errorf("pack: matrix [%d, %d] of i8 has Scale %g (allowed: 0 or 1, its rows have Scales)", m.N, m.K,
			m.Scale)
	case m.DType != I8 && (m.Rotated != 0 || m.Unrounded):
		return fmt.Errorf("pack: only i8 has rotations, not %s", m.DType)
	case m.DType != I8 && m.Scales != nil &&
		(!m.narrow() || len(m.Scales) != m.N || c != 0 || m.Scale != 0 && m.Scale != 1):
		return fmt.Errorf("pack: matrix [%d, %d] of %s has %d factors, Scale %g and %d channels: only narrow forms have "+
			"factors, one for each row, and then no Scale and no channels", m.N, m.K, m.DType, len(m.Scales), m.Scale, c)
	case m.Inputs != nil && (!m.Blocks.Factors() || len(m.Inputs) != m.K || c != 0):
		return fmt.Errorf("pack: matrix [%d, %d] of %s has %d factors of inputs and %d channels: only narrow blocks have "+
			"factors, one for each input, and then no channels", m.N, m.K, m.DType, len(m.Inputs), c)
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

// CheckLinear panics unless the operands fit Ops.Linear.
func CheckLinear(y, x Tensor, w *Weight, e Epilogue) {
	if rule := linearRule(y, x, w, e); rule != "" {
		failProduct("Linear", rule, y, x, w, e.Residual, e.Gate)
	}
}

func failProduct(op, rule string, y, x Tensor, w *Weight, residual, gate Tensor) {
	shapes, bias := Tensor{}, Tensor{}
	if w != nil {
		bias = w.Bias
	}
	if w != nil && w.Base != nil {
		shapes = NewTensor(Buf{}, w.Base.DType, w.N(), w.K())
		rule += " (weight " + w.Name + ")"
	}
	fail(op, rule, "y x w bias residual gate", y, x, shapes, bias, residual, gate)
}

func linearRule(y, x Tensor, w *Weight, e Epilogue) string {
	if rule := productRule(y, x, w, e.Residual); rule != "" {
		return rule
	}
	batch := 1
	if x.rank == 3 {
		batch = x.shape[0]
	}
	switch {
	case x.rank != 2 && x.rank != 3:
		return "x must be [B, L, K] or [L, K]"
	case y.rank != x.rank || x.shape[0] != y.shape[0] || x.rank == 3 && x.shape[1] != y.shape[1]:
		return "x and y must have the same rows"
	case x.Dim(-1) != w.K():
		return "the last dimension of x must be K of the weight"
	case y.Dim(-1) != w.N():
		return "the last dimension of y must be N of the weight"
	case e.Act > Sigmoid:
		return "unknown activation"
	case !modulation(e.Gate, batch, w.N()):
		return "gate must be [G, N] f32, G dividing B"
	}
	return ""
}

// productRule checks what holds for the operands of any product with a weight.
func productRule(y, x Tensor, w *Weight, residual Tensor) string {
	if rule := reshaped(y, x); rule != "" {
		return rule
	}
	if w == nil || w.Base == nil {
		return "weight is absent"
	}
	if !vector(w.Bias, w.N()) {
		return "bias must be [N] f32"
	}
	if b := w.BiasBF16; !b.IsZero() && (w.Bias.IsZero() || b.DType != BF16 || b.rank != 1 || b.shape[0] != w.N() ||
		!b.RowContiguous()) {
		return "the bias in bf16 must be [N] bf16 beside a bias"
	}
	for _, a := range w.Adapters {
		if a.Down == nil || a.Up == nil || a.Down.K != w.K() || a.Up.N != w.N() || a.Down.N != a.Up.K {
			return "an adapter must have down [R, K] and up [N, R]"
		}
	}
	if Overlaps(y, x) {
		return "y must not alias x"
	}
	if rule := like(residual, y); rule != "" && !residual.IsZero() {
		return "residual: " + rule
	}
	return ""
}

// CheckGather panics unless the operands fit Ops.Gather and every id is a row of the table.
func CheckGather(y, table Tensor, ids []int32) {
	rule := output(y)
	switch {
	case rule != "":
	case y.rank != 2 || table.rank != 2 || y.shape[1] != table.shape[1]:
		rule = "y must be [L, E] and table [V, E]"
	case y.shape[0] != len(ids):
		rule = "y must have one row an id"
	case !weightType(table.DType):
		rule = "table must be f32, bf16, f16 or fp8"
	case !table.RowContiguous():
		rule = "the last dimension must be contiguous"
	case Overlaps(y, table):
		rule = "y must not alias the table"
	}
	for _, id := range ids {
		if rule == "" && (id < 0 || int(id) >= table.shape[0]) {
			rule = "ids must be in [0, V)"
		}
	}
	if rule != "" {
		fail("Gather", rule, "y table", y, table)
	}
}

// CheckMeanRows panics unless the operands fit Ops.MeanRows.
func CheckMeanRows(y, x Tensor) {
	rule := reshaped(y, x)
	switch {
	case rule != "":
	case x.rank != 3 || y.rank != 2 || x.shape[0] != y.shape[0] || x.shape[2] != y.shape[1]:
		rule = "x must be [B, L, E] and y [B, E]"
	case x.shape[1] == 0:
		rule = "L must be at least 1"
	case Overlaps(y, x):
		rule = "y must not alias x"
	}
	if rule != "" {
		fail("MeanRows", rule, "y x", y, x)
	}
}
