package engine

import (
	"math"
	"testing"
)

// format describes a small float format by its bits, independently of the code under test.
type format struct {
	name       string
	exp, mant  int
	finiteOnly bool // e4m3fn: no infinities, the all-ones code is NaN
	decode     func(uint16) float32
	encode     func(float32) uint16
}

func formats() []format {
	wide := func(f func(uint8) float32) func(uint16) float32 {
		return func(v uint16) float32 { return f(uint8(v)) }
	}
	return []format{
		{"bf16", 8, 7, false, F32FromBF16, BF16FromF32},
		{"f16", 5, 10, false, F32FromF16, F16FromF32},
		{"f8_e4m3", 4, 3, true, wide(F32FromF8E4M3), func(v float32) uint16 { return uint16(F8E4M3FromF32(v)) }},
		{"f8_e5m2", 5, 2, false, wide(F32FromF8E5M2), func(v float32) uint16 { return uint16(F8E5M2FromF32(v)) }},
	}
}

// value decodes code by the definition: (-1)^s 2^(e-bias) 1.m, or (-1)^s 2^(1-bias) 0.m for e = 0.
func (f format) value(code int) float64 {
	bias := 1<<(f.exp-1) - 1
	sign, e, m := code>>(f.exp+f.mant), code>>f.mant&(1<<f.exp-1), code&(1<<f.mant-1)
	v := math.Ldexp(1+float64(m)/float64(int(1)<<f.mant), e-bias)
	all := 1<<f.exp - 1
	switch {
	case e == 0:
		v = math.Ldexp(float64(m)/float64(int(1)<<f.mant), 1-bias)
	case f.finiteOnly && e == all && m == 1<<f.mant-1:
		v = math.NaN()
	case !f.finiteOnly && e == all && m == 0:
		v = math.Inf(1)
	case !f.finiteOnly && e == all:
		v = math.NaN()
	}
	if sign == 1 {
		return math.Copysign(v, -1)
	}
	return v
}

func TestEveryCodeDecodesByDefinitionAndSurvives(t *testing.T) {
	for _, f := range formats() {
		for code := range 1 << (1 + f.exp + f.mant) {
			want, got := f.value(code), float64(f.decode(uint16(code)))
			if math.Float64bits(got) != math.Float64bits(want) && !(got != got && want != want) {
				t.Fatalf("%s: code %#x: got %g, want %g", f.name, code, got, want)
			}
			back := f.encode(float32(got))
			if want != want {
				if again := f.decode(back); again == again {
					t.Fatalf("%s: NaN code %#x became %g", f.name, code, again)
				}
				continue
			}
			if int(back) != code {
				t.Fatalf("%s: code %#x came back as %#x", f.name, code, back)
			}
		}
	}
}

// TestRoundingAtEveryMidpoint checks that the midpoint of every two neighboring values rounds to the even code, and the
// f32 numbers just beside it to the nearer code.
func TestRoundingAtEveryMidpoint(t *testing.T) {
	for _, f := range formats() {
		signBit := uint16(1) << (f.exp + f.mant)
		for code := uint16(0); ; code++ {
			low, high := f.value(int(code)), f.value(int(code)+1)
			last := math.IsInf(high, 0) || high != high
			if last { // beyond the largest value, extrapolate
				high = low + (low - f.value(int(code)-1))
			}
			mid := float32((low + high) / 2)
			if float64(mid) != (low+high)/2 {
				t.Fatalf("%s: midpoint behind code %#x is no f32", f.name, code)
			}
			even := code + code&1
			for v, want := range map[float32]uint16{
				mid: even, math.Nextafter32(mid, 0): code, math.Nextafter32(mid, float32(math.Inf(1))): code + 1,
			} {
				if got := f.encode(v); got != want {
					t.Fatalf("%s: %g between codes %#x and %#x: got %#x, want %#x", f.name, v, code, code+1, got, want)
				}
				if got := f.encode(-v); got != want|signBit {
					t.Fatalf("%s: %g: got %#x, want %#x", f.name, -v, got, want|signBit)
				}
			}
			if last {
				break
			}
		}
		for _, v := range []float32{math.MaxFloat32, float32(math.Inf(1)), float32(math.Inf(-1))} {
			got := float64(f.decode(f.encode(v)))
			if f.finiteOnly && got == got || !f.finiteOnly && got != math.Inf(int(math.Copysign(1, float64(v)))) {
				t.Errorf("%s: %g became %g", f.name, v, got)
			}
		}
	}
}

func TestWidenAndNarrow(t *testing.T) {
	src := []float32{1, -2, 0.5, 3}
	for _, d := range []DType{F32, BF16, F16, F8E4M3, F8E5M2} {
		raw := make([]byte, 1+4*d.Size()) // odd address
		Narrow(raw[1:], src, d)
		got := make([]float32, 4)
		Widen(got, raw[1:], d)
		for i := range src {
			if got[i] != src[i] {
				t.Errorf("%s: element %d: got %g, want %g", d, i, got[i], src[i])
			}
		}
	}
	ints := []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	for d, want := range map[DType]float32{I64: -2, I32: -2, U8: 254} {
		got := make([]float32, 1)
		Widen(got, ints, d)
		if got[0] != want {
			t.Errorf("%s: got %g, want %g", d, got[0], want)
		}
	}
	double := make([]float32, 1)
	if Widen(double, []byte{0, 0, 0, 0, 0, 0, 0xf8, 0xbf}, F64); double[0] != -1.5 {
		t.Errorf("f64: got %g, want -1.5", double[0])
	}
	for name, f := range map[string]func(){
		"short source":      func() { Widen(double, make([]byte, 3), F32) },
		"short destination": func() { Narrow(make([]byte, 1), src, BF16) },
		"narrow to ints":    func() { Narrow(make([]byte, 64), src, I32) },
		"widen unknown":     func() { Widen(double, make([]byte, 64), 200) },
	} {
		if err := recovered(f); err == nil {
			t.Errorf("%s: no *ShapeError", name)
		}
	}
}

// recovered returns the *ShapeError that f panics with, or nil if f returns.
func recovered(f func()) (err *ShapeError) {
	defer func() {
		if p := recover(); p != nil {
			err = p.(*ShapeError)
		}
	}()
	f()
	return nil
}
