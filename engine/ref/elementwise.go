package ref

import (
	"math"

	"patchbay/engine"
)

// activate applies act to every element of v.
func activate(v []float64, act engine.Act) {
	switch act {
	case engine.GELUTanh:
		for i, x := range v {
			v[i] = 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
		}
	case engine.GELUErf:
		for i, x := range v {
			v[i] = 0.5 * x * math.Erfc(-x/math.Sqrt2)
		}
	case engine.SiLU:
		for i, x := range v {
			v[i] = x / (1 + math.Exp(-x))
		}
	case engine.QuickGELU:
		for i, x := range v {
			v[i] = x / (1 + math.Exp(-1.702*x))
		}
	case engine.ReLU:
		for i, x := range v {
			v[i] = max(x, 0)
		}
	case engine.Sigmoid:
		for i, x := range v {
			v[i] = 1 / (1 + math.Exp(-x))
		}
	}
}

func (*Ops) Activate(y, x engine.Tensor, act engine.Act) {
	engine.CheckActivate(y, x, act)
	eachRow(y, x, func(_ int, v []float64) { activate(v, act) })
}

func (*Ops) ActivateMul(y, a, b engine.Tensor, act engine.Act) {
	engine.CheckActivateMul(y, a, b, act)
	eachRow(y, a, func(i int, v []float64) {
		activate(v, act)
		line := make([]float64, len(v))
		load(line, b, rowStart(b, i))
		for c := range v {
			v[c] *= line[c]
		}
	})
}

func (*Ops) Add(y, a, b engine.Tensor) {
	engine.CheckAdd(y, a, b)
	if !engine.SameShape(a, b) {
		if b.Dim(1) != a.Dim(1) {
			b = b.Broadcast(1, a.Dim(1))
		}
		b = b.Slice(0, 0, 1).Broadcast(0, a.Dim(0))
	}
	eachRow(y, a, func(i int, v []float64) {
		line := make([]float64, len(v))
		load(line, b, rowStart(b, i))
		for c := range v {
			v[c] += line[c]
		}
	})
}

func (*Ops) GatedAdd(y, x, gate, r, bias engine.Tensor) {
	engine.CheckGatedAdd(y, x, gate, r, bias)
	offset := vector(bias, x.Dim(2), 0)
	gates := modulation(gate, x.Dim(0), x.Dim(2), 1)
	eachRow(y, x, func(i int, v []float64) {
		g := gates[i/x.Dim(1)]
		line := make([]float64, len(v))
		load(line, r, rowStart(r, i))
		for c := range v {
			v[c] += g[c] * (line[c] + offset[c])
		}
	})
}

// eachRow loads every row of x, lets f change it and stores it to the same row of y; y may be x.
func eachRow(y, x engine.Tensor, f func(i int, v []float64)) {
	spread(rows(x), x.Dim(-1), func(lo, hi int) {
		v := make([]float64, x.Dim(-1))
		for i := lo; i < hi; i++ {
			load(v, x, rowStart(x, i))
			f(i, v)
			store(y, rowStart(y, i), v)
		}
	})
}
