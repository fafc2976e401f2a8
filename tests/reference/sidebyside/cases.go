package main

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/flux"
	"patchbay/models/goldenrun"
	"patchbay/models/weights"
)

// flux is one evaluation of FLUX.1 with 2 double and 4 single blocks on a picture of size x size pixels and 256 text
// tokens, embedders, modulation and last layer included.
func (b *bench) flux(d engine.DType, size int) (func() error, error) {
	c := flux.Config{
		Hidden: 3072, Heads: 24, Depth: 2, DepthSingle: 4, Axes: []int{16, 56, 56}, Theta: 10000, TimeFactor: 1000,
		Channels: 16, PatchSize: 2,
		ContextDim: 4096, VectorDim: 768, Guidance: true, MLPHidden: 12288,
	}
	described, err := c.Describe(nil)
	if err != nil {
		return nil, err
	}
	declared, err := described.Declare()
	if err != nil {
		return nil, err
	}
	largest := 0
	for _, t := range declared {
		largest = max(largest, int(t.Params()))
	}
	noise := make([]byte, largest*d.Size())
	engine.Narrow(noise, small(largest, 0.02), d)
	stored := map[string]weights.Stored{}
	for _, t := range declared {
		stored[t.Name] = weights.Stored{DType: d, Shape: t.Shape, Data: noise[:int(t.Params())*d.Size()]}
	}
	if described, err = c.Describe(weights.FromMap(stored)); err != nil {
		return nil, err
	}
	m, err := described.Load(b.ops, dit.Held{})
	if err != nil {
		return nil, err
	}
	b.close = m.Close
	const arena = 1 << 30
	buf, err := b.ops.Alloc(arena)
	if err != nil {
		return nil, err
	}
	b.held = append(b.held, buf)
	guidance := float32(3.5)
	entry := dit.Entry{
		Context: dit.Array{Data: small(256*4096, 1), Rows: 256, Cols: 4096}, Pooled: small(768, 1),
		Guidance: &guidance,
	}
	return func() error {
		memory := engine.NewArena("activations", buf, arena)
		env := dit.Env{Ops: b.ops, Arena: memory, DType: d, Attend: dit.Whole(b.ops, memory)}
		_, err := goldenrun.Once(env, m, entry, size/8, size/8, 0.5)
		return err
	}, nil
}

// t5 is one encoder layer of T5-XXL (4096 wide, 64 heads of 64, gated 10240) on that many tokens.
func (b *bench) t5(d engine.DType, tokens int) (func() error, error) {
	const e, f, heads = 4096, 10240, 64
	var err error
	weight := func(n, k int) (w *engine.Weight) {
		if err == nil {
			w, err = b.weight(d, n, k, 0)
		}
		return w
	}
	tensor := func(d engine.DType, shape ...int) (t engine.Tensor) {
		if err == nil {
			t, err = b.tensor(d, shape...)
		}
		return t
	}
	qw, kw, vw, ow, gate, up, down := weight(e, e), weight(e, e), weight(e, e), weight(e, e), weight(f, e),
		weight(f, e), weight(e, f)
	x, h, y := tensor(d, 1, tokens, e), tensor(d, 1, tokens, e), tensor(d, 1, tokens, e)
	q, k, v := tensor(d, 1, tokens, e), tensor(d, 1, tokens, e), tensor(d, 1, tokens, e)
	wide, wider := tensor(d, 1, tokens, f), tensor(d, 1, tokens, f)
	bias, one := tensor(engine.F32, heads, tokens, tokens), tensor(engine.F32, e)
	if err != nil {
		return nil, err
	}
	byHead := func(t engine.Tensor) engine.Tensor { return t.Split(2, heads, e/heads) }
	return func() error {
		o := b.ops
		o.RMSNorm(h, x, one, 1e-6)
		o.Linear(q, h, qw, engine.Epilogue{})
		o.Linear(k, h, kw, engine.Epilogue{})
		o.Linear(v, h, vw, engine.Epilogue{})
		o.Attention(byHead(y), byHead(q), byHead(k), byHead(v), engine.AttentionArgs{Scale: 1, Bias: bias})
		o.Linear(h, y, ow, engine.Epilogue{Residual: x})
		o.RMSNorm(y, h, one, 1e-6)
		o.Linear(wide, y, gate, engine.Epilogue{})
		o.Linear(wider, y, up, engine.Epilogue{})
		o.ActivateMul(wide, wide, wider, engine.GELUTanh)
		o.Linear(y, wide, down, engine.Epilogue{Residual: h})
		return nil
	}, nil
}

// conv is one residual block of every resolution of an autoencoder's decoder for a picture of size x size pixels: group
// norm, SiLU and a 3 x 3 convolution twice, at size/8 with 512 channels, size/4 with 512, size/2 with 256 and size with
// 128.
func (b *bench) conv(d engine.DType, size int) (func() error, error) {
	var blocks []func()
	for i, c := range []int{512, 512, 256, 128} {
		n := size >> (3 - i)
		x, err := b.tensor(d, 1, n, n, c)
		if err != nil {
			return nil, err
		}
		h, err := b.tensor(d, 1, n, n, c)
		if err != nil {
			return nil, err
		}
		y, err := b.tensor(d, 1, n, n, c)
		if err != nil {
			return nil, err
		}
		vec, err := b.tensor(engine.F32, c)
		if err != nil {
			return nil, err
		}
		w, err := b.weight(d, c, 9*c, c)
		if err != nil {
			return nil, err
		}
		stats := engine.NewTensor(engine.Buf{Host: make([]byte, 16*32)}, engine.F64, 1, 32, 2)
		a := engine.ConvArgs{KY: 3, KX: 3, Stride: 1, Top: 1, Bottom: 1, Left: 1, Right: 1}
		norm := func(y, x engine.Tensor) {
			b.ops.GroupNormStats(stats, x, 32)
			b.ops.GroupNormApply(y, x, stats, vec, vec, n*n*c/32, 1e-6, engine.SiLU)
		}
		blocks = append(blocks, func() {
			norm(h, x)
			b.ops.Conv2D(y, h, w, a)
			norm(h, y)
			last := a
			last.Residual = x
			b.ops.Conv2D(y, h, w, last)
		})
	}
	return func() error {
		for _, f := range blocks {
			f()
		}
		return nil
	}, nil
}
