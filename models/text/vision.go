package text

import (
	"encoding/json"
	"fmt"
	"math"

	"patchbay/engine"
	"patchbay/models/weights"
)

// Picture is what a language model with eyes looks at: [Y, X, 3] of 0..1, sides multiples of Vision.Unit.
type Picture struct {
	Y, X int
	Data []float32
}

// Vision is the eyes of Qwen2.5-VL (arXiv:2502.13923, sec. 2.1.1): a transformer over patches of 14 pixels that attends
// in windows of 112 pixels, but for a few blocks, and joins four patches to a row for the language model.
type Vision struct {
	loaded[visionWeights]
	width, heads int
}

const (
	visionPatch  = 14
	visionMerge  = 2 // patches of a row and column that become one
	visionWindow = 4 // joined patches of a window's side
	visionEps    = 1e-6
	// VisionUnit is the pixels that the sides of a Picture are multiples of.
	VisionUnit = visionPatch * visionMerge
)

type visionWeights struct {
	Patch  *engine.Weight `weight:"patch_embed.proj,nobias" shape:"E,3,2,14,14"`
	Blocks []visionBlock  `weight:"blocks"`
	Norm   engine.Tensor  `weight:"merger.ln_q.weight" shape:"E"`
	In     *engine.Weight `weight:"merger.mlp.0" shape:"4E,4E"`
	Out    *engine.Weight `weight:"merger.mlp.2" shape:"T,4E"`
}

type visionBlock struct {
	Norm1 engine.Tensor  `weight:"norm1.weight" shape:"E"`
	QKV   *engine.Weight `weight:"attn.qkv,perm=qkv" shape:"3E,E"`
	Proj  *engine.Weight `weight:"attn.proj" shape:"E,E"`
	Norm2 engine.Tensor  `weight:"norm2.weight" shape:"E"`
	Gate  *engine.Weight `weight:"mlp.gate_proj" shape:"F,E"`
	Up    *engine.Weight `weight:"mlp.up_proj" shape:"F,E"`
	Down  *engine.Weight `weight:"mlp.down_proj" shape:"E,F"`
}

// visionWhole tells the blocks that attend over the whole picture.
func visionWhole(i int) bool { return i%8 == 7 }

// OpenVision loads the eyes of the language model in set, whose names may have one of the usual prefixes. config is the
// JSON of the file's metadata "config", which may say vision.num_heads (16). The caller closes the result.
func OpenVision(ops engine.Ops, set *weights.Set, config []byte) (*Vision, error) {
	_, set, err := findPart(set, "qwen25_7b")
	if err != nil {
		return nil, err
	}
	set = set.Prefix("visual.")
	c := struct {
		Vision struct {
			Heads int `json:"num_heads"`
		} `json:"vision"`
	}{}
	c.Vision.Heads = 16
	if len(config) > 0 {
		if err := json.Unmarshal(config, &c); err != nil {
			return nil, fmt.Errorf("text encoder config: %w", err)
		}
	}
	m := &Vision{width: set.Dim("patch_embed.proj.weight", 0), heads: c.Vision.Heads}
	if m.width == 0 {
		return nil, fmt.Errorf("load text encoder: no visual.patch_embed.proj.weight: the file cannot look at pictures")
	}
	if m.heads < 1 || m.width%(4*m.heads) != 0 {
		return nil, fmt.Errorf("text encoder config: vision.num_heads is %d, must be a divisor of a quarter of the width %d",
			m.heads, m.width)
	}
	m.weights.Blocks = make([]visionBlock, set.Count("blocks"))
	order := halvesTogether(2*m.heads, m.width/m.heads) // values stay
	for i := 2 * m.width; i < 3*m.width; i++ {
		order = append(order, i)
	}
	return m, m.load(ops, set, weights.Options{
		Model: "vision", Perms: map[string][]int{"qkv": order},
		Dims: map[string]int{
			"E": m.width, "T": set.Dim("merger.mlp.2.weight", 0), "F": set.Dim("blocks.0.mlp.gate_proj.weight", 0),
		},
	})
}

