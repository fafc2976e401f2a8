package lora

import (
	"fmt"
	"slices"

	"patchbay/models/weights"
)

// Diffusion returns the module names for a diffusion model of a family ("flux", "sd3", "pixart", "hunyuandit") with the
// given tensors (names and shapes of the original checkpoint, without prefix). Other families are an error.
func Diffusion(family string, tensors []weights.Declared) (*Keys, error) {
	tables := map[string]struct{ diffusers, original []alias }{
		"flux": {fluxDiffusers(), fluxOriginal()}, "sd3": {sd3Diffusers(), nil},
		"pixart": {pixartDiffusers(), nil}, "hunyuandit": {},
	}
	table, ok := tables[family]
	if !ok {
		return nil, fmt.Errorf("lora: adapters for models of family %q are not supported (supported: %v)", family,
			sortedNames(tables))
	}
	b := newBuilder("", "this "+family+" model")
	for _, d := range tensors {
		if d.Name != "style_embedder.weight" { // a table that nothing is multiplied with
			b.add(d.Name, d.Shape)
		}
	}
	b.aliases(table.diffusers, []string{
		"transformer.", "base_model.model.", "base_model.model.transformer.",
		"unet.base_model.model.",
	}, []string{"lora_transformer_", "lycoris_"})
	b.aliases(table.original, []string{"", "diffusion_model."}, nil)
	b.own([]string{"", "diffusion_model.", "base_model.model."}, []string{"lora_unet_"})
	b.keys.examples = b.samples()
	return b.keys, nil
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

// qkv are the rows of queries, keys and values that files keep apart: three names with one ending each.
func qkv(file string, names [3]string, own string, rows func(i int) func(n, k int) (int, int)) []alias {
	var out []alias
	for i, n := range names {
		out = append(out, alias{file: file + n, own: own, rows: rows(i)})
	}
	return out
}

func thirds(i int) func(n, k int) (int, int) { return part(i, 3) }

// fluxDiffusers are the names of diffusers' FluxTransformer2DModel.
func fluxDiffusers() []alias {
	const d, s = "transformer_blocks.*.", "single_transformer_blocks.*."
	list := []alias{
		{file: d + "attn.to_out.0", own: "double_blocks.*.img_attn.proj"},
		{file: d + "attn.to_add_out", own: "double_blocks.*.txt_attn.proj"},
		{file: d + "norm1.linear", own: "double_blocks.*.img_mod.lin"},
		{file: d + "norm1_context.linear", own: "double_blocks.*.txt_mod.lin"},
		{file: d + "ff.net.0.proj", own: "double_blocks.*.img_mlp.0"},
		{file: d + "ff.net.2", own: "double_blocks.*.img_mlp.2"},
		{file: d + "ff_context.net.0.proj", own: "double_blocks.*.txt_mlp.0"},
		{file: d + "ff_context.net.2", own: "double_blocks.*.txt_mlp.2"},
		{file: s + "proj_mlp", own: "single_blocks.*.linear1", rows: behind(3)},
		{file: s + "proj_out", own: "single_blocks.*.linear2"},
		{file: s + "norm.linear", own: "single_blocks.*.modulation.lin"},
		{file: "x_embedder", own: "img_in"},
		{file: "context_embedder", own: "txt_in"},
		{file: "proj_out", own: "final_layer.linear"},
		{file: "norm_out.linear", own: "final_layer.adaLN_modulation.1", swapped: true},
	}
	for file, own := range map[string]string{
		"timestep_embedder": "time_in", "text_embedder": "vector_in",
		"guidance_embedder": "guidance_in",
	} {
		list = append(list, alias{file: "time_text_embed." + file + ".linear_1", own: own + ".in_layer"},
			alias{file: "time_text_embed." + file + ".linear_2", own: own + ".out_layer"})
	}
	list = append(list, qkv(d+"attn.", [3]string{"to_q", "to_k", "to_v"}, "double_blocks.*.img_attn.qkv", thirds)...)
	list = append(list, qkv(d+"attn.", [3]string{"add_q_proj", "add_k_proj", "add_v_proj"},
		"double_blocks.*.txt_attn.qkv", thirds)...)
	return append(list, qkv(s+"attn.", [3]string{"to_q", "to_k", "to_v"}, "single_blocks.*.linear1", square)...)
}

// fluxOriginal are names that go with the original ones: the attention half of linear1, and XLabs' attention processors
// (1 is the image, 2 the text).
func fluxOriginal() []alias {
	const d, s = "double_blocks.*.", "single_blocks.*."
	attention := func(_, k int) (int, int) { return 0, 3 * k }
	return []alias{
		{file: s + "linear1_qkv", own: s + "linear1", rows: attention},
		{file: s + "processor.qkv", own: s + "linear1", rows: attention},
		{file: s + "processor.proj", own: s + "linear2"},
		{file: d + "processor.qkv_lora1", own: d + "img_attn.qkv"},
		{file: d + "processor.qkv_lora2", own: d + "txt_attn.qkv"},
		{file: d + "processor.proj_lora1", own: d + "img_attn.proj"},
		{file: d + "processor.proj_lora2", own: d + "txt_attn.proj"},
	}
}

// sd3Diffusers are the names of diffusers' SD3Transformer2DModel.
func sd3Diffusers() []alias {
	const d, x, c = "transformer_blocks.*.", "joint_blocks.*.x_block.", "joint_blocks.*.context_block."
	list := []alias{
		{file: d + "norm1.linear", own: x + "adaLN_modulation.1"},
		// only the last block's has two parts
		{file: d + "norm1_context.linear", own: c + "adaLN_modulation.1", swapped: true},
		{file: d + "attn.to_out.0", own: x + "attn.proj"},
		{file: d + "attn.to_add_out", own: c + "attn.proj"},
		{file: d + "attn2.to_out.0", own: x + "attn2.proj"},
		{file: d + "ff.net.0.proj", own: x + "mlp.fc1"},
		{file: d + "ff.net.2", own: x + "mlp.fc2"},
		{file: d + "ff_context.net.0.proj", own: c + "mlp.fc1"},
		{file: d + "ff_context.net.2", own: c + "mlp.fc2"},
		{file: "context_embedder", own: "context_embedder"},
		{file: "pos_embed.proj", own: "x_embedder.proj"},
		{file: "proj_out", own: "final_layer.linear"},
		{file: "norm_out.linear", own: "final_layer.adaLN_modulation.1", swapped: true},
	}
	for file, own := range map[string]string{"timestep_embedder": "t_embedder", "text_embedder": "y_embedder"} {
		list = append(list, alias{file: "time_text_embed." + file + ".linear_1", own: own + ".mlp.0"},
			alias{file: "time_text_embed." + file + ".linear_2", own: own + ".mlp.2"})
	}
	list = append(list, qkv(d+"attn.", [3]string{"to_q", "to_k", "to_v"}, x+"attn.qkv", thirds)...)
	list = append(list, qkv(d+"attn2.", [3]string{"to_q", "to_k", "to_v"}, x+"attn2.qkv", thirds)...)
	return append(list, qkv(d+"attn.", [3]string{"add_q_proj", "add_k_proj", "add_v_proj"}, c+"attn.qkv", thirds)...)
}

// pixartDiffusers are the names of diffusers' PixArtTransformer2DModel.
func pixartDiffusers() []alias {
	const d, own = "transformer_blocks.*.", "blocks.*."
	list := []alias{
		{file: d + "attn1.to_out.0", own: own + "attn.proj"},
		{file: d + "attn2.to_out.0", own: own + "cross_attn.proj"},
		{file: d + "attn2.to_q", own: own + "cross_attn.q_linear"},
		{file: d + "attn2.to_k", own: own + "cross_attn.kv_linear", rows: part(0, 2)},
		{file: d + "attn2.to_v", own: own + "cross_attn.kv_linear", rows: part(1, 2)},
		{file: d + "ff.net.0.proj", own: own + "mlp.fc1"},
		{file: d + "ff.net.2", own: own + "mlp.fc2"},
		{file: "pos_embed.proj", own: "x_embedder.proj"},
		{file: "proj_out", own: "final_layer.linear"},
		{file: "adaln_single.linear", own: "t_block.1"},
		{file: "caption_projection.linear_1", own: "y_embedder.y_proj.fc1"},
		{file: "caption_projection.linear_2", own: "y_embedder.y_proj.fc2"},
	}
	for file, own := range map[string]string{
		"timestep_embedder": "t_embedder", "resolution_embedder": "csize_embedder",
		"aspect_ratio_embedder": "ar_embedder",
	} {
		list = append(list, alias{file: "adaln_single.emb." + file + ".linear_1", own: own + ".mlp.0"},
			alias{file: "adaln_single.emb." + file + ".linear_2", own: own + ".mlp.2"})
	}
	return append(list, qkv(d+"attn1.", [3]string{"to_q", "to_k", "to_v"}, own+"attn.qkv", thirds)...)
}
