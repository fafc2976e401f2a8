// Package layers holds what several transformer families share: position tables, timestep features, modulation views
// and the few compositions of engine operations that occur in every block.
//
// Everything works on the rows it is given and allocates from env.Arena in stack order. Tables are computed on the host
// in the precision in which torch computes them, since a phase of 1000 radians turns one unit in the last place of f32
// into 6e-5: timestep features step by step in f32, FLUX rotations in f64, HunyuanDiT rotations and PixArt positions in
// f32.
package layers

import (
	"patchbay/engine"
	"patchbay/models/dit"
)

// Upload copies host data into a new f32 tensor of the arena.
func Upload(env dit.Env, data []float32, shape ...int) engine.Tensor {
	t := env.Arena.Alloc(engine.F32, shape...)
	env.Ops.Upload(t, data)
	return t
}

// UploadComputed is Upload of data that takes long to compute, which a recording need not do.
func UploadComputed(env dit.Env, compute func() []float32, shape ...int) engine.Tensor {
	t := env.Arena.Alloc(engine.F32, shape...)
	if env.Arena.Measuring() {
		env.Ops.Upload(t, dit.Undefined(t.Len()))
	} else {
		env.Ops.Upload(t, compute())
	}
	return t
}

// Scratch allocates an activation of x's dtype.
func Scratch(env dit.Env, x engine.Tensor, shape ...int) engine.Tensor {
	return env.Arena.Alloc(x.DType, shape...)
}

// Project computes y = x W^T + bias for an f32 input x and a result y of env.DType: conditioning is computed in f32 and
// rounded once.
func Project(env dit.Env, y, x engine.Tensor, w *engine.Weight) {
	if y.DType == x.DType {
		env.Ops.Linear(y, x, w, engine.Epilogue{})
		return
	}
	mark := env.Arena.Mark()
	wide := Scratch(env, x, y.Shape()...)
	env.Ops.Linear(wide, x, w, engine.Epilogue{})
	env.Ops.Copy(y, wide)
	env.Arena.Release(mark)
}

// Modulate computes a block's modulation [S, n, w.N()] f32, in the arena, from vectors [S, n, K]. It is absent if w is
// nil, that is, not held.
func Modulate(env dit.Env, vector engine.Tensor, w *engine.Weight) engine.Tensor {
	if w == nil {
		return engine.Tensor{}
	}
	y := env.Arena.Alloc(engine.F32, vector.Dim(0), vector.Dim(1), w.N())
	env.Ops.Linear(y, vector, w, engine.Epilogue{})
	return y
}

// MLP computes y = out(act(in(x))); x and y are [L, K] or [B, L, K].
func MLP(env dit.Env, y, x engine.Tensor, in, out *engine.Weight, act engine.Act) {
	mark := env.Arena.Mark()
	shape := x.Shape()
	shape[len(shape)-1] = in.N()
	hidden := Scratch(env, x, shape...)
	env.Ops.Linear(hidden, x, in, engine.Epilogue{Act: act})
	env.Ops.Linear(y, hidden, out, engine.Epilogue{})
	env.Arena.Release(mark)
}

// Gathered returns all of the rows `of`: [B, L, E]. h [B, l, E] holds those of them that X holds. The result is h
// itself where that is all of them, else a tensor in the arena.
func Gathered(env dit.Env, h engine.Tensor, of dit.Rows) engine.Tensor {
	if env.Gather == nil {
		return h
	}
	whole := Scratch(env, h, h.Dim(0), of.Len(), h.Dim(2))
	env.Gather(whole, h, of)
	return whole
}

// ColumnLinear computes y = act(h W^T + bias) for a weight whose rows may be split across ranks: y [B, L, N], h
// [B, l, K] as Gathered takes it.
func ColumnLinear(env dit.Env, y, h engine.Tensor, w *engine.Weight, of dit.Rows, act engine.Act) {
	mark := env.Arena.Mark()
	env.Ops.Linear(y, Gathered(env, h, of), w, engine.Epilogue{Act: act})
	env.Arena.Release(mark)
}

// Part is some rows of one stream that have weights of their own.
type Part struct {
	// Weights read columns of their input in turn, and their products are summed. Several have no biases.
	Weights []*engine.Weight
	Gate    engine.Tensor // [G, E]; absent: 1
	Wide    dit.Range     // its rows among those that projections see
	Kept    dit.Range     // its rows among those that X holds
}

// each calls visit for every weight with the columns of a [B, L, K] that it reads.
func (p *Part) each(a engine.Tensor, visit func(i int, w *engine.Weight, a engine.Tensor)) {
	at := 0
	for i, w := range p.Weights {
		visit(i, w, a.Slice(2, at, at+w.K()))
		at += w.K()
	}
}

