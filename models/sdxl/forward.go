package sdxl

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/layers"
)

// groups is the number of groups of every group norm.
const groups = 32

// The epsilons of norms: in general, and in front of transformers.
const (
	normEps    = 1e-5
	spatialEps = 1e-6
)

// walk is one pass over the layers, which read the keys and values of the text, and what the vector adds, in turn.
type walk struct {
	env      dit.Env
	cfg      *Config
	s        *dit.State
	kv, time int // columns that were read
}

// Block runs everything between the first and the last convolution on s.X in place. Its memory is a buffer for the
// results of the way up and, above it, the skips in order, which the way up reads and releases from the end.
func (m *Model) Block(env dit.Env, _ int, s *dit.State, _ engine.Tensor) {
	mark, w, x := env.Arena.Mark(), &walk{env: env, cfg: &m.cfg, s: s}, picture(s, s.X)
	y := env.Arena.Alloc(x.DType, s.B, m.cfg.widest(s.P.Grid))
	skips, marks := []engine.Tensor{x}, []int{env.Arena.Mark()}
	for i := range m.Net.Down[1:] {
		marks = append(marks, env.Arena.Mark())
		x = w.down(&m.Net.Down[1+i], x)
		skips = append(skips, x)
	}
	x = w.resnet(like(y, x, x.Dim(3)), x, &m.Net.Middle.Before)
	w.spatial(x, &m.Net.Middle.Trans)
	x = w.resnet(x, x, &m.Net.Middle.After)
	for i := range m.Net.Up {
		last := len(skips) - 1
		x = w.up(&m.Net.Up[i], y, x, skips[last], skips[max(last-1, 0)])
		env.Arena.Release(marks[last])
		skips = skips[:last]
	}
	env.Ops.Copy(picture(s, s.X), x)
	env.Arena.Release(mark)
}

// widest returns the elements of the largest result on the way up.
func (c Config) widest(g dit.Grid) (n int) {
	y, x := g.LatentY, g.LatentX
	for level, m := range c.Mult {
		if n = max(n, m*c.Channels*y*x); level < len(c.Mult)-1 {
			n = max(n, c.Mult[level+1]*c.Channels*y*x) // doubled from the level below
		}
		y, x = (y+1)/2, (x+1)/2
	}
	return n
}

// like views the beginning of a buffer as a picture of the size of x and c channels.
func like(buffer, x engine.Tensor, c int) engine.Tensor {
	return engine.NewTensor(buffer.Buf, buffer.DType, x.Dim(0), x.Dim(1), x.Dim(2), c)
}

// scratch allocates a picture of the size of x and c channels.
func (w *walk) scratch(x engine.Tensor, c int) engine.Tensor {
	return layers.Scratch(w.env, x, x.Dim(0), x.Dim(1), x.Dim(2), c)
}

// down returns the result of a layer of the way down, in the arena.
func (w *walk) down(l *down, x engine.Tensor) engine.Tensor {
	if l.Halve != nil {
		y := layers.Scratch(w.env, x, x.Dim(0), (x.Dim(1)+1)/2, (x.Dim(2)+1)/2, x.Dim(3))
		args := sameSize
		args.Stride = 2
		w.env.Ops.Conv2D(y, x, l.Halve.Conv, args)
		return y
	}
	y := w.resnet(w.scratch(x, l.Res.n), x, l.Res)
	if l.Trans != nil {
		w.spatial(y, l.Trans)
	}
	return y
}

// up returns the result of a layer of the way up, in the buffer that x is in too. next is the skip after the layer's:
// the picture is doubled to its size.
func (w *walk) up(l *up, buffer, x, skip, next engine.Tensor) engine.Tensor {
	mark, c := w.env.Arena.Mark(), x.Dim(3)
	wide := w.scratch(x, c+skip.Dim(3))
	w.env.Ops.Copy(wide.Slice(3, 0, c), x)
	w.env.Ops.Copy(wide.Slice(3, c, wide.Dim(3)), skip)
	y := w.resnet(like(buffer, x, l.Res.n), wide, &l.Res)
	w.env.Arena.Release(mark)
	if l.Trans != nil {
		w.spatial(y, l.Trans)
	}
	double := l.Double
	if double == nil {
		double = l.After
	}
	if double == nil {
		return y
	}
	large := layers.Scratch(w.env, y, y.Dim(0), 2*y.Dim(1), 2*y.Dim(2), y.Dim(3))
	w.env.Ops.Upsample2x(large, y)
	y = like(buffer, next, y.Dim(3))
	conv3(w.env, y, large.Slice(1, 0, next.Dim(1)).Slice(2, 0, next.Dim(2)), double.Conv)
	w.env.Arena.Release(mark)
	return y
}

// resnet writes a residual block of x to y, which may be x, and returns y.
func (w *walk) resnet(y, x engine.Tensor, r *resnet) engine.Tensor {
	mark := w.env.Arena.Mark()
	n, h := w.scratch(x, r.in), w.scratch(x, r.n)
	groupNorm(w.env, n, x, norm(r.Norm1), normEps, engine.SiLU)
	conv3(w.env, h, n, r.Conv1)
	w.addTime(rows(h), r.n)
	groupNorm(w.env, h, h, r.Norm2, normEps, engine.SiLU)
	args := sameSize
	if args.Residual = x; r.Skip != nil {
		w.env.Ops.Linear(rows(y), rows(x), r.Skip.Conv, engine.Epilogue{})
		args.Residual = y
	}
	w.env.Ops.Conv2D(y, h, r.Conv2, args)
	w.env.Arena.Release(mark)
	return y
}

