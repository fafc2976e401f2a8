package weights

import "strings"

// prefixes are what full checkpoints put in front of the names of the diffusion model.
func prefixes() []string {
	return []string{"", "model.diffusion_model.", "diffusion_model.", "model.model.", "net."}
}

// signature is a name that only files of one kind have.
type signature struct{ name, kind string }

// signatures are tried in order; some kinds contain the names of later ones.
func signatures() []signature {
	return []signature{
		{"double_stream_modulation_img.lin.weight", "flux2"},
		{"distilled_guidance_layer.norms.0.scale", "chroma"},
		{"txt_in.individual_token_refiner.blocks.0.norm1.weight", "hunyuan video"},
		{"double_blocks.0.img_attn.norm.key_norm.scale", "flux"},
		{"joint_blocks.0.context_block.attn.qkv.weight", "sd3"},
		{"mlp_t5.0.weight", "hunyuandit"},
		{"t_block.1.weight", "pixart"},
		{"double_layers.0.attn.w1q.weight", "auraflow"},
		{"cap_embedder.1.weight", "lumina or z-image"},
		{"blocks.0.cross_attn.norm_k.weight", "wan"},
		{"transformer_blocks.0.img_mod.1.weight", "qwen-image"},
		{"single_transformer_blocks.0.norm.linear.weight", "flux of diffusers"},
		{"transformer_blocks.0.attn.add_q_proj.weight", "diffusers layout of sd3 or chroma"},
		{"transformer_blocks.0.attn1.to_q.weight", "diffusers layout of a transformer"},
		{"input_blocks.0.0.weight", "a Stable Diffusion 1, 2 or XL UNet"},
	}
}

// Looks tells what kind of diffusion model a set holds: the family's name ("flux", "sd3", "pixart", "hunyuandit", or a
// kind that is not supported) and the tensors of the diffusion model without the prefix that full checkpoints have. For
// a set without a diffusion model it returns an empty family, what the file seems to be instead, and the set itself.
func Looks(set *Set) (family, instead string, model *Set) {
	for _, p := range prefixes() {
		for _, s := range signatures() {
			if set.Has(p + s.name) {
				return s.kind, "", set.Prefix(p)
			}
		}
	}
	for _, name := range set.Names() {
		switch {
		case strings.Contains(name, "lora_") || strings.Contains(name, ".lora"):
			return "", "a LoRA file", set
		case strings.HasPrefix(name, "decoder.up") || strings.HasPrefix(name, "encoder.down"):
			return "", "a VAE", set
		case strings.HasSuffix(name, "SelfAttention.q.weight"):
			return "", "a T5 text encoder", set
		case strings.HasSuffix(name, "self_attn.q_proj.weight"):
			return "", "a CLIP text encoder", set
		}
	}
	return "", "no kind of file that is known", set
}
