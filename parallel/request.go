package parallel

import (
	"patchbay/engine"
	"patchbay/engine/profile"
	"patchbay/models/dit"
	"patchbay/models/sampling"
	"patchbay/parallel/comm"
	"patchbay/parallel/host"
	"patchbay/parallel/plan"
	"patchbay/parallel/rank"
)

// Request is one sampling run: the only entrance to the denoise loop. Sampling nodes lower to it, the sample message
// decodes onto it. It is plain data (Model and the callbacks of Sample apart), so it can travel to another process.
type Request struct {
	Model Model
	// conversions between sigma, timestep and noise level, overrides of the graph included
	Sampling *sampling.ModelSampling
	Sampler  string           // name in the table of package sampling
	Options  sampling.Options // options of that sampler; zero: its defaults
	Sigmas   []float32        // n+1 values; none returns the latent unchanged, one mixes noise in and takes no step

	Noise  Latent // noise drawn for the whole batch, unit variance; empty Data: zeros
	Latent Latent // start in model space (latent format already applied)
	// Mask is 1 where the picture may change, [B, 1, Y, X] or [B, C, Y, X] or [1, 1, Y, X] (repeated); empty Data:
	// everywhere.
	Mask Latent
	// Differential turns the mask into a threshold on the progress of the run (node DifferentialDiffusion). A strength
	// inside (0, 1) blends the thresholded mask with the given one.
	Differential         bool
	DifferentialStrength float32
	Seed                 uint64 // of noise that samplers draw on the way
	// NoiseDraws are the sizes of the draws that made Noise from the generator of Seed, in order: churn noise goes on
	// behind them (ComfyUI's global stream).
	NoiseDraws []int

	Guider   Guider
	Branches []Branch // positive first, then negative; dual guidance: cond1, cond2, negative

	Cache *Cache // answers some evaluations without the network; nil: all of them run

	Plan string // "ulysses=2,pipe=2,...", or "ranks=4" to have it chosen; empty: one rank
	// Compute is the dtype of activations from Embed to Head: F32 (the zero value) or BF16. Samplers, conditioning
	// vectors, modulations, norms and sums stay in f32.
	Compute engine.DType
	Preview bool // give Progress.X0 at every step
	Profile bool // fill Stats.Spans
}

// Latent is a host tensor [B, C, Y, X] f32, row-major. Of a tensor [B, C, T, y, X] with an axis of frames (layers) Y is
// T*y: frames are one below the other.
type Latent struct {
	B, C, Y, X int
	T          int // frames; 0: the tensor has no such axis
	Data       []float32
}

// Shape is that of the tensor: 4 numbers, or 5 with frames.
func (l Latent) Shape() []int {
	if l.T == 0 {
		return []int{l.B, l.C, l.Y, l.X}
	}
	return []int{l.B, l.C, l.T, l.Y / l.T, l.X}
}

// LatentOf is the inverse of Shape, around data. ok is false for shapes of other than 4 or 5 numbers.
func LatentOf(shape []int, data []float32) (l Latent, ok bool) {
	switch len(shape) {
	case 4:
		return Latent{B: shape[0], C: shape[1], Y: shape[2], X: shape[3], Data: data}, true
	case 5:
		return Latent{B: shape[0], C: shape[1], T: shape[2], Y: shape[2] * shape[3], X: shape[4], Data: data}, true
	}
	return l, false
}

// grid is the latent's tokens.
func (l Latent) grid(spec *dit.Spec) dit.Grid { return spec.FrameTokens(l.T, l.Y, l.X) }

// Len returns B*C*Y*X.
func (l Latent) Len() int { return l.B * l.C * l.Y * l.X }

// NewLatent returns zeros [b, c, y, x].
func NewLatent(b, c, y, x int) Latent {
	return Latent{B: b, C: c, Y: y, X: x, Data: make([]float32, b*c*y*x)}
}

// Guider tells how the branches' predictions are mixed, in x0 space.
type Guider struct {
	Kind GuiderKind
	CFG  float32 // scale between positive and negative (dual: cfg_conds, between cond1 and cond2)
	CFG2 float32 // dual: cfg_cond2_negative
	// Nested is the style "nested" of DualCFGGuider; false is "regular".
	Nested bool
	// Norm scales every pixel of the guided latent down to the length of the first branch's, over channels, and by this
	// (ComfyUI's CFGNorm); nil: it stays as it is.
	Norm *float32
	// NoShortcut evaluates the negative branch even where CFG is 1 (samplers with uncond do so on their own).
	NoShortcut bool
}

// GuiderKind selects the rule of a Guider.
type GuiderKind uint8

// The guiders: Basic uses the first branch alone; CFG is uncond + cfg*(cond - uncond); Dual combines three branches.
const (
	GuideBasic GuiderKind = iota
	GuideCFG
	GuideDual
)

// Branch is one side of guidance: all its entries are predicted and blended by their weights. No active entry predicts
// 0.
type Branch struct {
	Name    string // "positive", "negative", for errors
	Entries []Entry
}

