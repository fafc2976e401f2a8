package lora

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"patchbay/models/weights"
)

// Encoder is a text encoder that adapters may apply to.
type Encoder struct {
	Kind   string           // a kind of package text: "clip_l", "clip_g", "t5", "qwen3" ...
	Shapes map[string][]int // by tensor name without prefix ("text_model.encoder.layers.0.mlp.fc1.weight")
}

// inside returns the prefix that ComfyUI puts before the names of an encoder.
func inside(kind string) string {
	others := map[string]string{
		"t5": "t5xxl", "mt5": "mt5xl", "umt5": "umt5xxl", "bert": "hydit_clip", "qwen3": "qwen3_4b",
		"mistral3": "mistral3_24b", "gemma4": "gemma3_12b", "gemma4_e": "gemma4", // the first with LTX-2's projection
	}
	return cmp.Or(others[kind], kind) + ".transformer."
}

// Text returns the module names for a set of text encoders that are used together. Files number encoders ("lora_te2_"),
// so what a number means depends on which encoders there are: CLIP-L, then CLIP-G, then T5 (ComfyUI comfy/lora.py,
// model_lora_keys_clip).
func Text(encoders []Encoder) *Keys {
	has := func(kind string) bool {
		return slices.ContainsFunc(encoders, func(e Encoder) bool { return e.Kind == kind })
	}
	var all []*Keys
	for _, e := range encoders {
		b := newBuilder(e.Kind, "the text encoder "+e.Kind)
		for name, shape := range e.Shapes {
			if multiplied(name) {
				b.add(name, shape)
			}
		}
		var dotted, flat []string
		switch e.Kind {
		case "clip_l":
			dotted, flat = []string{"text_encoder."}, []string{"lora_te_", "lora_te1_"}
		case "clip_g":
			dotted, flat = []string{"text_encoder."}, []string{"lora_te_"}
			if has("clip_l") {
				dotted, flat = []string{"text_encoder_2."}, []string{"lora_te2_"}
			}
		case "t5":
			flat = t5Numbers(has("clip_l"), has("clip_g"))
		case "bert":
			for name := range b.matrices { // files omit the first part of the name
				b.aliases([]weights.Alias{{File: strings.TrimPrefix(name, "bert."), Own: name}}, nil, []string{"lora_te1_"})
			}
		}
		if !strings.HasPrefix(e.Kind, "clip_") {
			dotted = append(dotted, "text_encoders.transformer.")
		}
		b.own(append(dotted, "text_encoders."+inside(e.Kind)), flat)
		if names := slices.Sorted(maps.Keys(b.keys.targets)); len(names) > 0 {
			b.keys.examples = []string{names[0] + ".lora_up.weight"}
		}
		all = append(all, b.keys)
	}
	return Join(all...)
}

// t5Numbers returns the prefixes that number T5: after the CLIPs, and if CLIP-L is the only one, also as the third.
func t5Numbers(clipL, clipG bool) []string {
	switch {
	case clipL && !clipG:
		return []string{"lora_te2_", "lora_te3_"}
	case clipL && clipG:
		return []string{"lora_te3_"}
	case clipG:
		return []string{"lora_te2_"}
	}
	return []string{"lora_te1_"}
}

// multiplied reports whether a tensor of an encoder is a matrix in a matrix product, rather than a lookup table.
func multiplied(name string) bool {
	if strings.HasSuffix(name, "relative_attention_bias.weight") {
		return false
	}
	return slices.ContainsFunc([]string{
		"text_model.encoder.layers.", "text_projection.", "encoder.block.", "bert.encoder.layer.", "model.layers.",
	}, func(p string) bool { return strings.HasPrefix(name, p) })
}
