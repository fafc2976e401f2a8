package engine

import "fmt"

// DType is the element type of a tensor or of a stored weight.
type DType uint8

// The element types. F8E5M2 occurs only in stored weights, F8E4M3 also in the output of Quantise (weights are widened
// on load). I8 occurs only in weights (see Matrix.Scales), I32, I64 and U8 only in file and index data, F64 only in
// file data and statistics.
const (
	F32 DType = iota
	BF16
	F16
	F8E4M3
	F8E5M2
	I32
	I64
	U8
	F64
	I8
)

// Size returns the bytes of one element.
func (d DType) Size() int {
	switch d {
	case F32, I32:
		return 4
	case BF16, F16:
		return 2
	case I64, F64:
		return 8
	default:
		return 1
	}
}

// String returns the lower-case name that logs, messages and the wire format use.
func (d DType) String() string {
	names := [...]string{"f32", "bf16", "f16", "f8_e4m3", "f8_e5m2", "i32", "i64", "u8", "f64", "i8"}
	if int(d) < len(names) {
		return names[d]
	}
	return fmt.Sprintf("dtype(%d)", uint8(d))
}