// TimeEmbedder turns the sinusoidal features of a timestep into a vector of width E.
type TimeEmbedder struct {
	In  *engine.Weight `weight:"0" shape:"E,256"`
	Out *engine.Weight `weight:"2" shape:"E,E"`
}

// FeedForward is the MLP of a block, with the names of timm. Up holds the rows and Down the columns of this rank's
// slice.
type FeedForward struct {
	Up   *engine.Weight `weight:"fc1" shape:"F,E" split:"rows F"`
	Down *engine.Weight `weight:"fc2" shape:"E,F" split:"cols F"`
}

// Add computes x += gate * down(gelu(up(h))). x and h are [B, l, E], those of the rows `of` that X holds. gate [G, E]
// may be absent.
func (w FeedForward) Add(env dit.Env, x, h, gate engine.Tensor, of dit.Rows) {
	mark := env.Arena.Mark()
	hidden := Scratch(env, h, h.Dim(0), of.Len(), w.Up.N())
	ColumnLinear(env, hidden, h, w.Up, of, engine.GELUTanh)
	RowLinear(env, x, hidden, w.Down, gate, of)
	env.Arena.Release(mark)
}

// RowLinear computes x += gate * (a W^T + bias) for a weight whose columns may be split across ranks. a [B, L, K] holds
// the rows `of`, x [B, l, E] those of them that X holds; gate is [G, E] or absent. It is one product with fused
// residual if this rank holds the whole weight. Otherwise it is a partial sum without bias, env.Reduce or env.Scatter,
// and one gated addition, so that bias and residual enter once.
func RowLinear(env dit.Env, x, a engine.Tensor, w *engine.Weight, gate engine.Tensor, of dit.Rows) {
	RowParts(env, x, a, []Part{{[]*engine.Weight{w}, gate, dit.Range{End: a.Dim(1)}, dit.Range{End: x.Dim(1)}}}, of)
}

// RowProduct computes y = a W^T + bias for a weight as in RowLinear, without a pass over y where this rank holds it
// whole.
func RowProduct(env dit.Env, y, a engine.Tensor, w *engine.Weight, of dit.Rows) {
	if env.Reduce == nil && env.Scatter == nil {
		env.Ops.Linear(y, a, w, engine.Epilogue{})
		return
	}
	env.Ops.Fill(y, 0)
	RowLinear(env, y, a, w, engine.Tensor{}, of)
}

// RowParts is RowLinear with weights and a gate per part, and one sum over the ranks for all of them.
func RowParts(env dit.Env, x, a engine.Tensor, parts []Part, of dit.Rows) {
	rows := func(t engine.Tensor, r dit.Range) engine.Tensor { return t.Slice(1, r.Start, r.End) }
	if env.Reduce == nil && env.Scatter == nil {
		for _, p := range parts {
			dst := rows(x, p.Kept)
			p.each(rows(a, p.Wide), func(_ int, w *engine.Weight, a engine.Tensor) {
				env.Ops.Linear(dst, a, w, engine.Epilogue{Residual: dst, Gate: p.Gate})
			})
		}
		return
	}
	mark := env.Arena.Mark()
	part := Scratch(env, x, x.Dim(0), of.Len(), x.Dim(2))
	for _, p := range parts {
		dst := rows(part, p.Wide)
		p.each(rows(a, p.Wide), func(i int, w *engine.Weight, a engine.Tensor) {
			e := engine.Epilogue{NoBias: true}
			if i > 0 {
				e.Residual = dst
			}
			env.Ops.Linear(dst, a, w, e)
		})
	}
	if env.Scatter == nil {
		env.Reduce(part)
	} else {
		sum := Scratch(env, x, x.Dim(0), x.Dim(1), x.Dim(2))
		env.Scatter(sum, part, of)
		part = sum
	}
	for _, p := range parts {
		if p.Kept.Len() > 0 {
			dst := rows(x, p.Kept)
			env.Ops.GatedAdd(dst, dst, p.Gate, rows(part, p.Kept), p.Weights[0].Bias)
		}
	}
	env.Arena.Release(mark)
}

// AdaLN is Ops.AdaLN, skipped if there are no rows.
func AdaLN(env dit.Env, y, x, shift, scale engine.Tensor, eps float32) {
	if x.Dim(1) > 0 {
		env.Ops.AdaLN(y, x, shift, scale, eps)
	}
}

