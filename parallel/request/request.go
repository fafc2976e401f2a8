// Package request defines what one sampling run is asked to do, and what it returns: the model, the latent, noise and
// sigmas, the conditioning of each branch, the plan (request.go), the settings of a step cache (cache.go), what is
// refused before anything is loaded (validate.go), what the planner must know (workload.go) and what tells runs apart
// whose outputs differ (key.go). It runs nothing.
package request

import (
	"patchbay/engine"
	"patchbay/engine/profile"
	"patchbay/models/dit"
	"patchbay/models/sampling"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
	"patchbay/parallel/process"
	"patchbay/parallel/rank"
	"patchbay/parallel/resume"
)

// Request is one sampling run, the only input of the denoise loop. Sampling nodes are lowered to it, and the sample
// message is decoded into it. It is plain data except for Model and the callbacks of Sample.
type Request struct {
	Model Model
	// conversions between sigma, timestep and noise level, including overrides by the graph
	Sampling *sampling.ModelSampling
	Sampler  string           // name in the table of package sampling
	Options  sampling.Options // options of that sampler; zero: its defaults
	Sigmas   []float32        // n+1 values; none returns the latent unchanged, one mixes noise in and takes no step

	Noise  Latent // noise drawn for the whole batch, unit variance; empty Data: zeros
	Latent Latent // start of the run in model space (latent format already applied)
	// Mask is 1 where the picture may change, [B, 1, Y, X] or [B, C, Y, X] or [1, 1, Y, X] (repeated); empty Data:
	// everywhere.
	Mask Latent
	// CleanMask: what Mask keeps enters the network as it is, instead of with the noise of the step.
	CleanMask bool
	// Differential thresholds the mask by the progress of the run (node DifferentialDiffusion). A DifferentialStrength
	// inside (0, 1) blends the thresholded mask with the given one.
	Differential         bool
	DifferentialStrength float32
	Seed                 uint64 // of the noise that samplers draw during the run
	// NoiseDraws are the sizes, in order, of the draws that made Noise from the generator of Seed. Churn noise
	// continues after them (ComfyUI's global stream).
	NoiseDraws []int

	Guider   Guider
	Branches []Branch // positive first, then negative; dual guidance: cond1, cond2, negative

	Cache *Cache // answers some evaluations without the network; nil: all of them run

	Plan string // "ulysses=2,pipe=2,...", or "ranks=4" to have one chosen; empty: one rank
	// Compute is the dtype of activations from Embed to Head: F32 (the zero value) or BF16. Samplers, conditioning
	// vectors, modulations, norms and sums stay in f32.
	Compute engine.DType
	Preview bool // give Progress.X0 at every step
	Profile bool // fill Stats.Spans
	// Resume has the logs of runs that were cut off, and gets this one's: what an equal run has computed before is not
	// computed again. nil: nothing is logged.
	Resume *resume.Folder
}

// Latent is a host tensor [B, C, Y, X] f32, row-major. For a tensor [B, C, T, y, X] with frames (layers), Y is T*y: the
// frames are stacked vertically. Data of a video with sound has in turn an item's video and its sound [C, Y, X].
type Latent struct {
	B, C, Y, X int
	T          int   // frames; 0: the tensor has no such axis
	Sound      Sound // the zero Sound: none
	Data       []float32
}

// Sound is the shape of an item of the sound beside a video.
type Sound struct{ C, Y, X int }

// Len returns C*Y*X.
func (s Sound) Len() int { return s.C * s.Y * s.X }

// Shape returns the shape of the tensor without sound: 4 numbers, or 5 with frames.
func (l Latent) Shape() []int {
	if l.T == 0 {
		return []int{l.B, l.C, l.Y, l.X}
	}
	return []int{l.B, l.C, l.T, l.Y / l.T, l.X}
}

