package layers

import (
	"math"

	"patchbay/models/dit"
)

// SinCosPositions returns PixArt's position table [Li, e]: sines then cosines of the column in the first half of the
// features, of the row in the second (arXiv:2310.00426, appendix; MAE, arXiv:2111.06377). Token i on a side of n tokens
// has the coordinate i/(n/base)/interpolation. All in f32.
func SinCosPositions(e int, g dit.Grid, base int, interpolation float64) []float32 {
	quarter := e / 4
	omega := make([]float32, quarter)
	for i := range omega {
		omega[i] = 1 / float32(math.Pow(10000, float64(float32(i)/float32(quarter))))
	}
	coordinate := func(i, n int) float32 {
		return float32(i) / float32(float64(n)/float64(base)) / float32(interpolation)
	}
	out := make([]float32, g.Tokens()*e)
	for token := range g.Tokens() {
		row := out[token*e : (token+1)*e]
		x, y := coordinate(token%g.X, g.X), coordinate(token/g.X, g.Y)
		for i, w := range omega {
			sin, cos := math.Sincos(float64(x * w))
			row[i], row[quarter+i] = float32(sin), float32(cos)
			sin, cos = math.Sincos(float64(y * w))
			row[2*quarter+i], row[3*quarter+i] = float32(sin), float32(cos)
		}
	}
	return out
}
