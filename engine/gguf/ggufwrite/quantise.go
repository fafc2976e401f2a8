package ggufwrite

import (
	"encoding/binary"
	"fmt"
	"math"

	"patchbay/engine"
	"patchbay/engine/gguf"
)

// Quantise encodes values, which must fill whole blocks, as F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K or Q6_K. It panics
// for other types.
func Quantise(kind gguf.Type, values []float32) []byte {
	plain := map[gguf.Type]engine.DType{gguf.F32: engine.F32, gguf.F16: engine.F16, gguf.BF16: engine.BF16}
	if d, ok := plain[kind]; ok {
		out := make([]byte, len(values)*d.Size())
		engine.Narrow(out, values, d)
		return out
	}
	pack, ok := map[gguf.Type]func([]byte, []float32) []byte{
		gguf.Q8v0: q8, gguf.Q4v0: q4, gguf.Q4K: q4k, gguf.Q5K: q5k,
		gguf.Q6K: q6k,
	}[kind]
	block, _ := kind.Block()
	if !ok || len(values)%block != 0 {
		panic(fmt.Sprintf("ggufwrite: %d values as %s", len(values), kind))
	}
	var out []byte
	for at := 0; at < len(values); at += block {
		out = pack(out, values[at:at+block])
	}
	return out
}

// Widen returns all elements of e as bytes of d (f32, bf16, f16). It panics for a type that cannot be widened.
func Widen(e gguf.Tensor, d engine.DType) []byte {
	out := make([]byte, e.Len()*d.Size())
	if err := e.Range(out, 0, e.Len(), d); err != nil {
		panic(err)
	}
	return out
}

// half appends v as f16 and returns the rounded value with the buffer.
func half(b []byte, v float32) ([]byte, float32) {
	h := engine.F16FromF32(v)
	return binary.LittleEndian.AppendUint16(b, h), engine.F32FromF16(h)
}

// step returns v in units of d, rounded and clamped.
func step(v, d float32, low, high int) int {
	if d == 0 {
		return max(low, min(0, high))
	}
	return max(low, min(high, int(math.RoundToEven(float64(v/d)))))
}

func extent(v []float32) (low, high float32) {
	for _, x := range v {
		low, high = min(low, x), max(high, x)
	}
	return low, high
}

func q8(b []byte, v []float32) []byte {
	low, high := extent(v)
	b, d := half(b, max(high, -low)/127)
	for _, x := range v {
		b = append(b, byte(int8(step(x, d, -127, 127))))
	}
	return b
}

func q4(b []byte, v []float32) []byte {
	low, high := extent(v)
	b, d := half(b, max(high, -low)/7)
	for i := range 16 {
		b = append(b, byte(step(v[i], d, -8, 7)+8|(step(v[i+16], d, -8, 7)+8)<<4))
	}
	return b
}

// groups appends the head of a Q4_K or Q5_K block: two f16 factors and 12 bytes of scales and minima. It also returns
// the steps 0..top of all 256 values.
func groups(b []byte, v []float32, top int) ([]byte, [256]int) {
	var scale, low [8]float32
	for g := range 8 {
		l, h := extent(v[32*g : 32*g+32])
		scale[g], low[g] = (h-l)/float32(top), -l
	}
	_, most := extent(scale[:])
	_, deep := extent(low[:])
	b, d := half(b, most/63)
	b, dmin := half(b, deep/63)
	var packed [12]byte
	var steps [256]int
	for g := range 8 {
		s, m := step(scale[g], d, 0, 63), step(low[g], dmin, 0, 63)
		if g < 4 {
			packed[g] |= byte(s)
			packed[g+4] |= byte(m)
		} else {
			packed[g+4] = byte(s&15 | m&15<<4)
			packed[g-4] |= byte(s >> 4 << 6)
			packed[g] |= byte(m >> 4 << 6)
		}
		for i := range 32 {
			steps[32*g+i] = step(v[32*g+i]+dmin*float32(m), d*float32(s), 0, top)
		}
	}
	return append(b, packed[:]...), steps
}

// nibbles appends the low 4 bits of 256 steps. Of every 64, the first 32 go to the low halves of 32 bytes and the other
// 32 to the high halves.
func nibbles(b []byte, steps [256]int) []byte {
	for at := 0; at < 256; at += 64 {
		for i := range 32 {
			b = append(b, byte(steps[at+i]&15|steps[at+32+i]&15<<4))
		}
	}
	return b
}

func q4k(b []byte, v []float32) []byte {
	b, steps := groups(b, v, 15)
	return nibbles(b, steps)
}

func q5k(b []byte, v []float32) []byte {
	b, steps := groups(b, v, 31)
	var fifth [32]byte
	for i, s := range steps {
		fifth[i%32] |= byte(s >> 4 << (i / 32))
	}
	return nibbles(append(b, fifth[:]...), steps)
}

func q6k(b []byte, v []float32) []byte {
	var scale [16]float32
	for g := range scale {
		l, h := extent(v[16*g : 16*g+16])
		scale[g] = max(h, -l) / 31
	}
	_, most := extent(scale[:])
	d := engine.F32FromF16(engine.F16FromF32(most / 127))
	var low [128]byte
	var high [64]byte
	var scales [16]byte
	for g := range scale {
		s := step(scale[g], d, 0, 127)
		scales[g] = byte(s)
		for i := range 16 {
			q := step(v[16*g+i], d*float32(s), -32, 31) + 32
			// In each half of 128 elements, quarters 0 and 1 fill the low nibbles of 64 bytes, 2 and 3 the high
			// nibbles. The upper 2 bits of all quarters share 32 bytes.
			half, at := g/8, g%8*16+i
			low[64*half+at%64] |= byte(q & 15 << (at / 64 * 4))
			high[32*half+at%32] |= byte(q >> 4 << (at / 32 * 2))
		}
	}
	b = append(append(append(b, low[:]...), high[:]...), scales[:]...)
	b, _ = half(b, most/127)
	return b
}
