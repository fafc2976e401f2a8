package gguf

// The K types: blocks of 256 elements whose scales are themselves quantized, relative to one or two f16 factors per
// block (structs block_q2_K to block_q6_K in ggml-common.h). The conventions are those of blocks.go.

// widenQ2K: 16 bytes, each with the scale (low 4 bits) and the minimum (high 4) of 16 elements, 64 bytes of 2-bit q,
// factors d and dmin (f16); x = d scale q - dmin minimum. Each 32 bytes of q hold 128 elements, 32 per pair of bits.
func widenQ2K(dst []float32, src []byte) {
	for len(dst) >= 256 {
		scales, q, d, dmin := src[:16], src[16:80], half(src[80:]), half(src[82:])
		for g := range 16 { // groups of 16 elements
			scale, low := d*float32(scales[g]&15), dmin*float32(scales[g]>>4)
			from, shift, x := q[g/8*32+g%2*16:][:16], g/2%4*2, dst[g*16:][:16]
			for i, b := range from {
				x[i] = float32(scale*float32(b>>shift&3)) - low
			}
		}
		dst, src = dst[256:], src[84:]
	}
}

// widenQ3K: 32 bytes of high bits, 64 bytes of the low 2 bits, 12 bytes of 16 6-bit scales, factor d (f16); x = d
// (scale - 32) (q - 4). Bit g of high byte i belongs to element 32 g + i; the low bits lie as in Q2_K. The low 4 bits
// of the scales are the nibbles of bytes 0 to 7; their high 2 bits fill bytes 8 to 11, where byte 8+i has those of
// scales i, i+4, i+8 and i+12.
func widenQ3K(dst []float32, src []byte) {
	for len(dst) >= 256 {
		high, q, packed, d := src[:32], src[32:96], src[96:108], half(src[108:])
		for g := range 16 {
			scale := int(packed[g%8]>>(g/8*4)&15) | int(packed[8+g%4]>>(g/4*2)&3)<<4
			f := d * float32(scale-32)
			at, shift, x := g%2*16, g/2%4*2, dst[g*16:][:16]
			from, bits := q[g/8*32+at:][:16], high[at:][:16]
			for i, b := range from {
				x[i] = f * float32(int(b>>shift&3)+int(bits[i]>>(g/2)&1)*4-4)
			}
		}
		dst, src = dst[256:], src[110:]
	}
}

// scaleMin unpacks the 6-bit scale and minimum of group g (of 8) from the 12 bytes that Q4_K and Q5_K share: groups 0
// to 3 have their scale in bytes 0 to 3 and their minimum in bytes 4 to 7; groups 4 to 7 have their low 4 bits in bytes
// 8 to 11 (scale in the low nibble, minimum in the high one) and their upper 2 bits in the top bits of the bytes of
// groups 0 to 3.
func scaleMin(b []byte, g int) (scale, low float32) {
	if g < 4 {
		return float32(b[g] & 63), float32(b[g+4] & 63)
	}
	return float32(b[g+4]&15 | b[g-4]>>6<<4), float32(b[g+4]>>4 | b[g]>>6<<4)
}

// widenQ4K: factors d and dmin (f16), 12 bytes of scales and minima of the 8 groups of 32 elements, 128 bytes of 4-bit
// q; x = d scale q - dmin minimum. Each 32 bytes of q hold 64 elements: 32 in the low nibbles, then 32 in the high
// nibbles.
func widenQ4K(dst []float32, src []byte) {
	for len(dst) >= 256 {
		d, dmin, packed, q := half(src), half(src[2:]), src[4:16], src[16:144]
		for g := range 8 {
			scale, low := scaleMin(packed, g)
			scale, low = d*scale, dmin*low
			from, shift, x := q[g/2*32:][:32], g%2*4, dst[g*32:][:32]
			for i, b := range from {
				x[i] = float32(scale*float32(b>>shift&15)) - low
			}
		}
		dst, src = dst[256:], src[144:]
	}
}

// widenQ5K: as Q4_K with 32 bytes of fifth bits before q; bit g of byte i belongs to element 32 g + i.
func widenQ5K(dst []float32, src []byte) {
	for len(dst) >= 256 {
		d, dmin, packed, high, q := half(src), half(src[2:]), src[4:16], src[16:48], src[48:176]
		for g := range 8 {
			scale, low := scaleMin(packed, g)
			scale, low = d*scale, dmin*low
			from, shift, x := q[g/2*32:][:32], g%2*4, dst[g*32:][:32]
			for i, b := range from {
				x[i] = float32(scale*float32(b>>shift&15|high[i]>>g&1<<4)) - low
			}
		}
		dst, src = dst[256:], src[176:]
	}
}

// widenQ6K: 128 bytes of the low 4 bits, 64 bytes of the high 2 bits, 16 signed 8-bit scales, one per 16 elements,
// factor d (f16); x = d scale (q - 32). Each half of 128 elements has 64 bytes of low bits (its first 64 elements in
// the low nibbles, the others in the high nibbles) and 32 bytes of high bits.
func widenQ6K(dst []float32, src []byte) {
	for len(dst) >= 256 {
		low, high, scales, d := src[:128], src[128:192], src[192:208], half(src[208:])
		for g := range 16 {
			f := d * float32(int8(scales[g]))
			// Quarter g/2%4 of half g/8: the first two are the low nibbles of 64 bytes, the last two the high ones.
			quarter, at := g/2%4, g%2*16
			from, shift := low[g/8*64+quarter%2*32+at:][:16], quarter/2*4
			top, x := high[g/8*32+at:][:16], dst[g*16:][:16]
			for i, b := range from {
				x[i] = f * float32(int(b>>shift&15|top[i]>>(quarter*2)&3<<4)-32)
			}
		}
		dst, src = dst[256:], src[210:]
	}
}
