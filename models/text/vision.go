package text

import (
	"fmt"
	"math"
	"slices"

	"patchbay/engine"
	"patchbay/models/weights"
)

// Picture is an input of a language model's vision tower: [Y, X, 3] of 0..1, sides multiples of its Kind.Unit. Two
// successive pictures of a video are one input [2, Y, X, 3].
type Picture struct {
	Y, X int
	Data []float32
}

// VisionTower is the vision tower of a language model.
type VisionTower interface {
	// See returns what the language model reads of a picture: one row per 2 x 2 patches, row by row, and the
	// number of rows down and across. A row is as wide as the model, or a multiple of it: each further piece is added
	// to the states after one more of the first layers. It returns an error if the sides do not fit or memory runs out,
	// and errors of Check and of the device.
	See(env Env, p Picture) (rows [][]float32, y, x int, err error)
	// Bytes returns the bytes of the weights as far as the backend reports them.
	Bytes() int64
	// Brings reports whether blocks are read from the file before each use, so that it must stay open.
	Brings() bool
	// Close frees the weights.
	Close()
}

// OpenVisionTower loads the vision tower of the language model in set, whose names may have one of the usual
// prefixes. config is the JSON of the file's metadata entry "config", which may set vision.num_heads (16) and, for
// Qwen3-VL, vision.deepstack_visual_indexes. If the weights would take more than room bytes (0: any number), blocks are
// read before each use, as OpenParts does with layers. The caller must close the result.
func OpenVisionTower(ops engine.Ops, set *weights.Set, config []byte, room int64) (VisionTower, error) {
	part, set, err := findPart(set, "qwen25_7b", "qwen3vl_4b", "qwen3vl_8b", "qwen3vl_32b", "qwen35")
	if err != nil {
		return nil, err
	}
	c := struct {
		Vision visionConfig `json:"vision"`
	}{visionConfig{Heads: 16, Taps: []int{5, 11, 17}}}
	switch part.Kind {
	case "qwen3vl_8b", "qwen3vl_32b":
		c.Vision.Taps = []int{8, 16, 24}
	case "qwen35":
		c.Vision.Taps = nil
		if set.Dim("visual.patch_embed.proj.weight", 0) == 768 { // Qwen3.5-0.8B
			c.Vision.Heads = 12
		}
	}
	if err := override(config, &c); err != nil {
		return nil, err
	}
	set = set.Prefix("visual.")
	c.Vision.width = set.Dim("patch_embed.proj.weight", 0)
	blocks, deep := set.Count("blocks"), part.Kind != "qwen25_7b"
	outside := func(tap int) bool { return tap < 0 || tap >= blocks }
	switch w, heads := c.Vision.width, c.Vision.Heads; {
	case w == 0:
		return nil, fmt.Errorf("load text encoder: no visual.patch_embed.proj.weight: the file cannot look at pictures")
	case heads < 1 || w%(4*heads) != 0:
		return nil, fmt.Errorf("text encoder config: vision.num_heads is %d, must be a divisor of a quarter of the width %d",
			heads, w)
	case blocks == 0:
		return nil, fmt.Errorf("load text encoder: no visual.blocks.0: the file has a vision tower without layers")
	case deep && slices.ContainsFunc(c.Vision.Taps, outside):
		return nil, fmt.Errorf("text encoder config: vision.deepstack_visual_indexes is %v, the tower has layers 0 to %d",
			c.Vision.Taps, blocks-1)
	}
	if deep {
		return openDeepVision(ops, set, c.Vision, room)
	}
	return openVision(ops, set, c.Vision, room)
}

// visionConfig is what a file's metadata may say about its vision tower.
type visionConfig struct {
	Heads int   `json:"num_heads"`
	Taps  []int `json:"deepstack_visual_indexes"` // layers whose output feeds the language model's first layers
	width int
}

// order returns the row order of the fused query, key and value matrix: the two halves of rotary pairs next to each
// other, values unchanged.
func (c visionConfig) order() []int {
	order := halvesTogether(2*c.Heads, c.width/c.Heads)
	for i := 2 * c.width; i < 3*c.width; i++ {
		order = append(order, i)
	}
	return order
}

// vision is the vision tower of Qwen2.5-VL (arXiv:2502.13923, sec. 2.1.1): a transformer over patches of 14 pixels with
// attention in windows of 112 pixels except in every eighth block. Its output has one row per four patches.
type vision struct {
	loaded[visionWeights]
	visionConfig
}

