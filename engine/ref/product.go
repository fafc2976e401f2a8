package ref

import "patchbay/engine"

// The tile of a product: rows of x times rows of w, so that both are widened rarely.
const (
	tileRows = 32
	tileCols = 64
)

// product computes x W^T + bias + adapters for count rows and hands the results over in pieces. fill widens row i of x
// [K]; done receives the values of row i for features [n, n+len(v)). It is called from several goroutines, once for
// each piece. narrow says that x comes from bf16.
func product(count int, w *engine.Weight, narrow bool, fill func(x []float64, i int),
	done func(i, n int, v []float64),
) {
	rowTiles, colTiles := (count+tileRows-1)/tileRows, (w.N()+tileCols-1)/tileCols
	bias := vector(w.Bias, w.N(), 0)
	spread(rowTiles*colTiles, tileRows*tileCols*w.K(), func(lo, hi int) {
		x := make([]float64, tileRows*w.K())
		times := multiply
		if w.Base.DType == engine.I8 {
			times = (&rounded{narrow: narrow}).multiply
		}
		acc := make([]float64, tileRows*tileCols)
		for tile := lo; tile < hi; tile++ {
			i0, n0 := tile/colTiles*tileRows, tile%colTiles*tileCols
			n1, height := min(n0+tileCols, w.N()), min(tileRows, count-i0)
			for i := range height {
				fill(x[i*w.K():(i+1)*w.K()], i0+i)
			}
			times(acc, tileCols, x, height, w.Base, n0, n1)
			for _, a := range w.Adapters {
				adapt(acc, x, height, a, n0, n1)
			}
			for i := range height {
				v := acc[i*tileCols : i*tileCols+n1-n0]
				for c := range v {
					v[c] += bias[n0+c]
				}
				done(i0+i, n0, v)
			}
		}
	})
}

// multiply computes acc[i, n-n0] = sum over k of x[i, k] w[n, k] for the given rows of x and features [n0, n1); acc
// rows are width apart.
func multiply(acc []float64, width int, x []float64, count int, w *engine.Packed, n0, n1 int) {
	line := make([]float64, w.K)
	for n := n0; n < n1; n++ {
		widen(line, w.Buf.Host, w.DType, n*w.K)
		i := 0
		for ; i+4 <= count; i += 4 {
			a, b, c, d := dot4(line, x[i*w.K:], x[(i+1)*w.K:], x[(i+2)*w.K:], x[(i+3)*w.K:])
			acc[i*width+n-n0], acc[(i+1)*width+n-n0], acc[(i+2)*width+n-n0], acc[(i+3)*width+n-n0] = a, b, c, d
		}
		for ; i < count; i++ {
			acc[i*width+n-n0] = dot(line, x[i*w.K:])
		}
	}
}

// adapt adds a.Scale * Up(Down(x)) to acc (tileCols wide).
func adapt(acc, x []float64, count int, a engine.Adapter, n0, n1 int) {
	low := make([]float64, count*a.Down.N)
	multiply(low, a.Down.N, x, count, a.Down, 0, a.Down.N)
	up := make([]float64, count*tileCols)
	multiply(up, tileCols, low, count, a.Up, n0, n1)
	for i, v := range up {
		acc[i] += float64(a.Scale) * v
	}
}

// dot returns the sum over k of w[k] x[k].
func dot(w, x []float64) float64 {
	x = x[:len(w)]
	sum := 0.0
	for k, v := range w {
		sum += v * x[k]
	}
	return sum
}

// dot4 is dot for four x at once: four independent sums keep the processor busy.
func dot4(w, x0, x1, x2, x3 []float64) (s0, s1, s2, s3 float64) {
	x0, x1, x2, x3 = x0[:len(w)], x1[:len(w)], x2[:len(w)], x3[:len(w)]
	for k, v := range w {
		s0 += v * x0[k]
		s1 += v * x1[k]
		s2 += v * x2[k]
		s3 += v * x3[k]
	}
	return s0, s1, s2, s3
}
