package text

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"patchbay/engine"
	"patchbay/models/weights"
)

// PictureEncoder is a transformer over the patches of a picture, with learned positions, whose blocks are those of
// CLIP's text model without the causal mask: SigLIP (arXiv:2303.15343), which Redux and USO read, or CLIP's
// (arXiv:2103.00020, sec. 2.2), which Wan 2.1 reads, with a class token in front of the patches and a norm before the
// blocks. It holds only weights and may be shared.
type PictureEncoder struct {
	loaded[pictureWeights]
	// Size is the side of the pictures that it reads, in pixels: 384, 224.
	Size int
	// Mean and Deviation are what was subtracted from red, green and blue (0..1), and what they were divided by then.
	Mean, Deviation    [3]float32
	patch, side, heads int
	act                engine.Act
}

// pictureEps is the epsilon of all norms (ComfyUI uses torch's default).
const pictureEps = 1e-5

type pictureWeights struct {
	Class    engine.Tensor  `weight:"embeddings.class_embedding,optional" shape:"E"`
	Patch    *engine.Weight `weight:"embeddings.patch_embedding,optbias" shape:"E,3,P,P"`
	Position engine.Tensor  `weight:"embeddings.position_embedding.weight" shape:"L,E"`
	First    *affine        `weight:"pre_layrnorm"` // nil: SigLIP
	Layer    []clipLayer    `weight:"encoder.layers"`
	Final    *affine        `weight:"post_layernorm"` // nil: CLIP, which norms its class token alone
}

// visionAt is the prefix of a picture encoder's names, with those of its embeddings.
const (
	visionAt    = "vision_model."
	classAt     = visionAt + "embeddings.class_embedding"
	patchAt     = visionAt + "embeddings.patch_embedding.weight"
	patchBiasAt = visionAt + "embeddings.patch_embedding.bias"
	positionAt  = visionAt + "embeddings.position_embedding.weight"
)

// pictureConfig is what a file's metadata may say about its picture encoder, with the names of Hugging Face.
type pictureConfig struct {
	Heads int    `json:"num_attention_heads"`
	Size  int    `json:"image_size"`
	Act   string `json:"hidden_act"`
}

// released returns the config of the release of a width: CLIP's ViT-L/14, ViT-H/14 and ViT-bigG/14 as ComfyUI runs
// them, or SigLIP, whose only released width is 1152. Without a release heads are 0.
func released(clip bool, width int) pictureConfig {
	const heads = 16 // of all
	switch {
	case !clip:
		return pictureConfig{Heads: heads, Act: "gelu_pytorch_tanh"}
	case width == 1024:
		return pictureConfig{Heads: heads, Act: "quick_gelu"}
	case width == 1280 || width == 1664:
		return pictureConfig{Heads: heads, Act: "gelu"}
	}
	return pictureConfig{Act: "gelu"}
}