// LatentOf is the inverse of Shape, with the given data. ok is false unless shape has 4 or 5 numbers.
func LatentOf(shape []int, data []float32) (l Latent, ok bool) {
	switch len(shape) {
	case 4:
		return Latent{B: shape[0], C: shape[1], Y: shape[2], X: shape[3], Data: data}, true
	case 5:
		return Latent{B: shape[0], C: shape[1], T: shape[2], Y: shape[2] * shape[3], X: shape[4], Data: data}, true
	}
	return l, false
}

func (l Latent) Grid(spec *dit.Spec) dit.Grid {
	g := spec.FrameTokens(l.T, l.Y, l.X)
	if l.Sound.Len() > 0 {
		g = spec.WithSound(g, l.Sound.Y, l.Sound.X)
	}
	return g
}

// Grid returns the tokens of the latent, without those that keyframes leave out. All entries have the same keyframes.
func (r *Request) Grid() dit.Grid {
	g := r.Latent.Grid(r.Model.Spec)
	for _, b := range r.Branches {
		for i := range b.Entries {
			return b.Entries[i].Thinned(g)
		}
	}
	return g
}

// Kept returns which tokens of the whole grid there are (dit.Entry.Kept).
func (r *Request) Kept() []int32 {
	for _, b := range r.Branches {
		for i := range b.Entries {
			return b.Entries[i].Kept(r.Latent.Grid(r.Model.Spec))
		}
	}
	return nil
}

// Item returns the number of elements of one item, with its sound.
func (l Latent) Item() int { return l.C*l.Y*l.X + l.Sound.Len() }

// Len returns the number of elements.
func (l Latent) Len() int { return l.B * l.Item() }

// Parts separates video and sound, each of B items. Without sound the second has no items, and the first is l.
func (l Latent) Parts() (video, sound Latent) {
	video = l
	if l.Sound.Len() == 0 {
		return video, sound
	}
	n := l.Item() - l.Sound.Len()
	video.Sound, video.Data = Sound{}, make([]float32, 0, l.B*n)
	sound = Latent{B: l.B, C: l.Sound.C, Y: l.Sound.Y, X: l.Sound.X, Data: make([]float32, 0, l.B*l.Sound.Len())}
	for i := range l.B {
		item := l.Data[i*l.Item():][:l.Item()]
		video.Data, sound.Data = append(video.Data, item[:n]...), append(sound.Data, item[n:]...)
	}
	return video, sound
}

// Join is the inverse of Parts. The two have equally many items; a sound of none leaves the video as it is.
func Join(video, sound Latent) Latent {
	if sound.B == 0 {
		return video
	}
	out, n, m := video, video.Len()/video.B, sound.Len()/sound.B
	out.Sound, out.Data = Sound{C: sound.C, Y: sound.Y, X: sound.X}, make([]float32, 0, video.Len()+sound.Len())
	for i := range video.B {
		out.Data = append(append(out.Data, video.Data[i*n:][:n]...), sound.Data[i*m:][:m]...)
	}
	return out
}

// NewLatent returns zeros [b, c, y, x].
func NewLatent(b, c, y, x int) Latent {
	return Latent{B: b, C: c, Y: y, X: x, Data: make([]float32, b*c*y*x)}
}

// Guider says how the predictions of the branches are mixed, in x0 space.
type Guider struct {
	Kind GuiderKind
	CFG  float32 // scale between positive and negative (dual: cfg_conds, between cond1 and cond2)
	CFG2 float32 // dual: cfg_cond2_negative
	// SoundCFG takes CFG's place for the sound beside a video (GuideCFG); Rescale does not act then. nil: CFG is for both.
	SoundCFG *float32
	// Nested selects the style "nested" of DualCFGGuider; false is "regular".
	Nested bool
	// Norm scales every pixel of the guided latent down to the length, over channels, of the first branch's pixel, and
	// then by Norm itself (ComfyUI's CFGNorm); nil: no scaling. With DualCFGGuider it acts on the guidance with CFG
	// alone if Nested, or else on that with CFG2 and the second branch's pixel.
	Norm *float32
	// Rescale mixes every guided latent with itself at the deviation of the positive prediction, in that share, both as
	// velocities if the model is no flow model (ComfyUI's RescaleCFG; arXiv:2305.08891, section 3.4). It comes before
	// Norm. nil: no mixing.
	Rescale *float32
	// Identity moves what all of this gives away from the prediction of one more branch, the last: that of the first one
	// without its reference sound (ComfyUI's LTXVReferenceAudio).
	Identity []Identity
	// NoShortcut evaluates the negative branch even if CFG is 1 (samplers that need uncond do so anyway).
	NoShortcut bool
}

