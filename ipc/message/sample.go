package message

import (
	"patchbay/fault"
	"patchbay/ipc/bulk"
	"patchbay/ipc/wire"
	"patchbay/node/value"
)

// SampleRequest is the body of sample: one sampling run on tensors that the host made, as ComfyUI hands them to a
// sampler. Tensors are f32, f16 or bf16; latents are [B, C, Y, X], with layers [B, C, layers, Y, X], in model space
// (latent format applied). Unknown fields are refused: ignoring one would give a plausible but wrong image.
type SampleRequest struct {
	V        int          `json:"v,omitempty"`
	ID       string       `json:"id,omitempty"` // names the run for cancel; empty: generated
	Model    ModelRef     `json:"model"`
	Sampler  SamplerRef   `json:"sampler"`
	Sampling *SamplingRef `json:"sampling,omitempty"` // nil: as the model file says
	Sigmas   *wire.Tensor `json:"sigmas"`             // [n+1]
	Noise    *wire.Tensor `json:"noise,omitempty"`    // unit variance, not scaled; nil: zeros
	// NoiseDraws are the sizes of the draws that made the noise, for samplers whose own noise continues the same random
	// stream; nil: one draw of the whole batch.
	NoiseDraws []int        `json:"noise_draws,omitempty"`
	Latent     *wire.Tensor `json:"latent"`
	// 1 where the latent may change, [1 or B, 1 or C, Y, X]; nil: everywhere
	Mask  *wire.Tensor `json:"mask,omitempty"`
	Seed  uint64       `json:"seed,omitempty"` // of noise that samplers draw during the run
	CFG   *float64     `json:"cfg,omitempty"`  // nil: 1
	CFG1  *bool        `json:"cfg1_shortcut,omitempty"`
	Conds CondsRef     `json:"conds"`
	Dual  *DualRef     `json:"dual,omitempty"`  // nil: guidance with one scale
	Cache *CacheRef    `json:"cache,omitempty"` // nil: every evaluation runs
	// Norm is the strength of ComfyUI's CFGNorm (request.Guider.Norm); nil: no CFGNorm.
	Norm *float64 `json:"cfg_norm,omitempty"`
	// "none" (default), "latent": x0 with every step, "jpeg": a picture at most 5 times a second
	Preview string `json:"preview,omitempty"`
	WantX0  bool   `json:"want_x0,omitempty"` // return the last x0 of the whole batch with the result
	Plan    string `json:"plan,omitempty"`    // "ulysses=2,cfg=2"; empty: one rank

	Built *value.ClientRequest `json:"-"` // set by ParseSample
	bulk.Held
}

// ModelRef names a diffusion model in the models folders.
type ModelRef struct {
	// as the verb models lists it: in diffusion_models, or else in checkpoints
	File string `json:"file"`
	// SHA-256 of the JSON header of the file, in hex; empty: any file of that name
	Fingerprint string `json:"fingerprint,omitempty"`
	// Patches are adapters that the host sends. Low-rank ones are not merged into the weights: runs that differ only in
	// those share the packed weights.
	Patches []PatchRef `json:"patches,omitempty"`
	// Nets are model patches, layers that modify the output of the blocks, in the order in which they apply.
	Nets []NetRef `json:"nets,omitempty"`
}

// NetRef names a model patch in the folder model_patches, with its input.
type NetRef struct {
	File        string   `json:"file"`
	Fingerprint string   `json:"fingerprint,omitempty"` // as in ModelRef
	Strength    *float64 `json:"strength,omitempty"`    // nil: 1
	// Hint is the latent of an image, [1, C, Y, X] in model space, with one channel more for files with a mask (1 where
	// the image counts). Style projectors take the states of an image encoder, [3, L, E]. A forecast needs no hint, and
	// also takes files of the folder controlnet.
	Hint *wire.Tensor `json:"hint,omitempty"`
}

// PatchRef changes one weight of a model: it adds strength * alpha/R * up * down to rows of a matrix ("lora"), adds
// strength * value to a bias ("diff"), or sets the weight of a norm to value ("set").
type PatchRef struct {
	// ComfyUI's name of the weight, such as diffusion_model.double_blocks.0.img_attn.qkv.weight
	Key      string       `json:"key"`
	Offset   []int        `json:"offset,omitempty"`   // [0, first, rows]: only these rows of the weight
	Strength *float64     `json:"strength,omitempty"` // nil: 1
	Adapter  string       `json:"adapter"`            // "lora", "diff" (of a bias) or "set" (of a norm)
	Tensors  PatchTensors `json:"tensors"`
}

// PatchTensors holds the matrices of a low-rank adapter, or the value for a bias or norm.
type PatchTensors struct {
	Up    *wire.Tensor `json:"up,omitempty"`    // [N, R]
	Down  *wire.Tensor `json:"down,omitempty"`  // [R, K]
	Alpha *float64     `json:"alpha,omitempty"` // nil: R
	Value *wire.Tensor `json:"value,omitempty"` // [N], for diff and set
}

