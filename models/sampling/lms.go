package sampling

import "math"

// sampleLMS is the linear multistep method (Adams-Bashforth over uneven sigmas, as in k-diffusion): the slopes'
// Lagrange polynomial is integrated over each step.
func sampleLMS(r *Run) error {
	highest := r.Options.Int("order")
	var past [][]float32 // slopes
	return r.untilZero(r.Sigmas, func(i int, s, _ float32, x0, _ []float32) ([]float32, error) {
		past = remember(past, derivative(r.X, x0, s), highest)
		sum := make([]float32, len(r.X))
		for j, slope := range past {
			c := float32(lagrangeIntegral(r.Sigmas, i, j, len(past)))
			for k, d := range slope {
				sum[k] += mul(c, d)
			}
		}
		return advance(r.X, sum, 1), nil
	})
}

// lagrange returns the value at x of the polynomial of degree order-1 that is 1 at points[i-j] and 0 at the other
// points[i-k], k < order.
func lagrange(points []float32, i, j, order int, x float64) float64 {
	p := 1.0
	for k := range order {
		if k != j {
			p *= (x - float64(points[i-k])) / (float64(points[i-j]) - float64(points[i-k]))
		}
	}
	return p
}

// lagrangeIntegral integrates lagrange from sigmas[i] to sigmas[i+1], by a Gauss-Legendre rule that is exact for it.
func lagrangeIntegral(sigmas []float32, i, j, order int) float64 {
	a, b := float64(sigmas[i]), float64(sigmas[i+1])
	nodes, weights := gaussLegendre(order/2 + 1)
	sum := 0.0
	for n, node := range nodes {
		tau := (a+b)/2 + (b-a)/2*node
		sum += weights[n] * lagrange(sigmas, i, j, order, tau)
	}
	return sum * (b - a) / 2
}

// gaussLegendre returns the n nodes and weights on -1..1 (Abramowitz and Stegun 25.4.29), by Newton's method on the
// Legendre polynomial.
func gaussLegendre(n int) (nodes, weights []float64) {
	nodes, weights = make([]float64, n), make([]float64, n)
	for i := range n {
		x, slope := math.Cos(math.Pi*(float64(i)+0.75)/(float64(n)+0.5)), 0.0
		for range 100 {
			p0, p1 := 1.0, x
			for k := 2; k <= n; k++ {
				p0, p1 = p1, (float64(2*k-1)*x*p1-float64(k-1)*p0)/float64(k)
			}
			slope = float64(n) * (x*p1 - p0) / (x*x - 1)
			dx := p1 / slope
			x -= dx
			if math.Abs(dx) < 1e-15 {
				break
			}
		}
		nodes[i], weights[i] = x, 2/((1-x*x)*slope*slope)
	}
	return nodes, weights
}
