package flux2

import "patchbay/models/weights"

// names are what files call the tensors otherwise: those of diffusers' Flux2Transformer2DModel, and of ComfyUI's table
// for FLUX (comfy/utils.py, flux_to_diffusers), which adapters are in.
func names() weights.Names {
	const d, s, double, single = "transformer_blocks.*.", "single_transformer_blocks.*.", "double_blocks.*.",
		"single_blocks.*."
	list := []weights.Alias{
		{File: d + "attn.to_out.0", Own: double + "img_attn.proj"},
		{File: d + "attn.to_add_out", Own: double + "txt_attn.proj"},
		{File: s + "attn.to_qkv_mlp_proj", Own: single + "linear1"},
		{File: s + "attn.to_out", Own: single + "linear2"},
		{File: s + "attn.norm_q.weight", Own: single + "norm.query_norm.scale"},
		{File: s + "attn.norm_k.weight", Own: single + "norm.key_norm.scale"},
		{File: "double_stream_modulation_img.linear", Own: "double_stream_modulation_img.lin"},
		{File: "double_stream_modulation_txt.linear", Own: "double_stream_modulation_txt.lin"},
		{File: "single_stream_modulation.linear", Own: "single_stream_modulation.lin"},
		{File: "x_embedder", Own: "img_in"},
		{File: "context_embedder", Own: "txt_in"},
		{File: "proj_out", Own: "final_layer.linear"},
		{File: "norm_out.linear", Own: "final_layer.adaLN_modulation.1", Swapped: true},
	}
	for _, side := range []struct{ file, own, q, k string }{
		{"ff", "img", "norm_q", "norm_k"}, {"ff_context", "txt", "norm_added_q", "norm_added_k"},
	} {
		own := double + side.own
		list = append(list,
			weights.Alias{File: d + side.file + ".linear_in", Own: own + "_mlp.0"},
			weights.Alias{File: d + side.file + ".linear_out", Own: own + "_mlp.2"},
			weights.Alias{File: d + side.file + ".net.0.proj", Own: own + "_mlp.0"},
			weights.Alias{File: d + side.file + ".net.2", Own: own + "_mlp.2"},
			weights.Alias{File: d + "attn." + side.q + ".weight", Own: own + "_attn.norm.query_norm.scale"},
			weights.Alias{File: d + "attn." + side.k + ".weight", Own: own + "_attn.norm.key_norm.scale"})
	}
	for _, from := range []string{"time_guidance_embed.", "time_text_embed."} {
		list = append(list, weights.MLP2(from+"timestep_embedder", "time_in.in_layer", "time_in.out_layer")...)
		list = append(list, weights.MLP2(from+"guidance_embedder", "guidance_in.in_layer", "guidance_in.out_layer")...)
	}
	list = append(list, weights.QKV(d+"attn.", [3]string{"to_q", "to_k", "to_v"}, double+"img_attn.qkv")...)
	list = append(list, weights.QKV(d+"attn.", [3]string{"add_q_proj", "add_k_proj", "add_v_proj"},
		double+"txt_attn.qkv")...)
	return weights.Names{Diffusers: list}
}
