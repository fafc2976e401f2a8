// Package flux3 is FLUX.3 klein by Black Forest Labs, base and distilled, for pictures. Text, references and the image
// each go through blocks of their own (mode blocks), in which they attend to nothing else, then all go through joint
// blocks. Attention and MLP of every block are parallel, as in single blocks of FLUX.1. It reads the original names,
// bare or inside a full checkpoint, and those of diffusers.
//
// Facts that have caused bugs: only image tokens are modulated by the timestep, text and references as at timestep 0,
// all three with projections of their own. Text token k is at (0, 0, 0, k), image tokens are at
// (0, row/2, column/2, 0), those of reference n, from 1 on, at (0, row/2, column/2, -n). Modulations are (shift, scale,
// gate), the last layer's (shift, scale), which diffusers stores in the other order. The texts are padded at the end,
// and the padding is attended to. The distilled network (a flow map) has one more embedder, which reads the timestep
// that a step leads to. Its result is added to the embeddings of all timesteps, 0 included.
package flux3

import (
	"fmt"

	"patchbay/models/family"
	"patchbay/models/weights"
)

// Config holds the sizes of one FLUX.3 model. JSON names are those of diffusers.
type Config struct {
	Hidden      int     `json:"hidden_size"`         // 3072
	Heads       int     `json:"num_attention_heads"` // 24
	Depth       int     `json:"num_layers"`          // 5 mode blocks of each kind
	DepthSingle int     `json:"num_single_layers"`   // 28
	Axes        []int   `json:"axes_dims_rope"`      // [32, 32, 32, 32], sums to the head dim
	Theta       float64 `json:"rope_theta"`          // 10000
	Channels    int     `json:"in_channels"`         // 128
	ContextDim  int     `json:"joint_attention_dim"` // 20480: eight layers of the encoder
	MLPHidden   int     `json:"mlp_hidden"`          // 9216
	FlowMap     bool    `json:"flow_map"`            // true for distilled
}

// keyForm is the name of a tensor that no other family has.
const keyForm = "early_stream_modulations.image.lin.weight"

// Detect infers the config from names and shapes. The rotation axes of heads that are not 128 wide, and theta if it is
// not 10000, come from the JSON under meta["config"].
func Detect(set *weights.Set, meta map[string]string) (family.Config, error) {
	c := Config{Theta: 10000}
	if err := family.ReadConfig("flux3", meta, &c); err != nil {
		return nil, err
	}
	const image, joint = "content_mode_blocks.image", "single_blocks"
	c.Hidden, c.Channels = set.Dim("emb_in.image.weight", 0), set.Dim("emb_in.image.weight", 1)
	c.Depth, c.DepthSingle, c.ContextDim = set.Count(image), set.Count(joint), set.Dim("txt_in.weight", 1)
	c.MLPHidden, c.FlowMap = set.Dim(joint+".0.mlp_out.weight", 1), set.Has("ref_time_in.in_layer.weight")
	for _, list := range []string{"txt_mode_blocks", image + "_cond"} {
		if n := set.Count(list); n != c.Depth || n == 0 {
			return nil, fmt.Errorf("flux3: %d blocks in %s and %d in %s, want as many, at least one", n, list, c.Depth, image)
		}
	}
	for i, name := range []string{"final_layer.image.linear.weight", "emb_in.image_cond.weight"} {
		if n := set.Dim(name, i); n != c.Channels {
			return nil, fmt.Errorf("flux3: emb_in.image reads %d channels and %s has %d, want as many", c.Channels, name, n)
		}
	}
	var err error
	c.Heads, c.Axes, err = family.Heads("flux3", "axes_dims_rope", c.Axes, []int{32, 32, 32, 32}, c.Hidden,
		set.Dim(joint+".0.norm.key_norm.scale", 0))
	return c, err
}
