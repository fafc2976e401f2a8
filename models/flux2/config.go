// Package flux2 is FLUX.2 by Black Forest Labs, dev and klein: blocks of two streams with joint attention (double),
// then of one (single), as in FLUX.1, with one modulation for all blocks of a kind, gated MLPs and no biases.
// References are tokens computed with the weights of the image. It reads the original names, bare or inside a full
// checkpoint, and those of diffusers.
//
// Facts that have caused bugs: tokens are single positions of a latent of 128 channels. They have four coordinates:
// text token k is at (0, 0, 0, k), image tokens are at (0, row, column, 0), those of reference n at
// (10n, row, column, 0). The code that makes entries fills their text up to 512 rows with zeros in FRONT, and those
// zeros are attended to. The modulation is (shift, scale, gate) for the attention, then for the MLP. The rows of an
// MLP's first layer are gates, then what they are multiplied with. An entry without guidance skips the guidance
// embedding.
package flux2

import (
	"fmt"

	"patchbay/models/family"
	"patchbay/models/weights"
)

// Config holds the sizes of one FLUX.2 model. JSON names are those of the original config.
type Config struct {
	Hidden      int     `json:"hidden_size"`         // 6144 (dev), 3072, 4096 (klein 4B, 9B)
	Heads       int     `json:"num_heads"`           // 48, 24, 32
	Depth       int     `json:"depth"`               // 8, 5, 8 double blocks
	DepthSingle int     `json:"depth_single_blocks"` // 48, 20, 24 single blocks
	Axes        []int   `json:"axes_dim"`            // [32, 32, 32, 32], sums to the head dim
	Theta       float64 `json:"theta"`               // 2000
	Channels    int     `json:"in_channels"`         // 128
	ContextDim  int     `json:"context_in_dim"`      // 15360, 7680, 12288: three layers of the encoder
	Guidance    bool    `json:"guidance_embed"`      // true for dev
	MLPHidden   int     `json:"mlp_hidden"`          // 18432, 9216, 12288
}

// Detect infers the config from names and shapes. The rotation axes of heads that are not 128 wide, and theta if it is
// not 2000, come from the JSON under meta["config"].
func Detect(set *weights.Set, meta map[string]string) (family.Config, error) {
	c := Config{Theta: 2000}
	if err := family.ReadConfig("flux2", meta, &c); err != nil {
		return nil, err
	}
	c.Hidden, c.Channels = set.Dim("img_in.weight", 0), set.Dim("img_in.weight", 1)
	c.Depth, c.DepthSingle = set.Count("double_blocks"), set.Count("single_blocks")
	c.ContextDim, c.Guidance = set.Dim("txt_in.weight", 1), set.Has("guidance_in.in_layer.weight")
	c.MLPHidden = set.Dim("double_blocks.0.img_mlp.2.weight", 1)
	const norm = "double_blocks.0.img_attn.norm.key_norm."
	d := max(set.Dim(norm+"scale", 0), set.Dim(norm+"weight", 0))
	if out := set.Dim("final_layer.linear.weight", 0); out != c.Channels {
		return nil, fmt.Errorf("flux2: img_in reads %d channels and final_layer.linear writes %d, want as many", c.Channels,
			out)
	}
	var err error
	c.Heads, c.Axes, err = family.Heads("flux2", "axes_dim", c.Axes, []int{32, 32, 32, 32}, c.Hidden, d)
	return c, err
}
