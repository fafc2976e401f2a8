package hunyuan

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/layers"
)

// Prepare joins the states of both text encoders, from which PrepareBlock computes keys and values. It computes the
// rotation table and the part of the conditioning vector that does not depend on the timestep (pooled mT5 states,
// sizes, style). Contexts shorter than 77 BERT or 256 mT5 tokens are an error: learned padding has a place for each of
// them.
func (m *Model) Prepare(env dit.Env, entries []dit.Entry, grid dit.Grid) (*dit.Prepared, error) {
	p, err := layers.Begin(m.Spec(), entries, grid)
	if err == nil {
		err = check(entries)
	}
	if err != nil {
		return nil, err
	}
	p.Lt += entries[0].Context2.Rows
	p.CrossKV = make([]engine.Tensor, m.cfg.Depth)
	p.Source = env.Arena.Alloc(engine.F32, p.N, p.Lt, m.cfg.TextDim)
	p.Vector = env.Arena.Alloc(engine.F32, p.N, m.cfg.Hidden)
	p.RoPE = layers.UploadRotation(env, grid.Tokens(), m.Spec().HeadDim/2, func() layers.Rotation {
		return layers.FillRotation(m.Spec().HeadDim, ropeBase, grid)
	})
	mark := env.Arena.Mark()
	t5 := layers.Contexts(env, entries, func(e dit.Entry) dit.Array { return e.Context2 })
	m.text(env, p.Source, entries, t5)
	m.vector(env, p.Vector, t5, entries, grid)
	env.Arena.Release(mark)
	return p, nil
}

// PrepareBlock computes the keys and values of the text for block i.
func (m *Model) PrepareBlock(env dit.Env, p *dit.Prepared, i int) {
	if !m.Held.Has(i) {
		return
	}
	w, d := &m.Net.Blocks[i].Cross, m.Spec().HeadDim
	kv := env.Arena.Alloc(env.DType, p.N, p.Lt, 2, w.KV.N()/2/d, d) // all heads, or those of this rank
	layers.Project(env, kv.Merge(3).Merge(2), p.Source, w.KV)
	keys := kv.Index(2, 0)
	env.Ops.QKNormRoPE(engine.Tensor{}, keys, engine.Tensor{}, engine.Tensor{}, keys, engine.Tensor{},
		w.Norm.both(), engine.RoPE{})
	p.CrossKV[i] = kv
}

func check(entries []dit.Entry) error {
	for i, e := range entries {
		switch {
		case e.Context.Rows < textLen:
			return fmt.Errorf("hunyuandit: entry %d: context has %d BERT tokens, want at least %d", i, e.Context.Rows, textLen)
		case e.Context2.Rows < t5Len:
			return fmt.Errorf("hunyuandit: entry %d: second context has %d mT5 tokens, want at least %d", i,
				e.Context2.Rows, t5Len)
		case e.Size != nil && len(e.Size) != sizeValues:
			return fmt.Errorf("hunyuandit: entry %d: size has %d values, want %d: height, width, target height, target "+
				"width, crop top, crop left", i, len(e.Size), sizeValues)
		}
	}
	return nil
}

// text joins BERT states and projected mT5 states in out [n, Lb+Lu, T] and replaces padding in the last 77 and 256
// tokens by learned vectors.
func (m *Model) text(env dit.Env, out engine.Tensor, entries []dit.Entry, t5 engine.Tensor) {
	lb, lu := entries[0].Context.Rows, entries[0].Context2.Rows
	mark := env.Arena.Mark()
	env.Ops.Copy(out.Slice(1, 0, lb), layers.Contexts(env, entries, func(e dit.Entry) dit.Array { return e.Context }))
	layers.MLP(env, out.Slice(1, lb, lb+lu), t5, m.Net.T5.In, m.Net.T5.Out, engine.SiLU)
	env.Arena.Release(mark)
	pad := func(row engine.Tensor, valid, covered int, learned engine.Tensor) {
		l := row.Dim(0)
		if valid == 0 {
			valid = l
		}
		if from := max(valid, l-covered); from < l {
			env.Ops.Copy(row.Slice(0, from, l), learned.Slice(0, from-(l-covered), covered))
		}
	}
	for i, e := range entries {
		row := out.Index(0, i)
		pad(row.Slice(0, 0, lb), e.ContextLen, textLen, m.Net.Padding.Slice(0, 0, textLen))
		pad(row.Slice(0, lb, lb+lu), e.Context2Len, t5Len, m.Net.Padding.Slice(0, textLen, textLen+t5Len))
	}
}

// vector computes extra_embedder([pooled, sizes, style]) into dst [n, E].
func (m *Model) vector(env dit.Env, dst, t5 engine.Tensor, entries []dit.Entry, grid dit.Grid) {
	n, at := len(entries), m.cfg.PoolDim
	in := env.Arena.Alloc(engine.F32, n, m.cfg.extra())
	m.pool(env, in.Slice(1, 0, at), t5)
	if m.cfg.SizeCond {
		width := sizeValues * features
		var sizes []float32
		for _, e := range entries {
			size := e.Size
			if size == nil {
				size = sizeCond(family.Uncropped(8*grid.LatentY, 8*grid.LatentX))
			}
			sizes = append(sizes, layers.TimestepFeatures(size, features)...)
		}
		env.Ops.Copy(in.Slice(1, at, at+width), layers.Upload(env, sizes, n, width))
		at += width
	}
	if m.cfg.StyleCond {
		env.Ops.Copy(in.Slice(1, at, at+m.cfg.Hidden), m.Net.Style.Table.Broadcast(0, n))
	}
	layers.MLP(env, dst, in, m.Net.Extra.In, m.Net.Extra.Out, engine.SiLU)
}

// pool attends from the mean of the first 256 mT5 states to the mean and the states themselves (the attention pooling
// of CLIP, arXiv:2103.00020, section 2.4) and projects the result into dst [n, O].
func (m *Model) pool(env dit.Env, dst, t5 engine.Tensor) {
	w, n, c := &m.Net.Pooler, t5.Dim(0), m.cfg.T5Dim
	mark := env.Arena.Mark()
	x := env.Arena.Alloc(engine.F32, n, 1+t5Len, c)
	states := t5.Slice(1, 0, t5Len)
	env.Ops.MeanRows(x.Index(1, 0), states)
	env.Ops.Copy(x.Slice(1, 1, 1+t5Len), states)
	env.Ops.Add(x, x, w.Pos.Unsqueeze(0))
	q, o := env.Arena.Alloc(engine.F32, n, 1, c), env.Arena.Alloc(engine.F32, n, 1, c)
	k, v := env.Arena.Alloc(engine.F32, n, 1+t5Len, c), env.Arena.Alloc(engine.F32, n, 1+t5Len, c)
	env.Ops.Linear(q, x.Slice(1, 0, 1), w.Query, engine.Epilogue{})
	env.Ops.Linear(k, x, w.Key, engine.Epilogue{})
	env.Ops.Linear(v, x, w.Value, engine.Epilogue{})
	d := c / poolHeads
	env.Ops.Attention(layers.Heads(o, d), layers.Heads(q, d), layers.Heads(k, d), layers.Heads(v, d),
		engine.AttentionArgs{})
	env.Ops.Linear(dst.Unsqueeze(1), o, w.Out, engine.Epilogue{})
	env.Arena.Release(mark)
}
