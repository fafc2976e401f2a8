package vae

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/models/weights"
)

// packedAnchor is a name found in the autoencoder of FLUX.2, whose latents are squares of 2 x 2 positions as channels
// (channel, row, column), normalized by the statistics of a batch norm.
const packedAnchor = "bn.running_mean"

// packedEps is added to the variances of the batch norm.
const packedEps = 1e-4

// square is the number of positions in a packed latent pixel.
const square = 4

// packed returns the tensors of an autoencoder with packed latents, the batch norm folded into the two 1x1 convolutions
// next to the latent: post_quant_conv outputs the channels of all positions of a latent pixel, ordered (position,
// channel), and quant_conv reads the moments of all positions, ordered (position, moment).
func packed(set *weights.Set) (*weights.Set, error) {
	out := map[string]weights.Stored{}
	for _, name := range set.Names() {
		if !strings.HasPrefix(name, "bn.") {
			out[name], _ = set.Get(name)
		}
	}
	z := set.Dim("post_quant_conv.weight", 0)
	mean, std, err := statistics(set, z)
	if err != nil {
		return nil, err
	}
	values := func(name string, n int) []float32 {
		t, ok := set.Get(name)
		if err == nil && (!ok || t.Len() != n) {
			err = fmt.Errorf("%s has %d values, want %d", name, t.Len(), n)
		}
		if err != nil {
			return make([]float32, n)
		}
		return t.F32()
	}
	post, bias := values("post_quant_conv.weight", z*z), values("post_quant_conv.bias", z)
	down := newAffine(square*z, square*z)
	for row := range square * z {
		at, o := row/z, row%z
		down.bias[row] = float64(bias[o])
		for c := range z {
			w := float64(post[o*z+c])
			down.rows[row][c*square+at] = w * std[c*square+at]
			down.bias[row] += w * mean[c*square+at]
		}
	}
	down.put(out, "post_quant_conv")
	if set.Has("quant_conv.weight") {
		quant, bias := values("quant_conv.weight", 4*z*z), values("quant_conv.bias", 2*z)
		up := newAffine(2*square*z, square*2*z)
		for p := range square * z { // of the mean; those of the log variance follow
			c, at := p/square, p%square
			up.bias[p] = (float64(bias[c]) - mean[p]) / std[p]
			up.bias[square*z+p] = float64(bias[z+c]) - 2*math.Log(std[p])
			for k := range 2 * z {
				up.rows[p][at*2*z+k] = float64(quant[c*2*z+k]) / std[p]
				up.rows[square*z+p][at*2*z+k] = float64(quant[(z+c)*2*z+k])
			}
		}
		up.put(out, "quant_conv")
	}
	if err != nil {
		return nil, err
	}
	return weights.FromMap(out), nil
}

// statistics returns the mean and standard deviation of every channel of packed latents.
func statistics(set *weights.Set, z int) (mean, std []float64, err error) {
	m, _ := set.Get("bn.running_mean")
	v, ok := set.Get("bn.running_var")
	if n := square * z; !ok || z == 0 || m.Len() != n || v.Len() != n {
		return nil, nil, fmt.Errorf("bn.running_mean and bn.running_var have %d and %d values, want %d: four for each of "+
			"the %d channels of post_quant_conv", m.Len(), v.Len(), n, z)
	}
	for i, x := range v.F32() {
		mean, std = append(mean, 0), append(std, math.Sqrt(float64(x)+packedEps))
		if !(std[i] > 0) {
			return nil, nil, fmt.Errorf("bn.running_var has %g, want at least 0", x)
		}
	}
	for i, x := range m.F32() {
		mean[i] = float64(x)
	}
	return mean, std, nil
}

// affine is a 1x1 convolution under construction.
type affine struct {
	rows [][]float64
	bias []float64
}

func newAffine(n, k int) affine {
	a := affine{bias: make([]float64, n)}
	for range n {
		a.rows = append(a.rows, make([]float64, k))
	}
	return a
}

// put stores the convolution as f32.
func (a *affine) put(out map[string]weights.Stored, name string) {
	stored := func(v []float64, shape ...int) weights.Stored {
		narrow := make([]float32, len(v))
		for i, x := range v {
			narrow[i] = float32(x)
		}
		return weights.Floats(narrow, shape...)
	}
	out[name+".weight"] = stored(slices.Concat(a.rows...), len(a.rows), len(a.rows[0]), 1, 1)
	out[name+".bias"] = stored(a.bias, len(a.bias))
}

// eachPosition calls f for each position of packed pixels: part views that position in every square of t [1, 2Y, 2X,
// C], packed views it in pixels [1, Y, X, 4*C].
func eachPosition(t, pixels engine.Tensor, f func(part, packed engine.Tensor)) {
	c := t.Dim(3)
	for at := range square {
		rows := t.Split(1, t.Dim(1)/2, 2).Index(2, at/2)
		f(rows.Split(2, t.Dim(2)/2, 2).Index(3, at%2), pixels.Slice(3, at*c, (at+1)*c))
	}
}
