package ltx

import (
	"slices"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/layers"
)

// segment is a run of rows of a stream that have the same part of the timestep: their modulation [n, k*E].
type segment struct {
	rows dit.Range
	mod  engine.Tensor
}

// stream is one of the two streams of a block.
type stream struct {
	side
	x, h engine.Tensor // its rows [B, L, E], and scratch of that shape
	of   []segment
	rope engine.RoPE // [L, (E+A)/2]: of its attention to itself, then of the one to the other stream
}

// streams returns the streams of a call. Without sound the second has no rows.
func (m *Model) streams(env dit.Env, s *dit.State, video, sound engine.Tensor) (v, a stream) {
	e := &s.P.Entries[0]
	v.side, a.side = m.sides(e)
	all, grid := parts(e), s.P.Grid
	v.x, v.rope = s.X, s.RoPE
	v.of = segments(s.P.N, all, e.Frames, e.FrameRows(grid), s.Rows.Image, video)
	v.h = layers.Scratch(env, v.x, v.x.Shape()...)
	if a.x = s.Sound; a.x.IsZero() {
		return v, a
	}
	a.rope = s.P.SoundRoPE
	each := func(row int) int { return row }
	a.of = segments(s.P.N, all, soundTimes(e, grid.Sound), each, dit.Range{End: a.x.Dim(1)}, sound)
	a.h = layers.Scratch(env, a.x, a.x.Shape()...)
	return v, a
}

// soundTimes returns the part of the timestep of every row of sound, where those of a reference have 0; nil: 1
// everywhere.
func soundTimes(e *dit.Entry, rows int) []float32 {
	n := e.SoundReference.Rows
	if n == 0 {
		return e.SoundRows
	}
	own := e.SoundRows
	if own == nil {
		own = slices.Repeat([]float32{1}, rows)
	}
	return append(make([]float32, n), own...)
}

// segments returns the runs within rows, where each of times is the part that the rows from first of its index have;
// nil: 1 everywhere. mod is [N, k*E], first that of the first of all parts for n entries.
func segments(n int, all, times []float32, first func(i int) int, rows dit.Range, mod engine.Tensor) (out []segment) {
	of := func(part float32) engine.Tensor {
		for i, p := range all {
			if p == part {
				return mod.Slice(0, i*n, (i+1)*n)
			}
		}
		return engine.Tensor{} // there is always one
	}
	if times == nil {
		return []segment{{dit.Range{End: rows.Len()}, of(1)}}
	}
	for from, to := 0, 0; from < len(times); from = to {
		for to = from + 1; to < len(times) && times[to] == times[from]; to++ {
		}
		lo, hi := max(rows.Start, first(from)), min(rows.End, first(to))
		if lo < hi {
			out = append(out, segment{dit.Range{Start: lo - rows.Start, End: hi - rows.Start}, of(times[from])})
		}
	}
	return out
}

// rows cuts the rows of a segment out of t [B, L, C].
func (s *segment) of(t engine.Tensor) engine.Tensor { return t.Slice(1, s.rows.Start, s.rows.End) }

// norm writes the normalized rows of the stream to h, times the chunk scale of its modulation plus the chunk shift.
func (t *stream) norm(env dit.Env, shift, scale int) {
	for _, s := range t.of {
		layers.ScaledRMS(env, s.of(t.h), s.of(t.x), layers.Chunk(s.mod, t.e, scale), layers.Chunk(s.mod, t.e, shift), eps)
	}
}

// add adds what an attention or MLP made of h and a to the rows of the stream, times the chunk gate; -1: 1.
func (t *stream) add(gate int, add func(x, h engine.Tensor, rows dit.Range, gate engine.Tensor)) {
	for _, s := range t.of {
		g := engine.Tensor{}
		if gate >= 0 {
			g = layers.Chunk(s.mod, t.e, gate)
		}
		add(s.of(t.x), s.of(t.h), s.rows, g)
	}
}

// attended is queries, keys and values of an attention and the place of its result: [B, L, I] each.
type attended struct{ q, k, v, out engine.Tensor }