// addTime adds the next n columns of what the vector of each entry adds to the rows of its items.
func (w *walk) addTime(h engine.Tensor, n int) {
	mark := w.env.Arena.Mark()
	of := w.s.M.Image[0].Index(0, w.s.Step).Slice(1, w.time, w.time+n) // [entries, n]
	add := layers.Scratch(w.env, h, of.Shape()...)
	w.env.Ops.Copy(add, of)
	each := h.Dim(0) / add.Dim(0)
	for b := range h.Dim(0) {
		item := h.Slice(0, b, b+1)
		w.env.Ops.Add(item, item, add.Slice(0, b/each, b/each+1).Unsqueeze(1))
	}
	w.time += n
	w.env.Arena.Release(mark)
}

// spatial adds to x what the transformer blocks make of its pixels.
func (w *walk) spatial(x engine.Tensor, t *spatial) {
	mark, ops, ends := w.env.Arena.Mark(), w.env.Ops, t.ends()
	n, h, pixels := w.scratch(x, t.n), rows(w.scratch(x, t.n)), rows(x)
	groupNorm(w.env, n, x, t.Norm, spatialEps, engine.ActNone)
	ops.Linear(h, rows(n), ends.In, engine.Epilogue{})
	for i := range t.Blocks {
		w.block(h, rows(n), &t.Blocks[i])
	}
	ops.Linear(pixels, h, ends.Out, engine.Epilogue{Residual: pixels})
	w.env.Arena.Release(mark)
}

// block runs a transformer block on x [B, L, E] in place; h is scratch of its shape.
func (w *walk) block(x, h engine.Tensor, b *block) {
	mark, ops, e := w.env.Arena.Mark(), w.env.Ops, x.Dim(2)
	d := e / w.cfg.heads(e)
	heads := func(t engine.Tensor, i int) engine.Tensor { return layers.Heads(t.Slice(2, i*e, (i+1)*e), d) }
	ops.LayerNorm(h, x, b.Norm1.Weight, b.Norm1.Bias, normEps)
	qkv := layers.Scratch(w.env, x, x.Dim(0), x.Dim(1), 3*e)
	for i, p := range []*engine.Weight{b.Self.Query, b.Self.Key, b.Self.Value} {
		ops.Linear(qkv.Slice(2, i*e, (i+1)*e), h, p, engine.Epilogue{})
	}
	ops.Attention(layers.Heads(h, d), heads(qkv, 0), heads(qkv, 1), heads(qkv, 2), engine.AttentionArgs{})
	ops.Linear(x, h, b.Self.Out, engine.Epilogue{Residual: x})

	ops.LayerNorm(h, x, b.Norm2.Weight, b.Norm2.Bias, normEps)
	query := qkv.Slice(2, 0, e)
	ops.Linear(query, h, b.Cross.Query, engine.Epilogue{})
	text := w.s.P.CrossKV[0].Slice(2, w.kv, w.kv+2*e)
	w.kv += 2 * e
	layers.CrossAttend(w.env, layers.Heads(h, d), heads(qkv, 0), text.Split(2, 2, e/d, d), nil)
	ops.Linear(x, h, b.Cross.Out, engine.Epilogue{Residual: x})
	w.env.Arena.Release(mark)

	ops.LayerNorm(h, x, b.Norm3.Weight, b.Norm3.Bias, normEps)
	both := layers.Scratch(w.env, x, x.Dim(0), x.Dim(1), 8*e)
	ops.Linear(both, h, b.UpGate, engine.Epilogue{})
	hidden := both.Slice(2, 0, 4*e)
	ops.ActivateMul(hidden, both.Slice(2, 4*e, 8*e), hidden, engine.GELUErf)
	ops.Linear(x, hidden, b.Down, engine.Epilogue{Residual: x})
	w.env.Arena.Release(mark)
}

// sameSize are the arguments of a convolution of 3 x 3 pixels that keeps the size.
var sameSize = engine.ConvArgs{KY: 3, KX: 3, Stride: 1, Top: 1, Bottom: 1, Left: 1, Right: 1}

func conv3(env dit.Env, y, x engine.Tensor, w *engine.Weight) { env.Ops.Conv2D(y, x, w, sameSize) }

// groupNorm computes y = act(norm(x)) for pictures [B, Y, X, C]; y may be x.
func groupNorm(env dit.Env, y, x engine.Tensor, n norm, eps float32, act engine.Act) {
	mark := env.Arena.Mark()
	stats := env.Arena.Alloc(engine.F64, x.Dim(0), groups, 2)
	env.Ops.GroupNormStats(stats, x, groups)
	env.Ops.GroupNormApply(y, x, stats, n.Weight, n.Bias, x.Dim(1)*x.Dim(2)*x.Dim(3)/groups, eps, act)
	env.Arena.Release(mark)
}
