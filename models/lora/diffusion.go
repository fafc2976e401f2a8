package lora

import (
	"maps"
	"slices"
	"strings"

	"patchbay/models/weights"
)

// Diffusion returns the module names for a diffusion model of a family with the given tensors (names and shapes as in
// the original checkpoint, without prefix). names holds the other names that files use.
func Diffusion(family string, names weights.Names, tensors []weights.Declared) *Keys {
	b := newBuilder("", "this "+family+" model")
	original := []string{"", "diffusion_model."}
	b.input = names.Input
	for _, d := range tensors {
		if !slices.Contains(names.Tables, d.Name) {
			b.add(d.Name, d.Shape)
		}
		if name, ok := strings.CutSuffix(d.Name, ".bias"); ok {
			b.biases[name] = true
		}
		b.norm(d.Name, d.Shape, original)
	}
	for _, d := range tensors { // now that all matrices are known
		b.vector(d.Name, d.Shape, original)
	}
	prefixes := []string{
		"", "transformer.", "base_model.model.", "base_model.model.transformer.", "unet.base_model.model.",
	}
	flat := []string{"lora_transformer_", "lycoris_"}
	b.aliases(names.Diffusers, append(prefixes, names.Prefixes...), append(flat, names.Flat...))
	if names.Same {
		b.own(prefixes, flat)
	}
	b.aliases(names.Original, original, nil)
	b.own(append(original, "base_model.model."), append(slices.Clone(names.Flat), "lora_unet_"))
	b.keys.examples = b.samples()
	return b.keys
}

// samples picks one name of every kind for error messages.
func (b *builder) samples() []string {
	var out []string
	names := slices.Sorted(maps.Keys(b.keys.targets))
	for _, kind := range []struct{ prefix, end string }{
		{"lora_unet_", ".lora_up.weight"},
		{"transformer.", ".lora_B.weight"},
		{"base_model.model.", ".lora_A.default.weight"},
		{"diffusion_model.", ".lora_A.weight"},
	} {
		if i, _ := slices.BinarySearch(names, kind.prefix); i < len(names) && strings.HasPrefix(names[i], kind.prefix) {
			out = append(out, names[i]+kind.end)
		}
	}
	return out
}
