// Package flux is FLUX.1 by Black Forest Labs and its relative Chroma by Lodestone Rock (chroma.go): a rectified-flow
// transformer whose first blocks keep text and image in two streams with joint attention (double), and whose later
// blocks run both in one stream (single). It reads the original tensor names, bare or inside a full checkpoint, and for
// FLUX.1 those of diffusers.
//
// config.go infers the sizes from names and shapes, net.go names the weights, model.go is what happens before and after
// the blocks, blocks.go the blocks.
//
// Facts that have caused bugs: the sequence is text first. Timestep and guidance are 0..1 and 0..n, and are multiplied
// by 1000 before their features are computed. The modulation of a double block is (shift, scale, gate) for the
// attention, then for the MLP; the last layer's is (shift, scale). Queries and keys are RMS-normalized before rotation,
// with different weights for text and image in double blocks. Text tokens are at position (0, 0, 0), image tokens at
// (0, row, column), references where layers.Place puts them. The last linear layer already writes
// (channel, row, column), unlike that of SD3, PixArt or HunyuanDiT. An entry without guidance skips the guidance
// embedding instead of embedding 0. Checkpoints that read an image beside the noise (Fill, Canny, Depth) have its
// channels after those of the latent in a token.
package flux

import (
	"fmt"
	"slices"

	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/weights"
)

// Config holds the sizes of one FLUX model. JSON names are those of the original config.
type Config struct {
	Hidden      int     `json:"hidden_size"`         // 3072
	Heads       int     `json:"num_heads"`           // 24
	Depth       int     `json:"depth"`               // 19 double blocks
	DepthSingle int     `json:"depth_single_blocks"` // 38 single blocks
	Axes        []int   `json:"axes_dim"`            // [16, 56, 56], sums to the head dim
	Theta       float64 `json:"theta"`               // 10000
	TimeFactor  float64 `json:"time_factor"`         // 1000
	Channels    int     `json:"latent_channels"`     // 16
	Concat      int     `json:"concat_channels"`     // 16 (Canny, Depth), 80 (Fill: a latent and 64 pixels of a mask), 0
	PatchSize   int     `json:"patch_size"`          // 2
	ContextDim  int     `json:"context_in_dim"`      // 4096, T5
	VectorDim   int     `json:"vec_in_dim"`          // 768, CLIP
	Guidance    bool    `json:"guidance_embed"`      // true for dev, false for schnell
	MLPHidden   int     `json:"mlp_hidden"`          // 12288
	Distilled   int     `json:"hidden_dim"`          // 5120, inside Chroma's network for modulations; 0: FLUX
	Layers      int     `json:"n_layers"`            // 5, of that network
}

// Detect infers the config from names and shapes. What they do not tell (axes, theta, time factor, patch size) comes
// from the JSON under meta["config"] if the file has one, else it is as released.
func Detect(set *weights.Set, meta map[string]string) (family.Config, error) {
	c := Config{Theta: 10000, TimeFactor: 1000, PatchSize: 2}
	if err := family.ReadConfig("flux", meta, &c); err != nil {
		return nil, err
	}
	if c.PatchSize < 1 {
		return nil, fmt.Errorf("flux: patch_size %d in the file's metadata, want at least 1", c.PatchSize)
	}
	c.Hidden = set.Dim("img_in.weight", 0)
	token := c.PatchSize * c.PatchSize
	c.Channels = set.Dim("final_layer.linear.weight", 0) / token
	c.Concat = set.Dim("img_in.weight", 1)/token - c.Channels
	c.Depth, c.DepthSingle = set.Count("double_blocks"), set.Count("single_blocks")
	c.ContextDim, c.VectorDim = set.Dim("txt_in.weight", 1), set.Dim("vector_in.in_layer.weight", 1)
	c.MLPHidden = set.Dim("double_blocks.0.img_mlp.0.weight", 0)
	c.Distilled, c.Layers = set.Dim(keyApproximator+"in_proj.weight", 0), set.Count(keyApproximator+"layers")
	c.Guidance = c.Distilled > 0 || set.Has("guidance_in.in_layer.weight")
	d := max(set.Dim(keyNorm+"scale", 0), set.Dim(keyNorm+"weight", 0))
	var err error
	c.Heads, c.Axes, err = family.Heads(c.name(), "axes_dim", c.Axes, []int{16, 56, 56}, c.Hidden, d)
	switch {
	case err != nil:
		return nil, err
	case c.Distilled > 0:
		return c, c.checkChroma(set)
	}
	if more := []int{0, c.Channels, c.Channels + dit.MaskChannels}; !slices.Contains(more, c.Concat) {
		return nil, fmt.Errorf("flux: the model reads %d channels and writes %d; known are as many, %d more (Canny, "+
			"Depth) and %d more (Fill)", c.Channels+c.Concat, c.Channels, more[1], more[2])
	}
	return c, nil
}
