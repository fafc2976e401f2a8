// Package published finds released diffusion models by name, so that a run can be planned before any weight is on disk.
//
// Every entry is the config of one released checkpoint (family.Release); Find turns it into the same dit.Spec that the
// file itself would give. Text sizes are what ComfyUI's text encoders give for a short prompt. The only weights here
// are random ones (Random). The tests compare the resulting parameter counts with the released ones.
package published

import (
	"fmt"
	"strings"

	"patchbay/models"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/models/weights"
)

// Model is one released model, or another one that a run is planned for, whose Release may lack a Config.
type Model struct {
	family.Release
	Spec  *dit.Spec
	Scale int // image pixels along the side of a latent pixel
	Video family.Video
}

// Names returns the names of all released models.
func Names() (out []string) {
	for _, f := range models.Families() {
		for _, r := range f.Releases {
			out = append(out, r.Name)
		}
	}
	return out
}

// release returns the release of that name. The error for an unknown name lists the known ones.
func release(name string) (family.Release, error) {
	for _, f := range models.Families() {
		for _, r := range f.Releases {
			if r.Name == name {
				return r, nil
			}
		}
	}
	return family.Release{}, fmt.Errorf("unknown model %q: want one of %s", name, strings.Join(Names(), ", "))
}

// Find returns the model of that name. The error for an unknown name lists the known ones.
func Find(name string) (*Model, error) {
	r, err := release(name)
	if err != nil {
		return nil, err
	}
	d, err := r.Config.Describe(nil)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", name, err)
	}
	return Of(r, &d.Spec, d.Latent), nil
}

// Of returns the model of a release, or of a file, for a plan.
func Of(r family.Release, spec *dit.Spec, format latent.Format) *Model {
	f, _ := models.Named(spec.Family)
	return &Model{r, spec, format.Pixels(), f.Video}
}

// Random returns the model of that name with random weights, which needs no file. If the name is that of a family and
// of no release ("flux"), it is a small model of that family with a short text.
func Random(name string) (*family.Diffusion, *family.Release, error) {
	r, err := release(name)
	if f, ok := models.Named(name); err != nil && ok {
		r, err = family.Release{Text: 13, Entries: 2, Config: f.Tiny}, nil
	}
	if err != nil {
		return nil, nil, err
	}
	d, err := r.Config.Describe(nil)
	if err != nil {
		return nil, nil, fmt.Errorf("model %s: %w", name, err)
	}
	declared, err := d.Declare()
	if err != nil {
		return nil, nil, fmt.Errorf("model %s: %w", name, err)
	}
	d, err = r.Config.Describe(weights.Random(declared))
	return d, &r, err
}