// OpenPictureEncoder loads the picture encoder in set, which may have OpenCLIP's names below "visual.". config is the
// JSON of the file's metadata entry "config", which may set num_attention_heads, image_size and hidden_act. If the
// weights would take more than room bytes (0: any number), layers are read before each use, as OpenParts does. The
// caller must close the result. Errors say what the file is instead.
func OpenPictureEncoder(ops engine.Ops, set *weights.Set, config []byte, room int64) (*PictureEncoder, error) {
	set = pictureNames(set)
	if err := checkPictureEncoder(set); err != nil {
		return nil, err
	}
	clip, l, e, p := set.Has(classAt), set.Dim(positionAt, 0), set.Dim(positionAt, 1), set.Dim(patchAt, 2)
	m := &PictureEncoder{patch: p, Mean: [3]float32{.5, .5, .5}, Deviation: [3]float32{.5, .5, .5}}
	patches := l
	if clip {
		patches--
		m.weights.First = new(affine)
		// of the pictures that CLIP was trained with
		m.Mean = [3]float32{0.48145466, 0.4578275, 0.40821073}
		m.Deviation = [3]float32{0.26862954, 0.26130258, 0.27577711}
	} else {
		m.weights.Final = new(affine)
	}
	m.side = int(math.Round(math.Sqrt(float64(max(patches, 0)))))
	c := released(clip, e)
	if c.Size = m.side * p; c.Size == 378 { // the release for 384 pixels, whose last 6 belong to no patch
		c.Size = 384
	}
	if len(config) > 0 {
		if err := json.Unmarshal(config, &c); err != nil {
			return nil, fmt.Errorf("picture encoder config: %w", err)
		}
	}
	m.heads, m.Size = c.Heads, c.Size
	switch {
	case m.heads == 0:
		return nil, fmt.Errorf("picture encoder: a CLIP vision model of width %d, want 1024 (ViT-L/14), 1280 (ViT-H/14, "+
			"clip_vision_h) or 1664 (ViT-bigG/14); files of other widths carry num_attention_heads in their metadata under "+
			"config", e)
	case m.heads < 1 || e%m.heads != 0 || m.side < 1 || m.side*m.side != patches || p < 1 || m.Size/p != m.side:
		return nil, fmt.Errorf("picture encoder: num_attention_heads %d, image_size %d: the file has a width of %d, %d "+
			"positions and patches of %d pixels", m.heads, m.Size, e, l, p)
	}
	var err error
	if m.act, err = act(c.Act); err != nil {
		return nil, err
	}
	set = set.Prefix(visionAt)
	layers := set.Count("encoder.layers")
	if layers == 0 {
		return nil, fmt.Errorf("picture encoder: no vision_model.encoder.layers.0: the file has no layers")
	}
	m.weights.Layer = make([]clipLayer, layers)
	opt := weights.Options{
		Model:  "picture encoder",
		Dims:   map[string]int{"E": e, "L": l, "P": p, "F": set.Dim("encoder.layers.0.mlp.fc1.weight", 0)},
		Ignore: []string{"head.", "embeddings.position_ids", "post_layernorm."},
	}
	if err := within(ops, &opt, set, "encoder.layers", layers, room); err != nil {
		return nil, err
	}
	return m, m.load(ops, set, opt)
}

// CheckPictureEncoder returns an error unless set, judged by names and shapes, is a CLIP vision model or a SigLIP with
// fixed positions.
func CheckPictureEncoder(set *weights.Set) error { return checkPictureEncoder(pictureNames(set)) }

func checkPictureEncoder(set *weights.Set) error {
	clip := set.Has(classAt)
	switch n := len(set.Shape(patchAt)); {
	case n == 2:
		return fmt.Errorf("is a SigLIP 2 of variable sizes; want one of fixed size (sigclip_vision_patch14_384) or a CLIP " +
			"vision model (clip_vision_h)")
	case n != 4 || !clip && !set.Has(patchBiasAt):
		return fmt.Errorf("holds no picture encoder (CLIP vision, SigLIP): there is no " +
			"vision_model.embeddings.patch_embedding")
	}
	return nil
}

// Rows returns the number of rows that See returns, and their width.
func (m *PictureEncoder) Rows() (rows, width int) {
	return m.weights.Position.Dim(0), m.weights.Position.Dim(1)
}

