package sampling

import "math"

// mul returns a*b rounded to float32 before anything is added to it. The conversion forbids a fused multiply-add, so
// every CPU gives the same bits as torch.
func mul(a, b float32) float32 { return float32(a * b) }

// sq returns a*a in float32.
func sq(a float32) float32 { return float32(a * a) }

func sqrt32(a float32) float32  { return float32(math.Sqrt(float64(a))) }
func exp32(a float32) float32   { return float32(math.Exp(float64(a))) }
func expm132(a float32) float32 { return float32(math.Expm1(float64(a))) }
func pow32(a, p float32) float32 {
	return float32(math.Pow(float64(a), float64(p)))
}

// log32 is torch's float32 logarithm on x86, MKL's, which for 3 to 9 % of all arguments is not the float32 nearest to
// the true value but the other neighbor. The last bit matters: a Brownian tree asked for a middle sigma that differs in
// it returns another number. With a = 2^k (1+r) and 1+r in [2/3, 4/3) it is k log(2) + r + r^2 q(r), every product and
// sum rounded. Form and coefficients of q were chosen to reproduce torch 2.9; three in 100,000 results still differ.
func log32(a float32) float32 {
	const hi, lo = 0.693145751953125, 1.4286068e-06 // log(2) in two parts; hi ends in zeros that keep k*hi exact
	bits := int32(math.Float32bits(a))
	if bits < 1<<23 || bits >= 0x7f800000 {
		return float32(math.Log(float64(a)))
	}
	e := (bits - 0x3f2aaaab) >> 23
	r := math.Float32frombits(uint32(bits-e<<23)) - 1
	q := float32(-0.12894391)
	for _, c := range [8]float32{
		0.13985218, -0.121837065, 0.14005715, -0.16680515, 0.20010413, -0.24999797, 0.33333215, -0.5,
	} {
		q = mul(q, r) + c
	}
	k := float32(e)
	return mul(k, hi) + (r + mul(mul(q, r), r) + mul(k, lo))
}

// lerp32 is torch.lerp on scalars, which starts from the nearer end.
func lerp32(a, b, w float32) float32 {
	if float32(math.Abs(float64(w))) < 0.5 {
		return a + mul(w, b-a)
	}
	return b - mul(b-a, 1-w)
}

// linspace32 is torch.linspace in float32: n points from a to b, counted from the nearer end. Its product and sum are
// rounded once, as on x86 with FMA.
func linspace32(a, b float32, n int) []float32 {
	out := make([]float32, n)
	if n == 1 {
		out[0] = a
		return out
	}
	step := (b - a) / float32(n-1)
	for i := range out {
		if i < n/2 {
			out[i] = float32(float64(a) + float64(step)*float64(i))
		} else {
			out[i] = float32(float64(b) - float64(step)*float64(n-i-1))
		}
	}
	return out
}

// curve returns f at n evenly spaced points from a to b.
func curve(n int, a, b float32, f func(at float32) float32) []float32 {
	out := linspace32(a, b, n)
	for i, at := range out {
		out[i] = f(at)
	}
	return out
}

// derivative returns d = (x - x0) / sigma, the slope of the probability-flow ODE in sigma (Karras et al. 2022, eq. 3),
// in a new slice.
func derivative(x, x0 []float32, sigma float32) []float32 {
	d := make([]float32, len(x))
	for k := range x {
		d[k] = (x[k] - x0[k]) / sigma
	}
	return d
}

// advance returns x + d*dt in a new slice.
func advance(x, d []float32, dt float32) []float32 {
	out := make([]float32, len(x))
	for k := range x {
		out[k] = x[k] + mul(d[k], dt)
	}
	return out
}

// euler moves x, a state at sigma, to next: by Euler's step along the slope to x0, or, under CFG++ (uncond not nil;
// Chung et al. 2024), by noising x0 along the slope to uncond. It returns a new slice.
func euler(x, x0, uncond []float32, sigma, next float32) []float32 {
	if uncond != nil {
		return advance(x0, derivative(x, uncond, sigma), next)
	}
	return advance(x, derivative(x, x0, sigma), next-sigma)
}

// combine returns a*x + b*y in a new slice.
func combine(a float32, x []float32, b float32, y []float32) []float32 {
	out := make([]float32, len(x))
	for k := range x {
		out[k] = mul(a, x[k]) + mul(b, y[k])
	}
	return out
}

// remember prepends v to a history, newest first, and truncates it to n.
func remember[T any](history []T, v T, n int) []T {
	history = append([]T{v}, history...)
	return history[:min(len(history), n)]
}
