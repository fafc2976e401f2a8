package flux

import (
	"encoding/json"
	"fmt"
	"maps"

	"patchbay/models/weights"
)

// names returns what files call the tensors otherwise.
func names() weights.Names {
	return weights.Names{Diffusers: diffusers(), Original: original(), Input: "img_in"}
}

// diffusers are the names of diffusers' FluxTransformer2DModel (0.39).
func diffusers() []weights.Alias {
	const d, s, double, single = "transformer_blocks.*.", "single_transformer_blocks.*.", "double_blocks.*.",
		"single_blocks.*."
	list := append(weights.Joint(), []weights.Alias{
		{File: d + "norm1.linear", Own: double + "img_mod.lin"},
		{File: d + "norm1_context.linear", Own: double + "txt_mod.lin"},
		{File: s + "norm.linear", Own: single + "modulation.lin"},
	}...)
	for file, target := range map[string]string{
		"timestep_embedder": "time_in", "text_embedder": "vector_in", "guidance_embedder": "guidance_in",
	} {
		list = append(list, weights.MLP2("time_text_embed."+file, target+".in_layer", target+".out_layer")...)
	}
	return list
}

// original are additional names that files have beside the original ones: the attention half of linear1, and XLabs'
// attention processors (1 is the image, 2 the text).
func original() []weights.Alias {
	const d, s = "double_blocks.*.", "single_blocks.*."
	attention := func(_, k int) (int, int) { return 0, 3 * k }
	return []weights.Alias{
		{File: s + "linear1_qkv", Own: s + "linear1", Rows: attention},
		{File: s + "processor.qkv", Own: s + "linear1", Rows: attention},
		{File: s + "processor.proj", Own: s + "linear2"},
		{File: d + "processor.qkv_lora1", Own: d + "img_attn.qkv"},
		{File: d + "processor.qkv_lora2", Own: d + "txt_attn.qkv"},
		{File: d + "processor.proj_lora1", Own: d + "img_attn.proj"},
		{File: d + "processor.proj_lora2", Own: d + "txt_attn.proj"},
	}
}

// fromDiffusers translates a diffusers config.json in the metadata into members of Config. Its in_channels counts a
// packed patch of 2 x 2, which the original config calls patch_size 2 and diffusers 1. Widths and depths follow from
// shapes.
func fromDiffusers(meta map[string]string) (map[string]string, error) {
	text, ok := meta["config"]
	if !ok {
		return meta, nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &members); err != nil {
		return nil, fmt.Errorf("flux: config of a diffusers model: %w", err)
	}
	if patch, ok := members["patch_size"]; ok && string(patch) != "1" {
		return nil, fmt.Errorf("flux: config of a diffusers model: patch_size is %s, only 1 is supported", patch)
	}
	delete(members, "patch_size")
	if axes, ok := members["axes_dims_rope"]; ok {
		members["axes_dim"] = axes
	}
	all, err := json.Marshal(members)
	if err != nil {
		return nil, fmt.Errorf("flux: config of a diffusers model: %w", err)
	}
	out := maps.Clone(meta)
	out["config"] = string(all)
	return out, nil
}
