//go:build cgo

package cpu

import (
	"math"
	"unsafe"

	"patchbay/engine"
)

// Quantise stores rows in 8 bits; see engine.Ops. Go is fast enough: a call handles the rows of one micro-step, which
// attention then reads many times.
func (o *Ops) Quantise(q, scale, x engine.Tensor) {
	engine.CheckQuantise(q, scale, x)
	o.eachQuantised(q, scale, x, func(codes []byte, s *float32, row unsafe.Pointer, bf16 bool) {
		top := uint32(0) // magnitudes are ordered like their bits, NaN above all
		var wide []uint32
		var narrow []uint16
		if bf16 {
			narrow = unsafe.Slice((*uint16)(row), len(codes))
			for _, v := range narrow {
				top = max(top, uint32(v&0x7fff)<<16)
			}
		} else {
			wide = unsafe.Slice((*uint32)(row), len(codes))
			for _, v := range wide {
				top = max(top, v&0x7fffffff)
			}
		}
		switch *s = math.Float32frombits(top) / 448; {
		case top >= 0x7f800000:
			*s = float32(math.NaN())
			clear(codes)
		case *s < 0x1p-126:
			*s = 0
			clear(codes)
		case bf16:
			for i, v := range narrow {
				codes[i] = e4m3(engine.F32FromBF16(v) / *s)
			}
		default:
			for i, v := range wide {
				codes[i] = e4m3(math.Float32frombits(v) / *s)
			}
		}
	})
}

// e4m3 is engine.F8E4M3FromF32 of magnitudes below 464, without branches that depend on more than the exponent.
func e4m3(v float32) byte {
	bits := math.Float32bits(v)
	sign, rest := byte(bits>>24)&0x80, bits&0x7fffffff
	if rest < 121<<23 { // below 2^-6 the step is 2^-9: adding 2^14 rounds to even and leaves the code in the last bits
		return sign | byte(math.Float32bits(math.Float32frombits(rest)+0x1p14))
	}
	return sign | byte((rest+0x7ffff+rest>>20&1)>>20-120<<3)
}

// Dequantise widens rows that Quantise has stored; see engine.Ops.
func (o *Ops) Dequantise(y, q, scale engine.Tensor) {
	engine.CheckDequantise(y, q, scale)
	o.eachQuantised(q, scale, y, func(codes []byte, s *float32, row unsafe.Pointer, bf16 bool) {
		if bf16 {
			dst := unsafe.Slice((*uint16)(row), len(codes))
			for i, c := range codes {
				dst[i] = engine.BF16FromF32(o.e4m3[c] * *s)
			}
			return
		}
		dst := unsafe.Slice((*float32)(row), len(codes))
		for i, c := range codes {
			dst[i] = o.e4m3[c] * *s
		}
	})
}

// eachQuantised calls do for every row of x with its 8-bit form and its scale.
func (o *Ops) eachQuantised(q, scale, x engine.Tensor,
	do func(codes []byte, s *float32, row unsafe.Pointer, bf16 bool),
) {
	if x.Len() == 0 {
		return
	}
	n, size, bf16 := x.Dim(-1), x.DType.Size(), x.DType == engine.BF16
	o.rowTasks(x.Len()/n, n, func(r0, r1 int) {
		for r := r0; r < r1; r++ {
			at, factor := q.Start(r, q.Dims()-1), scale.Start(r, scale.Dims())
			do(q.Buf.Host[at:at+n], (*float32)(unsafe.Pointer(&scale.Buf.Host[4*factor])),
				unsafe.Pointer(&x.Buf.Host[size*x.Start(r, x.Dims()-1)]), bf16)
		}
	})
}