// Identity adds, while Start >= sigma >= End, Scale times what a reference changes in the prediction of the first
// branch.
type Identity struct {
	Scale      float32
	Start, End float64
}

// At returns the sum of the scales that act at sigma.
func (g *Guider) At(sigma float32) (scale float32) {
	for _, i := range g.Identity {
		if s := float64(sigma); s <= i.Start && s >= i.End {
			scale += i.Scale
		}
	}
	return scale
}

// GuiderKind selects the rule of a Guider.
type GuiderKind uint8

// The guiders: Basic uses the first branch alone; CFG is uncond + cfg*(cond - uncond); Dual combines three branches.
const (
	GuideBasic GuiderKind = iota
	GuideCFG
	GuideDual
)

// Branch is one side of guidance: all its entries are predicted and blended by their weights. Without an active entry
// it predicts 0.
type Branch struct {
	Name    string // "positive", "negative", for errors
	Entries []Entry
}

// Entry is one item of a conditioning list: the dit.Entry that the network sees, with where, when and how much it
// counts.
type Entry struct {
	dit.Entry
	// A Ranged entry is active while SigmaStart >= sigma >= SigmaEnd, ends included as in ComfyUI; others always are.
	SigmaStart, SigmaEnd float32
	Ranged               bool    // SigmaStart and SigmaEnd apply
	Strength             float32 // weight of the entry, 1 by default
	// Area limits the entry to rows [Y, Y+H) and columns [X, X+W) of the latent; zero: all. Inner edges are feathered
	// if Mask is empty.
	Area Area
	// Mask weights the entry per latent pixel, [1 or B, 1, Y, X] at latent size; empty Data: none.
	Mask         Latent
	MaskStrength float32 // factor applied to Mask
	// MaskBounds limits the evaluation to the bounding box of the mask.
	MaskBounds bool
	// Residuals are added to the image tokens after blocks, in every evaluation: the outputs of a control net that ran
	// elsewhere. Rows are [1 or B, tokens, Width]. Entries limited to an area cannot have any.
	Residuals []Residual
	Control   []Control // not in entries limited to an area, nor if Plan.Parts() > 1
}

// Rectangle returns the part of the latent that the entry is evaluated on: its own area, or the bounding box of its
// mask, at least 8x8 (ComfyUI resolve_areas_and_cond_masks_multidim; an empty mask gives the smallest area).
func (e *Entry) Rectangle() Area {
	if !e.MaskBounds || e.Mask.Len() == 0 {
		return e.Area
	}
	m := e.Mask
	box := Area{Y: m.Y, X: m.X}
	bottom, right := -1, -1
	for i, v := range m.Data {
		if v == 0 {
			continue
		}
		y, x := i/m.X%m.Y, i%m.X
		box.Y, box.X = min(box.Y, y), min(box.X, x)
		bottom, right = max(bottom, y), max(right, x)
	}
	if bottom < 0 {
		return Area{H: 8, W: 8}
	}
	box.H, box.W = max(8, bottom-box.Y+1), max(8, right-box.X+1)
	return box
}

// Residual is one output of a control net that ran elsewhere.
type Residual = rank.Residual

