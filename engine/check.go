package engine

import (
	"slices"
	"strings"
	"unsafe"
)

// The checks in check*.go are shared by all implementations of Ops: each method first calls the check of its name. They
// panic with *ShapeError and do not allocate if the operands are valid.

// fail panics with a *ShapeError that lists the operands ts. names are their names, separated by spaces; absent
// operands are left out.
func fail(op, rule, names string, ts ...Tensor) {
	var parts []string
	for i, name := range strings.Fields(names) {
		if !ts[i].IsZero() {
			parts = append(parts, name+" "+ts[i].String())
		}
	}
	panic(&ShapeError{Op: op, Rule: rule, Shapes: strings.Join(parts, ", ")})
}

// SameShape reports whether a and b have the same dimensions.
func SameShape(a, b Tensor) bool {
	return a.rank == b.rank && slices.Equal(a.shape[:a.rank], b.shape[:b.rank])
}

// RowContiguous reports whether the elements of the last dimension are neighbors in memory.
func (t Tensor) RowContiguous() bool {
	return t.rank > 0 && (t.shape[t.rank-1] <= 1 || t.stride[t.rank-1] == 1)
}

// extent returns the address of the first byte and the address past the last byte; both are 0 for tensors without
// elements or memory.
func (t Tensor) extent() (lo, hi uint64) {
	if t.Len() == 0 || t.IsZero() {
		return 0, 0
	}
	switch {
	case t.Buf.Host != nil:
		lo = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(t.Buf.Host))))
	case t.Buf.Dev != 0:
		lo = t.Buf.Dev
	default:
		return 0, 0
	}
	last := t.Off
	for i := range t.rank {
		last += (t.shape[i] - 1) * t.stride[i]
	}
	size := t.DType.Size()
	return lo + uint64(t.Off*size), lo + uint64((last+1)*size)
}

// Overlaps reports whether a and b certainly share memory. Strided views that interleave (q, k, v of one buffer) count
// as separate unless they start at the same element.
func Overlaps(a, b Tensor) bool {
	aLo, aHi := a.extent()
	bLo, bHi := b.extent()
	if aLo >= bHi || bLo >= aHi {
		return false
	}
	return aLo == bLo || (a.Contiguous() && b.Contiguous())
}

// activation returns the rule that t breaks as an activation in the same call as y, or "".
func activation(t, y Tensor) string {
	switch {
	case t.IsZero():
		return "operand is absent"
	case t.DType != F32 && t.DType != BF16:
		return "activations are f32 or bf16"
	case t.DType != y.DType:
		return "activations of one call have one dtype"
	case !t.RowContiguous():
		return "the last dimension must be contiguous"
	}
	return ""
}

// output returns the rule that y breaks as the output of a call, or "".
func output(y Tensor) string {
	if repeated(y) {
		return "an output must not be broadcast"
	}
	return activation(y, y)
}

// repeated reports whether several elements of t share one place in memory.
func repeated(t Tensor) bool {
	for i := range t.rank {
		if t.stride[i] == 0 && t.shape[i] > 1 && t.Len() > 0 {
			return true
		}
	}
	return false
}

// like returns the rule that x breaks as an operand of the dtype and shape of y, or "".
func like(x, y Tensor) string {
	if rule := activation(x, y); rule != "" {
		return rule
	}
	if !SameShape(x, y) {
		return "operands must have the same shape"
	}
	return ""
}

// pair checks an output y and an input x of equal shape, the commonest case.
func pair(y, x Tensor) string {
	if rule := output(y); rule != "" {
		return rule
	}
	return like(x, y)
}

// reshaped checks an output y and an input x of another shape.
func reshaped(y, x Tensor) string {
	if rule := output(y); rule != "" {
		return rule
	}
	return activation(x, y)
}

// vector reports whether t is absent or an f32 vector of n elements.
func vector(t Tensor, n int) bool {
	return t.IsZero() || t.DType == F32 && t.rank == 1 && t.shape[0] == n && t.RowContiguous()
}

// modulation reports whether t is absent or [G, E] f32 where G divides b.
func modulation(t Tensor, b, e int) bool {
	return t.IsZero() || t.DType == F32 && t.rank == 2 && t.shape[0] > 0 && b%t.shape[0] == 0 &&
		t.shape[1] == e && t.RowContiguous()
}

// CheckUpload panics unless dst is contiguous f32 or bf16 of n elements.
func CheckUpload(dst Tensor, n int) { checkTransfer("Upload", dst, n) }

// CheckDownload panics unless src is contiguous f32 or bf16 of n elements.
func CheckDownload(n int, src Tensor) { checkTransfer("Download", src, n) }

func checkTransfer(op string, t Tensor, n int) {
	switch {
	case t.IsZero() || t.DType != F32 && t.DType != BF16 || !t.Contiguous():
		fail(op, "the tensor must be contiguous f32 or bf16", "t", t)
	case t.Len() != n:
		fail(op, "the slice must have as many elements as the tensor", "t", t)
	}
}

