package family

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/latent"
	"patchbay/models/sampling"
	"patchbay/models/weights"
)

// Diffusion describes one diffusion model file before its weights are read.
type Diffusion struct {
	Variant  string // the family's name, or "pixart_alpha" and the like for variants with other latents or inputs
	Spec     dit.Spec
	Latent   latent.Format // of the latents that the model reads; metadata may override scale and shift
	Sampling Sampling      // what sigma means unless the workflow overrides it
	Traits
	Unused []string // names in the file that the model does not know and Load leaves out; set by Open
	unused func() []string
	spare  bool // unknown names are no error
	// Declare lists all tensors of the model with the names and shapes of the original checkpoint.
	Declare func() ([]weights.Declared, error)
	// Load reads the held part of the weights with ops. The set that was described must still be open.
	Load func(ops engine.Ops, held dit.Held) (dit.Model, error)
}

// Traits are what the models of a family expect of the code that makes their entries, and how ComfyUI 0.8.0 treats
// them. The zero value is a family that needs none of it.
type Traits struct {
	// SizeCond returns dit.Entry.Size for the image's size in pixels; nil: the network takes none.
	SizeCond func(s Sizes) []float32
	// Score is Sizes.Score of prompts that set none, NegativeScore that of negative ones.
	Score, NegativeScore float64
	// Guidance is the default for entries without one, in models that take it (dit.Spec.TakesGuidance).
	Guidance float32
	// TextMask reports whether models with one text mask its padding (dit.Entry.ContextLen).
	TextMask bool
	// MinText: texts of fewer rows get rows of zeros in front, up to this number. These are attended to.
	MinText int
	// MaskFirst is how many channels a mask takes at the beginning of dit.Spec.Concat, in which 1 means that the picture
	// behind it is given (Wan); 0: a mask, if there is one, takes dit.MaskChannels at the end, and 1 means the opposite.
	MaskFirst int
	// FrameTimes: a mask of the latent gives each frame its own part of the timestep (dit.Entry.Frames), and what it keeps
	// enters the network without noise (Wan's TI2V-5B).
	FrameTimes bool
	// Guides: nodes place what guides the video, as part of it or before it (value.Cond.Guides). This is the part of a
	// guiding picture that is not noise. 0: references are latents without a place.
	Guides float32
	// NeedsSound: latents without sound are refused.
	NeedsSound bool
	// EvenFrames: such a mask has one value for each frame (LTX).
	EvenFrames bool
	// NoStepCache: EasyCache has no effect, because ComfyUI does not call these networks through wrappers.
	NoStepCache bool
}

// Sizes says in pixels of which picture an image of the training was, where it was cut out, and of what size it became.
type Sizes struct {
	Height, Width, Top, Left, TargetHeight, TargetWidth int
	// Score is how beautiful people would call the picture, from 1 to 10 (LAION's aesthetic score), for networks that
	// read it.
	Score float64
}

// Uncropped are the sizes of a whole picture, without a score.
func Uncropped(height, width int) Sizes {
	return Sizes{Height: height, Width: width, TargetHeight: height, TargetWidth: width}
}

// Line names the time line of a model, which relates sigma and timestep; sampling.ModelSampling has the formulas.
type Line string

// The time lines.
const (
	MuLine       Line = "mu"       // shift mu, timestep = sigma
	LogLine      Line = "log"      // timestep = log(sigma)/4
	FlowLine     Line = "flow"     // shift alpha, timestep = sigma * multiplier
	DiscreteLine Line = "discrete" // DDPM table
)

// Sampling is a model's default time line as plain values, so that nodes can replace some of them.
type Sampling struct {
	Line       Line
	Shift      float64 // mu of MuLine, alpha of FlowLine
	SoundShift float64 // alpha of the sound beside a video on FlowLine; 0: it has that of the video
	Multiplier float64 // of FlowLine
	Prediction sampling.Prediction
	Betas      sampling.Betas // of DiscreteLine, with the first and last beta
	BetaStart  float64
	BetaEnd    float64
	ZeroSNR    bool    // the last timestep of DiscreteLine has no signal
	SigmaMin   float64 // of LogLine
	SigmaMax   float64
}

// steps is the number of training steps of every discrete model here.
const steps = 1000

// Build makes the time line. Errors are those of its constructor in package sampling, or an unknown Line.
func (s Sampling) Build() (*sampling.ModelSampling, error) {
	switch s.Line {
	case MuLine:
		return sampling.NewFlux(s.Shift)
	case FlowLine:
		m, err := sampling.NewFlow(s.Shift, s.Multiplier)
		if err == nil && s.SoundShift != 0 {
			m, err = m.WithSound(s.SoundShift)
		}
		return m, err
	case DiscreteLine:
		line := sampling.NewDiscrete
		if s.ZeroSNR {
			line = sampling.NewZeroSNR
		}
		return line(s.Prediction, s.Betas, s.BetaStart, s.BetaEnd, steps)
	case LogLine:
		return new(sampling.ModelSampling).Continuous(s.Prediction, s.SigmaMin, s.SigmaMax)
	}
	return nil, fmt.Errorf("time line %q: want %q, %q, %q or %q", s.Line, MuLine, FlowLine, DiscreteLine, LogLine)
}

// override applies the members of the metadata's config that concern latents and sampling.
func (d *Diffusion) override(meta map[string]string) error {
	var c struct {
		Sampling struct {
			Shift *float64 `json:"shift"`
		} `json:"sampling"`
	}
	if err := ReadConfig(d.Variant, meta, &c); err != nil {
		return err
	}
	if text, ok := meta["config"]; ok {
		format, err := d.Latent.WithConfig([]byte(text))
		if err != nil {
			return fmt.Errorf("%s: metadata config: %w", d.Variant, err)
		}
		d.Latent = format
	}
	if c.Sampling.Shift != nil && (d.Sampling.Line == MuLine || d.Sampling.Line == FlowLine) {
		d.Sampling.Shift = *c.Sampling.Shift
	}
	return nil
}
