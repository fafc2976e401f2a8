package text

import (
	"slices"

	"patchbay/engine"
	"patchbay/models/weights"
)

// deepVision is the eyes of Qwen3-VL: a transformer over patches of 16 pixels with learned positions, resized to the
// picture, and attention over all of it. Beside its last states those behind some of its layers reach the language
// model (DeepStack, arXiv:2406.04334).
type deepVision struct {
	loaded[deepWeights]
	visionConfig
	table []float32 // [side, side, E] positions
	side  int
}

type deepWeights struct {
	Patch  *engine.Weight `weight:"patch_embed.proj" shape:"E,3,2,16,16"`
	Blocks []deepBlock    `weight:"blocks"`
	Merger deepMerger     `weight:"merger"`
	Taps   []tapMerger    `weight:"deepstack_merger_list"`
}

type deepBlock struct {
	Norm1 engine.Tensor  `weight:"norm1.weight" shape:"E"`
	Bias1 engine.Tensor  `weight:"norm1.bias" shape:"E"`
	QKV   *engine.Weight `weight:"attn.qkv,perm=qkv" shape:"3E,E"`
	Proj  *engine.Weight `weight:"attn.proj" shape:"E,E"`
	Norm2 engine.Tensor  `weight:"norm2.weight" shape:"E"`
	Bias2 engine.Tensor  `weight:"norm2.bias" shape:"E"`
	Up    *engine.Weight `weight:"mlp.linear_fc1" shape:"F,E"`
	Down  *engine.Weight `weight:"mlp.linear_fc2" shape:"E,F"`
}

// deepMerger normalises patches, then joins them.
type deepMerger struct {
	Norm engine.Tensor  `weight:"norm.weight" shape:"E"`
	Bias engine.Tensor  `weight:"norm.bias" shape:"E"`
	In   *engine.Weight `weight:"linear_fc1" shape:"4E,4E"`
	Out  *engine.Weight `weight:"linear_fc2" shape:"T,4E"`
}

// tapMerger joins patches, then normalises them.
type tapMerger struct {
	Norm engine.Tensor  `weight:"norm.weight" shape:"4E"`
	Bias engine.Tensor  `weight:"norm.bias" shape:"4E"`
	In   *engine.Weight `weight:"linear_fc1" shape:"4E,4E"`
	Out  *engine.Weight `weight:"linear_fc2" shape:"T,4E"`
}

const deepPatch = 16

// openDeepVision loads the eyes of Qwen3-VL.
func openDeepVision(ops engine.Ops, set *weights.Set, c visionConfig) (*deepVision, error) {
	m := &deepVision{visionConfig: c}
	if s, ok := set.Get("pos_embed.weight"); ok {
		m.table = slices.Clone(s.F32())
	}
	for m.side*m.side*c.width < len(m.table) {
		m.side++
	}
	m.weights.Blocks = make([]deepBlock, set.Count("blocks"))
	m.weights.Taps = make([]tapMerger, len(c.Taps))
	return m, m.load(ops, set, weights.Options{
		Model: "vision", Perms: map[string][]int{"qkv": c.order()}, Ignore: []string{"pos_embed."},
		Dims: map[string]int{
			"E": c.width, "T": set.Dim("merger.linear_fc2.weight", 0), "F": set.Dim("blocks.0.mlp.linear_fc1.weight", 0),
		},
	})
}

// positions are the learned positions at the patches [L, E]: the table is stretched over the picture, corners on
// corners, and read between its points.
func (m *deepVision) positions(g visionGrid) []float32 {
	var out []float32
	at := func(i, n int) (low, high int, part float32) {
		if n < 2 {
			return 0, min(1, m.side-1), 0
		}
		v := float32(i) * (float32(m.side-1) / float32(n-1))
		low = min(int(v), m.side-1)
		return low, min(low+1, m.side-1), v - float32(low)
	}
	g.patches(func(y, x int) {
		top, bottom, dy := at(y, g.y*visionMerge)
		left, right, dx := at(x, g.x*visionMerge)
		row := func(y, x int) []float32 { return m.table[(y*m.side+x)*m.width:][:m.width] }
		a, b, c, d := row(top, left), row(top, right), row(bottom, left), row(bottom, right)
		for i := range m.width {
			out = append(out, (1-dy)*(1-dx)*a[i]+(1-dy)*dx*b[i]+dy*(1-dx)*c[i]+dy*dx*d[i])
		}
	})
	return out
}

// deepWork is the memory of one run.
type deepWork struct {
	pixels, x, norm, qkv, hidden, joined, merged, out engine.Tensor
	rope                                              engine.RoPE
}

