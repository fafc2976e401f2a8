package value

import (
	"patchbay/engine"
	"patchbay/models"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/weights"
	"patchbay/node/files"
)

// OpenModel describes the diffusion model of a file from its header. Its weights are read from the file, opened again,
// when ranks ask for them.
func OpenModel(name string, f files.Checkpoint, open *weights.File, set *weights.Set) (*Model, error) {
	d, err := models.OpenDiffusion(set, open.Metadata())
	if err != nil {
		return nil, err
	}
	file := &files.Opener{Checkpoint: f}
	m, err := NewModel(name, f.Key(), d, f.Size, func(ops engine.Ops, held dit.Held) (m dit.Model, err error) {
		err = file.With(func(file *weights.File) error {
			d, err := models.OpenDiffusion(file.Set(), file.Metadata())
			if err != nil {
				return err
			}
			m, err = d.Load(ops, held)
			return err
		})
		return m, err
	})
	if err != nil {
		return nil, err
	}
	m.narrow = packsNarrow(set)
	return m, nil
}

// NewModel makes a handle of a description.
func NewModel(name, key string, d *family.Diffusion, bytes int64,
	load func(engine.Ops, dit.Held) (dit.Model, error),
) (*Model, error) {
	s, err := d.Sampling.Build()
	if err != nil {
		return nil, err
	}
	return &Model{
		Name: name, Key: key, Variant: d.Variant, Spec: &d.Spec, Format: d.Latent, Sampling: s, Traits: d.Traits,
		bytes: bytes, Load: load, declare: d.Declare,
	}, nil
}
