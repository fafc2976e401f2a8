// Package qwenimage is Qwen-Image, Qwen-Image-Edit and Qwen-Image-Layered by Alibaba's Qwen team (arXiv:2508.02324, up
// to releases 2512 and 2511; arXiv:2512.15603): 60 blocks that keep text and image in two streams with joint attention,
// like those of FLUX. References are tokens computed with the weights of the image. Layers are frames of one latent,
// the first of them the whole image. It reads the names of diffusers, bare or inside a full checkpoint.
//
// Facts that have caused bugs: image tokens are counted from the middle of the image, at (0, row - rows/2, column -
// columns/2), so negative positions occur. Text token k is at s+k on all three axes, s being the larger half. Timestep
// features are 1000 * (t * frequency), which is not (1000 * t) * frequency in f32. Layer l is at l on the first axis
// and counts rows and columns like an image of its own, the image that layers are made from is at -1, and text begins
// where it would with a single layer. The modulation of the output layer is (scale, shift). Text goes through a norm
// before its projection and is not masked. The last block's text rows are computed though nothing reads them.
package qwenimage

import (
	"fmt"

	"patchbay/models/family"
	"patchbay/models/layers"
	"patchbay/models/weights"
)

// Config holds the sizes of one Qwen-Image model. JSON names are those of diffusers' config.json.
type Config struct {
	Hidden     int   `json:"hidden_size"`         // 3072
	Heads      int   `json:"num_attention_heads"` // 24
	Depth      int   `json:"num_layers"`          // 60
	Axes       []int `json:"axes_dims_rope"`      // [16, 56, 56], sums to the head dim
	ContextDim int   `json:"joint_attention_dim"` // 3584, Qwen2.5-VL-7B
	Channels   int   `json:"out_channels"`        // 16
	MLPHidden  int   `json:"mlp_hidden"`          // 12288
	// Method is where references are placed unless an entry says it: index, index_timestep_zero (release 2511) or
	// negative_index (Layered).
	Method string `json:"default_ref_method"`
	// Layered: the timestep vector gets the first row of a table added, whose second row is for images with alpha.
	Layered bool `json:"use_additional_t_cond"`
}

// patch is the side of a token in the latent.
const patch = 2

// Tensors that only files of the layered variant have, and only those of the editing model of release 2511.
const (
	layered = "time_text_embed.addition_t_embedding.weight"
	marker  = "__index_timestep_zero__"
)

// Detect infers the config from names and shapes. The rotation axes of heads that are not 128 wide come from the JSON
// under meta["config"].
func Detect(set *weights.Set, meta map[string]string) (family.Config, error) {
	var c Config
	if err := family.ReadConfig("qwenimage", meta, &c); err != nil {
		return nil, err
	}
	c.Hidden, c.Channels = set.Dim("img_in.weight", 0), set.Dim("proj_out.weight", 0)/(patch*patch)
	c.ContextDim, c.Depth = set.Dim("txt_norm.weight", 0), set.Count("transformer_blocks")
	c.MLPHidden = set.Dim("transformer_blocks.0.img_mlp.net.0.proj.weight", 0)
	d := set.Dim("transformer_blocks.0.attn.norm_q.weight", 0)
	c.Method, c.Layered = layers.ByIndex, set.Has(layered)
	switch {
	case c.Layered:
		c.Method = layers.Negative
	case set.Has(marker):
		c.Method = layers.AtZero
	}
	if in := set.Dim("img_in.weight", 1); in != c.Channels*patch*patch {
		return nil, fmt.Errorf("qwenimage: img_in reads %d numbers of a token and proj_out writes %d, want as many", in,
			c.Channels*patch*patch)
	}
	var err error
	c.Heads, c.Axes, err = family.Heads("qwenimage", "axes_dims_rope", c.Axes, []int{16, 56, 56}, c.Hidden, d)
	return c, err
}
