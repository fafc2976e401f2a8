package ref

import (
	"math"

	"patchbay/engine"
)

// Conv2D implements engine.Ops: the product of the weight with the pixels under the kernel, zeros outside the picture.
func (*Ops) Conv2D(y, x engine.Tensor, w *engine.Weight, a engine.ConvArgs) {
	engine.CheckConv2D(y, x, w, a)
	height, width, c := x.Dim(1), x.Dim(2), x.Dim(3)
	outY, outX := y.Dim(1), y.Dim(2)
	patch := func(dst []float64, i int) { // i counts [B, Y', X']
		b, py, px := i/(outY*outX), i/outX%outY*a.Stride-a.Top, i%outX*a.Stride-a.Left
		clear(dst)
		for ky := range a.KY {
			for kx := range a.KX {
				if iy, ix := py+ky, px+kx; iy >= 0 && iy < height && ix >= 0 && ix < width {
					load(dst[(ky*a.KX+kx)*c:][:c], x, rowStart(x, (b*height+iy)*width+ix))
				}
			}
		}
	}
	product(rows(y), w, false, patch, func(i, n int, v []float64) {
		addRow(v, a.Residual, i, n)
		store(y, rowStart(y, i)+n, v)
	})
}

func (*Ops) GroupNormStats(stats, x engine.Tensor, groups int) {
	engine.CheckGroupNormStats(stats, x, groups)
	pixels, size := x.Dim(1)*x.Dim(2), x.Dim(3)/groups
	spread(x.Dim(0)*groups, pixels*size, func(lo, hi int) {
		v := make([]float64, size)
		for i := lo; i < hi; i++ {
			b, g := i/groups, i%groups
			sum, squares := 0.0, 0.0
			for p := range pixels {
				load(v, x, rowStart(x, b*pixels+p)+g*size)
				for _, e := range v {
					sum += e
					squares += e * e
				}
			}
			store(stats, rowStart(stats, i), []float64{sum, squares})
		}
	})
}

func (*Ops) GroupNormApply(y, x, stats, w, b engine.Tensor, count int, eps float32, act engine.Act) {
	engine.CheckGroupNormApply(y, x, stats, w, b, count, act)
	groups, channels, pixels := stats.Dim(1), x.Dim(3), x.Dim(1)*x.Dim(2)
	scale, shift := vector(w, channels, 1), vector(b, channels, 0)
	mean, factor := make([]float64, x.Dim(0)*groups), make([]float64, x.Dim(0)*groups)
	for i := range mean {
		var s [2]float64
		load(s[:], stats, rowStart(stats, i))
		mean[i] = s[0] / float64(count)
		variance := max(0, s[1]/float64(count)-mean[i]*mean[i]) // rounding may push it below 0
		factor[i] = 1 / math.Sqrt(variance+float64(eps))
	}
	eachRow(y, x, func(i int, v []float64) {
		for c := range v {
			g := i/pixels*groups + c/(channels/groups)
			v[c] = (v[c]-mean[g])*factor[g]*scale[c] + shift[c]
		}
		activate(v, act)
	})
}

func (*Ops) Upsample2x(y, x engine.Tensor) {
	engine.CheckUpsample2x(y, x)
	height, width := y.Dim(1), y.Dim(2)
	line := make([]float64, x.Dim(3))
	for i := range rows(y) {
		b, py, px := i/(height*width), i/width%height, i%width
		load(line, x, rowStart(x, (b*x.Dim(1)+py/2)*x.Dim(2)+px/2))
		store(y, rowStart(y, i), line)
	}
}
