// Package models is the catalogue of diffusion models: OpenDiffusion looks at a checkpoint's names and shapes and answers with everything that
// the layers above must know, without reading a weight.
//
// Each family is a folder (flux, sd3, pixart, hunyuan) that implements the contract of models/dit; docs/adding-a-model.md is the recipe for
// another one. What they share is in layers (blocks' common pieces, position tables) and weights (checkpoints into tagged structs); latent,
// sampling, text, tokenizer and vae are the other halves of a pipeline.
package models

import (
	"encoding/json"
	"fmt"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/flux"
	"patchbay/models/hunyuan"
	"patchbay/models/latent"
	"patchbay/models/pixart"
	"patchbay/models/sampling"
	"patchbay/models/sd3"
	"patchbay/models/weights"
)

// Diffusion describes one diffusion model file before its weights are read.
type Diffusion struct {
	Variant  string // "flux", "sd3", "pixart_alpha", "pixart_sigma", "hunyuandit"
	Spec     dit.Spec
	Latent   latent.Format // of the latents that the model reads; metadata may override scale and shift
	Sampling Sampling      // what sigma means unless the workflow says otherwise
	// Declare lists all tensors of the model with the names and shapes of the original checkpoint.
	Declare func() ([]weights.Declared, error)
	// Load reads the held part of the weights with ops. The set that OpenDiffusion was given must still be open.
	Load func(ops engine.Ops, held dit.Held) (dit.Model, error)
}

// Line names the time line of a model; sampling.ModelSampling has the formulas.
type Line string

// The time lines.
const (
	FluxLine     Line = "flux"     // shift mu, timestep = sigma
	FlowLine     Line = "flow"     // shift alpha, timestep = sigma * multiplier
	DiscreteLine Line = "discrete" // DDPM table
)

// Sampling is a model's default time line as plain values, so that nodes can replace some of them.
type Sampling struct {
	Line       Line
	Shift      float64 // mu of FluxLine, alpha of FlowLine
	Multiplier float64 // of FlowLine
	Prediction sampling.Prediction
	Betas      sampling.Betas // of DiscreteLine, with the first and last beta
	BetaStart  float64
	BetaEnd    float64
}

// steps is the number of training steps of every discrete model here.
const steps = 1000

// Build makes the time line.
func (s Sampling) Build() (*sampling.ModelSampling, error) {
	switch s.Line {
	case FluxLine:
		return sampling.NewFlux(s.Shift)
	case FlowLine:
		return sampling.NewFlow(s.Shift, s.Multiplier)
	case DiscreteLine:
		return sampling.NewDiscrete(s.Prediction, s.Betas, s.BetaStart, s.BetaEnd, steps)
	}
	return nil, fmt.Errorf("time line %q: want %q, %q or %q", s.Line, FluxLine, FlowLine, DiscreteLine)
}

// opener describes a file of one family.
type opener struct {
	family string
	open   func(set *weights.Set, meta map[string]string) (*Diffusion, error)
}

// openers is the table of supported families.
func openers() []opener {
	return []opener{{"flux", openFlux}, {"sd3", openSD3}, {"pixart", openPixArt}, {"hunyuandit", openHunyuan}, {"flux of diffusers", openFluxDiffusers}}
}

// OpenDiffusion finds out which model a checkpoint holds, alone or inside a full checkpoint, and describes it. meta is the file's metadata: a JSON
// object under "config" may give what names and shapes do not tell (heads, rotation axes, latent scale and shift, sampling.shift). Files of
// other kinds are errors that say what they look like and what is supported.
func OpenDiffusion(set *weights.Set, meta map[string]string) (*Diffusion, error) {
	family, instead, _ := weights.Looks(set)
	known := ""
	for _, o := range openers() {
		if o.family != family {
			known += ", " + o.family
			continue
		}
		d, err := o.open(set, meta)
		if err != nil {
			return nil, err
		}
		return d, d.override(meta)
	}
	return nil, fmt.Errorf("not a supported diffusion model: the file looks like %s%s (supported: %s)", family, instead, known[2:])
}