// SamplerRef names a sampler.
type SamplerRef struct {
	Name    string         `json:"name"` // as in KSampler: "euler"
	Options map[string]any `json:"options,omitempty"`
	// MaskNoiseFromSeed mixes noise of seed+1 into the kept part of a masked latent; with euler this is "ddim".
	MaskNoiseFromSeed bool `json:"mask_noise_from_seed,omitempty"`
}

// SamplingRef is the model sampling of the host's model.
type SamplingRef struct {
	// ComfyUI's classes: ModelSamplingFlux, ModelSamplingDiscreteFlow, ModelSamplingDiscrete, CONST, EPS, V_PREDICTION
	Bases      []string `json:"bases"`
	Shift      *float64 `json:"shift,omitempty"`
	Multiplier *float64 `json:"multiplier,omitempty"`
}

// CacheRef holds the settings of ComfyUI's nodes EasyCache and LazyCache: evaluations that are expected to change
// little are answered without running the network (see request.Cache for the rule).
type CacheRef struct {
	// "easy" measures at the network, and has no effect on families that ComfyUI calls without wrappers; "lazy"
	// measures at the latent
	Rule      string   `json:"rule"`
	Threshold *float64 `json:"threshold"`         // reuse_threshold, >= 0; 0 reuses nothing
	Start     *float64 `json:"start,omitempty"`   // start_percent, 0 to 1; nil: 0
	End       *float64 `json:"end,omitempty"`     // end_percent, 0 to 1; nil: 1
	Verbose   bool     `json:"verbose,omitempty"` // the metrics list expected and measured change of every step
}

// CondsRef holds the conditionings. A nil Negative means a guider without one (cfg must be 1); an empty list predicts
// 0.
type CondsRef struct {
	Positive []CondRef  `json:"positive"`
	Negative *[]CondRef `json:"negative,omitempty"`
}

// DualRef is what DualCFGGuider adds to positive (its cond1), negative and cfg (its cfg_conds): a second conditioning
// between the two, cond2, and its scale against the negative. request.Guider has the formulas.
type DualRef struct {
	Middle []CondRef `json:"middle"`
	CFG2   float64   `json:"cfg2"`             // cfg_cond2_negative
	Nested bool      `json:"nested,omitempty"` // style "nested"; false: "regular"
}

// CondRef is one entry of a conditioning. ModelConds is the result of ComfyUI's extra_conds: c_crossattn [1, Lt, D],
// c_concat [1, C, Y, X] in model space, y [1, P], guidance [1], attention_mask [1, Lt], and for HunyuanDiT and PixArt
// text_embedding_mask, encoder_hidden_states_t5, text_embedding_mask_t5, image_meta_size, c_size, c_ar.
type CondRef struct {
	ModelConds map[string]*wire.Tensor `json:"model_conds"`
	// in sigma: the entry is active while end <= sigma <= start
	TimestepStart *float64     `json:"timestep_start,omitempty"`
	TimestepEnd   *float64     `json:"timestep_end,omitempty"`
	Strength      *float64     `json:"strength,omitempty"` // nil: 1
	Area          []int        `json:"area,omitempty"`     // [height, width, y, x] in latent pixels
	Mask          *wire.Tensor `json:"mask,omitempty"`     // [1 or B, Y, X] at latent size, weights
	MaskStrength  *float64     `json:"mask_strength,omitempty"`
	// reference latents, [1, C, Y, X] in model space
	References []*wire.Tensor `json:"references,omitempty"`
	// how they are positioned, by ComfyUI's names: index, index_timestep_zero, ...; empty: the model's default
	ReferencesMethod string `json:"references_method,omitempty"`
	// how many rows of c_crossattn come before each of them, for Qwen-Image-2.1; nil: all
	ReferencesSlots []int `json:"references_slots,omitempty"`
	// added to the attention scores of rows of c_crossattn, in order: attn_bias of StyleModelApply
	Biases []BiasRef `json:"biases,omitempty"`
	// output of a control net for all evaluations of the run, added to the image tokens after blocks of the network
	Control []ControlRef `json:"control,omitempty"`
}

// BiasRef is added to the attention scores that the image tokens, and the text tokens before row Start, have with rows
// [Start, End) of c_crossattn.
type BiasRef struct {
	Start int     `json:"start"`
	End   int     `json:"end"`
	Value float64 `json:"value"`
}

// ControlRef is one output of a control net.
type ControlRef struct {
	Blocks []int        `json:"blocks"` // from 0 in the order they run; a block is in one output at most
	Rows   *wire.Tensor `json:"rows"`   // [1 or B, tokens, width of the network]
}

