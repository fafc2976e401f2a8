package wan

import "patchbay/models/weights"

// names returns what files call the tensors otherwise: the names of diffusers' WanTransformer3DModel, and those of
// Fun's adapters, which write two underscores after lora_unet.
func names() weights.Names {
	const b = "blocks.*."
	list := []weights.Alias{
		{File: "condition_embedder.time_proj", Own: "time_projection.1"},
		{File: "scale_shift_table", Own: anchor},
		{File: "proj_out", Own: "head.head"},
		{File: b + "scale_shift_table", Own: b + "modulation"},
		{File: b + "norm2", Own: b + "norm3"},
		{File: b + "ffn.net.0.proj", Own: b + "ffn.0"},
		{File: b + "ffn.net.2", Own: b + "ffn.2"},
		{File: b + "attn2.add_k_proj", Own: b + "cross_attn.k_img"},
		{File: b + "attn2.add_v_proj", Own: b + "cross_attn.v_img"},
		{File: b + "attn2.norm_added_k", Own: b + "cross_attn.norm_k_img"},
	}
	for file, target := range map[string]string{"attn1.": "self_attn.", "attn2.": "cross_attn."} {
		for as, of := range map[string]string{
			"to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "o", "norm_q": "norm_q", "norm_k": "norm_k",
		} {
			list = append(list, weights.Alias{File: b + file + as, Own: b + target + of})
		}
	}
	const c = "condition_embedder."
	list = append(list, weights.MLP2(c+"text_embedder", "text_embedding.0", "text_embedding.2")...)
	list = append(list, weights.MLP2(c+"time_embedder", "time_embedding.0", "time_embedding.2")...)
	for as, of := range map[string]string{
		"norm1": "proj.0", "ff.net.0.proj": "proj.1", "ff.net.2": "proj.3", "norm2": "proj.4", "pos_embed": "emb_pos",
	} {
		list = append(list, weights.Alias{File: c + "image_embedder." + as, Own: "img_emb." + of})
	}
	return weights.Names{Diffusers: list, Flat: []string{"lora_unet__"}}
}
