package engine

import (
	"encoding/binary"
	"math"
	"slices"
)

// Blocks is a narrow storage format: every Elements neighboring elements of a row share scales. The blocks of GGUF
// files are such formats, and so are fp8 and int8, whose block is one element. Backends that know a format by its name
// keep the blocks in memory and widen them when they multiply, others widen them in Pack; the values are the same.
type Blocks struct {
	Name            string // as the file format calls it, e.g. "Q4_K"
	Elements, Bytes int    // of one block
	// Widen widens whole blocks: len(dst) is a multiple of Elements.
	Widen func(dst []float32, src []byte)
}

// f8Blocks is the name of F8Blocks.
const f8Blocks = "f8_e4m3 in blocks"

// formsOfGGUF is how many of the forms are those of GGUF files.
const formsOfGGUF = 5

// Form returns the number of a format that backends can keep in blocks, from 1 on in the order of this list. It returns
// 0 for any other format and if b is nil.
func (b *Blocks) Form() int {
	if b == nil {
		return 0
	}
	return 1 + slices.Index([]string{
		"Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "f8_e4m3", "f8_e5m2", "nvfp4", "mxfp8", "i8", f8Blocks,
	}, b.Name)
}

// Factors reports whether a matrix in this format may have a Scale or Scales: processors have room for them in front of
// a panel, GPUs behind each row.
func (b *Blocks) Factors() bool { return b.Form() > formsOfGGUF }

// OnGPUs reports whether GPUs keep a matrix in this format too; the others become bf16 there.
func (b *Blocks) OnGPUs() bool { return b.Form() > 0 && b.Name != f8Blocks }

// narrow reports whether m is in a form other than I8 that may have Scales.
func (m *Matrix) narrow() bool {
	return m.DType == F8E4M3 || m.DType == F8E5M2 || m.Blocks.Factors()
}

// NVFP4 returns the format of two groups of 16 numbers of E2M1: an E4M3 scale for each group, then the numbers, two in
// a byte, the first one in the high half. A number times its scale is exact in bf16.
func NVFP4() *Blocks {
	minus0 := float32(math.Copysign(0, -1))
	codes := [16]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, minus0, -0.5, -1, -1.5, -2, -3, -4, -6}
	return &Blocks{Name: "nvfp4", Elements: 32, Bytes: 18, Widen: func(dst []float32, src []byte) {
		for len(dst) >= 32 {
			for i, b := range src[2:18] {
				scale := F32FromF8E4M3(src[i/8])
				dst[2*i], dst[2*i+1] = codes[b>>4]*scale, codes[b&15]*scale
			}
			dst, src = dst[32:], src[18:]
		}
	}}
}

// MXFP8 returns the format of two groups of 32 numbers of E4M3: a power of two for each group (E8M0), then the numbers.
// A number times its scale is exact in bf16.
func MXFP8() *Blocks {
	return &Blocks{Name: "mxfp8", Elements: 64, Bytes: 66, Widen: func(dst []float32, src []byte) {
		for len(dst) >= 64 {
			for i, b := range src[2:66] {
				dst[i] = F32FromF8E4M3(b) * F32FromBF16(uint16(src[i/32])<<7)
			}
			dst, src = dst[64:], src[66:]
		}
	}}
}

// F8Blocks returns the format of 128 numbers of E4M3 behind a scale in f32, which a number is multiplied with: rows of
// files with a scale for each block of 128 x 128 (arXiv:2412.19437, sec. 3.3.1), or for each 128 inputs of a row.
func F8Blocks() *Blocks {
	return &Blocks{Name: f8Blocks, Elements: 128, Bytes: 132, Widen: func(dst []float32, src []byte) {
		for len(dst) >= 128 {
			scale := math.Float32frombits(binary.LittleEndian.Uint32(src))
			for i, b := range src[4:132] {
				dst[i] = F32FromF8E4M3(b) * scale
			}
			dst, src = dst[128:], src[132:]
		}
	}}
}

const (
	// narrowUnit is the number of neighboring inputs of which backends widen fp8 and int8 at a time.
	narrowUnit = 8
	// narrowGroup is the largest group of rotated inputs that is turned back while it is widened.
	narrowGroup = 256
)

// StaysNarrow reports whether matrices of fp8 or unrounded int8 with k inputs, rotated in groups, stay as they are:
// unless k ends inside the 8 inputs that are widened at a time.
func StaysNarrow(d DType, k, rotated int) bool {
	return (d == F8E4M3 || d == F8E5M2 || d == I8) && k%narrowUnit == 0 && rotated <= narrowGroup
}

// Blocked returns m with fp8 and unrounded int8 as blocks of one element that become bf16, and widened to bf16 if int8,
// or fp8 with factors of rows, does not stay narrow. Other matrices, and fp8 of convolutions (c > 0 channels), are
// returned unchanged.
func (m Matrix) Blocked(c int) Matrix {
	d := m.DType
	switch {
	case m.Blocks != nil || c != 0 || d == I8 && !m.Unrounded:
	case StaysNarrow(d, m.K, m.Rotated):
		m.DType = BF16
		m.Blocks = &Blocks{
			Name: d.String(), Elements: 1, Bytes: 1, Widen: func(dst []float32, src []byte) { Widen(dst, src, d) },
		}
	case m.Scales != nil:
		return m.Widened(BF16)
	}
	return m
}
