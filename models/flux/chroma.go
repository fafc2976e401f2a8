package flux

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/layers"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// keyApproximator is the name prefix of the network that computes Chroma's modulations.
const keyApproximator = "distilled_guidance_layer."

// places is how many modulations that network distinguishes. The head's are always the last two, however many blocks
// there are.
const places = 344

// Chroma describes Chroma by Lodestone Rock: FLUX.1 without pooled text, in which one network computes the modulations
// of all blocks. It reads the timestep, a guidance (0 unless a node sets it) and the index of the modulation, each as
// sinusoidal features after a multiplication by 1000. Modulations are numbered single blocks first, then the image side
// of double blocks, then the text side. The text is T5's without padding. ComfyUI reads no files with diffusers' names;
// adapters have those of FLUX. Sizes of the release: lodestones/Chroma1-HD.
func Chroma() family.Family {
	lacks := []string{ // of Radiance, which works without latents, and of diffusers
		"img_in_patch.weight", keyApproximator + "layers.0.linear_1.weight",
	}
	return family.Family{
		Name: "chroma",
		Forms: []family.Form{
			{Has: keyApproximator + "norms.0.scale", Lacks: lacks},
			{Has: keyApproximator + "norms.0.weight", Lacks: lacks},
		},
		Detect: Detect,
		Text: family.Text{
			Types:    []string{"chroma"},
			Encoders: []family.Encoder{{Kind: "t5", Layout: tokenizer.T5("t5xxl", 1), Form: text.Form{PadReference: true}}},
		},
		Names: names(),
		Releases: []family.Release{{Name: "chroma1-hd", Billions: 8.9, Steps: 26, Text: 64, Entries: 2, Config: Config{
			Hidden: 3072, Heads: 24, Depth: 19, DepthSingle: 38, Axes: []int{16, 56, 56}, Theta: 10000, TimeFactor: 1000,
			Channels: 16, PatchSize: 2, ContextDim: 4096, Guidance: true, MLPHidden: 12288, Distilled: 5120, Layers: 5,
		}}},
		Tiny: Config{
			Hidden: 144, Heads: 6, Depth: 3, DepthSingle: 3, Axes: []int{8, 8, 8}, Theta: 10000, TimeFactor: 1000,
			Channels: 16, PatchSize: 2, ContextDim: 40, Guidance: true, MLPHidden: 576, Distilled: 88, Layers: 2,
		},
	}
}

func (c Config) name() string {
	if c.Distilled > 0 {
		return "chroma"
	}
	return "flux"
}

// checkChroma returns an error if set does not hold a supported Chroma model of config c.
func (c Config) checkChroma(set *weights.Set) error {
	if n := 3*c.DepthSingle + 12*c.Depth + 2; n > places {
		return fmt.Errorf("chroma: %d double and %d single blocks have %d modulations, known are %d", c.Depth, c.DepthSingle,
			n, places)
	}
	if c.Concat != 0 {
		return fmt.Errorf("chroma: the model reads %d channels and writes %d, want as many", c.Channels+c.Concat, c.Channels)
	}
	if in := set.Dim(keyApproximator+"in_proj.weight", 1); in != approximated {
		return fmt.Errorf("chroma: %sin_proj.weight has %d columns, want %d", keyApproximator, in, approximated)
	}
	return nil
}

// approximated is the width of the approximator's input: 16 features of the timestep, 16 of the guidance, 32 of a
// place.
const approximated = 64

// approximator is layers of x += mlp(norm(x)) between two projections.
type approximator struct {
	In     *engine.Weight `weight:"in_proj" shape:"A,64"`
	Layers []vectorLayer  `weight:"layers"`
	Norms  []vectorNorm   `weight:"norms"`
	Out    *engine.Weight `weight:"out_proj" shape:"E,A"`
}

type vectorLayer struct {
	In  *engine.Weight `weight:"in_layer" shape:"A,A"`
	Out *engine.Weight `weight:"out_layer" shape:"A,A"`
}

type vectorNorm struct {
	Scale engine.Tensor `weight:"scale,alt=weight" shape:"A"`
}

// distilled computes the modulations of all blocks, then the head's, at every timestep: [S, n, Modulations*E].
func (m *Model) distilled(env dit.Env, p *dit.Prepared, timesteps []float32) engine.Tensor {
	w, e, rows, factor := m.Net.All, m.cfg.Hidden, modulations(m.Spec()), float32(m.cfg.TimeFactor)
	at := make([]float32, rows)
	for i := range at {
		at[i] = factor * float32(i)
	}
	at[rows-2], at[rows-1] = factor*(places-2), factor*(places-1)
	numbers := layers.TimestepFeatures(at, 32)
	out := env.Arena.Alloc(engine.F32, len(timesteps)/p.N, p.N, rows*e)
	for k, t := range timesteps {
		mark := env.Arena.Mark()
		guidance := float32(0)
		if g := p.Entries[k%p.N].Guidance; g != nil {
			guidance = *g
		}
		both := layers.TimestepFeatures([]float32{factor * t, factor * guidance}, 16)
		var all []float32
		for i := range rows {
			all = append(append(all, both...), numbers[32*i:32*(i+1)]...)
		}
		x := env.Arena.Alloc(engine.F32, rows, w.In.N())
		norm, hidden := env.Arena.Alloc(engine.F32, rows, w.In.N()), env.Arena.Alloc(engine.F32, rows, w.In.N())
		env.Ops.Linear(x, layers.Upload(env, all, rows, approximated), w.In, engine.Epilogue{})
		for i, l := range w.Layers {
			env.Ops.RMSNorm(norm, x, w.Norms[i].Scale, eps)
			env.Ops.Linear(hidden, norm, l.In, engine.Epilogue{Act: engine.SiLU})
			env.Ops.Linear(x, hidden, l.Out, engine.Epilogue{Residual: x})
		}
		env.Ops.Linear(out.Index(0, k/p.N).Index(0, k%p.N).Split(0, rows, e), x, w.Out, engine.Epilogue{})
		env.Arena.Release(mark)
	}
	return out
}

// share returns the part of distilled's result for block i, or for its text side in double blocks. The head's is that
// of i = the number of blocks.
func (m *Model) share(all engine.Tensor, i int, text bool) engine.Tensor {
	at, n := 3*m.cfg.DepthSingle+6*i, 6
	switch {
	case i == len(m.Spec().Blocks):
		at, n = modulations(m.Spec())-2, 2
	case i >= m.cfg.Depth:
		at, n = 3*(i-m.cfg.Depth), 3
	case text:
		at += 6 * m.cfg.Depth
	}
	e := m.cfg.Hidden
	return all.Slice(2, at*e, (at+n)*e)
}

// modulations returns how many vectors of width E modulate the blocks and the head: shift, scale and gate per Single
// block, twice these for each stream of a Double block, shift and scale for the head.
func modulations(s *dit.Spec) int {
	n := 2
	for i := range s.Blocks {
		n += 3
		if s.Blocks[i].Kind == dit.Double {
			n += 9
		}
	}
	return n
}
