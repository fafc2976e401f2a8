// Package sdxl is the network of Stable Diffusion 1 (arXiv:2112.10752) and Stable Diffusion XL (arXiv:2307.01952): a
// convolutional U whose coarse levels attend to the picture and to the text, and of XL's refiner, which goes on where
// XL leaves some noise. It reads the original tensor names, bare or inside a full checkpoint, and those of diffusers.
//
// To the rest of the program it is a model of one block that is a whole (dit.Spec.Whole): pixels of the latent are the
// tokens, Embed is the first convolution, the block everything between it and the last one, Head that.
//
// Facts that have caused bugs: group norms have an epsilon of 1e-5, but 1e-6 in front of a transformer. Upsampling
// goes to the size of the next skip, so odd sides work. A level of the way up reads the result so far and then the
// skip. The gate of the gated MLP is its second half and goes through the exact GELU. Heads are 64 wide in XL, but 8
// in number in version 1, which no name or shape tells. Timesteps are 0..999 and sizes are pixels, neither is scaled.
// The refiner has no transformers in its first and its last level, and reads a score in place of the target size,
// which without one is 6, but 2.5 for negative prompts.
package sdxl

import (
	"fmt"
	"slices"

	"patchbay/models/family"
	"patchbay/models/sampling"
	"patchbay/models/weights"
)

// Config holds the sizes of one model, under ComfyUI's names.
type Config struct {
	Channels   int    `json:"model_channels"`            // 320, 384 (refiner): of the first level
	In         int    `json:"in_channels"`               // 4; 9 for inpainting: a mask and the masked picture
	Out        int    `json:"out_channels"`              // 4
	ContextDim int    `json:"context_dim"`               // 768, 2048 (XL), 1280 (refiner)
	VectorDim  int    `json:"adm_in_channels"`           // 0, 2816 (XL), 2560 (refiner): the pooled text and sizes
	Mult       []int  `json:"channel_mult"`              // 1 2 4 4, 1 2 4 (XL alone): channels of the levels
	Blocks     []int  `json:"num_res_blocks"`            // 2 in every level, one more on the way up
	Down       []int  `json:"transformer_depth"`         // transformer blocks of each block on the way down
	Up         []int  `json:"transformer_depth_output"`  // on the way up, the finest level first
	Middle     int    `json:"transformer_depth_middle"`  // between
	HeadDim    int    `json:"num_head_channels"`         // 64 (XL, refiner); below 1: Heads counts
	Heads      int    `json:"num_heads"`                 // 8 in every level
	Linear     bool   `json:"use_linear_in_transformer"` // transformers begin and end with matrices, not convolutions
	Prediction string `json:"prediction_type"`           // "eps", "v_prediction", "edm" (Playground 2.5)
	ZeroSNR    bool   `json:"zsnr"`                      // the last timestep has no signal
	// SigmaMin and SigmaMax are the ends of a continuous time line (family.LogLine); 0: it is discrete.
	SigmaMin float64 `json:"sigma_min"`
	SigmaMax float64 `json:"sigma_max"`
}

// What the network predicts, in ComfyUI's words.
const (
	eps = "eps"
	v   = "v_prediction"
	edm = "edm"
)

// The markers of XL's files: tensors that say what the network predicts (ComfyUI comfy/supported_models.py,
// SDXL.model_type). A file of Playground 2.5 has the mean and deviation of its latents, whose values are known.
// Continuous time lines have a largest and perhaps a smallest sigma.
const (
	markV        = "v_pred"
	markZeroSNR  = "ztsnr" // beside markV
	markMean     = "edm_mean"
	markStd      = "edm_std"
	markSigmaMax = "edm_vpred.sigma_max"
	markSigmaMin = "edm_vpred.sigma_min"
)

func markers() []string {
	return []string{markV, markZeroSNR, markMean, markStd, markSigmaMax, markSigmaMin}
}

// The families of this package.
const (
	xl      = "sdxl"
	sd15    = "sd15"
	refiner = "sdxl_refiner"
)

// features is how many sines each number about the picture becomes.
const features = 256

// told are the numbers about the picture that a family's network reads beside the pooled text, in order.
func told(name string) []string {
	switch name {
	case xl:
		return []string{"height", "width", "crop top", "crop left", "target height", "target width"}
	case refiner:
		return []string{"height", "width", "crop top", "crop left", "aesthetic score"}
	}
	return nil
}

// Detect infers the config of a family's model from names and shapes, of XL also from markers. Only
// heads may come from the JSON under meta["config"].
func detect(name string) func(set *weights.Set, meta map[string]string) (family.Config, error) {
	return func(set *weights.Set, meta map[string]string) (family.Config, error) {
		c := Config{HeadDim: 64}
		if name == sd15 {
			c = Config{Heads: 8}
		}
		if err := family.ReadConfig("sdxl", meta, &c); err != nil {
			return c, err
		}
		c.read(set)
		c.Prediction, c.ZeroSNR, c.SigmaMin, c.SigmaMax = eps, false, 0, 0
		if name == xl {
			if err := c.readMarkers(set); err != nil {
				return c, err
			}
		}
		return c, c.check(name)
	}
}

// family returns the name of the family that a model is of.
func (c Config) family() string {
	switch {
	case c.VectorDim == 0:
		return sd15
	case len(c.Mult) == levels(xl):
		return xl
	}
	return refiner
}

// levels is how many levels the networks of a family have.
func levels(name string) int {
	if name == xl {
		return 3
	}
	return 4
}

