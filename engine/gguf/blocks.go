package gguf

import (
	"encoding/binary"

	"patchbay/engine"
)

// The functions here widen whole blocks: len(dst) is a multiple of the block size, src holds their blocks,
// little-endian. Byte positions are those of the block structs in ggml-common.h. In blocks of 32 with 4-bit parts, byte
// j holds element j in its low half and element j+16 in its high half.

func half(b []byte) float32 { return engine.F32FromF16(binary.LittleEndian.Uint16(b)) }

// plain widens elements of a type of the engine.
func plain(d engine.DType) func(dst []float32, src []byte) {
	return func(dst []float32, src []byte) { engine.Widen(dst, src, d) }
}

func widenI16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = float32(int16(binary.LittleEndian.Uint16(src[2*i:])))
	}
}

// widenQ8v0: scale d (f16), 32 signed bytes q; x = q d.
func widenQ8v0(dst []float32, src []byte) {
	for len(dst) >= 32 {
		d, q, x := half(src), src[2:34], dst[:32]
		for i := range x {
			x[i] = float32(int8(q[i])) * d
		}
		dst, src = dst[32:], src[34:]
	}
}

// widenQ4v0: scale d (f16), 16 bytes of 4-bit q; x = (q - 8) d.
func widenQ4v0(dst []float32, src []byte) {
	for len(dst) >= 32 {
		d, q, x := half(src), src[2:18], dst[:32]
		for i, b := range q {
			x[i] = float32(int(b&15)-8) * d
			x[i+16] = float32(int(b>>4)-8) * d
		}
		dst, src = dst[32:], src[18:]
	}
}

// widenQ4v1: scale d and minimum m (f16), 16 bytes of 4-bit q; x = q d + m.
func widenQ4v1(dst []float32, src []byte) {
	for len(dst) >= 32 {
		d, m, q, x := half(src), half(src[2:]), src[4:20], dst[:32]
		for i, b := range q {
			x[i] = float32(float32(b&15)*d) + m
			x[i+16] = float32(float32(b>>4)*d) + m
		}
		dst, src = dst[32:], src[20:]
	}
}

// fifth returns q with bit i of the 32 high bits as its bit 4.
func fifth(q byte, high uint32, i int) int { return int(q) | int(high>>i&1)<<4 }

// widenQ5v0: scale d (f16), 32 high bits, 16 bytes of 4-bit q; x = (q - 16) d.
func widenQ5v0(dst []float32, src []byte) {
	for len(dst) >= 32 {
		d, high, q, x := half(src), binary.LittleEndian.Uint32(src[2:]), src[6:22], dst[:32]
		for i, b := range q {
			x[i] = float32(fifth(b&15, high, i)-16) * d
			x[i+16] = float32(fifth(b>>4, high, i+16)-16) * d
		}
		dst, src = dst[32:], src[22:]
	}
}

// widenQ5v1: scale d and minimum m (f16), 32 high bits, 16 bytes of 4-bit q; x = q d + m.
func widenQ5v1(dst []float32, src []byte) {
	for len(dst) >= 32 {
		d, m, high, q, x := half(src), half(src[2:]), binary.LittleEndian.Uint32(src[4:]), src[8:24], dst[:32]
		for i, b := range q {
			x[i] = float32(float32(fifth(b&15, high, i))*d) + m
			x[i+16] = float32(float32(fifth(b>>4, high, i+16))*d) + m
		}
		dst, src = dst[32:], src[24:]
	}
}
