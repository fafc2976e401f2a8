package safetensors

import (
	"encoding/binary"
	"fmt"

	"patchbay/engine"
	"patchbay/engine/datafile"
)

// Other is the DType of entries whose file type the engine does not compute with (I16, U16, U32, U64 and exotic
// floats); FileType names it.
const Other engine.DType = 255

// Tensor is one tensor of a file.
type Tensor struct {
	Name     string
	DType    engine.DType  // BOOL reads as U8, types unknown to the engine as Other
	FileType string        // dtype as the file spells it, e.g. "F8_E4M3"
	Shape    []int         // empty for a scalar
	Data     datafile.Span // row-major little-endian elements, readable until File.Close
}

// kind is what a dtype name of the format means.
type kind struct {
	name  string
	dtype engine.DType
	bits  int // of one element
}

// kinds lists the dtypes of the format in the order of the reference implementation (safetensors 0.7, enum Dtype),
// which sorts tensors by it.
func kinds() [22]kind {
	return [...]kind{
		{"BOOL", engine.U8, 8},
		{"F4", Other, 4},
		{"F6_E2M3", Other, 6},
		{"F6_E3M2", Other, 6},
		{"U8", engine.U8, 8},
		{"I8", engine.I8, 8},
		{"F8_E5M2", engine.F8E5M2, 8},
		{"F8_E4M3", engine.F8E4M3, 8},
		{"F8_E8M0", Other, 8},
		{"F8_E4M3FNUZ", Other, 8},
		{"F8_E5M2FNUZ", Other, 8},
		{"I16", Other, 16},
		{"U16", Other, 16},
		{"F16", engine.F16, 16},
		{"BF16", engine.BF16, 16},
		{"I32", engine.I32, 32},
		{"U32", Other, 32},
		{"F32", engine.F32, 32},
		{"C64", Other, 64},
		{"F64", engine.F64, 64},
		{"I64", engine.I64, 64},
		{"U64", Other, 64},
	}
}

// lookup returns the kind of that name and its place in kinds, -1 when there is none.
func lookup(name string) (kind, int) {
	for i, k := range kinds() {
		if k.name == name {
			return k, i
		}
	}
	return kind{}, -1
}

// Len returns the number of elements.
func (e Tensor) Len() int {
	n := 1
	for _, s := range e.Shape {
		n *= s
	}
	return n
}

// F32 returns a copy of the elements widened to f32 (f64 and large integers are rounded). It returns an error for
// exotic floats and complex numbers.
func (e Tensor) F32() ([]float32, error) {
	v, data := make([]float32, e.Len()), e.Data.Bytes()
	if e.DType != Other {
		engine.Widen(v, data, e.DType)
		return v, nil
	}
	for i := range v {
		switch e.FileType {
		case "I16":
			v[i] = float32(int16(binary.LittleEndian.Uint16(data[2*i:])))
		case "U16":
			v[i] = float32(binary.LittleEndian.Uint16(data[2*i:]))
		case "U32":
			v[i] = float32(binary.LittleEndian.Uint32(data[4*i:]))
		case "U64":
			v[i] = float32(binary.LittleEndian.Uint64(data[8*i:]))
		default:
			return nil, fmt.Errorf("tensor %q: dtype %s cannot be converted to f32", e.Name, e.FileType)
		}
	}
	return v, nil
}
