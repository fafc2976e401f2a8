package value

import (
	"fmt"
	"math"
	"slices"

	"patchbay/models/dit"
	"patchbay/models/sampling"
	"patchbay/node/picture"
	"patchbay/parallel"
)

// The values that travel along links. All are read-only once a node has returned them: caches and several readers share
// them.

// Latent is a latent in the VAE's space: [B, C, Y, X] f32.
type Latent struct {
	Samples parallel.Latent
	// NoiseMask is 1 where the picture may change, in pixels of any size; nil: everywhere.
	NoiseMask *picture.Mask
	// BatchIndex names the item of a larger batch whose noise each item takes; nil: its own position.
	BatchIndex []int
	// Scale is how many pixels of the picture a row of an empty latent was made for; 0: nobody said.
	Scale int
}

// Conditioning is what a text encoder gives, with what later nodes have attached: a list of entries.
type Conditioning []Cond

// Cond is one entry of a conditioning. Fields by name as ComfyUI's dictionary keys.
type Cond struct {
	// Of what the network sees the text, the guidance of distilled models, Size and Method; the lowering adds the rest.
	dit.Entry
	NoGuidance bool // guidance is None: the input is left out (FluxDisableGuidance)
	// height and width that the network is told instead of the picture's (CLIPTextEncodePixArtAlpha); 0: the picture's
	Pixels [2]int

	Latents []parallel.Latent // that the picture refers to (reference_latents), in the VAE's space

	// What networks with more channels than a latent read beside it: a latent in the VAE's space (B = 0: zeros), and a
	// mask in pixels of any size (nil: that of the run's latent, else all ones).
	ConcatImage parallel.Latent
	ConcatMask  *picture.Mask
	Controls    []*Control // control nets, in the order they were applied

	Start, End float64 // part of the run where the entry is active, 0..1 of the timesteps
	Ranged     bool    // Start and End are set

	Strength     float32 // 1 by default; 0 is written with HasStrength
	HasStrength  bool
	Area         parallel.Area // in latent pixels
	AreaPart     *[4]float64   // height, width, y, x as parts of the latent; instead of Area
	Mask         *picture.Mask // in pixels of any size
	MaskStrength float32
	MaskBounds   bool // evaluate only the bounding box of the mask
}

// Bytes is the host memory of what an entry refers to.
func (c *Cond) Bytes() int64 {
	n := len(c.Context.Data) + len(c.Context2.Data) + len(c.Pooled) + len(c.Size) + len(c.ConcatImage.Data)
	for _, l := range c.Latents {
		n += len(l.Data)
	}
	for _, m := range []*picture.Mask{c.Mask, c.ConcatMask} {
		if m != nil {
			n += len(m.Data)
		}
	}
	bytes := 4 * int64(n)
	for _, ctl := range c.Controls {
		bytes += ctl.Bytes()
	}
	return bytes
}

// Sigmas are noise levels, falling, the last usually 0.
type Sigmas []float32

// Noise makes the noise that a run starts from.
type Noise struct {
	Seed uint64
	None bool // zeros
}

// Sampler is an update rule with its options.
type Sampler struct {
	Name    string
	Options sampling.Options
}

// Guider is a model with its conditionings and the rule that mixes them.
type Guider struct {
	Model    *Model
	Rule     parallel.Guider
	Branches []GuiderBranch
}

// GuiderBranch is one named conditioning of a Guider.
type GuiderBranch struct {
	Name         string
	Conditioning Conditioning
}

// Finite refuses NaN and infinities.
func Finite(v []float32) error {
	for i, x := range v {
		if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
			return fmt.Errorf("value %d is %v: want finite numbers", i, x)
		}
	}
	return nil
}

// With returns a latent with other samples and everything else of l.
func (l *Latent) With(s parallel.Latent) *Latent {
	return &Latent{Samples: s, NoiseMask: l.NoiseMask, BatchIndex: l.BatchIndex}
}

// Places returns BatchIndex, or 0, 1 ... where there is none.
func (l *Latent) Places() []int {
	if l.BatchIndex != nil {
		return slices.Clone(l.BatchIndex)
	}
	out := make([]int, l.Samples.B)
	for i := range out {
		out[i] = i
	}
	return out
}

// Each applies f to a copy of every entry.
func (list Conditioning) Each(f func(*Cond)) Conditioning {
	out := slices.Clone(list)
	for i := range out {
		f(&out[i])
	}
	return out
}

// Guided returns a copy whose entries carry a guidance, the input of distilled models.
func (list Conditioning) Guided(guidance float64) Conditioning {
	g := float32(guidance)
	return list.Each(func(c *Cond) { c.Guidance, c.NoGuidance = &g, false })
}

// MaxValues bounds a latent to 4 GiB.
const MaxValues = 1 << 30
