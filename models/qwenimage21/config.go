// Package qwenimage21 is Qwen-Image-2.1 and its Turbo by Alibaba's Qwen team, which make and edit pictures: 32 blocks
// over one sequence of text, references spliced into it, and image, whose tokens are single latent pixels. Attention is
// block-causal, so text and references are a preface (dit.Spec.Preface): they see neither the image nor the timestep.
// It reads ComfyUI's names and those of diffusers, bare or inside a full checkpoint.
//
// Facts that have caused bugs: one modulation serves all blocks. It has scales and gates but no shifts, and gates go
// through tanh. Text and references are modulated as at timestep 0. Positions go on across text and pictures: a text
// token takes one on all three axes, a picture one on the first axis for all its tokens and then as many as its longer
// side has. Rows and columns of a reference count from the middle of the image, half a token off where one of the two
// sides is odd and the other even (ComfyUI; diffusers does not). The text's norm has a weight to which 1 is added. In
// bf16 a thousand times the timestep is rounded, then the timestep.
package qwenimage21

import (
	"fmt"

	"patchbay/models/family"
	"patchbay/models/weights"
)

// Config holds the sizes of one model. JSON names are those of diffusers' config.json, where it has them.
type Config struct {
	Hidden     int   `json:"hidden_size"`         // 4096
	Heads      int   `json:"num_attention_heads"` // 32
	Depth      int   `json:"num_layers"`          // 32
	Axes       []int `json:"axes_dims_rope"`      // [16, 56, 56], sums to the head dim
	ContextDim int   `json:"context_in_dim"`      // 4096, Qwen3-VL-8B
	Channels   int   `json:"in_channels"`         // 64
	MLPHidden  int   `json:"mlp_hidden"`          // 12288
}

// textNorm is a tensor that only these files have, split one that only those of diffusers have.
const (
	textNorm = "txt_in.text_norm.weight"
	split    = "transformer_blocks.0.img_mlp.gate_layer.weight"
)

// Detect infers the config from names and shapes. The rotation axes of heads that are not 128 wide come from the JSON
// under meta["config"].
func Detect(set *weights.Set, meta map[string]string) (family.Config, error) {
	const block = "transformer_blocks.0."
	var c Config
	if err := family.ReadConfig("qwenimage21", meta, &c); err != nil {
		return nil, err
	}
	c.Hidden, c.Channels = set.Dim("img_in.weight", 0), set.Dim("img_in.weight", 1)
	c.ContextDim, c.Depth = set.Dim(textNorm, 0), set.Count("transformer_blocks")
	gates := set.Dim(block+"img_mlp.gate_up.weight", 0)
	c.MLPHidden = gates / 2
	switch {
	case set.Dim("proj_out.weight", 0) != c.Channels:
		return nil, fmt.Errorf("qwenimage21: img_in reads %d channels and proj_out writes %d, want as many", c.Channels,
			set.Dim("proj_out.weight", 0))
	case gates%2 != 0:
		return nil, fmt.Errorf("qwenimage21: %simg_mlp.gate_up has %d rows, want an even number", block, gates)
	}
	var err error
	c.Heads, c.Axes, err = family.Heads("qwenimage21", "axes_dims_rope", c.Axes, []int{16, 56, 56}, c.Hidden,
		set.Dim(block+"attn.norm_q.weight", 0))
	return c, err
}