// visionGrid is a picture in patches joined by fours: rows and columns of joined patches in the order of windows.
type visionGrid struct {
	y, x    int
	order   []int // of joined patches, by their place in the picture
	windows []int // joined patches of each window
}

func newVisionGrid(p Picture) visionGrid {
	g := visionGrid{y: p.Y / VisionUnit, x: p.X / VisionUnit}
	for top := 0; top < g.y; top += visionWindow {
		for left := 0; left < g.x; left += visionWindow {
			n := len(g.order)
			for y := top; y < min(top+visionWindow, g.y); y++ {
				for x := left; x < min(left+visionWindow, g.x); x++ {
					g.order = append(g.order, y*g.x+x)
				}
			}
			g.windows = append(g.windows, len(g.order)-n)
		}
	}
	return g
}

// patches visits the patches in the order in which they are computed, with their row and column.
func (g visionGrid) patches(visit func(y, x int)) {
	for _, at := range g.order {
		for k := range visionMerge * visionMerge {
			visit(at/g.x*visionMerge+k/visionMerge, at%g.x*visionMerge+k%visionMerge)
		}
	}
}

// input makes the patches' pixels [L, 3*2*14*14], normalised as CLIP's; a picture is two equal frames.
func (g visionGrid) input(p Picture) []float32 {
	mean := [3]float32{0.48145466, 0.4578275, 0.40821073}
	std := [3]float32{0.26862954, 0.26130258, 0.27577711}
	var out []float32
	g.patches(func(y, x int) {
		for c := range 3 {
			for i := range 2 * visionPatch * visionPatch {
				row, column := y*visionPatch+i/visionPatch%visionPatch, x*visionPatch+i%visionPatch
				out = append(out, (p.Data[(row*p.X+column)*3+c]-mean[c])/std[c])
			}
		}
	})
	return out
}

// rotation is cos and sin [L, d/2]: the first half of the pairs turns with the row, the second with the column.
func (g visionGrid) rotation(d int) (cos, sin []float32) {
	g.patches(func(y, x int) {
		for k := range d / 2 {
			at := y
			if k >= d/4 {
				at = x
			}
			f := float32(1 / math.Pow(10000, float64(2*(k%(d/4)))/float64(d/2)))
			s, c := math.Sincos(float64(float32(at) * f))
			cos, sin = append(cos, float32(c)), append(sin, float32(s))
		}
	})
	return cos, sin
}

// See returns what the language model gets of a picture: rows of its width for joined patches, row by row, and how many
// there are down and across. Errors: sides that do not fit, Check's error, device errors, not enough memory.
func (m *Vision) See(env Env, p Picture) (rows [][]float32, y, x int, err error) {
	if p.Y < VisionUnit || p.X < VisionUnit || p.Y%VisionUnit != 0 || p.X%VisionUnit != 0 || len(p.Data) != p.Y*p.X*3 {
		return nil, 0, 0, fmt.Errorf("vision: %d values for a picture of %d x %d: sides must be multiples of %d", len(p.Data),
			p.Y, p.X, VisionUnit)
	}
	g := newVisionGrid(p)
	n := network{name: "vision"}
	if env.Arena == nil {
		arena, free, err := n.arena(env, measured(func(a *engine.Arena) { m.memory(a, env.DType, g) }))
		if err != nil {
			return nil, 0, 0, fmt.Errorf("vision: activations: %w", err)
		}
		defer free()
		env.Arena = arena
	}
	mark := env.Arena.Mark()
	defer env.Arena.Release(mark)
	w := m.memory(env.Arena, env.DType, g)
	if err := m.run(env, w, g, g.input(p)); err != nil {
		return nil, 0, 0, err
	}
	width := m.weights.Out.N()
	flat := make([]float32, len(g.order)*width)
	if err := env.Ops.Download(flat, w.out).Wait(); err != nil {
		return nil, 0, 0, err
	}
	rows = make([][]float32, len(g.order))
	for i, at := range g.order {
		rows[at] = flat[i*width : (i+1)*width]
	}
	return rows, g.y, g.x, nil
}

