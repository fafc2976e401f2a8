package text

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"patchbay/engine"
	"patchbay/models/weights"
)

// SigLIP is the picture encoder that Redux reads (arXiv:2303.15343): a transformer over patches with learned positions
// whose blocks are CLIP's without the causal mask. It holds only weights and may be shared.
type SigLIP struct {
	loaded[siglipWeights]
	// Size is the side of the pictures that it reads, in pixels: 384.
	Size               int
	patch, side, heads int
}

// siglipEps is the epsilon of all norms (ComfyUI uses torch's default).
const siglipEps = 1e-5

type siglipWeights struct {
	Patch    *engine.Weight `weight:"embeddings.patch_embedding" shape:"E,3,P,P"`
	Position engine.Tensor  `weight:"embeddings.position_embedding.weight" shape:"L,E"`
	Layer    []clipLayer    `weight:"encoder.layers"`
	Final    affine         `weight:"post_layernorm"`
}

// OpenSigLIP loads the picture encoder in set. config is the JSON of the file's metadata entry "config", which may set
// num_attention_heads (16) and image_size. The caller must close the result. Errors say what the file is instead.
func OpenSigLIP(ops engine.Ops, set *weights.Set, config []byte) (*SigLIP, error) {
	const patch, position = "embeddings.patch_embedding.weight", "embeddings.position_embedding.weight"
	if err := CheckSigLIP(set); err != nil {
		return nil, err
	}
	set = set.Prefix("vision_model.")
	l, p := set.Dim(position, 0), set.Dim(patch, 2)
	m := &SigLIP{patch: p, side: int(math.Round(math.Sqrt(float64(l))))}
	c := struct {
		Heads int `json:"num_attention_heads"`
		Size  int `json:"image_size"`
	}{16, m.side * p}
	if c.Size == 378 { // the release for 384 pixels, whose last 6 belong to no patch
		c.Size = 384
	}
	if len(config) > 0 {
		if err := json.Unmarshal(config, &c); err != nil {
			return nil, fmt.Errorf("picture encoder config: %w", err)
		}
	}
	m.heads, m.Size = c.Heads, c.Size
	e := set.Dim(position, 1)
	if m.heads < 1 || e%m.heads != 0 || m.side*m.side != l || p < 1 || m.Size/p != m.side {
		return nil, fmt.Errorf("picture encoder: num_attention_heads %d, image_size %d: the file has a width of %d, %d "+
			"positions and patches of %d pixels", m.heads, m.Size, e, l, p)
	}
	m.weights.Layer = make([]clipLayer, set.Count("encoder.layers"))
	return m, m.load(ops, set, weights.Options{
		Model:  "siglip",
		Dims:   map[string]int{"E": e, "L": l, "P": p, "F": set.Dim("encoder.layers.0.mlp.fc1.weight", 0)},
		Ignore: []string{"head.", "embeddings.position_ids"},
	})
}

// CheckSigLIP returns an error unless set, judged by names and shapes, is a SigLIP with fixed positions.
func CheckSigLIP(set *weights.Set) error {
	const at = "vision_model.embeddings."
	switch {
	case set.Has(at + "class_embedding"):
		return fmt.Errorf("is a CLIP vision model; SigLIP (sigclip_vision_patch14_384) is the one that is read")
	case len(set.Shape(at+"patch_embedding.weight")) == 2:
		return fmt.Errorf("is a SigLIP 2 of variable sizes; sigclip_vision_patch14_384 is the one that is read")
	case len(set.Shape(at+"patch_embedding.weight")) != 4 || !set.Has(at+"patch_embedding.bias"):
		return fmt.Errorf("holds no picture encoder: there is no vision_model.embeddings.patch_embedding")
	}
	return nil
}

// Rows returns the number of rows that See returns, and their width.
func (m *SigLIP) Rows() (rows, width int) { return m.side * m.side, m.weights.Position.Dim(1) }

// See returns the last states [L, E] of a picture, and the states of the layers that Deep lists, one after the other;
// deep is nil if the encoder has fewer layers. pixels is [3, Size, Size] of -1..1. It returns an error if the number of
// values is wrong or memory runs out, and errors of Check and of the device.
func (m *SigLIP) See(env Env, pixels []float32) (last, deep []float32, err error) {
	if len(pixels) != 3*m.Size*m.Size {
		return nil, nil, fmt.Errorf("siglip: %d values for a picture of %d x %d", len(pixels), m.Size, m.Size)
	}
	l, e := m.Rows()
	memory := func(a *engine.Arena) (w work, in engine.Tensor) {
		row := func(n int) engine.Tensor { return a.Alloc(env.DType, 1, l, n) }
		return work{
			x: row(e), norm: row(e), q: row(e), k: row(e), v: row(e), o: row(e), hidden: row(m.weights.Layer[0].FC1.N()),
		}, row(3 * m.patch * m.patch)
	}
	env, free, err := env.holding("siglip", func(a *engine.Arena) { memory(a) })
	if err != nil {
		return nil, nil, err
	}
	defer free()
	ops := env.Ops
	w, in := memory(env.Arena)
	ops.Upload(in, m.patches(pixels))
	ops.Copy(w.x, m.weights.Position.Unsqueeze(0))
	ops.Linear(w.x, in, m.weights.Patch, engine.Epilogue{Residual: w.x})
	for i := range m.weights.Layer {
		if err := env.step(i); err != nil {
			return nil, nil, err
		}
		m.weights.Layer[i].run(ops, w, m.heads, siglipEps, engine.GELUTanh, false)
		if n := len(m.weights.Layer); n >= -Deep()[0] && slices.Contains(Deep(), i-n) {
			states := make([]float32, l*e)
			if err := ops.Download(states, w.x).Wait(); err != nil {
				return nil, nil, err
			}
			deep = append(deep, states...)
		}
	}
	ops.LayerNorm(w.x, w.x, m.weights.Final.Weight, m.weights.Final.Bias, siglipEps)
	last = make([]float32, l*e)
	return last, deep, env.Ops.Download(last, w.x).Wait()
}

// patches orders pixels by patch, [L, 3*P*P]. Pixels after the last whole patch are dropped.
func (m *SigLIP) patches(pixels []float32) []float32 {
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
