package lora

import (
	"slices"

	"patchbay/models/weights"
)

// Diffusion returns the module names for a diffusion model of a family with the given tensors (names and shapes of the
// original checkpoint, without prefix). names are how files call them otherwise.
func Diffusion(family string, names weights.Names, tensors []weights.Declared) *Keys {
	b := newBuilder("", "this "+family+" model")
	for _, d := range tensors {
		if !slices.Contains(names.Tables, d.Name) {
			b.add(d.Name, d.Shape)
		}
	}
	prefixes := []string{"transformer.", "base_model.model.", "base_model.model.transformer.", "unet.base_model.model."}
	flat := []string{"lora_transformer_", "lycoris_"}
	b.aliases(names.Diffusers, prefixes, flat)
	if names.Same {
		b.own(prefixes, flat)
	}
	b.aliases(names.Original, []string{"", "diffusion_model."}, nil)
	b.own([]string{"", "diffusion_model.", "base_model.model."}, []string{"lora_unet_"})
	b.keys.examples = b.samples()
	return b.keys
}

// samples picks a name of every kind for error texts.
func (b *builder) samples() []string {
	var out []string
	names := sortedNames(b.keys.targets)
	for _, kind := range []struct{ prefix, end string }{
		{"lora_unet_", ".lora_up.weight"},
		{"transformer.", ".lora_B.weight"},
		{"base_model.model.", ".lora_A.default.weight"},
		{"diffusion_model.", ".lora_A.weight"},
	} {
		if i, _ := slices.BinarySearch(names, kind.prefix); i < len(names) && len(names[i]) > len(kind.prefix) &&
			names[i][:len(kind.prefix)] == kind.prefix {
			out = append(out, names[i]+kind.end)
		}
	}
	return out
}