// visionWork is the memory of one run.
type visionWork struct {
	pixels, x, norm, qkv, hidden, gate, merged, out engine.Tensor
	rope                                            engine.RoPE
}

func (m *Vision) memory(a *engine.Arena, dtype engine.DType, g visionGrid) visionWork {
	l, w := len(g.order)*visionMerge*visionMerge, &m.weights
	row := func(rows, n int) engine.Tensor { return a.Alloc(dtype, 1, rows, n) }
	f := w.Blocks[0].Gate.N()
	return visionWork{
		pixels: row(l, w.Patch.K()), x: row(l, m.width), norm: row(l, m.width), qkv: row(l, 3*m.width), hidden: row(l, f),
		gate: row(l, f), merged: row(len(g.order), 4*m.width), out: row(len(g.order), w.Out.N()),
		rope: engine.RoPE{
			Cos: a.Alloc(engine.F32, l, m.width/m.heads/2), Sin: a.Alloc(engine.F32, l, m.width/m.heads/2),
		},
	}
}

func (m *Vision) run(env Env, w visionWork, g visionGrid, pixels []float32) error {
	ops, d := env.Ops, m.width/m.heads
	cos, sin := g.rotation(d)
	ops.Upload(w.rope.Cos, cos)
	ops.Upload(w.rope.Sin, sin)
	ops.Upload(w.pixels, pixels)
	ops.Linear(w.x, w.pixels, m.weights.Patch, engine.Epilogue{})
	for i := range m.weights.Blocks {
		if err := env.step(); err != nil {
			return err
		}
		m.block(ops, w, g, i)
	}
	ops.RMSNorm(w.norm, w.x, m.weights.Norm, visionEps)
	four := w.norm.Split(1, len(g.order), visionMerge*visionMerge).Merge(2) // [1, L, E] -> [1, L/4, 4E]
	ops.Linear(w.merged, four, m.weights.In, engine.Epilogue{Act: engine.GELUErf})
	ops.Linear(w.out, w.merged, m.weights.Out, engine.Epilogue{})
	return nil
}

// block is x += proj(attention(norm1(x))), x += down(silu(gate) * up of norm2(x)).
func (m *Vision) block(ops engine.Ops, w visionWork, g visionGrid, i int) {
	b, d := &m.weights.Blocks[i], m.width/m.heads
	ops.RMSNorm(w.norm, w.x, b.Norm1, visionEps)
	ops.Linear(w.qkv, w.norm, b.QKV, engine.Epilogue{})
	five := w.qkv.Split(2, 3, m.heads, d)
	q, k, v, out := five.Index(2, 0), five.Index(2, 1), five.Index(2, 2), heads(w.norm, m.heads)
	none := engine.Tensor{}
	ops.QKNormRoPE(q, k, none, q, k, none, engine.QKNorm{}, w.rope)
	windows := g.windows
	if visionWhole(i) {
		windows = []int{len(g.order)}
	}
	at := 0
	for _, n := range windows {
		to := at + n*visionMerge*visionMerge
		ops.Attention(out.Slice(1, at, to), q.Slice(1, at, to), k.Slice(1, at, to), v.Slice(1, at, to),
			engine.AttentionArgs{})
		at = to
	}
	ops.Linear(w.x, w.norm, b.Proj, engine.Epilogue{Residual: w.x})
	ops.RMSNorm(w.norm, w.x, b.Norm2, visionEps)
	ops.Linear(w.gate, w.norm, b.Gate, engine.Epilogue{})
	ops.Linear(w.hidden, w.norm, b.Up, engine.Epilogue{})
	ops.ActivateMul(w.hidden, w.gate, w.hidden, engine.SiLU)
	ops.Linear(w.x, w.hidden, b.Down, engine.Epilogue{Residual: w.x})
}
