package pixart

import "patchbay/models/weights"

// diffusers are the names of diffusers' PixArtTransformer2DModel.
func diffusers() []weights.Alias {
	const d, block = "transformer_blocks.*.", "blocks.*."
	list := []weights.Alias{
		{File: d + "attn1.to_out.0", Own: block + "attn.proj"},
		{File: d + "attn2.to_out.0", Own: block + "cross_attn.proj"},
		{File: d + "attn2.to_q", Own: block + "cross_attn.q_linear"},
		{File: d + "attn2.to_k", Own: block + "cross_attn.kv_linear", Rows: weights.Part(0, 2)},
		{File: d + "attn2.to_v", Own: block + "cross_attn.kv_linear", Rows: weights.Part(1, 2)},
		{File: d + "ff.net.0.proj", Own: block + "mlp.fc1"},
		{File: d + "ff.net.2", Own: block + "mlp.fc2"},
		{File: "pos_embed.proj", Own: "x_embedder.proj"},
		{File: "proj_out", Own: "final_layer.linear"},
		{File: "adaln_single.linear", Own: "t_block.1"},
		{File: "caption_projection.linear_1", Own: "y_embedder.y_proj.fc1"},
		{File: "caption_projection.linear_2", Own: "y_embedder.y_proj.fc2"},
	}
	for file, target := range map[string]string{
		"timestep_embedder": "t_embedder", "resolution_embedder": "csize_embedder",
		"aspect_ratio_embedder": "ar_embedder",
	} {
		list = append(list, weights.MLP2("adaln_single.emb."+file, target+".mlp.0", target+".mlp.2")...)
	}
	return append(list, weights.QKV(d+"attn1.", [3]string{"to_q", "to_k", "to_v"}, block+"attn.qkv")...)
}
