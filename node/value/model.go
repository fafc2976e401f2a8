package value

import (
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/models/sampling"
	"patchbay/models/source"
	"patchbay/models/weights"
	"patchbay/node/picture"
	"patchbay/parallel/process"
	"patchbay/parallel/request"
)

// Model is a MODEL: a diffusion model that has been described but not loaded. Copies with other adapters or another
// model sampling share the weights.
type Model struct {
	Name     string // as given in the workflow
	Key      string // file and header hash; equal keys share weights
	Spec     *dit.Spec
	Format   latent.Format
	Sampling *sampling.ModelSampling
	Traits   family.Traits
	// Differential is DifferentialDiffusion's strength; nil: ordinary masks.
	Differential *float32
	// Norm is CFGNorm's strength (request.Guider.Norm); nil: guidance is not rescaled.
	Norm *float32
	// Rescale is RescaleCFG's multiplier (request.Guider.Rescale); nil: guidance is not mixed.
	Rescale *float32
	// Identity is LTXVReferenceAudio's guidance (request.Guider.Identity).
	Identity []request.Identity
	// Guiding is what its last adapter says of pictures that guide a video; nil: nothing.
	Guiding *Guiding
	// Patches are layers that run behind its blocks, in the order in which they were added.
	Patches []*Control
	// Prefix holds rows that go in front of the text of every entry.
	Prefix dit.Array
	// Cache is set by EasyCache or LazyCache; nil: every evaluation runs.
	Cache   *request.Cache
	Weights process.Weights // nil: those of the file
	file    source.File
	declare func() ([]weights.Declared, error) // all tensors of the model
	unused  []string                           // names in the file that it does not know
	bytes   int64
	wide    int64            // bytes of the weights on devices (weights.Set.WideBytes); 0: unknown
	blocks  bool             // some weights are block-quantized
	narrow  bool             // most weights are packed as bf16
	half    bool             // most weights are bf16 or f16
	Loras   []source.Adapter // adapters, in the order in which they were added
}

// Request returns the model in the form that package parallel takes.
func (m *Model) Request() request.Model {
	if m.Weights != nil {
		return request.Model{Key: m.Key, Spec: m.Spec, Weights: m.Weights, WeightBytes: m.bytes}
	}
	w := source.Weights{Model: source.Model{File: m.file, Adapters: m.Loras}, Loader: &source.Loader{}}
	out := request.Model{Key: w.Key(), Spec: m.Spec, Weights: w, WeightBytes: w.Bytes(), Blocks: m.blocks}
	if m.wide > 0 {
		out.WideBytes = m.wide + w.Bytes() - m.file.Size // adapters
	}
	return out
}

// Preview renders the first layer of the first item of a model-space latent as JPEG, by ComfyUI's latent2rgb. It
// returns nil if the format has no preview.
func (m *Model) Preview(x0 request.Latent) []byte {
	x0, _ = x0.Parts()
	x0 = Cut(x0, "t", 0, 1)
	pixels := m.Format.RGB(x0.Data[:x0.C*x0.Y*x0.X], x0.Y, x0.X)
	if pixels == nil {
		return nil
	}
	k := m.Format.Side()
	return picture.EnlargedJPEG(pixels, k*x0.Y, k*x0.X)
}