func (m *deepVision) memory(a *engine.Arena, dtype engine.DType, g visionGrid) deepWork {
	n, w, d := len(g.order), &m.weights, m.width/m.Heads
	l := n * visionMerge * visionMerge
	row := func(rows, n int) engine.Tensor { return a.Alloc(dtype, 1, rows, n) }
	return deepWork{
		pixels: row(l, w.Patch.K()), x: row(l, m.width), norm: row(l, m.width), qkv: row(l, 3*m.width),
		hidden: row(l, w.Blocks[0].Up.N()), joined: row(n, 4*m.width), merged: row(n, 4*m.width),
		out:  row(n, w.Merger.Out.N()*(1+len(m.Taps))),
		rope: engine.RoPE{Cos: a.Alloc(engine.F32, l, d/2), Sin: a.Alloc(engine.F32, l, d/2)},
	}
}

// See is Eyes.See.
func (m *deepVision) See(env Env, p Picture) (rows [][]float32, y, x int, err error) {
	g, err := newVisionGrid(p, deepPatch, max(p.Y, p.X, 1))
	if err != nil {
		return nil, 0, 0, err
	}
	memory := func(a *engine.Arena) { m.memory(a, env.DType, g) }
	rows, err = see(env, g, m.weights.Merger.Out.N()*(1+len(m.Taps)), memory, func(env Env) (engine.Tensor, error) {
		return m.run(env, g, p)
	})
	return rows, g.y, g.x, err
}

func (m *deepVision) run(env Env, g visionGrid, p Picture) (engine.Tensor, error) {
	ops, w := env.Ops, m.memory(env.Arena, env.DType, g)
	half := [3]float32{0.5, 0.5, 0.5}
	cos, sin := g.rotation(m.width / m.Heads)
	ops.Upload(w.rope.Cos, cos)
	ops.Upload(w.rope.Sin, sin)
	ops.Upload(w.pixels, g.input(p, half, half))
	ops.Upload(w.norm, m.positions(g))
	ops.Linear(w.x, w.pixels, m.weights.Patch, engine.Epilogue{Residual: w.norm})
	t := m.weights.Merger.Out.N()
	merge := func(k int, in, out *engine.Weight) {
		ops.Linear(w.merged, w.joined, in, engine.Epilogue{Act: engine.GELUErf})
		ops.Linear(w.out.Slice(2, k*t, (k+1)*t), w.merged, out, engine.Epilogue{})
	}
	four := func(x engine.Tensor) engine.Tensor { // [1, L, E] -> [1, L/4, 4E]
		return x.Split(1, len(g.order), visionMerge*visionMerge).Merge(2)
	}
	for i := range m.weights.Blocks {
		if err := env.step(); err != nil {
			return engine.Tensor{}, err
		}
		m.block(ops, w, i)
		if k := slices.Index(m.Taps, i); k >= 0 {
			tap := &m.weights.Taps[k]
			ops.LayerNorm(w.joined, four(w.x), tap.Norm, tap.Bias, visionEps)
			merge(1+k, tap.In, tap.Out)
		}
	}
	last := &m.weights.Merger
	ops.LayerNorm(w.norm, w.x, last.Norm, last.Bias, visionEps)
	ops.Copy(w.joined, four(w.norm))
	merge(0, last.In, last.Out)
	return w.out, nil
}

// block is x += proj(attention(norm1(x))), x += down(gelu(up(norm2(x)))).
func (m *deepVision) block(ops engine.Ops, w deepWork, i int) {
	b, none := &m.weights.Blocks[i], engine.Tensor{}
	ops.LayerNorm(w.norm, w.x, b.Norm1, b.Bias1, visionEps)
	ops.Linear(w.qkv, w.norm, b.QKV, engine.Epilogue{})
	five := w.qkv.Split(2, 3, m.Heads, m.width/m.Heads)
	q, k, v := five.Index(2, 0), five.Index(2, 1), five.Index(2, 2)
	ops.QKNormRoPE(q, k, none, q, k, none, engine.QKNorm{}, w.rope)
	ops.Attention(heads(w.norm, m.Heads), q, k, v, engine.AttentionArgs{})
	ops.Linear(w.x, w.norm, b.Proj, engine.Epilogue{Residual: w.x})
	ops.LayerNorm(w.norm, w.x, b.Norm2, b.Bias2, visionEps)
	ops.Linear(w.hidden, w.norm, b.Up, engine.Epilogue{Act: engine.GELUTanh})
	ops.Linear(w.x, w.hidden, b.Down, engine.Epilogue{Residual: w.x})
}