// SampleReply is one reply to sample: "accepted", then any number of "progress" and "heartbeat", then one of "done",
// "error" and "cancelled".
type SampleReply struct {
	V     int     `json:"v"`
	Type  string  `json:"type"`
	ID    string  `json:"id"`
	Seq   uint64  `json:"seq"` // 1, 2, ... within the run
	TS    int64   `json:"ts"`  // Unix milliseconds
	Step  int     `json:"i,omitempty"`
	Steps int     `json:"n,omitempty"`
	Sigma float64 `json:"sigma,omitempty"` // of the step just done
	// progress: bytes that the ranks have sent so far, by axis; empty for one rank
	Sent map[string]int64 `json:"sent,omitempty"`
	// progress: the first item of the batch, in the last step the whole batch; done: the whole batch
	X0      *wire.Tensor   `json:"x0,omitempty"`
	JPEG    []byte         `json:"jpeg,omitempty"`    // progress, preview "jpeg"
	X       *wire.Tensor   `json:"x,omitempty"`       // done: the latent, f32, model space
	Evals   int            `json:"evals,omitempty"`   // done: evaluations of the model
	Metrics map[string]any `json:"metrics,omitempty"` // done: where the time went, seconds
	Worker  string         `json:"worker,omitempty"`
	Error   *fault.Error   `json:"error,omitempty"`

	bulk.Held
}

// The types of a SampleReply other than "accepted" and "heartbeat".
const (
	SampleProgress  = "progress"
	SampleDone      = "done"
	SampleError     = "error"
	SampleCancelled = "cancelled"
)

// LoadRequest asks for the weights of a model to be made resident on every worker of one daemon.
type LoadRequest struct {
	Model ModelRef `json:"model"`
	Plan  string   `json:"plan,omitempty"` // whose weight layout is loaded; empty: that of one rank
	// a run whose time and memory are predicted; nothing is loaded then
	Forecast *WorkloadRef `json:"forecast,omitempty"`
}

// WorkloadRef describes a run as far as a forecast needs it.
type WorkloadRef struct {
	Width   int `json:"width"` // of the picture, in pixels
	Height  int `json:"height"`
	Batch   int `json:"batch,omitempty"`   // pictures at once; 0: 1
	Steps   int `json:"steps,omitempty"`   // evaluations of the network; 0: 20
	Text    int `json:"text,omitempty"`    // text tokens of an entry; 0: 256
	Entries int `json:"entries,omitempty"` // conditioning entries; 0: 1 for models that take guidance as a number, else 2
}

// Forecast is the predicted cost of a run, without text encoders, VAE and loading.
type Forecast struct {
	Plan        string  `json:"plan"` // as requested, or chosen
	Seconds     float64 `json:"seconds"`
	StepSeconds float64 `json:"step_seconds"`
	Bytes       int64   `json:"bytes"`        // of the rank that needs most
	WeightBytes int64   `json:"weight_bytes"` // part of Bytes
	FreeBytes   int64   `json:"free_bytes"`   // of one device; 0: not known
	Device      string  `json:"device"`       // of a rank, by its name in the forecast
	// blocks from host memory, by the rank that brings most: how many, bytes a step, bytes there of all ranks, and how
	// many times longer the run takes than with all blocks on the devices
	Streamed  int     `json:"streamed,omitempty"`
	Resident  int     `json:"resident,omitempty"` // blocks that stay beside them
	StepBytes int64   `json:"step_bytes,omitempty"`
	HostBytes int64   `json:"host_bytes,omitempty"`
	Slowdown  float64 `json:"slowdown,omitempty"`
}

// LoadReply says what is resident now.
type LoadReply struct {
	V       int     `json:"v"`
	Bytes   int64   `json:"bytes"`   // of the weights in the file, counted once per worker
	Seconds float64 `json:"seconds"` // of the slowest worker; 0: the weights were resident
	Workers int     `json:"workers"`
	// latent space of the model
	Latent   *LatentSpace `json:"latent,omitempty"`
	Forecast *Forecast    `json:"forecast,omitempty"` // where one was asked for
}

// LatentSpace relates the latents of a model to those of its autoencoder: model = (vae - shift) * scale, or per channel
// (vae - mean) / std. A host that decodes with ComfyUI's VAEDecode applies the inverse first.
type LatentSpace struct {
	Channels int       `json:"channels"`
	Scale    float64   `json:"scale"`
	Shift    float64   `json:"shift"`
	Mean     []float64 `json:"mean,omitempty"` // [channels], where scale is 1 and shift 0
	Std      []float64 `json:"std,omitempty"`
}

// ModelReply is what describe says about a model file, from its header alone.
type ModelReply struct {
	Family   string      `json:"family"`
	Latent   LatentSpace `json:"latent"`
	Sampling SamplingRef `json:"sampling"` // as a sample request may have it
}
