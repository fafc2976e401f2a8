package family

import (
	"fmt"
	"slices"
	"strings"

	"patchbay/models/weights"
)

// prefixes are what full checkpoints put in front of the names of the diffusion model; HunyuanDiT's use "model.".
func prefixes() []string {
	return []string{"", "model.diffusion_model.", "diffusion_model.", "model.model.", "net.", "model."}
}

// unsupported lists names that only files of one unsupported kind have. They are tried in order, after the families.
func unsupported() []struct{ name, kind string } {
	return []struct{ name, kind string }{
		{"img_in_patch.weight", "chroma radiance"},
		{"distilled_guidance_layer.layers.0.linear_1.weight", "diffusers layout of chroma"},
		{"dec_net.cond_embed.weight", "z-image in pixel space"},
		{"txt_in.individual_token_refiner.blocks.0.norm1.weight", "hunyuan video"},
		{"clip_text_pooled_proj.0.weight", "newbie"},
		{"controlnet_x_embedder.weight", "a ControlNet"},
		{"transformer_blocks.0.attn.add_q_proj.weight", "diffusers layout of sd3"},
		{"adaln_single.emb.timestep_embedder.linear_1.bias", "LTX-Video without sound, or a relative of PixArt"},
		{"transformer_blocks.0.attn1.to_q.weight", "diffusers layout of a transformer"},
		{"input_blocks.0.0.weight", "a Stable Diffusion 1, 2 or XL UNet"},
	}
}

// form finds the family and layout of the diffusion model in a set, and returns its tensors without the prefix of full
// checkpoints, which its markers lack there too. ok is false if no family matches.
func form(all []Family, set *weights.Set) (f *Family, as *Form, model *weights.Set, ok bool) {
	for _, p := range prefixes() {
		for i := range all {
			for k := range all[i].Forms {
				if as := &all[i].Forms[k]; as.Fits(set, p) {
					return &all[i], as, set.Prefix(p, all[i].Markers...), true
				}
			}
		}
	}
	return nil, nil, nil, false
}

// Fits reports whether a set holds a model of this layout under a prefix.
func (f *Form) Fits(set *weights.Set, prefix string) bool {
	has := func(name string) bool { return set.Has(prefix + name) }
	return has(f.Has) && !slices.ContainsFunc(f.Lacks, has)
}

// GuessKind says what a file seems to be, for errors where another kind was expected: a diffusion model of one of all
// families or of an unsupported one, a VAE, a text encoder ...
func GuessKind(all []Family, set *weights.Set) string {
	if f, _, _, ok := form(all, set); ok {
		return "a diffusion model (" + f.Name + ")"
	}
	for _, p := range prefixes() {
		for _, s := range unsupported() {
			if set.Has(p + s.name) {
				return "a diffusion model (" + s.kind + ")"
			}
		}
	}
	for _, name := range set.Names() {
		switch {
		case strings.Contains(name, "lora_") || strings.Contains(name, ".lora"):
			return "a LoRA file"
		case strings.HasPrefix(name, "decoder.up") || strings.HasPrefix(name, "encoder.down"):
			return "a VAE"
		case strings.HasSuffix(name, "SelfAttention.q.weight"):
			return "a T5 text encoder"
		case strings.HasSuffix(name, "model.layers.0.post_feedforward_layernorm.weight"):
			return "a language model (Gemma 3), of which that of 12 billion parameters is read"
		case strings.HasSuffix(name, "model.layers.0.self_attn.q_proj.weight"):
			return "a language model"
		case strings.HasPrefix(name, "vision_model."):
			return "a picture encoder (CLIP vision or SigLIP)"
		case strings.HasSuffix(name, "self_attn.q_proj.weight"):
			return "a CLIP text encoder"
		}
	}
	return "no kind of file that is known"
}

// Original returns the diffusion model in a checkpoint with the original names of its family.
func Original(all []Family, set *weights.Set) (*weights.Set, error) {
	_, _, model, err := named(all, set)
	return model, err
}

// named finds the family of a set, and its model with the original names.
func named(all []Family, set *weights.Set) (f *Family, as *Form, model *weights.Set, err error) {
	f, as, model, ok := form(all, set)
	if !ok {
		known := ""
		for _, f := range all {
			known += ", " + f.Name
		}
		return nil, nil, nil, fmt.Errorf("not a supported diffusion model: the file looks like %s (supported: %s)",
			GuessKind(all, set), known[2:])
	}
	if as.Aliases {
		if model, err = weights.Renamed(model, f.Names.Diffusers); err != nil {
			return nil, nil, nil, fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return f, as, model, nil
}

// Open describes the diffusion model in a set, alone or inside a full checkpoint. meta is the file's metadata. changes
// are applied to the tensors first, under the original names. Tensors that the model does not know are
// Diffusion.Unused, unless they mark an unsupported relative. If no family matches, the error says what the file looks
// like and what is supported.
func Open(all []Family, set *weights.Set, meta map[string]string, changes ...weights.Change) (*Diffusion, error) {
	f, as, model, err := named(all, set)
	if err != nil {
		return nil, err
	}
	if as.Meta != nil {
		if meta, err = as.Meta(meta); err != nil {
			return nil, err
		}
	}
	if model, err = model.Changed(changes); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name, err)
	}
	c, err := f.Detect(model, meta)
	if err != nil {
		return nil, err
	}
	d, err := c.Describe(model)
	if err != nil {
		return nil, err
	}
	d.Unused = d.unused()
	for _, s := range unsupported() {
		if slices.Contains(d.Unused, s.name) {
			return nil, fmt.Errorf("not a supported diffusion model: the file looks like %s, not like %s", s.kind, f.Name)
		}
	}
	return d, d.override(meta)
}