// Control is a control net that runs here, beside the model. The outputs of an entry's nets are added up. A net gets
// the entry's text, pooled vector and guidance, and the latent.
type Control struct {
	Net Model // Spec is that of the family with the blocks of the net; the weights load as a dit.Control
	// Patch: this is a model patch (dit.Patch), not a net. Patches apply in every evaluation, in the order of the list
	// and before the outputs of nets. Mode and the sigmas are ignored.
	Patch    bool
	Hint     Latent // [1, channels of the hint, Y, X] in model space; for a net also [B, ...], one per item
	Mode     int    // dit.Entry.Mode
	Strength float32
	// Feeds is Feeds of the dit.Control, for forecasts; nil: not known before it is loaded, or a patch.
	Feeds func(base *dit.Spec) [][]int
	// The net works while SigmaStart >= sigma >= SigmaEnd.
	SigmaStart, SigmaEnd float32
}

// Area is a rectangle of latent pixels. The zero Area is none.
type Area struct{ H, W, Y, X int }

// LoadFunc makes a function process.Weights, for weights that are not in files: in tests, or in this process's memory.
type LoadFunc func(ops engine.Ops, held dit.Held) (dit.Model, error)

func (f LoadFunc) Load(ops engine.Ops, held dit.Held) (dit.Model, error) { return f(ops, held) }

// Model names a diffusion model with its adapters and says how to load its weights. Equal keys share weights.
type Model struct {
	Key     string // file, header hash and adapters
	Spec    *dit.Spec
	Weights process.Weights
	// WeightBytes is the size of the weights in the file, for memory checks before loading.
	WeightBytes int64
	// WideBytes is their size once loaded (weights.Set.WideBytes); 0: WeightBytes.
	WideBytes int64
	// Blocks: some weights are in blocks (engine.Blocks) or fp8, which devices widen as they multiply.
	Blocks bool
}

// Observe is called with the progress after every step. An error that it returns ends the run.
type Observe func(Progress) error

// Progress is reported after every step.
type Progress struct {
	Step, Steps int     // 1..Steps
	Sigma       float32 // at which the step started
	// Resumed says that this step and those before it were not computed: Request.Resume had them. They are not reported
	// one by one.
	Resumed bool
	X0      Latent  // denoised, model space, whole batch; empty unless Request.Preview
	Sent    []int64 // bytes that the ranks have sent so far, indexed by plan.Axis
}

// ByAxis returns Sent by the names of the axes, without axes on which nothing was sent.
func (p Progress) ByAxis() map[string]int64 {
	out := map[string]int64{}
	for axis, n := range p.Sent {
		if n > 0 {
			out[plan.Axis(axis).String()] = n
		}
	}
	return out
}

// Result is the outcome of a run.
type Result struct {
	Latent Latent // model space, inverse noise scaling applied
	X0     Latent // last denoised, as SamplerCustomAdvanced's second output
	Stats  Stats
}

// Stats says where the time and the work went.
type Stats struct {
	Model       string // display name, filled in by the caller of Sample
	Plan        string
	Compute     engine.DType  // of activations
	Evaluations int           // evaluations that the network ran, at least for some entries
	Resumed     int           // evaluations that Request.Resume answered; not in Evaluations
	Reused      []int         // numbers, from 0, of evaluations that Request.Cache answered; not in Evaluations
	Changes     []CacheChange // what the cache saw, if Cache.Verbose
	// Synchronous are the evaluations, numbered from 0 among those that ran, in which all patches of a pipeline ran at
	// once: warm-up, new entries. nil without patches.
	Synchronous []int
	Rows        int     // latents predicted, over all evaluations: batch items times active entries
	LoadSeconds float64 // for reading and packing weights, 0 if resident
	StepSeconds []float64
	PeakBytes   int64             // activations, session buffers and scratch memory of the busiest rank
	Traffic     [][]comm.Traffic  // what each rank of the plan sent, indexed by plan.Axis
	Tokens      []rank.TokenCount // what each rank's first block computed
	Devices     []string          // of each rank, by Config.DeviceOf; nil: no device has memory of its own
	Chosen      map[string]int64  // calls by way of computing them (engine.Chooser), over all ranks; nil: one way
	Lost        []string          // why processes of ranks went, where others went on with Request.Resume
	Spans       []profile.Span    // every operation and exchange of every rank, if Request.Profile
}