// Entry is one item of a conditioning list: the dit.Entry that the network sees, with where, when and how much it
// counts.
type Entry struct {
	dit.Entry
	// SigmaStart >= sigma >= SigmaEnd is where the entry is active; both 0: always. Inclusive as ComfyUI compares.
	SigmaStart, SigmaEnd float32
	Ranged               bool    // SigmaStart and SigmaEnd are set
	Strength             float32 // weight of the entry, 1 by default
	// Area limits the entry to rows [Y, Y+H) and columns [X, X+W) of the latent; zero: all. Feathered at inner edges when
	// Mask is empty.
	Area Area
	// Mask weights the entry per latent pixel, [1 or B, 1, Y, X] at latent size; empty Data: none.
	Mask         Latent
	MaskStrength float32 // factor of Mask
	// MaskBounds cuts the evaluation to the bounding box of the mask.
	MaskBounds bool
	// Residuals are added to the image tokens behind blocks, in every evaluation: what a control net that ran elsewhere
	// says. Rows are [1 or B, tokens, Width]; not in entries limited to an area.
	Residuals []Residual
	Control   []Control // not in entries limited to an area, nor with weights kept in parts
}

// Residual is one output of a control net that ran elsewhere.
type Residual = rank.Residual

// Control is a control net that runs here, beside the model. Nets of an entry add up. They get the entry's text, pooled
// vector and guidance, and the latent.
type Control struct {
	Net Model // its Spec is the family's, with the blocks of the net; its weights are a dit.Control
	// Patch: it is no net but a model patch, a dit.Patch, and works always: before what nets say, in the order of the
	// list. Mode and the sigmas are not looked at.
	Patch    bool
	Hint     Latent // [1, channels of the hint, Y, X] in model space, of a net also [B, ...]: one for each item
	Mode     int    // dit.Entry.Mode
	Strength float32
	// Feeds is the dit.Control's, for forecasts; nil: not known before it is loaded, or a patch.
	Feeds func(base *dit.Spec) [][]int
	// The net works while SigmaStart >= sigma >= SigmaEnd.
	SigmaStart, SigmaEnd float32
}

// Area is a rectangle of latent pixels. The zero Area is none.
type Area struct{ H, W, Y, X int }

// LoadFunc is host.Weights that are not in files: of tests, or in the memory of this process.
type LoadFunc func(ops engine.Ops, held dit.Held) (dit.Model, error)

// Load implements host.Weights.
func (f LoadFunc) Load(ops engine.Ops, held dit.Held) (dit.Model, error) { return f(ops, held) }

// Model names a diffusion model with its adapters and tells how to get its weights. Equal keys share weights.
type Model struct {
	Key     string // file, header hash and adapters
	Spec    *dit.Spec
	Weights host.Weights
	// WeightBytes is the size of the weights in the file, for memory checks before loading.
	WeightBytes int64
	// WideBytes is their size on devices, which compute with none narrower than bf16 but i8 and blocks; 0: WeightBytes.
	WideBytes int64
	// Blocks: some are in blocks (engine.Blocks), which devices widen as they multiply.
	Blocks bool
}

// Progress is told after every step.
type Progress struct {
	Step, Steps int     // 1..Steps
	Sigma       float32 // of the step just done
	X0          Latent  // denoised, model space, whole batch; empty unless Request.Preview
	Sent        []int64 // bytes that the ranks have sent so far, by axis (AxisUlysses to AxisShard)
}

// ByAxis returns Sent by the names of the axes, without those that nothing was sent on.
func (p Progress) ByAxis() map[string]int64 {
	out := map[string]int64{}
	for axis, n := range p.Sent {
		if n > 0 {
			out[plan.Axis(axis).String()] = n
		}
	}
	return out
}

// Result is what a run gives back.
type Result struct {
	Latent Latent // model space, inverse noise scaling applied
	X0     Latent // last denoised, as SamplerCustomAdvanced's second output
	Stats  Stats
}

// Stats is where the time and the work went.
type Stats struct {
	Model       string // its name, for people; the caller of Sample fills it in
	Plan        string
	Compute     engine.DType  // of activations
	Evaluations int           // that the network ran, at least for some entries
	Reused      []int         // evaluations, from 0, that Request.Cache answered instead; they count on their own
	Changes     []CacheChange // what the cache saw, if Cache.Verbose
	// Synchronous are the evaluations, of those that ran, from 0, in which all patches of a pipeline ran at once: warm-up,
	// new entries. nil without patches.
	Synchronous []int
	Rows        int     // latents predicted, over all evaluations: batch items times active entries
	LoadSeconds float64 // weights read and packed for this request, 0 if resident
	StepSeconds []float64
	PeakBytes   int64             // activations, session buffers and scratch memory of the busiest rank
	Traffic     [][]comm.Traffic  // what each rank of the plan sent, by axis (AxisUlysses to AxisShard)
	Tokens      []rank.TokenCount // what each rank's first block computed
	Devices     []string          // of each rank, by Config.DeviceOf; nil: no device has memory of its own
	Chosen      map[string]int64  // how devices have computed calls (engine.Chooser), over all ranks; nil: in one way
	Spans       []profile.Span    // every operation and exchange of every rank, if Request.Profile
}
