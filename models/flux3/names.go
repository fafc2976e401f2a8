package flux3

import "patchbay/models/weights"

// names returns what files call the tensors otherwise: the names of diffusers' Flux3Transformer2DModel, which adapters
// use too.
func names() weights.Names {
	const final = "final_layer.image."
	list := []weights.Alias{
		{File: "context_embedder", Own: "txt_in"},
		{File: "proj_out", Own: final + "linear"},
		{File: "norm_out.linear", Own: final + "adaLN_modulation.1", Swapped: true},
	}
	list = append(list, weights.MLP2("timestep_embedder", "time_in.in_layer", "time_in.out_layer")...)
	list = append(list, weights.MLP2("target_timestep_embedder", "ref_time_in.in_layer", "ref_time_in.out_layer")...)
	for _, kind := range []string{"image", "image_cond", "txt"} {
		for _, of := range []string{"early_stream_modulations.", "single_stream_modulations."} {
			list = append(list, weights.Alias{File: of + kind + ".linear", Own: of + kind + ".lin"})
		}
		if kind != "txt" {
			list = append(list, weights.Alias{File: "x_embedders." + kind, Own: "emb_in." + kind})
		}
	}
	for file, own := range map[string]string{
		"mode_blocks.image.*.": "content_mode_blocks.image.*.", "txt_mode_blocks.*.": "txt_mode_blocks.*.",
		"mode_blocks.image_cond.*.": "content_mode_blocks.image_cond.*.", "single_transformer_blocks.*.": "single_blocks.*.",
	} {
		for as, of := range map[string]string{
			"attn.to_q": "q_proj", "attn.to_k": "k_proj", "attn.to_v": "v_proj", "attn.to_out.0": "attn_out",
			"attn.norm_q.weight": "norm.query_norm.scale", "attn.norm_k.weight": "norm.key_norm.scale",
			"ff.linear_in": "mlp_in", "ff.linear_out": "mlp_out",
		} {
			list = append(list, weights.Alias{File: file + as, Own: own + of})
		}
	}
	return weights.Names{Diffusers: list}
}