// read sets what names and shapes tell.
func (c *Config) read(set *weights.Set) {
	c.Channels, c.In = set.Dim("input_blocks.0.0.weight", 0), set.Dim("input_blocks.0.0.weight", 1)
	c.Out, c.VectorDim = set.Dim("out.2.weight", 0), set.Dim("label_emb.0.0.weight", 1)
	c.Mult, c.Blocks, c.Down, c.Up = nil, nil, nil, nil
	transformers := func(at string) int {
		at += ".1"
		if n := set.Dim(at+".proj_in.weight", 0); n > 0 {
			c.ContextDim = set.Dim(at+".transformer_blocks.0.attn2.to_k.weight", 1)
			c.Linear = len(set.Shape(at+".proj_in.weight")) == 2
		}
		return set.Count(at + ".transformer_blocks")
	}
	blocks := 0
	for i := 1; i < set.Count("input_blocks"); i++ {
		at := fmt.Sprintf("input_blocks.%d", i)
		if n := set.Dim(at+".0.in_layers.2.weight", 0); n > 0 {
			if blocks++; blocks == 1 {
				c.Mult, c.Blocks = append(c.Mult, n/max(c.Channels, 1)), append(c.Blocks, 0)
			}
			c.Blocks[len(c.Blocks)-1] = blocks
			c.Down = append(c.Down, transformers(at))
			continue
		}
		blocks = 0
	}
	for i := range set.Count("output_blocks") {
		c.Up = append([]int{transformers(fmt.Sprintf("output_blocks.%d", i))}, c.Up...)
	}
	c.Middle = transformers("middle_block")
}

// readMarkers sets what the network predicts. Errors name the marker.
func (c *Config) readMarkers(set *weights.Set) error {
	switch {
	case set.Has(markMean) && set.Has(markStd):
		c.Prediction, c.SigmaMin, c.SigmaMax = edm, 0.002, 80
	case set.Has(markSigmaMax):
		c.Prediction, c.SigmaMin = v, 0.002
		for name, to := range map[string]*float64{markSigmaMax: &c.SigmaMax, markSigmaMin: &c.SigmaMin} {
			t, ok := set.Get(name)
			if ok && t.Len() != 1 {
				return fmt.Errorf("sdxl: %s has the shape %v: want one number", name, t.Shape)
			}
			if ok {
				*to = float64(t.F32()[0])
			}
		}
		if _, err := new(sampling.ModelSampling).Continuous(sampling.V, c.SigmaMin, c.SigmaMax); err != nil {
			return fmt.Errorf("sdxl: %s, %s: %w", markSigmaMax, markSigmaMin, err)
		}
	case set.Has(markV):
		c.Prediction, c.ZeroSNR = v, set.Has(markZeroSNR)
	}
	return nil
}

func (c Config) check(name string) error {
	levels, numbers, up := levels(name), features*len(told(name)), len(c.Mult)
	for _, n := range c.Blocks {
		up += n
	}
	heads := max(c.Channels/max(c.HeadDim, 1), 1)
	if c.HeadDim < 1 {
		heads = c.Heads
	}
	switch {
	case c.Channels%groups != 0 || c.Channels == 0 || slices.Contains(c.Mult, 0):
		return fmt.Errorf("sdxl: %d channels times %v: want multiples of %d", c.Channels, c.Mult, groups)
	case len(c.Mult) != levels || len(c.Up) != up || c.Middle == 0:
		return fmt.Errorf("sdxl: %d levels of %v blocks on the way down, %d blocks on the way up and %d transformer blocks "+
			"between: want %d levels, %d blocks and a transformer", len(c.Mult), c.Blocks, len(c.Up), c.Middle, levels, up)
	case c.Linear != (name != sd15) || name != sd15 && c.VectorDim <= numbers || name == refiner && c.Down[0] > 0:
		return fmt.Errorf("sdxl: transformers that begin with a matrix: %v, vectors of %d values, transformers in the first "+
			"block: %d: this is Stable Diffusion 2, which is not supported (supported: Stable Diffusion 1, with a "+
			"convolution and without vectors, XL, with a matrix and a vector of more than %d values, and its refiner, with "+
			"more than %d and none in the first block)", c.Linear, c.VectorDim, c.Down[0], features*len(told(xl)),
			features*len(told(refiner)))
	case heads < 1 || c.Channels%heads != 0:
		return fmt.Errorf("sdxl: %d channels are not a multiple of %d heads; files of other sizes carry "+
			"num_head_channels or num_heads in their metadata under config", c.Channels, heads)
	case c.In != c.Out && c.In != 2*c.Out+1:
		return fmt.Errorf("sdxl: it reads %d channels and writes %d: want as many or, for inpainting, %d", c.In, c.Out,
			2*c.Out+1)
	}
	return nil
}

// heads returns the number of heads in a width.
func (c Config) heads(width int) int {
	if c.HeadDim > 0 {
		return width / c.HeadDim
	}
	return c.Heads
}

// concat is how many channels the network reads beside the latent.
func (c Config) concat() int { return c.In - c.Out }

func (c Config) sampling() family.Sampling {
	s := family.Sampling{
		Line: family.DiscreteLine, Prediction: sampling.Eps, Betas: sampling.ScaledLinear, BetaStart: 0.00085, BetaEnd: 0.012,
		ZeroSNR: c.ZeroSNR,
	}
	if c.SigmaMax > 0 {
		s = family.Sampling{Line: family.LogLine, SigmaMin: c.SigmaMin, SigmaMax: c.SigmaMax}
	}
	switch c.Prediction {
	case v:
		s.Prediction = sampling.V
	case edm:
		s.Prediction = sampling.EDM
	}
	return s
}
