package vae

import (
	"patchbay/engine"
)

// Band is the rows [Start, End) of a latent that has Total rows.
type Band struct{ Start, End, Total int }

// Len returns the number of rows.
func (b Band) Len() int { return b.End - b.Start }

// stripBytes is the default of Env.StripBytes: enough rows to keep a device busy, but little compared to the
// activations of a large picture.
const stripBytes = 32 << 20

// stripRows returns the number of rows of x pixels with c channels that make a strip.
func (w *walk) stripRows(x, c int) int {
	n := w.env.StripBytes
	if n <= 0 {
		n = stripBytes
	}
	return max(2, n/(x*c*w.env.DType.Size())&^1) // even, so that upsampled rows stay in pairs
}

// beside is the buffer of what a level's shortcut keeps.
const beside = 3

// walk is one pass over the layers. It holds the current activation x in one of three buffers; layers write to another
// one or in place. A fourth one is for shortcuts around levels.
type walk struct {
	env    Env
	cfg    *Config
	band   Band
	sizing bool             // only find out how large the buffers must be, compute nothing
	need   [4]int           // bytes of each buffer
	bufs   [4]engine.Tensor // u8
	order  [4]int           // indices of x's buffer, the other one, the spare one, and that beside a level
	x      engine.Tensor    // [1, Y, X, C]
	done   int
	total  int
	clip   bool             // there are frames to follow: inputs are kept for them
	ahead  int              // of a chain: how many frames behind the present one a convolution reads
	mirror bool             // a picture goes on beyond its edges as it came
	before map[any]*history // by the weights that read them; of clips
	kinds  []any            // their keys in the order in which they are first used
}

// runWalk runs pass twice: first to measure the buffers, then for real. It releases all memory that it takes from the
// arena.
func runWalk(env Env, cfg *Config, band Band, pass func(*walk) error) error {
	mark := env.Arena.Mark()
	defer env.Arena.Release(mark)
	quiet := env
	quiet.Ops, quiet.Arena, quiet.Check = silent, engine.NewMeasuringArena("vae strips"), nil
	if env.Exchange != nil {
		quiet.Exchange = silentExchange()
	}
	size := &walk{
		env: quiet, cfg: cfg, band: band, sizing: true, order: [4]int{0, 1, 2, beside}, before: map[any]*history{},
		mirror: cfg.Tokens != nil,
	}
	if err := pass(size); err != nil {
		return err
	}
	w := &walk{
		env: env, cfg: cfg, band: band, order: [4]int{0, 1, 2, beside}, total: size.done, before: map[any]*history{},
		mirror: cfg.Tokens != nil,
	}
	for i, n := range size.need {
		w.bufs[i] = env.Arena.Alloc(engine.U8, n)
	}
	for _, key := range size.kinds {
		w.before[key] = size.before[key].room(env)
	}
	return pass(w)
}

// steps runs layers, calling Check before each. What a layer takes from the arena is released after it.
func (w *walk) steps(layers ...func()) error {
	for _, layer := range layers {
		if w.env.Check != nil {
			if err := w.env.Check(w.done, w.total); err != nil {
				return err
			}
		}
		w.done++
		mark := w.env.Arena.Mark()
		layer()
		w.env.Arena.Release(mark)
	}
	return nil
}

// in views buffer w.order[i] as an activation.
func (w *walk) in(i, y, x, c int) engine.Tensor {
	i = w.order[i]
	if w.sizing {
		w.need[i] = max(w.need[i], y*x*c*w.env.DType.Size())
		return engine.NewTensor(engine.Buf{}, w.env.DType, 1, y, x, c)
	}
	return engine.NewTensor(w.bufs[i].Buf, w.env.DType, 1, y, x, c)
}

// moved makes y, which is in buffer order[i], the current activation.
func (w *walk) moved(i int, y engine.Tensor) {
	w.order[0], w.order[i] = w.order[i], w.order[0]
	w.x = y
}

// input is what a convolution reads. rows returns its rows [lo, hi), computed in the arena unless they already exist.
// lo may be -1 if above is set, hi may be y+1 if below is set.
type input struct {
	y, x, c      int
	above, below bool
	rows         func(lo, hi int) engine.Tensor
}

// conv3 writes the 3x3 convolution of in to y [1, Y, X, N] strip by strip, or adds it to y if add is set.
func (w *walk) conv3(y engine.Tensor, in input, c *engine.Weight, add bool) {
	strip := w.stripRows(in.x, in.c)
	for lo := 0; lo < in.y; lo += strip {
		hi := min(lo+strip, in.y)
		args := engine.ConvArgs{KY: 3, KX: 3, Stride: 1, Left: 1, Right: 1}
		from, to := lo-1, hi+1
		if from < 0 && !in.above {
			from, args.Top = 0, 1
		}
		if to > in.y && !in.below {
			to, args.Bottom = in.y, 1
		}
		mark := w.env.Arena.Mark()
		out := y.Slice(1, lo, hi)
		if add {
			args.Residual = out
		}
		w.env.Ops.Conv2D(out, w.reflected(in.rows(from, to), &args), c, args)
		w.env.Arena.Release(mark)
	}
}

// reflected returns the rows that a convolution reads with the columns that a picture has beyond its edges where it
// goes on as it came, instead of the padding in args.
func (w *walk) reflected(rows engine.Tensor, args *engine.ConvArgs) engine.Tensor {
	if !w.mirror {
		return rows
	}
	x, left, right := rows.Dim(2), args.Left, args.Right
	args.Left, args.Right = 0, 0
	out := w.alloc(rows.Dim(1), left+x+right, rows.Dim(3))
	w.env.Ops.Copy(out.Slice(2, left, left+x), rows)
	if left > 0 {
		w.env.Ops.Copy(out.Slice(2, 0, 1), rows.Slice(2, 1, 2))
	}
	if right > 0 {
		w.env.Ops.Copy(out.Slice(2, left+x, left+x+1), rows.Slice(2, x-2, x-1))
	}
	return out
}

