package ref

import (
	"math"

	"patchbay/engine"
)

// standardise computes (v-mean)*rsqrt(var+eps) in place; var is the mean squared deviation.
func standardise(v []float64, eps float32) {
	mean, variance := 0.0, 0.0
	for _, x := range v {
		mean += x
	}
	mean /= float64(len(v))
	for _, x := range v {
		variance += (x - mean) * (x - mean)
	}
	scale := 1 / math.Sqrt(variance/float64(len(v))+float64(eps))
	for c, x := range v {
		v[c] = (x - mean) * scale
	}
}

// rms computes v*rsqrt(mean(v^2)+eps) in place.
func rms(v []float64, eps float32) {
	scale := 1 / math.Sqrt(dot(v, v)/float64(len(v))+float64(eps))
	for c := range v {
		v[c] *= scale
	}
}

func (*Ops) LayerNorm(y, x, w, b engine.Tensor, eps float32) {
	engine.CheckLayerNorm(y, x, w, b)
	scale, shift := vector(w, x.Dim(-1), 1), vector(b, x.Dim(-1), 0)
	eachRow(y, x, func(_ int, v []float64) {
		standardise(v, eps)
		for c := range v {
			v[c] = v[c]*scale[c] + shift[c]
		}
	})
}

func (*Ops) AdaLN(y, x, shift, scale engine.Tensor, eps float32) {
	engine.CheckAdaLN(y, x, shift, scale)
	shifts, scales := modulation(shift, x.Dim(0), x.Dim(2), 0), modulation(scale, x.Dim(0), x.Dim(2), 0)
	eachRow(y, x, func(i int, v []float64) {
		add, mul := shifts[i/x.Dim(1)], scales[i/x.Dim(1)]
		standardise(v, eps)
		for c := range v {
			v[c] = v[c]*(1+mul[c]) + add[c]
		}
	})
}

func (*Ops) RMSNorm(y, x, w engine.Tensor, eps float32) {
	engine.CheckRMSNorm(y, x, w)
	scale := vector(w, x.Dim(-1), 1)
	eachRow(y, x, func(_ int, v []float64) {
		rms(v, eps)
		for c := range v {
			v[c] *= scale[c]
		}
	})
}

func (*Ops) QKNormRoPE(dq, dk, dv, q, k, v engine.Tensor, n engine.QKNorm, r engine.RoPE) {
	engine.CheckQKNormRoPE(dq, dk, dv, q, k, v, n, r)
	if !q.IsZero() {
		normRotate(dq, q, n.Kind, n.QScale, n.QBias, n.Eps, r)
	}
	normRotate(dk, k, n.Kind, n.KScale, n.KBias, n.Eps, r)
	if !v.IsZero() {
		eachRow(dv, v, func(int, []float64) {})
	}
}

// normRotate is QKNormRoPE for one of queries and keys, [B, L, H, D].
func normRotate(dst, src engine.Tensor, kind engine.NormKind, w, b engine.Tensor, eps float32, r engine.RoPE) {
	l, h, d := src.Dim(1), src.Dim(2), src.Dim(3)
	scale, shift := vector(w, d, 1), vector(b, d, 0)
	eachRow(dst, src, func(i int, v []float64) {
		switch kind {
		case engine.RMSNorm:
			rms(v, eps)
		case engine.LayerNorm:
			standardise(v, eps)
		}
		for c := range v {
			v[c] = v[c]*scale[c] + shift[c]
		}
		if !r.Cos.IsZero() {
			rotate(v, r, i/h%l)
		}
	})
}

// rotate turns the pairs (2i, 2i+1) of v by the angles of token l.
func rotate(v []float64, r engine.RoPE, l int) {
	cos, sin := make([]float64, len(v)/2), make([]float64, len(v)/2)
	load(cos, r.Cos, rowStart(r.Cos, l))
	load(sin, r.Sin, rowStart(r.Sin, l))
	for i := range cos {
		a, b := v[2*i], v[2*i+1]
		v[2*i], v[2*i+1] = a*cos[i]-b*sin[i], a*sin[i]+b*cos[i]
	}
}