// ScaledRMS computes y = rms(x) * scale + shift for x [B, L, E]; scale and shift are [G, E], and the scale is the whole
// factor. Without rows it does nothing.
func ScaledRMS(env dit.Env, y, x, scale, shift engine.Tensor, eps float32) {
	if x.Dim(1) == 0 {
		return
	}
	each := x.Dim(0) / scale.Dim(0)
	for n := range scale.Dim(0) {
		to := y.Slice(0, n*each, (n+1)*each)
		env.Ops.RMSNorm(to, x.Slice(0, n*each, (n+1)*each), scale.Index(0, n), eps)
		Shift(env, to, shift.Index(0, n))
	}
}

// Shift adds the vector [E] f32 to all rows of y [B, L, E].
func Shift(env dit.Env, y, vector engine.Tensor) {
	mark := env.Arena.Mark()
	zero := Scratch(env, y, 1, 1, y.Dim(2))
	env.Ops.Fill(zero, 0)
	env.Ops.GatedAdd(y, y, engine.Tensor{}, zero.Broadcast(0, y.Dim(0)).Broadcast(1, y.Dim(1)), vector)
	env.Arena.Release(mark)
}

// WeighScale turns scales [S, n, E] into w * (1 + scale), w [E] being the weight of the norm before them.
func WeighScale(env dit.Env, scale, w engine.Tensor) {
	row := w.Unsqueeze(0)
	env.Ops.GatedAdd(scale, row.Unsqueeze(0).Broadcast(0, scale.Dim(0)).Broadcast(1, scale.Dim(1)), row, scale,
		engine.Tensor{})
}

// QKV views a fused projection as queries, keys and values, with g query heads per key head: [B, L, (g+2)*K*D] ->
// [B, L, g*K, D] and twice [B, L, K, D]. K follows from the width, so a rank that holds some heads needs no other code.
func QKV(t engine.Tensor, d, g int) (q, k, v engine.Tensor) {
	n := t.Dim(2) / (g + 2)
	return Heads(t.Slice(2, 0, g*n), d), Heads(t.Slice(2, g*n, (g+1)*n), d), Heads(t.Slice(2, (g+1)*n, (g+2)*n), d)
}

// Heads views features as heads: [B, L, H*D] -> [B, L, H, D].
func Heads(t engine.Tensor, d int) engine.Tensor { return t.Split(2, t.Dim(2)/d, d) }

// Chunk returns part i of a modulation row made of parts of width e: [n, k*e] -> [n, e].
func Chunk(mod engine.Tensor, e, i int) engine.Tensor { return mod.Slice(1, i*e, (i+1)*e) }

// Entries copies rows of n entries into a batch of B = n*r items, r consecutive ones per entry: src [n, L, E] -> dst
// [B, L, E].
func Entries(env dit.Env, dst, src engine.Tensor) {
	if dst.Dim(1) == 0 {
		return
	}
	n := src.Dim(0)
	env.Ops.Copy(dst.Split(0, n, dst.Dim(0)/n), src.Unsqueeze(1).Broadcast(1, dst.Dim(0)/n))
}

// CrossAttend attends from q [B, L, H, D] to the text keys and values kv [n, Lt, 2, H, D] of n entries and writes o
// [B, L, H, D]. B = n*r; the items of an entry are consecutive. keyLen [n] limits the keys of each entry; nil: all.
// Every rank has all keys, so nothing is exchanged.
func CrossAttend(env dit.Env, o, q, kv engine.Tensor, keyLen []int) {
	n := kv.Dim(0)
	k, v := kv.Index(2, 0), kv.Index(2, 1)
	if q.Dim(0) == n {
		env.Ops.Attention(o, q, k, v, engine.AttentionArgs{KeyLen: keyLen})
		return
	}
	r := q.Dim(0) / n
	for b := range q.Dim(0) {
		e := b / r
		a := engine.AttentionArgs{}
		if keyLen != nil {
			a.KeyLen = keyLen[e : e+1]
		}
		env.Ops.Attention(o.Slice(0, b, b+1), q.Slice(0, b, b+1), k.Slice(0, e, e+1), v.Slice(0, e, e+1), a)
	}
}

// ChannelsFirst returns the row order that turns a last layer that writes (row, column, channel) into one that writes
// (channel, row, column), the feature order of latent tokens: element i is the stored row that becomes row i.
func ChannelsFirst(c, p int) []int {
	order := make([]int, 0, c*p*p)
	for ch := range c {
		for at := range p * p {
			order = append(order, at*c+ch)
		}
	}
	return order
}