// projections computes queries of h [B, L, W], and keys and values of other [B, L', C], normalized over all heads.
func projections(env dit.Env, h, other engine.Tensor, w *attention) attended {
	rows := func(x engine.Tensor, by *engine.Weight) engine.Tensor {
		y := layers.Scratch(env, x, x.Dim(0), x.Dim(1), by.N())
		env.Ops.Linear(y, x, by, engine.Epilogue{})
		return y
	}
	t := attended{q: rows(h, w.Q), k: rows(other, w.K), v: rows(other, w.V)}
	t.out = layers.Scratch(env, h, t.q.Shape()...)
	env.Ops.RMSNorm(t.q, t.q, w.Query, headsEps)
	env.Ops.RMSNorm(t.k, t.k, w.Key, headsEps)
	return t
}

// add computes x += gate * out(2 sigmoid(logits(h)) * a), with the factors only where heads have gates. h [B, L, W] is
// what queries were made of, a [B, L, I] the attention's result, which is overwritten.
func (w *attention) add(env dit.Env, x, h, a, gate engine.Tensor) {
	mark := env.Arena.Mark()
	if w.Gate != nil && h.Dim(1) > 0 {
		heads := w.Gate.Logits.N()
		logits := layers.Scratch(env, h, h.Dim(0), h.Dim(1), heads)
		env.Ops.Linear(logits, h, w.Gate.Logits, engine.Epilogue{})
		wide := layers.Scratch(env, h, h.Dim(0), h.Dim(1), a.Dim(2))
		d := a.Dim(2) / heads
		env.Ops.Copy(layers.Heads(wide, d), logits.Unsqueeze(3).Broadcast(3, d))
		env.Ops.ActivateMul(a, wide, a, engine.Sigmoid)
		env.Ops.Add(a, a, a)
	}
	env.Ops.Linear(x, a, w.Out, engine.Epilogue{Residual: x, Gate: gate})
	env.Arena.Release(mark)
}

// add computes x += gate * down(gelu(up(h))).
func (w *mlp) add(env dit.Env, x, h, gate engine.Tensor) {
	mark := env.Arena.Mark()
	hidden := layers.Scratch(env, h, h.Dim(0), h.Dim(1), w.Up.N())
	env.Ops.Linear(hidden, h, w.Up, engine.Epilogue{Act: engine.GELUTanh})
	env.Ops.Linear(x, hidden, w.Down, engine.Epilogue{Residual: x, Gate: gate})
	env.Arena.Release(mark)
}

// columns returns some columns of rotation tables.
func columns(t engine.RoPE, from, to int) engine.RoPE {
	return engine.RoPE{Cos: t.Cos.Slice(1, from, to), Sin: t.Sin.Slice(1, from, to)}
}

// Block runs block i: each stream attends to itself and to the text, then the video to the sound and the sound to the
// video, and each has an MLP.
func (m *Model) Block(env dit.Env, i int, s *dit.State, _ engine.Tensor) {
	mark, w := env.Arena.Mark(), &m.Net.Blocks[i]
	v, a := m.streams(env, s, s.M.Image[i].Index(0, s.Step), s.M.Text[i].Index(0, s.Step))
	self := attention(w.Self)
	m.toItself(env, &v, &self, func(t attended) {
		env.Attend(dit.Attention{
			Block: i, Q: layers.Heads(t.q, v.d), K: layers.Heads(t.k, v.d), V: layers.Heads(t.v, v.d),
			Out: layers.Heads(t.out, v.d), Rows: s.Wide, ImageOnly: true,
		})
	})
	m.toText(env, i, s, &v, &w.Text)
	if !a.x.IsZero() {
		self := attention(w.SoundSelf)
		m.toItself(env, &a, &self, func(t attended) { attend(env, t, a.d) })
		m.toText(env, i, s, &a, &w.SoundText)
		m.across(env, i, s, &v, &a, w)
		a.norm(env, mlpShift, mlpScale)
		a.add(mlpGate, func(x, h engine.Tensor, _ dit.Range, gate engine.Tensor) { w.SoundMLP.add(env, x, h, gate) })
	}
	v.norm(env, mlpShift, mlpScale)
	v.add(mlpGate, func(x, h engine.Tensor, _ dit.Range, gate engine.Tensor) { w.MLP.add(env, x, h, gate) })
	env.Arena.Release(mark)
}