const (
	visionPatch  = 14
	visionMerge  = 2 // patches merged to one, in each direction
	visionFrames = 2 // of a patch
	visionWindow = 4 // merged patches on a window's side
	visionEps    = 1e-6
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

// openVision loads the vision tower of Qwen2.5-VL.
func openVision(ops engine.Ops, set *weights.Set, c visionConfig, room int64) (VisionTower, error) {
	m := &vision{visionConfig: c}
	m.weights.Blocks = make([]visionBlock, set.Count("blocks"))
	opt := weights.Options{
		Model: "vision", Perms: map[string][]int{"qkv": c.order()},
		Dims: map[string]int{
			"E": c.width, "T": set.Dim("merger.mlp.2.weight", 0), "F": set.Dim("blocks.0.mlp.gate_proj.weight", 0),
		},
	}
	if err := within(ops, &opt, set, "blocks", len(m.weights.Blocks), room); err != nil {
		return nil, err
	}
	return m, m.load(ops, set, opt)
}

// visionGrid is a picture cut into merged patches (2 x 2 patches): their rows and columns, and their order by windows.
type visionGrid struct {
	y, x    int
	patch   int   // pixels on a patch's side
	order   []int // places in the picture of the merged patches, in the order of computation
	windows []int // number of merged patches in each window
}

// newVisionGrid cuts a picture into patches, in windows of that many merged patches on a side.
func newVisionGrid(p Picture, patch, window int) (visionGrid, error) {
	unit := patch * visionMerge
	g := visionGrid{y: p.Y / unit, x: p.X / unit, patch: patch}
	size := p.Y * p.X * 3
	if g.y < 1 || g.x < 1 || p.Y%unit != 0 || p.X%unit != 0 || len(p.Data) != size && len(p.Data) != visionFrames*size {
		return g, fmt.Errorf("vision: %d values for a picture of %d x %d: sides must be multiples of %d", len(p.Data), p.Y,
			p.X, unit)
	}
	for top := 0; top < g.y; top += window {
		for left := 0; left < g.x; left += window {
			n := len(g.order)
			for y := top; y < min(top+window, g.y); y++ {
				for x := left; x < min(left+window, g.x); x++ {
					g.order = append(g.order, y*g.x+x)
				}
			}
			g.windows = append(g.windows, len(g.order)-n)
		}
	}
	return g, nil
}

// patches visits the patches in the order of computation, with their row and column.
func (g visionGrid) patches(visit func(y, x int)) {
	for _, at := range g.order {
		for k := range visionMerge * visionMerge {
			visit(at/g.x*visionMerge+k/visionMerge, at%g.x*visionMerge+k%visionMerge)
		}
	}
}

// input returns the patches' pixels [L, 3*2*patch*patch], normalized by the channels' mean and std. A single picture
// counts as two equal frames.
func (g visionGrid) input(p Picture, mean, std [3]float32) []float32 {
	var out []float32
	g.patches(func(y, x int) {
		for c := range 3 {
			for i := range visionFrames * g.patch * g.patch {
				row, column := y*g.patch+i/g.patch%g.patch, x*g.patch+i%g.patch
				at := i / (g.patch * g.patch) * p.Y * p.X * 3 % len(p.Data)
				out = append(out, (p.Data[at+(row*p.X+column)*3+c]-mean[c])/std[c])
			}
		}
	})
	return out
}

// rotation returns cos and sin [L, d/2]: the first half of the pairs rotates with the row, the second with the column.
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

// eyeWork holds the memory of one run of a vision tower over L patches.
type eyeWork struct {
	pixels, x, norm, qkv, hidden engine.Tensor // [1, L, columns]
	gate                         engine.Tensor // [1, L, F], only of vision
	joined                       engine.Tensor // [1, L/4, 4E], only of deepVision
	merged, out                  engine.Tensor // [1, L/4, 4E], [1, L/4, columns]
	rope                         engine.RoPE
}

// work allocates what both vision towers need. pixels, hidden and out are numbers of columns.
func (c visionConfig) work(a *engine.Arena, dtype engine.DType, g visionGrid, pixels, hidden, out int) eyeWork {
	n, d := len(g.order), c.width/c.Heads
	l := n * visionMerge * visionMerge
	row := func(rows, cols int) engine.Tensor { return a.Alloc(dtype, 1, rows, cols) }
	return eyeWork{
		pixels: row(l, pixels), x: row(l, c.width), norm: row(l, c.width), qkv: row(l, 3*c.width), hidden: row(l, hidden),
		merged: row(n, 4*c.width), out: row(n, out),
		rope: engine.RoPE{Cos: a.Alloc(engine.F32, l, d/2), Sin: a.Alloc(engine.F32, l, d/2)},
	}
}

// load uploads a picture, normalized by mean and std, and the rotation of its patches.
func (w eyeWork) load(ops engine.Ops, c visionConfig, g visionGrid, p Picture, mean, std [3]float32) {
	cos, sin := g.rotation(c.width / c.Heads)
	ops.Upload(w.rope.Cos, cos)
	ops.Upload(w.rope.Sin, sin)
	ops.Upload(w.pixels, g.input(p, mean, std))
}

// attend computes x += proj(attention(norm)) in windows of that many merged patches.
func (w eyeWork) attend(ops engine.Ops, c visionConfig, qkv, proj *engine.Weight, windows []int) {
	ops.Linear(w.qkv, w.norm, qkv, engine.Epilogue{})
	five, none := w.qkv.Split(2, 3, c.Heads, c.width/c.Heads), engine.Tensor{}
	q, k, v, out := five.Index(2, 0), five.Index(2, 1), five.Index(2, 2), heads(w.norm, c.Heads)
	ops.QKNormRoPE(q, k, none, q, k, none, engine.QKNorm{}, w.rope)
	at := 0
	for _, n := range windows {
		to := at + n*visionMerge*visionMerge
		ops.Attention(out.Slice(1, at, to), q.Slice(1, at, to), k.Slice(1, at, to), v.Slice(1, at, to),
			engine.AttentionArgs{})
		at = to
	}
	ops.Linear(w.x, w.norm, proj, engine.Epilogue{Residual: w.x})
}

// fours merges four patches to a row: [1, L, E] -> [1, L/4, 4E].
func fours(x engine.Tensor) engine.Tensor {
	const four = visionMerge * visionMerge
	return x.Split(1, x.Dim(1)/four, four).Merge(2)
}

// see runs a vision tower in the memory that it allocates, and downloads the rows in the picture's order.
func see(env Env, g visionGrid, memory func(*engine.Arena) eyeWork, run func(Env, eyeWork) error,
) (rows [][]float32, y, x int, err error) {
	env, free, err := env.holding("vision", func(a *engine.Arena) { memory(a) })
	if err != nil {
		return nil, 0, 0, err
	}
	defer free()
	w := memory(env.Arena)
	if err := run(env, w); err != nil {
		return nil, 0, 0, err
	}
	width := w.out.Dim(2)
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

func (m *vision) See(env Env, p Picture) (rows [][]float32, y, x int, err error) {
	g, err := newVisionGrid(p, visionPatch, visionWindow)
	if err != nil {
		return nil, 0, 0, err
	}
	memory := func(a *engine.Arena) eyeWork {
		f := m.weights.Blocks[0].Gate.N()
		w := m.work(a, env.DType, g, m.weights.Patch.K(), f, m.weights.Out.N())
		w.gate = a.Alloc(env.DType, 1, w.x.Dim(1), f)
		return w
	}
	view, env, end, err := m.brought(env)
	if err != nil {
		return nil, 0, 0, err
	}
	defer end()
	m = &vision{view, m.visionConfig}
	return see(env, g, memory, func(env Env, w eyeWork) error { return m.run(env, w, g, p) })
}

func (m *vision) run(env Env, w eyeWork, g visionGrid, p Picture) error {
	ops := env.Ops
	w.load(ops, m.visionConfig, g, p, [3]float32{0.48145466, 0.4578275, 0.40821073},
		[3]float32{0.26862954, 0.26130258, 0.27577711}) // CLIP's
	ops.Linear(w.x, w.pixels, m.weights.Patch, engine.Epilogue{})
	for i := range m.weights.Blocks {
		if err := env.step(i); err != nil {
			return err
		}
		windows := g.windows
		if i%8 == 7 { // full attention
			windows = []int{len(g.order)}
		}
		m.block(ops, w, &m.weights.Blocks[i], windows)
	}
	ops.RMSNorm(w.norm, w.x, m.weights.Norm, visionEps)
	ops.Linear(w.merged, fours(w.norm), m.weights.In, engine.Epilogue{Act: engine.GELUErf})
	ops.Linear(w.out, w.merged, m.weights.Out, engine.Epilogue{})
	return nil
}

// block computes x += proj(attention(norm1(x))), then x += down(silu(gate(y)) * up(y)) with y = norm2(x).
func (m *vision) block(ops engine.Ops, w eyeWork, b *visionBlock, windows []int) {
	ops.RMSNorm(w.norm, w.x, b.Norm1, visionEps)
	w.attend(ops, m.visionConfig, b.QKV, b.Proj, windows)
	ops.RMSNorm(w.norm, w.x, b.Norm2, visionEps)
	ops.Linear(w.gate, w.norm, b.Gate, engine.Epilogue{})
	ops.Linear(w.hidden, w.norm, b.Up, engine.Epilogue{})
	ops.ActivateMul(w.hidden, w.gate, w.hidden, engine.SiLU)
	ops.Linear(w.x, w.hidden, b.Down, engine.Epilogue{Residual: w.x})
}