// ModulatedHead computes out = linear(norm(x)*(1+scale) + shift) for the image rows x of s: the last layer of most
// families. out is [B, li, N]. shift, 0 or 1, is the number of the shift among the two chunks of the head's
// modulations; the other is the scale.
func ModulatedHead(env dit.Env, s *dit.State, out engine.Tensor, linear *engine.Weight, shift int, eps float32) {
	x := s.ImageRows()
	if x.Dim(1) == 0 {
		return
	}
	mark, e, mod := env.Arena.Mark(), x.Dim(2), s.M.Head.Index(0, s.Step).Slice(0, 0, s.P.N)
	h := Scratch(env, x, x.Dim(0), x.Dim(1), e)
	env.Ops.AdaLN(h, x, Chunk(mod, e, shift), Chunk(mod, e, 1-shift), eps)
	env.Ops.Linear(out, h, linear, engine.Epilogue{})
	env.Arena.Release(mark)
}

// Tanh replaces x [S, n, E] f32 by tanh(x). Each element is a query of one number against the keys 1 and -1 with the
// values 1 and -1: (exp(x) - exp(-x)) / (exp(x) + exp(-x)), with the care for large values that attention takes anyway.
func Tanh(env dit.Env, x engine.Tensor) {
	mark := env.Arena.Mark()
	signs := Upload(env, []float32{1, -1}, 1, 2, 1, 1)
	q, o := env.Arena.Alloc(engine.F32, 1, x.Len(), 1, 1), env.Arena.Alloc(engine.F32, 1, x.Len(), 1, 1)
	flat := func(t engine.Tensor) engine.Tensor {
		return t.Index(3, 0).Index(2, 0).Index(0, 0).Split(0, x.Shape()...)
	}
	env.Ops.Copy(flat(q), x)
	env.Ops.Attention(o, q, signs, signs, engine.AttentionArgs{Scale: 1})
	env.Ops.Copy(x, flat(o))
	env.Arena.Release(mark)
}

// Wide is rows [B, L, E'] to be normalized with the weights [E'] f32.
type Wide struct{ Rows, Weight engine.Tensor }

// WideRMS replaces each of several rows by x*rsqrt(mean(x^2)+eps)*w, the mean being over all width columns of a row, of
// which the ranks of a tensor group have E' each: queries and keys of models that normalize all heads together. The
// group sums once for all of them.
func WideRMS(env dit.Env, width int, eps float32, all ...Wide) {
	if env.Sum == nil {
		for _, w := range all {
			env.Ops.RMSNorm(w.Rows, w.Rows, w.Weight, eps)
		}
		return
	}
	// A row is a picture of one pixel and one group, of which the statistics are its sum and its sum of squares. With the
	// former zero, a group norm is this one.
	mark, rows := env.Arena.Mark(), 0
	for _, w := range all {
		rows += w.Rows.Dim(0) * w.Rows.Dim(1)
	}
	zero, sums := env.Arena.Alloc(engine.F32, all[0].Rows.Dim(2)), env.Arena.Alloc(engine.F64, rows, 1, 2)
	env.Ops.Fill(zero, 0)
	pieces := func(visit func(x, stats, weight engine.Tensor)) {
		at := 0
		for _, w := range all {
			x := w.Rows.Merge(0).Unsqueeze(1).Unsqueeze(1)
			for lo := 0; lo < x.Dim(0); lo += wideRows {
				hi := min(lo+wideRows, x.Dim(0))
				visit(x.Slice(0, lo, hi), sums.Slice(0, at+lo, at+hi), w.Weight)
			}
			at += x.Dim(0)
		}
	}
	pieces(func(x, stats, _ engine.Tensor) { env.Ops.GroupNormStats(stats, x, 1) })
	env.Sum(sums)
	env.Ops.Fill(engine.NewTensor(sums.Buf, engine.F32, rows, 4).Slice(1, 0, 2), 0) // a zero of f64 is two of f32
	pieces(func(x, stats, weight engine.Tensor) {
		env.Ops.GroupNormApply(x, x, stats, weight, zero, width, eps, engine.ActNone)
	})
	env.Arena.Release(mark)
}

// RotateWide rotates all heads [B, L, H*d] of x in place, each with columns of its own of tables [L, H*d/2]. Backends
// get some heads at a time as one, of at most widestHead elements.
func RotateWide(env dit.Env, x engine.Tensor, tables engine.RoPE, d int) {
	if x.Dim(1) == 0 {
		return
	}
	none, step := engine.Tensor{}, max(1, widestHead/d)*d
	for lo := 0; lo < x.Dim(2); lo += step {
		hi := min(lo+step, x.Dim(2))
		t := engine.RoPE{Cos: tables.Cos.Slice(1, lo/2, hi/2), Sin: tables.Sin.Slice(1, lo/2, hi/2)}
		k := x.Slice(2, lo, hi).Unsqueeze(2)
		env.Ops.QKNormRoPE(none, k, none, none, k, none, engine.QKNorm{}, t)
	}
}

// widestHead is what every backend rotates as one head.
const widestHead = 1024

// wideRows bounds the rows of one call, because backends keep partial sums of each.
const wideRows = 4096
