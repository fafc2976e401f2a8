package ref_test

import (
	"fmt"
	"math"
	"math/cmplx"
	"math/rand/v2"
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
)

// The tests of this file check ref against independent formulas: plain index loops in float64 over dense f32 operands.

// data returns n normal numbers.
func data(seed uint64, n int) []float32 {
	rng := rand.New(rand.NewPCG(seed, 7))
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(rng.NormFloat64())
	}
	return v
}

// near fails the test unless got and want agree to within a few f32 roundings of the largest value.
func near(t *testing.T, name string, got []float32, want []float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: got %d values, want %d", name, len(got), len(want))
	}
	largest := 0.0
	for _, w := range want {
		if !math.IsInf(w, 0) {
			largest = max(largest, math.Abs(w))
		}
	}
	for i, w := range want {
		if g := float64(got[i]); g != w && !(math.Abs(g-w) <= 2e-7*largest) {
			t.Fatalf("%s: element %d: got %.9g, want %.9g, error %.3g, bound %.3g", name, i, g, w, math.Abs(g-w), 2e-7*largest)
		}
	}
}

// pack packs row-major f32 values.
func pack(t *testing.T, v []float32, n, k int) *engine.Packed {
	t.Helper()
	b := make([]byte, 4*len(v))
	engine.Narrow(b, v, engine.F32)
	p, err := ref.New().Pack(engine.Matrix{Data: b, DType: engine.F32, N: n, K: k}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// act evaluates each activation by its definition: tanh and the logistic function from exponentials, the error function
// by quadrature.
func act(a engine.Act, x float64) float64 {
	logistic := func(z float64) float64 { return math.Exp(z) / (math.Exp(z) + 1) }
	switch a {
	case engine.GELUTanh:
		z := math.Sqrt(2/math.Pi) * (x + 0.044715*math.Pow(x, 3))
		return 0.5 * x * (1 + (math.Exp(z)-math.Exp(-z))/(math.Exp(z)+math.Exp(-z)))
	case engine.GELUErf: // x times the normal distribution function, integrated by Simpson's rule from 0
		const n = 2000
		sum, h := 0.0, x/n
		density := func(u float64) float64 { return math.Exp(-u*u/2) / math.Sqrt(2*math.Pi) }
		for i := range n / 2 {
			u := float64(2*i) * h
			sum += h / 3 * (density(u) + 4*density(u+h) + density(u+2*h))
		}
		return x * (0.5 + sum)
	case engine.SiLU:
		return x * logistic(x)
	case engine.QuickGELU:
		return x * logistic(1.702*x)
	case engine.ReLU:
		return math.Max(0, x)
	case engine.Sigmoid:
		return logistic(x)
	}
	return x
}

func TestActivations(t *testing.T) {
	x := make([]float32, 161)
	for i := range x {
		x[i] = float32(i-80) / 10
	}
	other := data(1, len(x))
	for a := engine.ActNone; a <= engine.Sigmoid; a++ {
		y, z := make([]float32, len(x)), make([]float32, len(x))
		ref.New().Activate(engine.FromF32(y, len(x)), engine.FromF32(x, len(x)), a)
		ref.New().ActivateMul(engine.FromF32(z, len(x)), engine.FromF32(x, len(x)), engine.FromF32(other, len(x)), a)
		want, wantMul := make([]float64, len(x)), make([]float64, len(x))
		for i := range x {
			want[i] = act(a, float64(x[i]))
			wantMul[i] = want[i] * float64(other[i])
		}
		near(t, fmt.Sprintf("Activate %d", a), y, want)
		near(t, fmt.Sprintf("ActivateMul %d", a), z, wantMul)
	}
}

func TestLinearWithEverything(t *testing.T) {
	const b, l, n, k, r = 4, 3, 70, 11, 2
	x, w, bias, res, gate := data(1, b*l*k), data(2, n*k), data(3, n), data(4, b*l*n), data(5, 2*n)
	down, up := data(6, r*k), data(7, n*r)
	y := make([]float32, b*l*n)
	weight := &engine.Weight{
		Base: pack(t, w, n, k), Bias: engine.FromF32(bias, n),
		Adapters: []engine.Adapter{{Down: pack(t, down, r, k), Up: pack(t, up, n, r), Scale: 0.5}},
	}
	for _, noBias := range []bool{false, true} {
		ref.New().Linear(engine.FromF32(y, b, l, n), engine.FromF32(x, b, l, k), weight,
			engine.Epilogue{
				Act: engine.SiLU, Residual: engine.FromF32(res, b, l, n),
				Gate: engine.FromF32(gate, 2, n), NoBias: noBias,
			})
		want := make([]float64, len(y))
		for i := range want {
			item, row, out := i/(l*n), i/n, i%n
			sum := float64(bias[out])
			if noBias {
				sum = 0
			}
			for c := range k {
				merged := float64(w[out*k+c]) // the adapter merged into the weight
				for q := range r {
					merged += 0.5 * float64(up[out*r+q]) * float64(down[q*k+c])
				}
				sum += merged * float64(x[row*k+c])
			}
			// 4 items, 2 gate rows: items 0, 1 use row 0
			want[i] = float64(res[i]) + float64(gate[item/2*n+out])*act(engine.SiLU, sum)
		}
		near(t, fmt.Sprintf("Linear, no bias %v", noBias), y, want)
	}
}

func TestNorms(t *testing.T) {
	const b, l, e = 2, 3, 7
	x, w, v := data(1, b*l*e), data(2, b*e), data(3, b*e)
	y := make([]float32, len(x))
	tensor := engine.FromF32(x, b, l, e)
	out := engine.FromF32(y, b, l, e)
	want := map[string][]float64{"LayerNorm": nil, "RMSNorm": nil, "AdaLN": nil}
	for i := range x {
		row := x[i/e*e : i/e*e+e]
		sum, squares := 0.0, 0.0
		for _, u := range row {
			sum += float64(u)
			squares += float64(u) * float64(u)
		}
		mean := sum / e
		variance := squares/e - mean*mean
		normal := (float64(x[i]) - mean) / math.Sqrt(variance+0.01)
		c, item := i%e, i/(l*e)
		want["LayerNorm"] = append(want["LayerNorm"], normal*float64(w[c])+float64(v[c]))
		want["AdaLN"] = append(want["AdaLN"], normal*(1+float64(w[item*e+c]))+float64(v[item*e+c]))
		want["RMSNorm"] = append(want["RMSNorm"], float64(x[i])/math.Sqrt(squares/e+0.01)*float64(w[c]))
	}
	ref.New().LayerNorm(out, tensor, engine.FromF32(w[:e], e), engine.FromF32(v[:e], e), 0.01)
	near(t, "LayerNorm", y, want["LayerNorm"])
	ref.New().RMSNorm(out, tensor, engine.FromF32(w[:e], e), 0.01)
	near(t, "RMSNorm", y, want["RMSNorm"])
	ref.New().AdaLN(out, tensor, engine.FromF32(v, b, e), engine.FromF32(w, b, e), 0.01)
	near(t, "AdaLN", y, want["AdaLN"])
}

func TestAdditionsAndMeans(t *testing.T) {
	const b, l, e = 2, 3, 5
	x, r, gate, bias := data(1, b*l*e), data(2, b*l*e), data(3, e), data(4, e)
	y := make([]float32, len(x))
	want := make([]float64, len(x))
	ref.New().GatedAdd(engine.FromF32(y, b, l, e), engine.FromF32(x, b, l, e), engine.FromF32(gate, 1, e),
		engine.FromF32(r, b, l, e), engine.FromF32(bias, e))
	for i := range x {
		want[i] = float64(x[i]) + float64(gate[i%e])*(float64(r[i])+float64(bias[i%e]))
	}
	near(t, "GatedAdd", y, want)
	for name, rows := range map[string]int{"Add [1, L, E]": l, "Add [1, 1, E]": 1} {
		ref.New().Add(engine.FromF32(y, b, l, e), engine.FromF32(x, b, l, e), engine.FromF32(r[:rows*e], 1, rows, e))
		for i := range x {
			want[i] = float64(x[i]) + float64(r[i%(rows*e)])
		}
		near(t, name, y, want)
	}
	mean := make([]float32, b*e)
	ref.New().MeanRows(engine.FromF32(mean, b, e), engine.FromF32(x, b, l, e))
	wantMean := make([]float64, b*e)
	for i := range x {
		wantMean[i/(l*e)*e+i%e] += float64(x[i]) / l
	}
	near(t, "MeanRows", mean, wantMean)
}

func TestQKNormRoPE(t *testing.T) {
	const b, l, h, d = 2, 3, 2, 6
	packed := data(1, b*l*3*h*d)
	scale := data(2, d)
	angle := func(row, i int) float64 { return float64(row+1) * math.Pow(10, -float64(i)/2) }
	cos, sin := make([]float32, l*d/2), make([]float32, l*d/2)
	for i := range cos {
		cos[i], sin[i] = float32(math.Cos(angle(i/(d/2), i%(d/2)))), float32(math.Sin(angle(i/(d/2), i%(d/2))))
	}
	qkv := engine.FromF32(append([]float32(nil), packed...), b, l, 3, h, d)
	dk, dv := make([]float32, b*l*h*d), make([]float32, b*l*h*d)
	ref.New().QKNormRoPE(qkv.Index(2, 0), engine.FromF32(dk, b, l, h, d), engine.FromF32(dv, b, l, h, d), qkv.Index(2, 0),
		qkv.Index(2, 1), qkv.Index(2, 2),
		engine.QKNorm{Kind: engine.RMSNorm, QScale: engine.FromF32(scale, d), Eps: 1e-3},
		engine.RoPE{Cos: engine.FromF32(cos, l, d/2), Sin: engine.FromF32(sin, l, d/2)})
	var wantQ, wantK, wantV []float64
	for i := range b * l * h {
		item, head := i/h, i%h
		for part := range 3 {
			row := packed[((item*3+part)*h+head)*d:][:d]
			squares := 0.0
			for _, u := range row {
				squares += float64(u) * float64(u)
			}
			for c := range d {
				if part == 2 {
					wantV = append(wantV, float64(row[c]))
					continue
				}
				pair := [2]float64{float64(row[c/2*2]), float64(row[c/2*2+1])}
				if part == 0 {
					pair[0] *= float64(scale[c/2*2])
					pair[1] *= float64(scale[c/2*2+1])
				}
				turned := complex(pair[0], pair[1]) / complex(math.Sqrt(squares/d+1e-3),
					0) * cmplx.Exp(complex(0, angle(item%l, c/2)))
				value := []float64{real(turned), imag(turned)}[c%2]
				if part == 0 {
					wantQ = append(wantQ, value)
				} else {
					wantK = append(wantK, value)
				}
			}
		}
	}
	q := make([]float32, b*l*h*d)
	ref.New().Copy(engine.FromF32(q, b, l, h, d), qkv.Index(2, 0))
	near(t, "q", q, wantQ)
	near(t, "k", dk, wantK)
	near(t, "v", dv, wantV)
}

func TestAttentionByDefinition(t *testing.T) {
	const b, l, h, d = 3, 5, 2, 3
	q, k, v, bias := data(1, b*l*h*d), data(2, b*l*h*d), data(3, b*l*h*d), data(4, h*l*l)
	for _, causal := range []bool{false, true} {
		o, lse := make([]float32, len(q)), make([]float32, b*h*l)
		lens := []int{5, 0, 3}
		four := func(x []float32) engine.Tensor { return engine.FromF32(x, b, l, h, d) }
		ref.New().Attention(four(o), four(q), four(k), four(v),
			engine.AttentionArgs{
				Scale: 0.3, Causal: causal, Bias: engine.FromF32(bias, h, l, l), KeyLen: lens,
				LSE: engine.FromF32(lse, b, h, l),
			})
		want, wantLSE := make([]float64, len(o)), make([]float64, len(lse))
		at := func(item, row, head, c int) int { return ((item*l+row)*h+head)*d + c }
		for i := range b * h * l {
			item, head, row := i/(h*l), i/l%h, i%l
			sum := 0.0
			for j := range lens[item] {
				if causal && j > row {
					continue
				}
				score := float64(bias[(head*l+row)*l+j])
				for c := range d {
					score += float64(float32(0.3)) * float64(q[at(item, row, head, c)]) * float64(k[at(item, j, head, c)])
				}
				sum += math.Exp(score)
				for c := range d {
					want[at(item, row, head, c)] += math.Exp(score) * float64(v[at(item, j, head, c)])
				}
			}
			for c := range d {
				if sum > 0 {
					want[at(item, row, head, c)] /= sum
				}
			}
			wantLSE[i] = math.Log(sum)
		}
		near(t, fmt.Sprintf("o, causal %v", causal), o, want)
		near(t, fmt.Sprintf("lse, causal %v", causal), lse, wantLSE)
	}
}

// TestConv2D compares Conv2D with a convolution that scatters every input pixel to the outputs it contributes to, the
// transpose of ref's gathering.
func TestConv2D(t *testing.T) {
	const b, ySize, xSize, c, n = 2, 5, 4, 3, 2
	a := engine.ConvArgs{KY: 3, KX: 2, Stride: 2, Top: 1, Bottom: 2, Left: 0, Right: 1}
	const outY, outX = (ySize+3-3)/2 + 1, (xSize+1-2)/2 + 1
	x, w, bias, res := data(1, b*ySize*xSize*c), data(2, n*3*2*c), data(3, n), data(4, b*outY*outX*n)
	y := make([]float32, b*outY*outX*n)
	a.Residual = engine.FromF32(res, b, outY, outX, n)
	ref.New().Conv2D(engine.FromF32(y, b, outY, outX, n), engine.FromF32(x, b, ySize, xSize, c),
		&engine.Weight{Base: pack(t, w, n, 3*2*c), Bias: engine.FromF32(bias, n)}, a)
	want := make([]float64, len(y))
	for i := range want {
		want[i] = float64(res[i]) + float64(bias[i%n])
	}
	for i, v := range x {
		item, iy, ix, ch := i/(ySize*xSize*c), i/(xSize*c)%ySize, i/c%xSize, i%c
		for ky := range 3 {
			for kx := range 2 {
				oy, ox := iy+1-ky, ix-kx
				if oy < 0 || ox < 0 || oy%2 != 0 || ox%2 != 0 || oy/2 >= outY || ox/2 >= outX {
					continue
				}
				for o := range n {
					want[((item*outY+oy/2)*outX+ox/2)*n+o] += float64(v) * float64(w[((o*3+ky)*2+kx)*c+ch])
				}
			}
		}
	}
	near(t, "Conv2D", y, want)
}

func TestGroupNormAndUpsample(t *testing.T) {
	const b, ySize, xSize, c, g = 2, 3, 2, 6, 2
	x, w, v := data(1, b*ySize*xSize*c), data(2, c), data(3, c)
	buf, err := ref.New().Alloc(8 * b * g * 2)
	if err != nil {
		t.Fatal(err)
	}
	stats := engine.NewTensor(buf, engine.F64, b, g, 2)
	y := make([]float32, len(x))
	four := engine.FromF32(x, b, ySize, xSize, c)
	ref.New().GroupNormStats(stats, four, g)
	ref.New().GroupNormApply(engine.FromF32(y, b, ySize, xSize, c), four, stats, engine.FromF32(w, c),
		engine.FromF32(v, c), ySize*xSize*c/g, 0.02, engine.SiLU)
	member := func(i, j int) bool { // same item and same group
		return i/(ySize*xSize*c) == j/(ySize*xSize*c) && i%c/(c/g) == j%c/(c/g)
	}
	want := make([]float64, len(x))
	for i := range x {
		mean, variance := 0.0, 0.0
		for j := range x {
			if member(i, j) {
				mean += float64(x[j]) / (ySize * xSize * c / g)
			}
		}
		for j := range x {
			if member(i, j) {
				variance += (float64(x[j]) - mean) * (float64(x[j]) - mean) / (ySize * xSize * c / g)
			}
		}
		normed := (float64(x[i]) - mean) / math.Sqrt(variance+float64(float32(0.02)))
		want[i] = act(engine.SiLU, normed*float64(w[i%c])+float64(v[i%c]))
	}
	near(t, "GroupNorm", y, want)

	up := make([]float32, 4*len(x))
	ref.New().Upsample2x(engine.FromF32(up, b, 2*ySize, 2*xSize, c), four)
	wantUp := make([]float64, len(up))
	for i, u := range x {
		item, iy, ix, ch := i/(ySize*xSize*c), i/(xSize*c)%ySize, i/c%xSize, i%c
		for p := range 4 {
			wantUp[((item*2*ySize+2*iy+p/2)*2*xSize+2*ix+p%2)*c+ch] = float64(u)
		}
	}
	near(t, "Upsample2x", up, wantUp)
}

func TestPackAndGatherKeepTheFilesValues(t *testing.T) {
	values := []float32{1, -2.5, 0.15625, 448, -0.001953125, 7}
	for _, stored := range []engine.DType{engine.F32, engine.BF16, engine.F16, engine.F8E4M3} {
		raw := make([]byte, len(values)*stored.Size())
		engine.Narrow(raw, values, stored)
		p, err := ref.New().Pack(engine.Matrix{Data: raw, DType: stored, N: 2, K: 3, Scale: 0}, 0)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]float32, 6)
		engine.Widen(got, p.Buf.Host, p.DType)
		y := make([]float32, 3)
		ref.New().Gather(engine.FromF32(y, 1, 3), engine.NewTensor(engine.Buf{Host: raw}, stored, 2, 3), []int32{1})
		for i, v := range values {
			if got[i] != v {
				t.Errorf("%s: packed element %d: got %g, want %g", stored, i, got[i], v)
			}
			if i >= 3 && y[i-3] != v {
				t.Errorf("%s: gathered element %d: got %g, want %g", stored, i, y[i-3], v)
			}
		}
	}
}
