// Package zimage is Z-Image by Alibaba's Tongyi lab, base and turbo: one stream of text and image tokens (S3-DiT,
// arXiv:2511.22699), the form of Lumina-Image 2.0 (arXiv:2503.21758) with other modulations. Text goes through two
// blocks of its own, the picture through two of its own, then both through all others. It reads the original tensor
// names, bare or inside a full checkpoint.
//
// Facts that have caused bugs: the network embeds 1 - t and negates its output; text and image tokens are each filled
// up with learned pads to a multiple of 32, which take part in attention like any (files without pad tokens: not);
// text token k sits at (k+1, 0, 0), image tokens at (text tokens with pads + 1, row, column), image pads at (0, 0, 0);
// token features are (row, column, channel) on both sides; modulations are linear in the timestep embedding without
// activation, but the last layer's has one; gates go through tanh and scale what has been normalised, there are no
// shifts; norms of blocks have eps 1e-5, those of queries and keys 2^-23.
package zimage

import (
	"encoding/json"
	"fmt"

	"patchbay/models/family"
	"patchbay/models/weights"
)

// Config holds the sizes of one Z-Image model. JSON names are ComfyUI's.
type Config struct {
	Hidden     int     `json:"dim"`              // 3840
	Heads      int     `json:"n_heads"`          // 30
	Axes       []int   `json:"axes_dims"`        // [32, 48, 48], sums to the head dim
	Theta      float64 `json:"rope_theta"`       // 256
	TimeFactor float64 `json:"time_scale"`       // 1000
	Refiners   int     `json:"n_refiner_layers"` // 2
	Depth      int     `json:"n_layers"`         // 30
	ContextDim int     `json:"cap_feat_dim"`     // 2560, Qwen3-4B
	Channels   int     `json:"in_channels"`      // 16
	PatchSize  int     `json:"patch_size"`       // 2
	MLPHidden  int     `json:"mlp_hidden"`       // 10240
	TimeHidden int     `json:"time_hidden"`      // 1024, inside the timestep embedder
	Multiple   int     `json:"pad_tokens_multiple"`
}

const (
	features = 256 // sinusoidal features of a timestep, and its embedding
	padTo    = 32  // of files with pad tokens
)

// Detect infers the config from names and shapes. What they do not tell (axes, theta, time factor) comes from the JSON
// under meta["config"] where the file has one, else the released values.
func Detect(set *weights.Set, meta map[string]string) (family.Config, error) {
	c := Config{Theta: 256, TimeFactor: 1000, PatchSize: 2}
	if text, ok := meta["config"]; ok {
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			return nil, fmt.Errorf("zimage: config in the file's metadata: %w", err)
		}
	}
	if c.PatchSize < 1 {
		return nil, fmt.Errorf("zimage: patch_size %d in the file's metadata, want at least 1", c.PatchSize)
	}
	c.Hidden, c.Channels = set.Dim("x_embedder.weight", 0), set.Dim("x_embedder.weight", 1)/(c.PatchSize*c.PatchSize)
	c.ContextDim, c.TimeHidden = set.Dim("cap_embedder.1.weight", 1), set.Dim("t_embedder.mlp.0.weight", 0)
	c.Refiners, c.Depth = set.Count("noise_refiner"), set.Count("layers")
	c.MLPHidden = set.Dim("layers.0.feed_forward.w1.weight", 0)
	c.Multiple = 0
	if set.Has("cap_pad_token") {
		c.Multiple = padTo
	}
	d, sum := set.Dim("layers.0.attention.q_norm.weight", 0), 0
	if c.Axes == nil && d == 128 {
		c.Axes = []int{32, 48, 48}
	}
	for _, a := range c.Axes {
		if sum += a; a <= 0 || a%2 != 0 {
			return nil, fmt.Errorf("zimage: axes_dims %v: each must be even and positive", c.Axes)
		}
	}
	switch {
	case d == 0 || c.Hidden%d != 0:
		return nil, fmt.Errorf("zimage: width %d is not a multiple of the head dim %d", c.Hidden, d)
	case sum != d || len(c.Axes) != 3:
		return nil, fmt.Errorf("zimage: axes_dims %v must be three sizes that add up to the head dim %d; files of other "+
			"sizes carry them in their metadata under config", c.Axes, d)
	case set.Count("context_refiner") != c.Refiners:
		return nil, fmt.Errorf("zimage: %d blocks refine the picture and %d the text, want as many", c.Refiners,
			set.Count("context_refiner"))
	}
	c.Heads = c.Hidden / d
	return c, nil
}
