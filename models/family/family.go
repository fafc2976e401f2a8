// Package family is what a family of diffusion models says about its files, before a weight is read. It knows no
// family.
package family

import (
	"encoding/json"
	"fmt"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/latent"
	"patchbay/models/sampling"
	"patchbay/models/weights"
)

// Diffusion describes one diffusion model file before its weights are read.
type Diffusion struct {
	Variant  string // "flux", "sd3", "pixart_alpha", "pixart_sigma", "hunyuandit"
	Spec     dit.Spec
	Latent   latent.Format // of the latents that the model reads; metadata may override scale and shift
	Sampling Sampling      // what sigma means unless the workflow says otherwise
	Traits
	// Declare lists all tensors of the model with the names and shapes of the original checkpoint.
	Declare func() ([]weights.Declared, error)
	// Load reads the held part of the weights with ops. The set that OpenDiffusion was given must still be open.
	Load func(ops engine.Ops, held dit.Held) (dit.Model, error)
}

// Traits are what the models of a family want of those who prepare their entries, and how ComfyUI 0.8.0 treats them.
// The zero value is a family without any of it.
type Traits struct {
	// SizeCond gives what an entry tells the network of the picture's size in pixels (dit.Entry.Size); nil: nothing.
	SizeCond func(height, width int) []float32
	// Guidance is the guidance of an entry that carries none, for models that take it (dit.Spec.TakesGuidance).
	Guidance float32
	// TextMask reports whether models with one text leave its padding out (dit.Entry.ContextLen).
	TextMask bool
	// NoStepCache: EasyCache has no effect, because ComfyUI does not call these networks through wrappers.
	NoStepCache bool
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

// Override applies the parts of the metadata's config that concern latents and sampling.
func (d *Diffusion) Override(meta map[string]string) error {
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

// Config is a family's own description of one model; value types implement it.
type Config interface {
	Spec() (dit.Spec, error)
	Declare() ([]weights.Declared, error)
}

// Describe starts the description of a model of config c, whose weights load reads from set when they are wanted.
func Describe[C Config, M dit.Model](
	variant string, set *weights.Set, c C, load func(engine.Ops, *weights.Set, C, dit.Held) (M, error),
) (*Diffusion, error) {
	spec, err := c.Spec()
	if err != nil {
		return nil, err
	}
	return &Diffusion{
		Variant: variant, Spec: spec, Declare: c.Declare,
		Load: func(ops engine.Ops, held dit.Held) (dit.Model, error) {
			m, err := load(ops, set, c, held)
			if err != nil {
				return nil, err // and no interface that holds a nil pointer
			}
			return m, nil
		},
	}, nil
}