// CheckCopy panics unless dst and src have equal shapes, are f32 or bf16 or of equal dtype, and do not overlap.
func CheckCopy(dst, src Tensor) {
	convertible := (dst.DType == F32 || dst.DType == BF16) && (src.DType == F32 || src.DType == BF16)
	switch {
	case dst.IsZero() || !SameShape(dst, src):
		fail("Copy", "dst and src must have the same shape", "dst src", dst, src)
	case dst.DType != src.DType && !convertible:
		fail("Copy", "dtypes must be f32 or bf16, or equal", "dst src", dst, src)
	case Overlaps(dst, src):
		fail("Copy", "dst and src must not overlap", "dst src", dst, src)
	case repeated(dst):
		fail("Copy", "an output must not be broadcast", "dst src", dst, src)
	}
}

// CheckFill panics unless dst is f32 or bf16 with a contiguous last dimension.
func CheckFill(dst Tensor) {
	if rule := output(dst); rule != "" {
		fail("Fill", rule, "dst", dst)
	}
}

// CheckLayerNorm panics unless the operands fit Ops.LayerNorm.
func CheckLayerNorm(y, x, w, b Tensor) {
	rule := pair(y, x)
	if rule == "" && (!vector(w, x.Dim(-1)) || !vector(b, x.Dim(-1))) {
		rule = "w and b must be [E] f32"
	}
	if rule != "" {
		fail("LayerNorm", rule, "y x w b", y, x, w, b)
	}
}

// CheckRMSNorm panics unless the operands fit Ops.RMSNorm.
func CheckRMSNorm(y, x, w Tensor) {
	rule := pair(y, x)
	if rule == "" && !vector(w, x.Dim(-1)) {
		rule = "w must be [E] f32"
	}
	if rule != "" {
		fail("RMSNorm", rule, "y x w", y, x, w)
	}
}

// CheckAdaLN panics unless the operands fit Ops.AdaLN.
func CheckAdaLN(y, x, shift, scale Tensor) {
	rule := pair(y, x)
	switch {
	case rule != "":
	case x.rank != 3:
		rule = "x must be [B, L, E]"
	case !modulation(shift, x.shape[0], x.shape[2]) || !modulation(scale, x.shape[0], x.shape[2]):
		rule = "shift and scale must be [G, E] f32, G dividing B"
	}
	if rule != "" {
		fail("AdaLN", rule, "y x shift scale", y, x, shift, scale)
	}
}

// CheckGatedAdd panics unless the operands fit Ops.GatedAdd.
func CheckGatedAdd(y, x, gate, r, bias Tensor) {
	rule := pair(y, x)
	if rule == "" {
		rule = activation(r, y)
	}
	switch {
	case rule != "":
	case x.rank != 3 || !SameShape(x, r):
		rule = "x, r and y must be [B, L, E] and of one shape"
	case !modulation(gate, x.shape[0], x.shape[2]):
		rule = "gate must be [G, E] f32, G dividing B"
	case !vector(bias, x.shape[2]):
		rule = "bias must be [E] f32"
	}
	if rule != "" {
		fail("GatedAdd", rule, "y x gate r bias", y, x, gate, r, bias)
	}
}

// CheckAdd panics unless the operands fit Ops.Add.
func CheckAdd(y, a, b Tensor) {
	rule := pair(y, a)
	if rule == "" {
		rule = activation(b, y)
	}
	switch {
	case rule != "" || SameShape(a, b):
	case a.rank != 3 || b.rank != 3 || b.shape[0] != 1 || b.shape[1] != 1 && b.shape[1] != a.shape[1] ||
		b.shape[2] != a.shape[2]:
		rule = "b must have the shape of a, or be [1, L, E] or [1, 1, E]"
	}
	if rule == "" && !SameShape(a, b) && Overlaps(y, b) {
		rule = "y must not alias a repeated b"
	}
	if rule != "" {
		fail("Add", rule, "y a b", y, a, b)
	}
}

// CheckActivate panics unless the operands fit Ops.Activate.
func CheckActivate(y, x Tensor, act Act) {
	rule := pair(y, x)
	if rule == "" && act > Sigmoid {
		rule = "unknown activation"
	}
	if rule != "" {
		fail("Activate", rule, "y x", y, x)
	}
}

// CheckActivateMul panics unless the operands fit Ops.ActivateMul.
func CheckActivateMul(y, a, b Tensor, act Act) {
	rule := pair(y, a)
	if rule == "" {
		rule = pair(y, b)
	}
	if rule == "" && act > Sigmoid {
		rule = "unknown activation"
	}
	if rule != "" {
		fail("ActivateMul", rule, "y a b", y, a, b)
	}
}
