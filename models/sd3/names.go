package sd3

import "patchbay/models/weights"

// diffusers are the names of diffusers' SD3Transformer2DModel.
func diffusers() []weights.Alias {
	const d, x, c = "transformer_blocks.*.", "joint_blocks.*.x_block.", "joint_blocks.*.context_block."
	list := []weights.Alias{
		{File: d + "norm1.linear", Own: x + "adaLN_modulation.1"},
		// swapped in the last block only, as the others' have more than two parts
		{File: d + "norm1_context.linear", Own: c + "adaLN_modulation.1", Swapped: true},
		{File: d + "attn.to_out.0", Own: x + "attn.proj"},
		{File: d + "attn.to_add_out", Own: c + "attn.proj"},
		{File: d + "attn2.to_out.0", Own: x + "attn2.proj"},
		{File: d + "ff.net.0.proj", Own: x + "mlp.fc1"},
		{File: d + "ff.net.2", Own: x + "mlp.fc2"},
		{File: d + "ff_context.net.0.proj", Own: c + "mlp.fc1"},
		{File: d + "ff_context.net.2", Own: c + "mlp.fc2"},
		{File: "context_embedder", Own: "context_embedder"},
		{File: "pos_embed.proj", Own: "x_embedder.proj"},
		{File: "proj_out", Own: "final_layer.linear"},
		{File: "norm_out.linear", Own: "final_layer.adaLN_modulation.1", Swapped: true},
	}
	list = append(list, weights.MLP2("time_text_embed.timestep_embedder", "t_embedder.mlp.0", "t_embedder.mlp.2")...)
	list = append(list, weights.MLP2("time_text_embed.text_embedder", "y_embedder.mlp.0", "y_embedder.mlp.2")...)
	list = append(list, weights.QKV(d+"attn.", [3]string{"to_q", "to_k", "to_v"}, x+"attn.qkv")...)
	list = append(list, weights.QKV(d+"attn2.", [3]string{"to_q", "to_k", "to_v"}, x+"attn2.qkv")...)
	return append(list, weights.QKV(d+"attn.", [3]string{"add_q_proj", "add_k_proj", "add_v_proj"}, c+"attn.qkv")...)
}
