package audio

import (
	"patchbay/engine"
	"patchbay/models/weights"
)

// slack is how many samples a buffer has behind a sound, so that dilated convolutions find whole rows.
const slack = mostDilation

// buffer is memory for a sound of at most some samples and channels.
type buffer struct{ memory engine.Tensor }

func newBuffer(a *engine.Arena, values, channels int) buffer {
	return buffer{a.Alloc(engine.F32, values+slack*channels)}
}

// of views the buffer as n samples of c channels, [1, 1, n, c].
func (b buffer) of(n, c int) engine.Tensor {
	return engine.NewTensor(b.memory.Buf, engine.F32, 1, 1, n, c)
}

// rows views [1, 1, n, c] as [n, c].
func rows(t engine.Tensor) engine.Tensor { return t.Merge(0).Merge(0) }

// conv writes the convolution of x [1, 1, n, c] with w over time to y [1, 1, n', c'], padded with zeros, which has the
// kernel's center at sample i*stride.
func conv(ops engine.Ops, y, x engine.Tensor, w *engine.Weight, stride, left, right int) {
	ops.Conv2D(y, x, w, engine.ConvArgs{KY: 1, KX: w.K() / x.Dim(3), Stride: stride, Left: left, Right: right})
}

// dilated writes the convolution of the n samples of x with w, whose taps are apart by dilation samples, to y, or adds
// it. Samples that are as far apart are the pixels of one row of a picture, so that a plain convolution of its rows
// does it. Zeros fill x behind the sound up to whole rows.
func dilated(ops engine.Ops, y, x buffer, n, c int, w *engine.Weight, dilation int, add bool) {
	k := w.K() / c
	whole := (n + dilation - 1) / dilation
	if more := whole*dilation - n; more > 0 {
		ops.Fill(x.of(n+more, c).Slice(2, n, n+more), 0)
	}
	picture := func(b buffer, c int) engine.Tensor { // [1, dilation, whole, c]
		return rows(b.of(whole*dilation, c)).Split(0, whole, dilation).Transpose(0, 1).Unsqueeze(0)
	}
	a := engine.ConvArgs{KY: 1, KX: k, Stride: 1, Left: k / 2, Right: k / 2}
	out := picture(y, w.N())
	if add {
		a.Residual = out
	}
	ops.Conv2D(out, picture(x, c), w, a)
}

// transposed returns a transposed convolution [C, N, K] that raises the number of samples by rate as a plain one
// [rate*N, C, 1, taps]: row r*N+j makes sample r of the rate samples that follow each other for one of the input.
func transposed(t weights.Stored, rate int) weights.Stored {
	c, n, k := t.Shape[0], t.Shape[1], t.Shape[2]
	pad := (k - rate) / 2
	first, last := reach(rate, k)
	taps := last - first + 1
	in, out := t.F32(), make([]float32, rate*n*c*taps)
	for r := range rate {
		for d := first; d <= last; d++ { // the output reads input sample i-d
			tap := d*rate + r + pad
			if tap < 0 || tap >= k {
				continue
			}
			for j := range n {
				for i := range c {
					out[((r*n+j)*c+i)*taps+last-d] = in[(i*n+j)*k+tap]
				}
			}
		}
	}
	return weights.Floats(out, rate*n, c, 1, taps)
}

// flat returns a convolution over time as one of a picture one row high.
func flat(t weights.Stored) weights.Stored {
	if len(t.Shape) == 3 {
		t.Shape = []int{t.Shape[0], t.Shape[1], 1, t.Shape[2]}
	}
	return t
}

// reach returns the first and the last delay at which an output sample of a transposed convolution reads its input.
func reach(rate, k int) (first, last int) {
	pad := (k - rate) / 2
	return -((rate - 1 + pad) / rate), (k - 1 - pad) / rate
}

// repeated returns a bias n times.
func repeated(t weights.Stored, n int) weights.Stored {
	var out []float32
	for range n {
		out = append(out, t.F32()...)
	}
	return weights.Floats(out, len(out))
}