// alloc returns a temporary activation.
func (w *walk) alloc(y, x, c int) engine.Tensor { return w.env.Arena.Alloc(w.env.DType, 1, y, x, c) }

// haloed is a band with one row of each neighbor.
type haloed struct{ x, above, below engine.Tensor }

// halo fetches the neighbors' rows of x. The caller releases the arena memory that they take.
func (w *walk) halo(x engine.Tensor) haloed {
	h, y := haloed{x: x}, x.Dim(1)
	if w.env.Exchange != nil {
		if w.band.Start > 0 {
			h.above = w.alloc(1, x.Dim(2), x.Dim(3))
		}
		if w.band.End < w.band.Total {
			h.below = w.alloc(1, x.Dim(2), x.Dim(3))
		}
		w.env.Exchange.Halo(x, h.above, h.below)
	}
	if w.mirror && h.above.IsZero() {
		h.above = h.row(1)
	}
	if w.mirror && h.below.IsZero() {
		h.below = h.row(y - 2)
	}
	return h
}

// row returns row y of a band, -1 and the number of its rows being its neighbors'.
func (h haloed) row(y int) engine.Tensor {
	switch {
	case y < 0:
		return h.above
	case y == h.x.Dim(1):
		return h.below
	}
	return h.x.Slice(1, y, y+1)
}

// each calls f for the pieces that make up rows [lo, hi); at is the offset of a piece in that range.
func (h haloed) each(lo, hi int, f func(piece engine.Tensor, at int)) {
	if lo < 0 {
		f(h.above, 0)
	}
	y := h.x.Dim(1)
	first := max(lo, 0)
	f(h.x.Slice(1, first, min(hi, y)), first-lo)
	if hi > y {
		f(h.below, y-lo)
	}
}

// made returns the input whose rows f computes from those of x, scale rows and columns for each.
func (w *walk) made(x engine.Tensor, scale int, f func(dst, rows engine.Tensor)) input {
	h := w.halo(x)
	return input{
		y: scale * x.Dim(1), x: scale * x.Dim(2), c: x.Dim(3), above: !h.above.IsZero(), below: !h.below.IsZero(),
		rows: func(lo, hi int) engine.Tensor {
			shift := scale - 1                       // scale is 1 or 2
			from, to := lo>>shift, (hi+shift)>>shift // rows of x; -1 >> 1 is -1
			t := w.alloc(scale*(to-from), scale*x.Dim(2), x.Dim(3))
			h.each(from, to, func(piece engine.Tensor, at int) {
				f(t.Slice(1, scale*at, scale*(at+piece.Dim(1))), piece)
			})
			return t.Slice(1, lo-scale*from, hi-scale*from)
		},
	}
}

// plain returns x itself as an input.
func (w *walk) plain(x engine.Tensor) input {
	in := w.made(x, 1, w.env.Ops.Copy)
	copied := in.rows
	in.rows = func(lo, hi int) engine.Tensor {
		if lo >= 0 && hi <= x.Dim(1) {
			return x.Slice(1, lo, hi)
		}
		return copied(lo, hi)
	}
	return in
}

// normalised returns silu(norm(x)) as an input.
func (w *walk) normalised(x engine.Tensor, n norm) input {
	return w.made(x, 1, w.norm(x, n, engine.SiLU))
}

// through returns a function that makes inputs normalized by n.
func (w *walk) through(n norm) func(engine.Tensor) input {
	return func(x engine.Tensor) input { return w.normalised(x, n) }
}

// upsampled returns x with every pixel doubled, as an input.
func (w *walk) upsampled(x engine.Tensor) input { return w.made(x, 2, w.env.Ops.Upsample2x) }

// norm prepares a norm of x and returns a function that writes act(norm(rows)) for some rows of x.
func (w *walk) norm(x engine.Tensor, n norm, act engine.Act) func(dst, rows engine.Tensor) {
	if w.cfg.Wan {
		eps := float32(wanEps)
		if w.cfg.Chain != nil {
			eps = chainEps
		}
		return func(dst, rows engine.Tensor) {
			w.env.Ops.RMSNorm(pixels(dst).Unsqueeze(0), pixels(rows).Unsqueeze(0), n.Weight, eps)
			if act != engine.ActNone {
				w.env.Ops.Activate(dst, dst, act)
			}
		}
	}
	stats, count := w.stats(x)
	return func(dst, rows engine.Tensor) {
		w.env.Ops.GroupNormApply(dst, rows, stats, n.Weight, n.Bias, count, w.cfg.Eps, act)
	}
}

// wanEps avoids a division by zero for pixels of zeros and changes no others.
const wanEps = 1e-30

// stats returns the group-norm statistics of x over the whole picture, and the number of elements per group there.
func (w *walk) stats(x engine.Tensor) (stats engine.Tensor, count int) {
	stats = w.env.Arena.Alloc(engine.F64, 1, w.cfg.Groups, 2)
	w.env.Ops.GroupNormStats(stats, x, w.cfg.Groups)
	if w.env.Exchange != nil {
		w.env.Exchange.Sum(stats)
	}
	rows := x.Dim(1) / w.band.Len() * w.band.Total
	return stats, rows * x.Dim(2) * x.Dim(3) / w.cfg.Groups
}
