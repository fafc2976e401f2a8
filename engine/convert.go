package engine

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"
)

// F32FromBF16 widens a bfloat16 (the upper half of an f32); exact.
func F32FromBF16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// BF16FromF32 rounds to the nearest bfloat16, ties to even. Too large values become infinite, NaN stays NaN.
func BF16FromF32(v float32) uint16 {
	bits := math.Float32bits(v)
	if v != v {
		return uint16(bits>>16) | 0x40 // keep it a NaN when the payload was in the lower half
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

// F32FromF16 widens an IEEE 754 binary16; exact.
func F32FromF16(h uint16) float32 {
	sign, rest := uint32(h&0x8000)<<16, uint32(h&0x7fff)<<13
	if rest >= 31<<23 { // infinity and NaN keep their mantissa
		return math.Float32frombits(sign | rest | 0xff<<23)
	}
	// 2^112 moves the exponent bias from 15 to 127 and makes subnormals normal, without a branch.
	return math.Float32frombits(sign | math.Float32bits(math.Float32frombits(rest)*0x1p112))
}

// F16FromF32 rounds to the nearest IEEE 754 binary16, ties to even. Too large values become infinite, NaN stays NaN.
func F16FromF32(v float32) uint16 { return narrow(v, 10, -14, 0x7c00) }

// F32FromF8E4M3 widens an 8-bit float of format E4M3FN (arXiv:2209.05433, table 1: no infinities, largest 448, NaN 0x7f
// and 0xff); exact.
func F32FromF8E4M3(b uint8) float32 {
	sign, rest := uint32(b&0x80)<<24, uint32(b&0x7f)
	if rest == 0x7f {
		return math.Float32frombits(sign | 0x7fc00000)
	}
	return math.Float32frombits(sign | math.Float32bits(math.Float32frombits(rest<<20)*0x1p120))
}

// F8E4M3FromF32 rounds to the nearest E4M3FN value, ties to even. Magnitudes above 464 (where rounding would leave the
// range) become NaN, like PyTorch's float8_e4m3fn.
func F8E4M3FromF32(v float32) uint8 {
	n := narrow(v, 3, -6, 0x7f)
	return uint8(n>>8&0x80 | n&0x7f)
}

// F32FromF8E5M2 widens an 8-bit float of format E5M2 (arXiv:2209.05433, table 1: the upper half of a binary16); exact.
func F32FromF8E5M2(b uint8) float32 { return F32FromF16(uint16(b) << 8) }

// F8E5M2FromF32 rounds to the nearest E5M2 value, ties to even. Too large values become infinite, NaN stays NaN.
func F8E5M2FromF32(v float32) uint8 {
	n := narrow(v, 2, -14, 0x7c)
	return uint8(n>>8&0x80 | n&0x7f)
}

// narrow rounds v to a small float with mant stored mantissa bits and least normal exponent emin. inf is the code for
// infinity and for values that are too large. The sign is bit 15.
func narrow(v float32, mant, emin int, inf uint16) uint16 {
	sign := uint16(math.Float32bits(v) >> 16 & 0x8000)
	x := math.Abs(float64(v))
	switch {
	case x != x:
		return sign | inf | 1<<(mant-1) | inf&1 // quiet bit; a format without infinities has its only NaN at inf
	case x == 0:
		return sign
	case math.IsInf(x, 0):
		return sign | inf
	}
	e := max(math.Ilogb(x), emin)
	q := math.RoundToEven(math.Ldexp(x, mant-e)) // exact before rounding: f64 has 29 bits to spare
	// q carries the implicit bit, so that subnormals, carries into the next exponent and the largest value need no case of
	// their own.
	code := (e-emin)<<mant + int(q)
	if code >= int(inf) {
		return sign | inf
	}
	return sign | uint16(code)
}

// Widen converts len(dst) elements of type d (f32, bf16, f16, fp8, f64, integers), little-endian and at any alignment,
// to f32. src must hold at least that many elements.
func Widen(dst []float32, src []byte, d DType) {
	if len(src) < len(dst)*d.Size() {
		panic(&ShapeError{
			Op: "Widen", Rule: fmt.Sprintf("%d elements of %s need %d bytes", len(dst), d, len(dst)*d.Size()),
			Shapes: fmt.Sprintf("%d bytes", len(src)),
		})
	}
	switch d {
	case F32:
		copy(f32Bytes(dst), src)
	case BF16:
		for i := range dst {
			dst[i] = F32FromBF16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case F16:
		for i := range dst {
			dst[i] = F32FromF16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case F8E4M3:
		for i := range dst {
			dst[i] = F32FromF8E4M3(src[i])
		}
	case F8E5M2:
		for i := range dst {
			dst[i] = F32FromF8E5M2(src[i])
		}
	case F64:
		for i := range dst {
			dst[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(src[8*i:])))
		}
	default:
		widenInts(dst, src, d)
	}
}

// f32Bytes views v as bytes. Hosts are little-endian, like the files; Tensor.F32 relies on that too.
func f32Bytes(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}

// widenInts is Widen for the integer types.
func widenInts(dst []float32, src []byte, d DType) {
	switch d {
	case I32:
		for i := range dst {
			dst[i] = float32(int32(binary.LittleEndian.Uint32(src[4*i:])))
		}
	case I64:
		for i := range dst {
			dst[i] = float32(int64(binary.LittleEndian.Uint64(src[8*i:])))
		}
	case U8:
		for i := range dst {
			dst[i] = float32(src[i])
		}
	case I8:
		for i := range dst {
			dst[i] = float32(int8(src[i]))
		}
	default:
		panic(&ShapeError{Op: "Widen", Rule: "known dtype", Shapes: d.String()})
	}
}

// Narrow converts src to floats of type d (f32, bf16, f16, fp8), little-endian, rounding to nearest even. dst must be
// large enough.
func Narrow(dst []byte, src []float32, d DType) {
	if len(dst) < len(src)*d.Size() {
		panic(&ShapeError{
			Op: "Narrow", Rule: fmt.Sprintf("%d elements of %s need %d bytes", len(src), d, len(src)*d.Size()),
			Shapes: fmt.Sprintf("%d bytes", len(dst)),
		})
	}
	switch d {
	case F32:
		copy(dst, f32Bytes(src))
	case BF16:
		for i, v := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], BF16FromF32(v))
		}
	case F16:
		for i, v := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], F16FromF32(v))
		}
	case F8E4M3:
		for i, v := range src {
			dst[i] = F8E4M3FromF32(v)
		}
	case F8E5M2:
		for i, v := range src {
			dst[i] = F8E5M2FromF32(v)
		}
	default:
		panic(&ShapeError{Op: "Narrow", Rule: "float dtype f32, bf16, f16, f8_e4m3 or f8_e5m2", Shapes: d.String()})
	}
}