// See returns the last states [L, E] of a picture, those of the class token first, and the states of the layers that
// Deep lists, one after the other, without those that the encoder does not have. SigLIP's last states are normed.
// pixels is [3, Size, Size], normalized by Mean and Deviation. It returns an error if the number of values is wrong or
// memory runs out, and errors of Check and of the device.
func (m *PictureEncoder) See(env Env, pixels []float32) (last, deep []float32, err error) {
	if len(pixels) != 3*m.Size*m.Size {
		return nil, nil, fmt.Errorf("picture encoder: %d values for a picture of %d x %d", len(pixels), m.Size, m.Size)
	}
	view, env, end, err := m.brought(env)
	if err != nil {
		return nil, nil, err
	}
	defer end()
	whole := m
	m = new(PictureEncoder)
	*m = *whole
	m.loaded = view
	l, e := m.Rows()
	patches := m.side * m.side
	memory := func(a *engine.Arena) (w work, in engine.Tensor) {
		row := func(n int) engine.Tensor { return a.Alloc(env.DType, 1, l, n) }
		return work{
			x: row(e), norm: row(e), q: row(e), k: row(e), v: row(e), o: row(e), hidden: row(m.weights.Layer[0].FC1.N()),
		}, a.Alloc(env.DType, 1, patches, 3*m.patch*m.patch)
	}
	env, free, err := env.holding("picture encoder", func(a *engine.Arena) { memory(a) })
	if err != nil {
		return nil, nil, err
	}
	defer free()
	ops := env.Ops
	w, in := memory(env.Arena)
	ops.Upload(in, m.patches(pixels))
	ops.Copy(w.x, m.weights.Position.Unsqueeze(0))
	if m.weights.First != nil {
		class := w.norm.Slice(1, 0, 1)
		ops.Copy(class, m.weights.Class.Unsqueeze(0).Unsqueeze(0))
		ops.Add(w.x.Slice(1, 0, 1), w.x.Slice(1, 0, 1), class)
	}
	seen := w.x.Slice(1, l-patches, l)
	ops.Linear(seen, in, m.weights.Patch, engine.Epilogue{Residual: seen})
	if first := m.weights.First; first != nil {
		ops.LayerNorm(w.x, w.x, first.Weight, first.Bias, pictureEps)
	}
	for i := range m.weights.Layer {
		if err := env.step(i); err != nil {
			return nil, nil, err
		}
		m.weights.Layer[i].run(ops, w, m.heads, pictureEps, m.act, false)
		if slices.Contains(Deep(), i-len(m.weights.Layer)) {
			states := make([]float32, l*e)
			if err := ops.Download(states, w.x).Wait(); err != nil {
				return nil, nil, err
			}
			deep = append(deep, states...)
		}
	}
	if final := m.weights.Final; final != nil {
		ops.LayerNorm(w.x, w.x, final.Weight, final.Bias, pictureEps)
	}
	last = make([]float32, l*e)
	return last, deep, env.Ops.Download(last, w.x).Wait()
}

// patches orders pixels by patch, [patches, 3*P*P]. Pixels after the last whole patch are dropped.
func (m *PictureEncoder) patches(pixels []float32) []float32 {
	var out []float32
	for at := range m.side * m.side {
		for i := range 3 * m.patch * m.patch {
			c, y, x := i/(m.patch*m.patch), i/m.patch%m.patch, i%m.patch
			out = append(out, pixels[(c*m.Size+at/m.side*m.patch+y)*m.Size+at%m.side*m.patch+x])
		}
	}
	return out
}

// Redux turns SigLIP's states into rows that a FLUX.1 model reads after its text. It holds only weights.
type Redux struct {
	loaded[reduxWeights]
}

type reduxWeights struct {
	Up   *engine.Weight `weight:"redux_up" shape:"M,R"`
	Down *engine.Weight `weight:"redux_down" shape:"T,M"`
}

// OpenRedux loads the style model in set. The caller must close the result.
func OpenRedux(ops engine.Ops, set *weights.Set) (*Redux, error) {
	m := &Redux{}
	return m, m.load(ops, set, weights.Options{Model: "redux", Dims: map[string]int{
		"M": set.Dim("redux_up.weight", 0), "R": set.Dim("redux_up.weight", 1), "T": set.Dim("redux_down.weight", 0),
	}})
}

// Widths returns the widths of the rows that Project reads and writes.
func (m *Redux) Widths() (in, out int) { return m.weights.Up.K(), m.weights.Down.N() }

// Project turns states [rows, in] into text rows [rows, out]: down(silu(up(states))).
func (m *Redux) Project(env Env, states []float32) ([]float32, error) {
	in, out := m.Widths()
	rows := len(states) / in
	memory := func(a *engine.Arena) [3]engine.Tensor {
		row := func(n int) engine.Tensor { return a.Alloc(env.DType, rows, n) }
		return [3]engine.Tensor{row(in), row(m.weights.Up.N()), row(out)}
	}
	env, free, err := env.holding("redux", func(a *engine.Arena) { memory(a) })
	if err != nil {
		return nil, err
	}
	defer free()
	t := memory(env.Arena)
	env.Ops.Upload(t[0], states)
	env.Ops.Linear(t[1], t[0], m.weights.Up, engine.Epilogue{Act: engine.SiLU})
	env.Ops.Linear(t[2], t[1], m.weights.Down, engine.Epilogue{})
	v := make([]float32, rows*out)
	return v, env.Ops.Download(v, t[2]).Wait()
}
