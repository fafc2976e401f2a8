package vae

import (
	"patchbay/engine"
)

// A chain passes a clip on frame by frame, like other autoencoders of videos, but its convolutions have the first frame
// in front instead of zeros, and those of a decoder that looks ahead read a frame behind the present one, the last one
// again at the end. So such a convolution has no result for the first frame and two for the last one, and whatever
// follows learns from its last flag that nothing comes after.

// follow passes the activation through members of a walk, each of which calls next for what it makes of it: nothing,
// or one frame after another, of which the one that is last ends the clip.
type follow func(w *walk, last bool, next func(last bool) error) error

// along passes the activation through members in order.
func (w *walk) along(members []follow, last bool) error {
	if len(members) == 0 {
		return nil
	}
	return members[0](w, last, func(last bool) error { return w.along(members[1:], last) })
}

// frames calls f for the activation as often as a convolution that reads three frames has a result: not until it has
// had two inputs before, of which front are the first one repeated, and once more for every frame that it reads behind
// the last one. f computes the convolution, which keeps its input, and passes the result on.
func (w *walk) frames(p *past, front int, last bool, f func(x engine.Tensor, last bool) error) error {
	h, x, n := w.history(p, w.x), w.x, 1
	if h.n == 0 {
		n += front
	}
	if last {
		n += w.ahead
	}
	for i := range n {
		if h.n < pastTaps {
			h.push(w, x)
		} else if err := f(x, last && i == n-1); err != nil {
			return err
		}
		x = w.latest(h)
	}
	return nil
}

// latest returns the last input in h.
func (w *walk) latest(h *history) engine.Tensor {
	if w.sizing {
		return engine.NewTensor(engine.Buf{}, w.env.DType, h.shape...)
	}
	x, _ := h.frame(1)
	return x
}

// joined is a convolution from in to out channels of what pre makes of its input.
func joined(c *overFrames, pre func(*walk, engine.Tensor) input) follow {
	return func(w *walk, last bool, next func(bool) error) error {
		return w.frames(&c.Past, pastTaps-w.ahead, last, func(x engine.Tensor, last bool) error {
			err := w.steps(func() {
				y := w.in(1, x.Dim(1), x.Dim(2), c.out)
				w.causal(y, x, func(x engine.Tensor) input { return pre(w, x) }, c.Now, &c.Past, false)
				w.moved(1, y)
			})
			if err != nil {
				return err
			}
			return next(last)
		})
	}
}

// member returns the walk through one residual block. Its shortcut lags behind by the frames that both convolutions
// read ahead.
func (b *chainBlock) member(w *walk, last bool, next func(bool) error) error {
	front := pastTaps - w.ahead
	h1 := w.history(&b.Conv1.Past, w.x)
	return w.frames(&b.Conv1.Past, front, last, func(x engine.Tensor, last bool) error {
		y, c, from := x.Dim(1), x.Dim(3), x
		if w.ahead > 0 && !w.sizing {
			from, _ = h1.frame(pastTaps)
		}
		err := w.steps(func() {
			w.env.Ops.Copy(w.in(2, y, x.Dim(2), c), from)
			mid := w.in(1, y, x.Dim(2), c)
			w.causal(mid, x, w.silenced, b.Conv1.Now, &b.Conv1.Past, false)
			w.moved(1, mid)
		})
		if err != nil {
			return err
		}
		first := true
		return w.frames(&b.Conv2.Past, front, last, func(mid engine.Tensor, last bool) error {
			err := w.steps(func() {
				kept := w.in(2, mid.Dim(1), mid.Dim(2), c)
				if !first {
					w.env.Ops.Copy(kept, w.latest(h1))
				}
				first = false
				w.causal(kept, mid, w.silenced, b.Conv2.Now, &b.Conv2.Past, true)
				w.moved(2, kept)
			})
			if err != nil {
				return err
			}
			return next(last)
		})
	})
}

// cells calls f for each position of the squares of side pixels of t, [1, Side*Y, Side*X, C], and the channels of
// packed [1, Y, X, C*n] for it, ordered (channel, position) from the position first on, by rows or by columns.
func cells(t, packed engine.Tensor, side, n, first int, columns bool, f func(part, packed engine.Tensor)) {
	rows := t.Split(1, t.Dim(1)/side, side)
	channels := packed.Split(3, t.Dim(3), n)
	for i := range side * side {
		y, x := i/side, i%side
		if columns {
			y, x = x, y
		}
		f(rows.Index(2, y).Split(2, t.Dim(2)/side, side).Index(3, x), channels.Index(4, first+i))
	}
}

// side returns how many pixels beside each other a hop moves.
func (h Hop) side() int {
	if h.Space {
		return 2
	}
	return 1
}

