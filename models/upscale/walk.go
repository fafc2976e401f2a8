package upscale

import "patchbay/engine"

// stripBytes is the approximate memory for a strip of a layer that is not held as a whole.
const stripBytes = 32 << 20

// walk is one pass over the layers of a network.
type walk struct {
	ops   engine.Ops
	arena *engine.Arena
	check func() error
	strip int           // bytes
	minus engine.Tensor // [1, n] of -1, n the largest number of channels with slopes
}

func (w *walk) alloc(y, x, c int) engine.Tensor { return w.arena.Alloc(engine.F32, 1, y, x, c) }

// step checks for cancellation. Networks call it between layers or groups of layers.
func (w *walk) step() error {
	if w.check == nil {
		return nil
	}
	return w.check()
}

// constant returns a gate of n equal values.
func (w *walk) constant(n int, v float32) engine.Tensor {
	t := w.arena.Alloc(engine.F32, 1, n)
	w.ops.Fill(t, v)
	return t
}

// rows views the pixels of x [1, Y, X, C] as [1, Y*X, C].
func rows(x engine.Tensor) engine.Tensor { return x.Merge(1) }

// gate returns the first n values of a constant.
func gate(t engine.Tensor, n int) engine.Tensor { return t.Slice(1, 0, n) }

// stripRows returns how many rows of x pixels with c channels make a strip.
func (w *walk) stripRows(x, c int) int {
	return max(2, w.strip/(4*x*c))
}

// finish turns the result t of a convolution into final values and writes them to dst. It overwrites t, which may be
// dst.
type finish func(dst, t engine.Tensor)

// leaky computes max(t, 0) + slope*min(t, 0) exactly, with a slope [1, C] per channel (arXiv:1502.01852, eq. 1).
func (w *walk) leaky(slope engine.Tensor) finish {
	return func(dst, t engine.Tensor) {
		mark := w.arena.Mark()
		above := w.alloc(t.Dim(1), t.Dim(2), t.Dim(3))
		w.ops.Activate(above, t, engine.ReLU)
		w.ops.GatedAdd(rows(t), rows(t), gate(w.minus, t.Dim(3)), rows(above), engine.Tensor{})
		w.ops.GatedAdd(rows(dst), rows(above), slope, rows(t), engine.Tensor{})
		w.arena.Release(mark)
	}
}

// conv writes the 3x3 convolution of x to y [1, Y, X, N]. With end it works strip by strip and lets end write y, which
// must not overlap what the convolution reads.
func (w *walk) conv(y, x engine.Tensor, c *engine.Weight, end finish) {
	height := y.Dim(1)
	if end == nil {
		w.band(y, x, 0, 0, height, c, engine.Tensor{})
		return
	}
	strip := w.stripRows(y.Dim(2), y.Dim(3))
	for lo := 0; lo < height; lo += strip {
		hi := min(lo+strip, height)
		mark := w.arena.Mark()
		t := w.alloc(hi-lo, y.Dim(2), y.Dim(3))
		w.band(t, x, 0, lo, height, c, engine.Tensor{})
		end(y.Slice(1, lo, hi), t)
		w.arena.Release(mark)
	}
}

// band writes the rows of a convolution from lo on to y, for a picture of height rows, of which x holds those from at
// on that are needed. residual, if any, is added; it may be y.
func (w *walk) band(y, x engine.Tensor, at, lo, height int, c *engine.Weight, residual engine.Tensor) {
	args := engine.ConvArgs{KY: 3, KX: 3, Stride: 1, Left: 1, Right: 1, Residual: residual}
	from, to := lo-1, lo+y.Dim(1)+1
	if from < 0 {
		from, args.Top = 0, 1
	}
	if to > height {
		to, args.Bottom = height, 1
	}
	w.ops.Conv2D(y, x.Slice(1, from-at, to-at), c, args)
}

// tail is the part after the blocks: layers on ever larger pictures, of which only strips are held.
type tail struct {
	*walk
	from   engine.Tensor // [1, Y, X, E]
	layers []layer
	slope  engine.Tensor // [1, E]
}

// layer is a convolution, after a doubling of the picture if double, and followed by slopes if act.
type layer struct {
	conv        *engine.Weight
	double, act bool
}

// scale returns by how much the result of layer i is larger than from.
func (t *tail) scale(i int) int {
	s := 1
	for _, l := range t.layers[:i+1] {
		if l.double {
			s *= 2
		}
	}
	return s
}

// run passes the rows of the last layer to sink.
func (t *tail) run(sink func(engine.Tensor) error) error {
	last := len(t.layers) - 1
	height, width := t.scale(last)*t.from.Dim(1), t.scale(last)*t.from.Dim(2)
	strip := t.stripRows(width, t.from.Dim(3))
	for lo := 0; lo < height; lo += strip {
		if err := t.step(); err != nil {
			return err
		}
		mark := t.arena.Mark()
		if err := sink(t.rows(last, lo, min(lo+strip, height))); err != nil {
			return err
		}
		t.arena.Release(mark)
	}
	return nil
}

// rows computes rows [lo, hi) of layer i. They stay in the arena until the caller releases them.
func (t *tail) rows(i, lo, hi int) engine.Tensor {
	if i < 0 {
		return t.from.Slice(1, lo, hi)
	}
	l, height, width := t.layers[i], t.scale(i)*t.from.Dim(1), t.scale(i)*t.from.Dim(2)
	out := t.alloc(hi-lo, width, l.conv.N())
	mark := t.arena.Mark()
	from, to := max(lo-1, 0), min(hi+1, height)
	var in engine.Tensor
	if l.double {
		from /= 2
		small := t.rows(i-1, from, (to+1)/2)
		in = t.alloc(2*small.Dim(1), width, small.Dim(3))
		t.ops.Upsample2x(in, small)
		from *= 2
	} else {
		in = t.rows(i-1, from, to)
	}
	t.band(out, in, from, lo, height, l.conv, engine.Tensor{})
	if l.act {
		t.leaky(t.slope)(out, out)
	}
	t.arena.Release(mark)
	return out
}
