package gguf

import (
	"fmt"

	"patchbay/engine"
)

// Type is how the elements of a tensor are stored; the values are those of the file format (enum ggml_type).
type Type uint32

// The types that this package can widen; the format writes Q4v0 as Q4_0 and Q4K as Q4_K. Files may also hold others
// (see Type.String), which only Entry.Data gives access to.
const (
	F32  Type = 0
	F16  Type = 1
	Q4v0 Type = 2 // f16 scale; 4 bits an element
	Q4v1 Type = 3 // f16 scale and minimum; 4 bits
	Q5v0 Type = 6
	Q5v1 Type = 7
	Q8v0 Type = 8
	Q2K  Type = 10 // the K types: blocks of 256 elements with one scale per 16 or 32
	Q3K  Type = 11
	Q4K  Type = 12
	Q5K  Type = 13
	Q6K  Type = 14
	I8   Type = 24
	I16  Type = 25
	I32  Type = 26
	I64  Type = 27
	F64  Type = 28
	BF16 Type = 30
)

// layout is the storage of one type: size bytes hold block elements that follow each other in a row.
type layout struct {
	name        string
	block, size int
	widen       func(dst []float32, src []byte) // whole blocks; nil when the type is not widened here
}

// layouts returns the types of the format, indexed by number; sizes are those of the block structs of ggml. Types
// without a constant above are not widened; their sizes are needed to check files that contain them.
func layouts() [40]layout {
	return [...]layout{
		F32:  {"F32", 1, 4, plain(engine.F32)},
		F16:  {"F16", 1, 2, plain(engine.F16)},
		BF16: {"BF16", 1, 2, plain(engine.BF16)},
		F64:  {"F64", 1, 8, plain(engine.F64)},
		I8:   {"I8", 1, 1, plain(engine.I8)},
		I16:  {"I16", 1, 2, widenI16},
		I32:  {"I32", 1, 4, plain(engine.I32)},
		I64:  {"I64", 1, 8, plain(engine.I64)},
		Q4v0: {"Q4_0", 32, 18, widenQ4v0},
		Q4v1: {"Q4_1", 32, 20, widenQ4v1},
		Q5v0: {"Q5_0", 32, 22, widenQ5v0},
		Q5v1: {"Q5_1", 32, 24, widenQ5v1},
		Q8v0: {"Q8_0", 32, 34, widenQ8v0},
		Q2K:  {"Q2_K", 256, 84, widenQ2K},
		Q3K:  {"Q3_K", 256, 110, widenQ3K},
		Q4K:  {"Q4_K", 256, 144, widenQ4K},
		Q5K:  {"Q5_K", 256, 176, widenQ5K},
		Q6K:  {"Q6_K", 256, 210, widenQ6K},
		9:    {"Q8_1", 32, 36, nil},
		15:   {"Q8_K", 256, 292, nil},
		16:   {"IQ2_XXS", 256, 66, nil},
		17:   {"IQ2_XS", 256, 74, nil},
		18:   {"IQ3_XXS", 256, 98, nil},
		19:   {"IQ1_S", 256, 50, nil},
		20:   {"IQ4_NL", 32, 18, nil},
		21:   {"IQ3_S", 256, 110, nil},
		22:   {"IQ2_S", 256, 82, nil},
		23:   {"IQ4_XS", 256, 136, nil},
		29:   {"IQ1_M", 256, 56, nil},
		34:   {"TQ1_0", 256, 54, nil},
		35:   {"TQ2_0", 256, 66, nil},
		39:   {"MXFP4", 32, 17, nil},
	}
}

// lookup returns the layout of t; the block is 0 when the format has no such type.
func lookup(t Type) layout {
	if all := layouts(); t < Type(len(all)) {
		return all[t]
	}
	return layout{}
}

// String returns the name that the format gives the type, e.g. "Q4_K".
func (t Type) String() string {
	if l := lookup(t); l.block > 0 {
		return l.name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// Block returns how many elements share a block and the bytes of one block; 1 and the element size for plain types, 0
// and 0 for types that the format does not have.
func (t Type) Block() (elements, bytes int) {
	l := lookup(t)
	return l.block, l.size
}

// Blocks returns the type as matrices refer to it, or nil for plain types and those that this package cannot widen.
func (t Type) Blocks() *engine.Blocks {
	l := lookup(t)
	if l.block < 2 || l.widen == nil {
		return nil
	}
	return &engine.Blocks{Name: l.name, Elements: l.block, Bytes: l.size, Widen: l.widen}
}

// Widens reports whether this package can turn the type into floats.
func (t Type) Widens() bool { return lookup(t).widen != nil }
