package text

import (
	"fmt"
	"slices"

	"patchbay/engine"
	"patchbay/models/weights"
)

// deepVision is the vision tower of Qwen3-VL: a transformer over patches of 16 pixels with full attention and learned
// positions, which are resized to the picture. Besides its last states, those after some of its layers reach the
// language model (DeepStack, arXiv:2406.04334).
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
	Norm1 affine         `weight:"norm1"`
	QKV   *engine.Weight `weight:"attn.qkv,perm=qkv" shape:"3E,E"`
	Proj  *engine.Weight `weight:"attn.proj" shape:"E,E"`
	Norm2 affine         `weight:"norm2"`
	Up    *engine.Weight `weight:"mlp.linear_fc1" shape:"F,E"`
	Down  *engine.Weight `weight:"mlp.linear_fc2" shape:"E,F"`
}

// deepMerger normalizes patches, then merges them.
type deepMerger struct {
	Norm affine         `weight:"norm"`
	In   *engine.Weight `weight:"linear_fc1" shape:"4E,4E"`
	Out  *engine.Weight `weight:"linear_fc2" shape:"T,4E"`
}

// tapMerger merges patches, then normalizes them.
type tapMerger struct {
	Norm engine.Tensor  `weight:"norm.weight" shape:"4E"`
	Bias engine.Tensor  `weight:"norm.bias" shape:"4E"`
	In   *engine.Weight `weight:"linear_fc1" shape:"4E,4E"`
	Out  *engine.Weight `weight:"linear_fc2" shape:"T,4E"`
}

const deepPatch = 16

// deepKey is a tensor that only files with this vision tower have.
const deepKey = "visual.deepstack_merger_list.0.norm.weight"

// openDeepVision loads the vision tower of Qwen3-VL.
func openDeepVision(ops engine.Ops, set *weights.Set, c visionConfig, room int64) (VisionTower, error) {
	m := &deepVision{visionConfig: c}
	table, ok := set.Get("pos_embed.weight")
	for m.side*m.side < set.Dim("pos_embed.weight", 0) {
		m.side++
	}
	if !ok || !slices.Equal(table.Shape, []int{m.side * m.side, c.width}) {
		return nil, fmt.Errorf("load text encoder: visual.pos_embed.weight is missing or of shape %v: want [n*n, %d]",
			table.Shape, c.width)
	}
	m.table = table.F32()
	m.weights.Blocks = make([]deepBlock, set.Count("blocks"))
	m.weights.Taps = make([]tapMerger, len(c.Taps))
	opt := weights.Options{
		Model: "vision", Perms: map[string][]int{"qkv": c.order()}, Ignore: []string{"pos_embed."},
		Dims: map[string]int{
			"E": c.width, "T": set.Dim("merger.linear_fc2.weight", 0), "F": set.Dim("blocks.0.mlp.linear_fc1.weight", 0),
		},
	}
	if err := within(ops, &opt, set, "blocks", len(m.weights.Blocks), room); err != nil {
		return nil, err
	}
	return m, m.load(ops, set, opt)
}

// positions returns the learned positions of the patches [L, E]: the table is resized bilinearly to the picture,
// corners aligned.
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

func (m *deepVision) See(env Env, p Picture) (rows [][]float32, y, x int, err error) {
	g, err := newVisionGrid(p, deepPatch, max(p.Y, p.X, 1))
	if err != nil {
		return nil, 0, 0, err
	}
	memory := func(a *engine.Arena) eyeWork {
		e := &m.weights
		w := m.work(a, env.DType, g, e.Patch.K(), e.Blocks[0].Up.N(), e.Merger.Out.N()*(1+len(m.Taps)))
		w.joined = a.Alloc(env.DType, 1, len(g.order), 4*m.width)
		return w
	}
	view, env, end, err := m.brought(env)
	if err != nil {
		return nil, 0, 0, err
	}
	defer end()
	m = &deepVision{view, m.visionConfig, m.table, m.side}
	return see(env, g, memory, func(env Env, w eyeWork) error { return m.run(env, w, g, p) })
}

func (m *deepVision) run(env Env, w eyeWork, g visionGrid, p Picture) error {
	ops, half := env.Ops, [3]float32{0.5, 0.5, 0.5}
	w.load(ops, m.visionConfig, g, p, half, half)
	ops.Upload(w.norm, m.positions(g))
	ops.Linear(w.x, w.pixels, m.weights.Patch, engine.Epilogue{Residual: w.norm})
	t := m.weights.Merger.Out.N()
	merge := func(k int, in, out *engine.Weight) {
		ops.Linear(w.merged, w.joined, in, engine.Epilogue{Act: engine.GELUErf})
		ops.Linear(w.out.Slice(2, k*t, (k+1)*t), w.merged, out, engine.Epilogue{})
	}
	for i := range m.weights.Blocks {
		if err := env.step(i); err != nil {
			return err
		}
		m.block(ops, w, &m.weights.Blocks[i], g.windows)
		if k := slices.Index(m.Taps, i); k >= 0 {
			tap := &m.weights.Taps[k]
			ops.LayerNorm(w.joined, fours(w.x), tap.Norm, tap.Bias, visionEps)
			merge(1+k, tap.In, tap.Out)
		}
	}
	last := &m.weights.Merger
	ops.LayerNorm(w.norm, w.x, last.Norm.Weight, last.Norm.Bias, visionEps)
	ops.Copy(w.joined, fours(w.norm))
	merge(0, last.In, last.Out)
	return nil
}

// block computes x += proj(attention(norm1(x))), then x += down(gelu(up(norm2(x)))). The whole picture is one window.
func (m *deepVision) block(ops engine.Ops, w eyeWork, b *deepBlock, windows []int) {
	ops.LayerNorm(w.norm, w.x, b.Norm1.Weight, b.Norm1.Bias, visionEps)
	w.attend(ops, m.visionConfig, b.QKV, b.Proj, windows)
	ops.LayerNorm(w.norm, w.x, b.Norm2.Weight, b.Norm2.Bias, visionEps)
	ops.Linear(w.hidden, w.norm, b.Up, engine.Epilogue{Act: engine.GELUTanh})
	ops.Linear(w.x, w.hidden, b.Down, engine.Epilogue{Residual: w.x})
}