// attend attends with heads of width d over keys that are all here.
func attend(env dit.Env, t attended, d int) {
	env.Ops.Attention(layers.Heads(t.out, d), layers.Heads(t.q, d), layers.Heads(t.k, d), layers.Heads(t.v, d),
		engine.AttentionArgs{})
}

// toItself adds the attention of a stream to itself.
func (m *Model) toItself(env dit.Env, t *stream, w *attention, attend func(attended)) {
	mark := env.Arena.Mark()
	t.norm(env, selfShift, selfScale)
	p, rope := projections(env, t.h, t.h, w), columns(t.rope, 0, t.e/2)
	layers.RotateWide(env, p.q, rope, t.d)
	layers.RotateWide(env, p.k, rope, t.d)
	attend(p)
	t.add(selfGate, func(x, h engine.Tensor, rows dit.Range, gate engine.Tensor) {
		w.add(env, x, h, p.out.Slice(1, rows.Start, rows.End), gate)
	})
	env.Arena.Release(mark)
}

// toText adds the attention of a stream to the text.
func (m *Model) toText(env dit.Env, i int, s *dit.State, t *stream, w *attention) {
	if t.x.Dim(1) == 0 {
		return
	}
	mark, gate := env.Arena.Mark(), -1
	kv := s.P.CrossKV[i]
	if m.cfg.TextModulation {
		kv = m.modulatedText(env, s, t, w)
		t.norm(env, textShift, textScale)
		gate = textGate
	} else {
		env.Ops.RMSNorm(t.h, t.x, engine.Tensor{}, eps)
		kv = kv.Slice(3, t.at, t.at+t.e)
	}
	q := layers.Scratch(env, t.h, t.h.Dim(0), t.h.Dim(1), w.Q.N())
	out := layers.Scratch(env, t.h, q.Shape()...)
	env.Ops.Linear(q, t.h, w.Q, engine.Epilogue{})
	env.Ops.RMSNorm(q, q, w.Query, headsEps)
	layers.CrossAttend(env, layers.Heads(out, t.d), layers.Heads(q, t.d), kv.Split(3, t.heads, t.d), nil)
	t.add(gate, func(x, h engine.Tensor, rows dit.Range, gate engine.Tensor) {
		w.add(env, x, h, out.Slice(1, rows.Start, rows.End), gate)
	})
	env.Arena.Release(mark)
}

// modulatedText returns the keys and values [n, Lt, 2, E] of the text times (1+scale) plus shift, in the arena. All
// parts of the timestep have the same.
func (m *Model) modulatedText(env dit.Env, s *dit.State, t *stream, w *attention) engine.Tensor {
	p, mod, at := s.P, t.of[0].mod, m.cfg.chunks()
	kv := env.Arena.Alloc(env.DType, p.N, p.Lt, 2, t.e)
	mark := env.Arena.Mark()
	x := env.Arena.Alloc(env.DType, p.N, p.Lt, t.e)
	env.Ops.Copy(x, p.Source.Slice(2, t.at, t.at+t.e))
	env.Ops.GatedAdd(x, x, layers.Chunk(mod, t.e, at+promptScale), x, engine.Tensor{})
	for n := range p.N {
		layers.Shift(env, x.Slice(0, n, n+1), mod.Index(0, n).Slice(0, (at+promptShift)*t.e, (at+promptShift+1)*t.e))
	}
	keysAndValues(env, kv, x, w)
	env.Arena.Release(mark)
	return kv
}

