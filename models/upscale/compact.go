package upscale

import "patchbay/engine"

// compact is SRVGGNetCompact: convolutions, each followed by a PReLU except the last, which gives every pixel a square.
type compact struct {
	First *engine.Weight `weight:"first,conv" shape:"E,C,3,3"`
	Slope engine.Tensor  `weight:"first_slope" shape:"E"`
	Layer []sloped       `weight:"layer"`
	Last  *engine.Weight `weight:"last,conv" shape:"N,E,3,3"`
}

// sloped is a convolution and the slopes of the PReLU after it.
type sloped struct {
	Conv  *engine.Weight `weight:"conv,conv" shape:"E,E,3,3"`
	Slope engine.Tensor  `weight:"slope" shape:"E"`
}

func (n *compact) walk(w *walk, in engine.Tensor, sink func(engine.Tensor) error) error {
	y, x, e := in.Dim(1), in.Dim(2), n.First.N()
	w.minus = w.constant(e, -1)
	a, b := w.alloc(y, x, e), w.alloc(y, x, e)
	w.conv(a, in, n.First, w.leaky(n.Slope.Unsqueeze(0)))
	for _, l := range n.Layer {
		if err := w.step(); err != nil {
			return err
		}
		w.conv(b, a, l.Conv, w.leaky(l.Slope.Unsqueeze(0)))
		a, b = b, a
	}
	out := w.alloc(y, x, n.Last.N())
	w.conv(out, a, n.Last, nil)
	return sink(out)
}
