package qwenimage

import (
	"maps"
	"strings"

	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/models/layers"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// Family describes Qwen-Image. Sizes of the release: config.json of the transformer folder of Qwen/Qwen-Image.
func Family() family.Family {
	released := Config{
		Hidden: 3072, Heads: 24, Depth: 60, Axes: []int{16, 56, 56}, ContextDim: 3584, Channels: 16, MLPHidden: 12288,
		Method: layers.ByIndex,
	}
	layout := tokenizer.Describing("qwen25_7b")
	layout.Embeddings = false
	return family.Family{
		Name:   "qwenimage",
		Forms:  []family.Form{{Has: "txt_norm.weight", Lacks: []string{"controlnet_x_embedder.weight"}}},
		Detect: Detect,
		Text: family.Text{
			Types: []string{"qwen_image"},
			Encoders: []family.Encoder{{
				Kind: "qwen25_7b", Form: text.Form{Chat: true}, Layout: layout,
				Under: func(string) bool { return true },
			}},
		},
		Names: weights.Names{Same: true, Tables: []string{layered}},
		Control: &family.Control{
			Kinds: "InstantX, inpaint",
			Forms: []family.Form{{Has: "transformer_blocks.0.img_mlp.net.0.proj.weight"}},
			Rest: func(net *weights.Set) map[string][]int {
				return head(net.Dim("img_in.weight", 0), net.Dim("img_in.weight", 1))
			},
			Repeat: func(_ *dit.Spec, _ dit.BlockKind, n int) int { return (released.Depth + n - 1) / n },
			More:   []family.Control{fun(released)},
		},
		Patch: &family.Patch{
			Kinds: "DiffSynth", Form: family.Form{Has: "controlnet_blocks.0.y_rms.weight"}, Latent: latent.Wan21(),
			PatchSize: patch,
		},
		Releases: []family.Release{
			{Name: "qwen-image", Billions: 20.43, Steps: 50, Text: 64, Entries: 2, Config: released},
			{Name: "qwen-image-layered", Billions: 20.43, Steps: 50, Text: 64, Entries: 2, Config: released.layered()},
		},
		Tiny: Config{
			Hidden: 112, Heads: 7, Depth: 4, Axes: []int{4, 6, 6}, ContextDim: 56, Channels: 16, MLPHidden: 448,
		}.layered(),
	}
}

// head returns the shapes of what a control net lacks at its end.
func head(e, in int) map[string][]int {
	return family.Shapes(map[string][2]int{"proj_out": {in, e}, "norm_out.linear": {2 * e, e}})
}

// fun describes the Fun nets of alibaba-pai (ComfyUI comfy/ldm/qwen_image/controlnet.py): blocks that borrow the
// model's first layers, with a hint that goes through two projections. The channels that they have for a mask and an
// image to be inpainted are zeros, as in ComfyUI.
func fun(released Config) family.Control {
	const blocks = "control_blocks."
	return family.Control{
		Kinds: "Fun", Forms: []family.Form{{Has: "control_blocks.0.after_proj.weight"}},
		Names: func(key string) string {
			rest, ok := strings.CutPrefix(key, blocks)
			if !ok {
				return strings.Replace(key, "control_img_in.", "controlnet_x_embedder.", 1)
			}
			i, name, _ := strings.Cut(rest, ".")
			if part, ok := strings.CutPrefix(name, "after_proj."); ok {
				return "controlnet_blocks." + i + "." + part
			}
			if part, ok := strings.CutPrefix(name, "before_proj."); ok {
				return "controlnet_before." + part
			}
			return "transformer_blocks." + rest
		},
		Borrows: []string{"img_in.", "txt_in.", "txt_norm.", "time_text_embed."},
		Rest: func(net *weights.Set) map[string][]int {
			e, in := net.Dim("transformer_blocks.0.attn.to_q.weight", 1), released.Channels*patch*patch
			out := head(e, in)
			maps.Copy(out, family.Shapes(map[string][2]int{
				"img_in": {e, in}, "txt_in": {e, released.ContextDim},
				"time_text_embed.timestep_embedder.linear_1": {e, features},
				"time_text_embed.timestep_embedder.linear_2": {e, e},
			}))
			out["txt_norm.weight"] = []int{released.ContextDim}
			return out
		},
		Repeat: func(_ *dit.Spec, _ dit.BlockKind, n int) int { return released.Depth / n },
		First:  true, Zeros: released.Channels + 1, Root: true,
	}
}

// layered returns c with what Qwen-Image-Layered adds to it.
func (c Config) layered() Config {
	c.Method, c.Layered = layers.Negative, true
	return c
}

func (c Config) Describe(set *weights.Set) (*family.Diffusion, error) {
	s := dit.Spec{
		Family: "qwenimage", Width: c.Hidden, Heads: c.Heads, PatchSize: patch, Channels: c.Channels,
		ContextDim: c.ContextDim, References: true, Frames: true,
		Blocks: dit.Blocks(c.Depth, dit.BlockSpec{Kind: dit.Double}),
	}
	tags := family.Tags{Dims: map[string]int{"F": c.MLPHidden}, Ignore: []string{marker}}
	return family.Describe(set, family.Diffusion{
		Spec: s, Latent: latent.Wan21(), Sampling: family.Sampling{Line: family.MuLine, Shift: 1.15},
	}, tags, func() *net {
		return &net{Alpha: family.NewIf[alphaTable](c.Layered), Blocks: make([]joint, c.Depth)}
	}, func(l family.Loaded[net]) dit.Model { return &Model{l.Between(l.Net.ImgIn, l.Net.Out, 1, eps), c} })
}