// across adds what the streams take from each other. Every rank has all rows of the sound, and keys of some rows of the
// video.
func (m *Model) across(env dit.Env, i int, s *dit.State, v, a *stream, w *block) {
	d, at := a.d, m.cfg.chunks()
	video, sound := columns(v.rope, v.e/2, (v.e+a.e)/2), columns(a.rope, a.e/2, a.e)
	mark := env.Arena.Mark()
	v.norm(env, at+fromSoundShift, at+fromSoundScale)
	a.norm(env, at+fromSoundShift, at+fromSoundScale)
	from := attention(w.FromSound)
	t := projections(env, v.h, a.h, &from)
	layers.RotateWide(env, t.q, video, d)
	layers.RotateWide(env, t.k, sound, d)
	if t.q.Dim(1) > 0 {
		attend(env, t, d)
	}
	v.add(at+crossGate, func(x, h engine.Tensor, rows dit.Range, gate engine.Tensor) {
		from.add(env, x, h, t.out.Slice(1, rows.Start, rows.End), gate)
	})
	env.Arena.Release(mark)
	v.norm(env, at+fromVideoShift, at+fromVideoScale)
	a.norm(env, at+fromVideoShift, at+fromVideoScale)
	from = attention(w.FromVideo)
	t = projections(env, a.h, v.h, &from)
	layers.RotateWide(env, t.q, sound, d)
	layers.RotateWide(env, t.k, video, d)
	if env.AttendAlike == nil {
		attend(env, t, d)
	} else {
		env.AttendAlike(dit.Attention{
			Block: i, Q: layers.Heads(t.q, d), K: layers.Heads(t.k, d), V: layers.Heads(t.v, d),
			Out: layers.Heads(t.out, d), Rows: s.Wide, ImageOnly: true,
		})
	}
	a.add(at+crossGate, func(x, h engine.Tensor, rows dit.Range, gate engine.Tensor) {
		from.add(env, x, h, t.out.Slice(1, rows.Start, rows.End), gate)
	})
	env.Arena.Release(mark)
}

// Embed projects the tokens of the video and those of its sound, and marks those of the first frame in models that know
// single pictures.
func (m *Model) Embed(env dit.Env, s *dit.State, x engine.Tensor) {
	rows, n := s.Rows.Image, m.Net
	if l := rows.Len(); l > 0 {
		env.Ops.Linear(s.X, x.Slice(1, 0, l).Slice(2, 0, m.cfg.Channels), n.Patch, engine.Epilogue{})
	}
	if end := min(rows.End, s.P.Grid.Frame().Y*s.P.Grid.X); n.Keyframe != nil && rows.Start < end {
		first := s.X.Slice(1, 0, end-rows.Start)
		layers.Shift(env, first, n.Keyframe.Row.Index(0, 0))
	}
	if !s.Sound.IsZero() {
		sound := x.Slice(1, rows.Len(), x.Dim(1)).Slice(2, 0, m.cfg.SoundFeatures)
		before := s.Sound.Dim(1) - sound.Dim(1)
		env.Ops.Linear(s.Sound.Slice(1, before, s.Sound.Dim(1)), sound, n.SoundPatch, engine.Epilogue{})
		for i := 0; i < s.P.N && before > 0; i++ {
			for b := i * s.B / s.P.N; b < (i+1)*s.B/s.P.N; b++ {
				to := s.Sound.Slice(0, b, b+1).Slice(1, 0, before)
				env.Ops.Linear(to, s.P.Sound.Slice(0, i, i+1), n.SoundPatch, engine.Epilogue{})
			}
		}
	}
}

// Head normalizes, modulates and projects the rows of both streams.
func (m *Model) Head(env dit.Env, s *dit.State, out engine.Tensor) {
	mark, e, mod := env.Arena.Mark(), m.cfg.Hidden, s.M.Head.Index(0, s.Step)
	v, a := m.streams(env, s, mod.Slice(1, 0, 2*e), mod.Slice(1, 2*e, mod.Dim(1)))
	at := 0
	for _, t := range []struct {
		*stream
		by *engine.Weight
	}{{&v, m.Net.Out}, {&a, m.Net.SoundOut}} {
		if t.x.IsZero() {
			continue
		}
		for _, s := range t.of {
			layers.AdaLN(env, s.of(t.h), s.of(t.x), layers.Chunk(s.mod, t.e, 0), layers.Chunk(s.mod, t.e, 1), eps)
		}
		before := 0 // rows of a reference
		if t.stream == &a && !s.P.Sound.IsZero() {
			before = s.P.Sound.Dim(1)
		}
		if l := t.x.Dim(1) - before; l > 0 {
			rows := t.h.Slice(1, before, before+l)
			env.Ops.Linear(out.Slice(1, at, at+l).Slice(2, 0, t.by.N()), rows, t.by, engine.Epilogue{})
			at += l
		}
	}
	env.Arena.Release(mark)
}
