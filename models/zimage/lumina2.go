package zimage

import "patchbay/models/family"

// Lumina2 describes Lumina-Image 2.0: the network of Z-Image with an activation before the modulations, grouped-query
// attention and no padding. Its text encoder is Gemma 2 of 2 billion parameters. Sizes of the release:
// Alpha-VLLM/Lumina-Image-2.0.
func Lumina2() family.Family {
	return family.Family{
		Name: "lumina2",
		Forms: []family.Form{{
			Has: "noise_refiner.0.adaLN_modulation.1.weight", Lacks: []string{"clip_text_pooled_proj.0.weight"}, // NewBie
		}},
		Detect: Detect,
		Text:   prompts(),
		Names:  names(),
		Releases: []family.Release{{Name: "lumina-image-2", Billions: 2.61, Steps: 25, Text: 96, Entries: 2, Config: Config{
			Hidden: 2304, Heads: 24, KVHeads: 8, Axes: []int{32, 32, 32}, Theta: 10000, TimeFactor: 1, Refiners: 2, Depth: 26,
			ContextDim: 2304, Channels: 16, PatchSize: 2, MLPHidden: 9216, TimeHidden: 1024,
		}}},
		Tiny: Config{
			Hidden: 144, Heads: 12, KVHeads: 4, Axes: []int{4, 4, 4}, Theta: 10000, TimeFactor: 1, Refiners: 2, Depth: 3,
			ContextDim: 48, Channels: 16, PatchSize: 2, MLPHidden: 384, TimeHidden: 112,
		},
	}
}
