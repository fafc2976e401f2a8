package value

import (
	"patchbay/models"
	"patchbay/models/family"
	"patchbay/models/published"
	"patchbay/node/files"
	"patchbay/parallel/process"
	"patchbay/parallel/request"
)

// OpenModel describes the diffusion model of a file from its header. The file is opened again when a rank needs the
// weights.
func OpenModel(h files.Header) (*Model, error) {
	set := h.Weights.Set()
	d, err := models.OpenDiffusion(set, h.Weights.Metadata())
	if err != nil {
		return nil, err
	}
	m, err := NewModel(h.Name, h.Key(), d, h.Size, nil)
	if err != nil {
		return nil, err
	}
	m.file, m.unused = h.File, d.Unused
	m.narrow, m.half = widths(set)
	m.wide, m.blocks = set.WideBytes(), set.HasBlocks()
	return m, nil
}

// RandomModel describes the release or family of that name with random weights, which are bf16 (published.Random).
func RandomModel(name string) (*Model, *family.Release, error) {
	d, release, err := published.Random(name)
	if err != nil {
		return nil, nil, err
	}
	m, err := NewModel(name, "random "+name, d, 2*d.Spec.Params, request.LoadFunc(d.Load))
	if err != nil {
		return nil, nil, err
	}
	m.narrow, m.half = true, true
	return m, release, nil
}

// NewModel returns a handle for a description. bytes is the size of weights; nil weights mean those of a file.
func NewModel(name, key string, d *family.Diffusion, bytes int64, weights process.Weights) (*Model, error) {
	s, err := d.Sampling.Build()
	if err != nil {
		return nil, err
	}
	return &Model{
		Name: name, Key: key, Spec: &d.Spec, Format: d.Latent, Sampling: s, Traits: d.Traits,
		bytes: bytes, Weights: weights, declare: d.Declare,
	}, nil
}

// Unused names the tensors in the file that the model does not know.
func (m *Model) Unused() []string { return m.unused }
