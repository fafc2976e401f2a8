package vae

import "patchbay/engine"

// resnet replaces x by the residual block's output. With equal channels the sum is computed in place; if channels
// shrink the shortcut overwrites x, which is no longer needed.
func (w *walk) resnet(r *resnet) {
	y, x := w.x.Dim(1), w.x.Dim(2)
	h := w.in(1, y, x, r.out)
	w.causal(h, w.x, w.through(r.Norm1), r.Conv1, r.Past1, false)
	switch {
	case r.out < r.in:
		w.shrink(r)
	case r.out > r.in:
		wide := w.in(2, y, x, r.out)
		w.env.Ops.Linear(pixels(wide), pixels(w.x), r.Shortcut, engine.Epilogue{})
		w.moved(2, wide)
	}
	w.causal(w.x, h, w.through(r.Norm2), r.Conv2, r.Past2, true)
}

// shrink replaces x by shortcut(x) in the same buffer. No row is overwritten before it is read, because rows of the
// result are shorter, so that row i ends before row i of x does.
func (w *walk) shrink(r *resnet) {
	y, x := w.x.Dim(1), w.x.Dim(2)
	narrow := w.in(0, y, x, r.out)
	strip := w.stripRows(x, r.out)
	for lo := 0; lo < y; lo += strip {
		hi := min(lo+strip, y)
		mark := w.env.Arena.Mark()
		t := w.alloc(hi-lo, x, r.out)
		w.env.Ops.Linear(pixels(t), pixels(w.x.Slice(1, lo, hi)), r.Shortcut, engine.Epilogue{})
		w.env.Ops.Copy(narrow.Slice(1, lo, hi), t)
		w.env.Arena.Release(mark)
	}
	w.x = narrow
}

// upsample doubles the picture: [1, Y, X, C] -> [1, 2Y, 2X, C], then a convolution, which for Wan 2.1 halves the
// channels.
func (w *walk) upsample(s *sample) {
	y := w.in(1, 2*w.x.Dim(1), 2*w.x.Dim(2), s.out)
	w.conv3(y, w.upsampled(w.x), s.Conv, false)
	w.moved(1, y)
}

// downsample halves the picture, with padding on the right and at the bottom only: [1, Y, X, C] -> [1, Y/2, X/2, C].
// made is false for frames of a clip that are only seen by the next one.
func (w *walk) downsample(s *sample) (made bool) {
	if s.Past == nil || !w.clip {
		y := w.in(1, w.x.Dim(1)/2, w.x.Dim(2)/2, w.x.Dim(3))
		w.half(y, w.x, s.Conv, false)
		w.moved(1, y)
		return true
	}
	h := w.history(s.Past, w.x)
	if s.halves && h.n%2 == 1 {
		h.push(w, w.x)
		return false
	}
	y := w.in(1, w.x.Dim(1)/2, w.x.Dim(2)/2, w.x.Dim(3))
	w.half(y, w.x, s.Conv, false)
	for k, tap := range s.Past.taps() {
		if before, ok := h.frame(k + 1); ok {
			w.half(y, before, tap, true)
		}
	}
	h.push(w, w.x)
	w.moved(1, y)
	return true
}

// half writes the 3x3 convolution of x with stride 2 to y, or adds it to y.
func (w *walk) half(y, x engine.Tensor, c *engine.Weight, add bool) {
	rows, in := x.Dim(1), w.plain(x)
	strip := w.stripRows(in.x, in.c)
	for lo := 0; lo < rows; lo += strip { // strips have even rows
		args := engine.ConvArgs{KY: 3, KX: 3, Stride: 2, Right: 1}
		hi := min(lo+strip, rows)
		to := hi + 1
		if to > rows && !in.below {
			to, args.Bottom = rows, 1
		}
		mark := w.env.Arena.Mark()
		out := y.Slice(1, lo/2, hi/2)
		if add {
			args.Residual = out
		}
		w.env.Ops.Conv2D(out, w.reflected(in.rows(lo, to), &args), c, args)
		w.env.Arena.Release(mark)
	}
}

// attention adds attention over all pixels of the picture to x.
func (w *walk) attention(a *attention) {
	ops, arena := w.env.Ops, w.env.Arena
	y, x, c := w.x.Dim(1), w.x.Dim(2), w.x.Dim(3)
	l := y * x
	n := w.in(1, y, x, c)
	w.norm(w.x, a.Norm, engine.ActNone)(n, w.x)
	q, kv := arena.Alloc(w.env.DType, 1, l, 1, c), arena.Alloc(w.env.DType, 1, l, 2, c)
	rows := pixels(n)
	ops.Linear(q.Index(2, 0).Index(0, 0), rows, a.Q, engine.Epilogue{})
	ops.Linear(kv.Index(2, 0).Index(0, 0), rows, a.K, engine.Epilogue{})
	ops.Linear(kv.Index(2, 1).Index(0, 0), rows, a.V, engine.Epilogue{})
	if w.env.Exchange != nil {
		all := arena.Alloc(w.env.DType, 1, y/w.band.Len()*w.band.Total*x, 2, c)
		w.env.Exchange.Gather(all, kv) // [1, L/P, 2, C] -> [1, L, 2, C]
		kv = all
	}
	o := rows.Split(0, 1, l).Split(2, 1, c) // overwrites the normalized pixels, which are no longer needed
	ops.Attention(o, q, kv.Slice(2, 0, 1), kv.Slice(2, 1, 2), engine.AttentionArgs{})
	ops.Linear(pixels(w.x), rows, a.Out, engine.Epilogue{Residual: pixels(w.x)})
}

// pixels views [1, Y, X, C] as [Y*X, C].
func pixels(t engine.Tensor) engine.Tensor { return t.Merge(0).Merge(0) }