// override applies the parts of the metadata's config that concern latents and sampling.
func (d *Diffusion) override(meta map[string]string) error {
	text, ok := meta["config"]
	if !ok {
		return nil
	}
	format, err := d.Latent.WithConfig([]byte(text))
	if err != nil {
		return fmt.Errorf("%s: metadata config: %w", d.Variant, err)
	}
	d.Latent = format
	var c struct {
		Sampling struct {
			Shift *float64 `json:"shift"`
		} `json:"sampling"`
	}
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return fmt.Errorf("%s: metadata config: %w", d.Variant, err)
	}
	if c.Sampling.Shift != nil && d.Sampling.Line != DiscreteLine {
		d.Sampling.Shift = *c.Sampling.Shift
	}
	return nil
}

func openFlux(set *weights.Set, meta map[string]string) (*Diffusion, error) {
	c, err := flux.Detect(set, meta)
	if err != nil {
		return nil, err
	}
	spec, err := c.Spec()
	if err != nil {
		return nil, err
	}
	d := &Diffusion{Variant: "flux", Spec: spec, Latent: latent.FLUX(), Sampling: Sampling{Line: FluxLine, Shift: 1.15}}
	if !c.Guidance { // schnell
		d.Sampling = Sampling{Line: FlowLine, Shift: 1, Multiplier: 1}
	}
	d.Declare = c.Declare
	d.Load = func(ops engine.Ops, held dit.Held) (dit.Model, error) { return model(flux.Load(ops, set, c, held)) }
	return d, nil
}

// openFluxDiffusers opens FLUX in the names of diffusers.
func openFluxDiffusers(set *weights.Set, meta map[string]string) (*Diffusion, error) {
	_, _, set = weights.Looks(set)
	set, meta, err := flux.FromDiffusers(set, meta)
	if err != nil {
		return nil, err
	}
	return openFlux(set, meta)
}

func openSD3(set *weights.Set, meta map[string]string) (*Diffusion, error) {
	c, err := sd3.Detect(set, meta)
	if err != nil {
		return nil, err
	}
	spec, err := c.Spec()
	if err != nil {
		return nil, err
	}
	d := &Diffusion{Variant: "sd3", Spec: spec, Latent: latent.SD3(), Sampling: Sampling{Line: FlowLine, Shift: 3, Multiplier: 1000}}
	d.Declare = c.Declare
	d.Load = func(ops engine.Ops, held dit.Held) (dit.Model, error) { return model(sd3.Load(ops, set, c, held)) }
	return d, nil
}

func openPixArt(set *weights.Set, meta map[string]string) (*Diffusion, error) {
	c, err := pixart.Detect(set, meta)
	if err != nil {
		return nil, err
	}
	spec, err := c.Spec()
	if err != nil {
		return nil, err
	}
	d := &Diffusion{Variant: "pixart_sigma", Spec: spec, Latent: latent.SDXL()}
	if c.MicroSize {
		d.Variant, d.Latent = "pixart_alpha", latent.SD1()
	}
	d.Sampling = Sampling{Line: DiscreteLine, Prediction: sampling.Eps, Betas: sampling.Linear, BetaStart: 0.0001, BetaEnd: 0.02}
	d.Declare = c.Declare
	d.Load = func(ops engine.Ops, held dit.Held) (dit.Model, error) { return model(pixart.Load(ops, set, c, held)) }
	return d, nil
}

func openHunyuan(set *weights.Set, meta map[string]string) (*Diffusion, error) {
	c, err := hunyuan.Detect(set, meta)
	if err != nil {
		return nil, err
	}
	spec, err := c.Spec()
	if err != nil {
		return nil, err
	}
	d := &Diffusion{Variant: "hunyuandit", Spec: spec, Latent: latent.SDXL()}
	d.Sampling = Sampling{Line: DiscreteLine, Prediction: sampling.V, Betas: sampling.ScaledLinear, BetaStart: 0.00085, BetaEnd: 0.018}
	if c.SizeCond && c.StyleCond { // versions 1.0 and 1.1
		d.Sampling.BetaEnd = 0.03
	}
	d.Declare = c.Declare
	d.Load = func(ops engine.Ops, held dit.Held) (dit.Model, error) { return model(hunyuan.Load(ops, set, c, held)) }
	return d, nil
}

// model turns a family's result into the contract's, so that a failed load is a nil interface.
func model[M dit.Model](m M, err error) (dit.Model, error) {
	if err != nil {
		return nil, err
	}
	return m, nil
}
