package tile

// Clip describes a video [T, Y, X, C] that becomes [Long(T), Up*Y, Up*X, Out].
type Clip struct {
	Grid
	T int
	// Long returns how many frames n frames of the input become, From where frame i of the input begins in the output.
	Long, From func(int) int
}

// ClipSize is Size with frames and how far neighbors in time overlap.
type ClipSize struct {
	Size
	T, Overlap int
}

// ClipFunc computes one tile [tt, ty, tx, C] into [Long(tt), Up*ty, Up*tx, Out].
type ClipFunc func(tile []float32, tt, ty, tx int, check func(done, total int) error) ([]float32, error)

// Pass runs f on all tiles of a clip and blends the results, as Grid.Pass does for pictures. Weights rise over the
// overlap in time too.
func (g Clip) Pass(t ClipSize, check func(done, total int) error, f ClipFunc, item []float32) ([]float32, error) {
	if g.T <= t.T && g.Y <= t.Y && g.X <= t.X {
		return f(item, g.T, g.Y, g.X, check)
	}
	frames, rows, cols := starts(g.T, t.T, t.Overlap), starts(g.Y, t.Y, t.Size.Overlap), starts(g.X, t.X, t.Size.Overlap)
	height, width := g.Scaled(g.Y), g.Scaled(g.X)
	plane, feather := height*width, g.Scaled(t.Size.Overlap)
	sum, weight := make([]float32, g.Long(g.T)*plane*g.Out), make([]float32, g.Long(g.T)*plane)
	n := 0
	for _, t0 := range frames {
		tt := min(t.T, g.T-t0)
		inTime := ramp(g.Long(tt), g.Long(t.Overlap))
		for _, y0 := range rows {
			for _, x0 := range cols {
				ty, tx := min(t.Y, g.Y-y0), min(t.X, g.X-x0)
				tile := make([]float32, 0, tt*ty*tx*g.C)
				for r := range tt * ty {
					at := (((t0+r/ty)*g.Y+y0+r%ty)*g.X + x0) * g.C
					tile = append(tile, item[at:at+tx*g.C]...)
				}
				done, err := f(tile, tt, ty, tx, Part(check, n, len(frames)*len(rows)*len(cols)))
				if err != nil {
					return nil, err
				}
				n++
				h, w := g.Scaled(ty), g.Scaled(tx)
				down, across := ramp(h, feather), ramp(w, feather)
				for i := range g.Long(tt) * h * w {
					m := inTime[i/(h*w)] * down[i/w%h] * across[i%w]
					at := (g.From(t0)+i/(h*w))*plane + (g.Scaled(y0)+i/w%h)*width + g.Scaled(x0) + i%w
					weight[at] += m
					for k := range g.Out {
						sum[at*g.Out+k] += done[i*g.Out+k] * m
					}
				}
			}
		}
	}
	for i, w := range weight {
		for k := range g.Out {
			sum[i*g.Out+k] /= w
		}
	}
	return sum, nil
}