// up is the walk through a convolution that moves channels to pixels. Of the two frames that the first one becomes, the
// first is left out.
func (h *chainHop) up(w *walk, last bool, next func(bool) error) error {
	n, side := h.hop.moved(), h.hop.side()
	return w.frames(&h.Conv.Past, pastTaps-w.ahead, last, func(x engine.Tensor, last bool) error {
		mark := w.env.Arena.Mark()
		defer w.env.Arena.Release(mark)
		wide := w.alloc(x.Dim(1), x.Dim(2), n*h.hop.Out)
		from, inputs := x, w.history(&h.Conv.Past, x)
		if w.ahead > 0 {
			from = w.latest(inputs)
		}
		frames, at := n/(side*side), 0
		if inputs.n == pastTaps { // the first result
			at = frames - 1
		}
		err := w.steps(func() {
			if h.hop.Shortcut { // before the convolution, which keeps x in place of an older frame
				w.env.Ops.Linear(pixels(wide), pixels(from), h.Around, engine.Epilogue{})
			}
			w.causal(wide, x, w.plain, h.Conv.Now, &h.Conv.Past, h.hop.Shortcut)
		})
		if err != nil {
			return err
		}
		for ; at < frames; at++ {
			err := w.steps(func() {
				y := w.in(0, side*wide.Dim(1), side*wide.Dim(2), h.hop.Out)
				cells(y, wide, side, n, at*side*side, false, w.env.Ops.Copy)
				w.x = y
			})
			if err == nil {
				err = next(last && at == frames-1)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// down is the walk through a convolution that moves pixels to channels. The first frame counts twice where it moves
// frames.
func (h *chainHop) down(w *walk, last bool, next func(bool) error) error {
	n, side := h.hop.moved(), h.hop.side()
	frames, copied := n/(side*side), func(part, packed engine.Tensor) { w.env.Ops.Copy(packed, part) }
	return w.frames(&h.Conv.Past, pastTaps-w.ahead+frames-1, last, func(x engine.Tensor, last bool) error {
		y, columns, inputs := x.Dim(1)/side, x.Dim(2)/side, w.history(&h.Conv.Past, x)
		at := (inputs.n - pastTaps) % frames
		if at < frames-1 { // the first of two
			return w.steps(func() {
				t, half := w.alloc(x.Dim(1), x.Dim(2), h.Conv.out), w.alloc(y, columns, h.hop.Out)
				w.causal(t, x, w.plain, h.Conv.Now, &h.Conv.Past, false)
				cells(t, half, side, n, 0, false, copied)
				w.history(h, half).push(w, half)
			})
		}
		result := w.in(1, y, columns, h.hop.Out)
		err := w.steps(func() { // before the convolution keeps x in place of an older frame
			packed := w.alloc(y, columns, n*h.hop.In)
			for f := range frames {
				from := x
				if f < frames-1 {
					from = w.latest(inputs)
				}
				cells(from, packed, side, n, f*side*side, false, copied)
			}
			w.env.Ops.Linear(pixels(result), pixels(packed), h.Around, engine.Epilogue{})
		}, func() {
			t, whole := w.alloc(x.Dim(1), x.Dim(2), h.Conv.out), w.alloc(y, columns, h.hop.Out)
			w.causal(t, x, w.plain, h.Conv.Now, &h.Conv.Past, false)
			if frames > 1 {
				w.env.Ops.Copy(whole, w.latest(w.history(h, whole)))
			}
			cells(t, whole, side, n, at*side*side, false, copied)
			w.env.Ops.Add(pixels(result), pixels(result), pixels(whole))
			w.moved(1, result)
		})
		if err != nil {
			return err
		}
		return next(last)
	})
}

// members returns the walk through the blocks of a chain.
func (c *chain) members() (out []follow) {
	for i := range c.Blocks {
		h := &c.Blocks[i]
		for k := range h.Blocks {
			out = append(out, h.Blocks[k].member)
		}
		switch {
		case h.Conv == nil:
		case c.up:
			out = append(out, h.up)
		default:
			out = append(out, h.down)
		}
	}
	return out
}

// ascend walks from the rows z of a latent frame to the pictures that are complete then, and calls done after each.
func (w *walk) ascend(l *layers, z, picture engine.Tensor, last bool, done func() error) error {
	c, side := l.Ascent, w.cfg.Chain.Square
	w.clip, w.ahead, w.mirror = true, w.cfg.Chain.Ahead, w.cfg.Chain.Reflect
	err := w.steps(func() {
		w.x = w.in(0, z.Dim(1), z.Dim(2), w.cfg.Z)
		w.env.Ops.Linear(pixels(w.x), pixels(z), l.PostQuant, engine.Epilogue{})
	})
	if err != nil {
		return err
	}
	members := append([]follow{joined(&c.In, (*walk).plain)}, c.members()...)
	return w.along(append(members, joined(&c.Out, (*walk).silenced), func(w *walk, _ bool, _ func(bool) error) error {
		err := w.steps(func() { cells(picture, w.x, side, side*side, 0, true, w.env.Ops.Copy) })
		if err != nil {
			return err
		}
		return done()
	}), last)
}

// descend walks from a band of a picture to the moments of the latent frame that is complete then, if one is.
func (w *walk) descend(l *layers, picture, moments engine.Tensor, last bool) (made bool, err error) {
	c, side := l.Descent, w.cfg.Chain.Square
	w.clip, w.ahead, w.mirror = true, 0, w.cfg.Chain.ReflectDown
	err = w.steps(func() {
		w.x = w.in(0, picture.Dim(1)/side, picture.Dim(2)/side, side*side*w.cfg.In)
		cells(picture, w.x, side, side*side, 0, true, func(part, packed engine.Tensor) { w.env.Ops.Copy(packed, part) })
	})
	if err != nil {
		return false, err
	}
	members := append([]follow{joined(&c.In, (*walk).plain)}, c.members()...)
	err = w.along(append(members, joined(&c.Out, (*walk).silenced), func(w *walk, _ bool, _ func(bool) error) error {
		made = true
		return w.steps(func() { w.env.Ops.Linear(pixels(moments), pixels(w.x), l.Quant, engine.Epilogue{}) })
	}), last)
	return made, err
}

// silenced returns silu(norm(x)) with a norm without weights, as an input.
func (w *walk) silenced(x engine.Tensor) input { return w.normalised(x, norm{}) }
