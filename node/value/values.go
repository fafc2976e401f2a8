package value

import (
	"fmt"
	"math"
	"slices"

	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/sampling"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
	"patchbay/parallel/request"
)

// The values that travel along links. All are read-only once a node has returned them: caches and several readers share
// them.

// Latent is a latent in the VAE's space: [B, C, Y, X] f32.
type Latent struct {
	Samples request.Latent
	// NoiseMask is 1 where the picture may change, in pixels of any size; nil: everywhere.
	NoiseMask *picture.Mask
	// SoundMask is the part of NoiseMask for the sound beside a video, [B, Y, X] of any size; nil: all of it may change.
	SoundMask *picture.Mask
	// BatchIndex gives each item its position in a larger batch, whose noise at that position it gets; nil: its own
	// position.
	BatchIndex []int
	// Scale is the number of pixels per row that an empty latent was made for; 0: unknown.
	Scale int
}

// Conditioning is what a text encoder gives, with what later nodes have attached: a list of entries.
type Conditioning []Cond

// Cond is one entry of a conditioning. Fields correspond to the keys of ComfyUI's dictionary.
type Cond struct {
	// Of the network's inputs this holds the text, the guidance of distilled models, Size, Method and Slots. Lower adds
	// the rest.
	dit.Entry
	NoGuidance bool // guidance is None: the input is left out (FluxDisableGuidance)
	// Sizes to tell the network instead of the picture's (CLIPTextEncodePixArtAlpha, CLIPTextEncodeSDXL,
	// CLIPTextEncodeSDXLRefiner), without a score; nil: the picture's.
	Sizes *family.Sizes
	Score *float64 // aesthetic_score, to tell the network (CLIPTextEncodeSDXLRefiner); nil: its default

	Latents []request.Latent // reference latents (reference_latents), in the VAE's space
	// Guides guide a video: those that are part of it, then those that precede it (minimax_keyframes, minimax_refs).
	Guides []Guide

	// Extra channels for networks that read more than a latent: a latent in the VAE's space (B = 0: zeros), and a mask
	// in pixels of any size (nil: that of the run's latent, else all ones).
	ConcatImage request.Latent
	ConcatMask  *picture.Mask
	// ConcatGiven is the mask of a video beside the latent, in its size: [1, 1 or 4, Y, X], 0 where the video is given;
	// B = 0: that of the run's latent, if it has one, else nothing is given.
	ConcatGiven request.Latent
	Controls    []*Control // control nets, in the order they were applied

	Start, End float64 // active range of the run, 0..1 of the timesteps
	Ranged     bool    // Start and End are set

	Strength     float32 // 1 by default; 0 only counts with HasStrength
	HasStrength  bool
	Area         request.Area  // in latent pixels
	AreaPart     *[4]float64   // height, width, y, x as fractions of the latent; replaces Area
	Mask         *picture.Mask // in pixels of any size
	MaskStrength float32
	MaskBounds   bool // evaluate only the bounding box of the mask
}

// Guide is a picture, a video or a sound that guides a video.
type Guide struct {
	Latent request.Latent // in the VAE's space; a sound is [1, C, Y, X]
	dit.Condition
}

// Bytes returns the host memory of the data that an entry refers to.
func (c *Cond) Bytes() int64 {
	n := len(c.Context.Data) + len(c.Context2.Data) + len(c.Pooled) + len(c.Size) + len(c.ConcatImage.Data) +
		len(c.Vision.Data) + len(c.ConcatGiven.Data) + len(c.SoundReference.Data)
	for _, l := range c.Latents {
		n += len(l.Data)
	}
	for _, g := range c.Guides {
		n += len(g.Latent.Data)
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

// Sigmas are noise levels, usually falling and ending with 0.
type Sigmas []float32

// Boxes are bounding boxes in JSON: for each picture a list of objects {x, y, width, height} in pixels.
type Boxes []any

// Array is a list of JSON values.
type Array []any

// Camera is a camera in a scene, in JSON: position, target, zoom, cameraType and fov in degrees.
type Camera struct{ Info *pyjson.Object }

// Noise makes the noise that a run starts from.
type Noise struct {
	Seed uint64
	None bool // zeros
}

// Sampler is a sampling method with its options.
type Sampler struct {
	Name    string
	Options sampling.Options
}

// Guider is a model with its conditionings and the rule that combines their predictions.
type Guider struct {
	Model    *Model
	Rule     request.Guider
	Branches []GuiderBranch
}

// GuiderBranch is one named conditioning of a Guider.
type GuiderBranch struct {
	Name         string
	Conditioning Conditioning
}

// Finite returns an error if v contains NaN or infinities.
func Finite(v []float32) error {
	for i, x := range v {
		if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
			return fmt.Errorf("value %d is %v: want finite numbers", i, x)
		}
	}
	return nil
}

// With returns a copy of l with other samples.
func (l *Latent) With(s request.Latent) *Latent {
	out := *l
	out.Samples = s
	return &out
}

// Fitted returns a copy of l with samples that a model has taken or made: their size needs no more fitting.
func (l *Latent) Fitted(s request.Latent) *Latent {
	out := l.With(s)
	out.Scale = 0
	return out
}

// Places returns a copy of BatchIndex, or 0, 1 ... if there is none.
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

// Each returns a copy of the list with f applied to every entry.
func (list Conditioning) Each(f func(*Cond)) Conditioning {
	out := slices.Clone(list)
	for i := range out {
		f(&out[i])
	}
	return out
}

// Guided returns a copy whose entries have the given guidance, an input of distilled models.
func (list Conditioning) Guided(guidance float64) Conditioning {
	g := float32(guidance)
	return list.Each(func(c *Cond) { c.Guidance, c.NoGuidance = &g, false })
}

// MaxValues bounds the values of a latent, to 4 GiB in f32.
const MaxValues = 1 << 30
