// Package published describes released diffusion models by name, so that a run can be planned before any weight is on
// disk.
//
// Every entry is the config of one released checkpoint; Find turns it into the same dit.Spec that the file itself would
// give, because both come from the family's own Config.Spec. Sizes of text are what ComfyUI's text encoders give for a
// short prompt. There are no weights here.
//
// Sources: the config.json of each release (transformer folder of black-forest-labs/FLUX.1-dev and FLUX.1-schnell,
// stabilityai/stable-diffusion-3-medium and -3.5-large, PixArt-alpha/PixArt-XL-2-1024-MS and PixArt-Sigma-XL-2-1024-MS,
// Tencent-Hunyuan/HunyuanDiT-v1.2), read together with the papers arXiv:2403.03206 (SD3), 2310.00426 and 2403.04692
// (PixArt), 2405.08748 (HunyuanDiT). Parameter counts that result are compared with the released ones in the tests.
package published

import (
	"fmt"
	"strings"

	"patchbay/models/dit"
	"patchbay/models/flux"
	"patchbay/models/hunyuan"
	"patchbay/models/pixart"
	"patchbay/models/sd3"
)

// Model is one released model.
type Model struct {
	Name  string
	Spec  *dit.Spec
	Steps int // of the release's own example
	// Text is the number of text tokens that go with a picture: inside the joint sequence, or as keys of the
	// cross-attention.
	Text int
	// Entries is how many conditioning entries an evaluation has: 2 with classifier-free guidance, 1 for distilled models.
	Entries int
	// Scale is the number of picture pixels per latent pixel.
	Scale int
}

// config is a family's Config.
type config interface{ Spec() (dit.Spec, error) }

// entry is one row of the table.
type entry struct {
	name                 string
	steps, text, entries int
	config               config
}

func table() []entry {
	schnell := flux.Config{
		Hidden: 3072, Heads: 24, Depth: 19, DepthSingle: 38, Axes: []int{16, 56, 56}, Theta: 10000, TimeFactor: 1000,
		Channels: 16, PatchSize: 2,
		ContextDim: 4096, VectorDim: 768, MLPHidden: 12288,
	}
	dev := schnell
	dev.Guidance = true
	medium := sd3.Config{
		Hidden: 1536, Blocks: 24, Channels: 16, PatchSize: 2, PosSide: 192, ContextDim: 4096,
		PooledDim: 2048, MLPHidden: 6144,
	}
	large := sd3.Config{
		Hidden: 2432, Blocks: 38, Channels: 16, PatchSize: 2, PosSide: 192, ContextDim: 4096, PooledDim: 2048,
		MLPHidden: 9728, QKNorm: true,
	}
	alpha := pixart.Config{
		Hidden: 1152, Heads: 16, Depth: 28, Channels: 4, PatchSize: 2, ContextDim: 4096, MaxLength: 120,
		MLPHidden: 4608, MicroSize: true,
		Interpolation: 2,
	}
	sigma := alpha
	sigma.MaxLength, sigma.MicroSize = 300, false
	hydit := hunyuan.Config{
		Hidden: 1408, Heads: 16, Depth: 40, Channels: 4, PatchSize: 2, TextDim: 1024, T5Dim: 2048, MLPHidden: 6144,
		T5Hidden: 8192, PoolDim: 1024,
	}
	return []entry{
		{"flux-dev", 28, 512, 1, dev},
		{"flux-schnell", 4, 256, 1, schnell},
		{"sd3-medium", 28, 333, 2, medium},
		{"sd3.5-large", 28, 333, 2, large},
		{"pixart-alpha", 20, 120, 2, alpha},
		{"pixart-sigma", 20, 300, 2, sigma},
		{"hunyuandit", 50, 333, 2, hydit},
	}
}

// Names lists the models.
func Names() []string {
	var out []string
	for _, e := range table() {
		out = append(out, e.name)
	}
	return out
}

// Find returns the model of that name. The error of an unknown name lists the known ones.
func Find(name string) (*Model, error) {
	for _, e := range table() {
		if e.name != name {
			continue
		}
		spec, err := e.config.Spec()
		if err != nil {
			return nil, fmt.Errorf("model %s: %w", name, err)
		}
		return &Model{Name: name, Spec: &spec, Steps: e.steps, Text: e.text, Entries: e.entries, Scale: 8}, nil
	}
	return nil, fmt.Errorf("unknown model %q: want one of %s", name, strings.Join(Names(), ", "))
}
