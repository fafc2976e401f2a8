// Package zimage is Z-Image by Alibaba's Tongyi lab, base and turbo: one stream of text and image tokens (S3-DiT,
// arXiv:2511.22699), and Lumina-Image 2.0 (arXiv:2503.21758), whose form it has (lumina2.go). Text goes through two
// blocks of its own, the image through two of its own, then both through all others. It reads the original tensor
// names, bare or inside a full checkpoint.
//
// Facts that have caused bugs: the network embeds 1 - t and negates its output. Text and image tokens are each padded
// to a multiple of 32 with learned tokens, which take part in attention like any other (not in files without pad
// tokens). Text token k is at (k+1, 0, 0), image tokens at (text tokens with pads + 1, row, column), image pads at
// (0, 0, 0). Token features are (row, column, channel) on both sides. Modulations are linear in the timestep embedding
// without activation, but the last layer's has one, and all have one in Lumina 2. Gates go through tanh and scale what
// has been normalized; there are no shifts. Norms of blocks have eps 1e-5, those of queries and keys 2^-23.
package zimage

import (
	"fmt"

	"patchbay/models/family"
	"patchbay/models/weights"
)

// Config holds the sizes of one Z-Image model. JSON names are ComfyUI's.
type Config struct {
	Hidden     int     `json:"dim"`              // 3840
	Heads      int     `json:"n_heads"`          // 30; Lumina 2: 24
	KVHeads    int     `json:"n_kv_heads"`       // 0: as many as Heads; Lumina 2: 8
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
	Plain      bool    `json:"z_image_modulation"` // modulations of blocks have no activation
}

const (
	features = 256 // sinusoidal features of a timestep, and width of Z-Image's embedding of it
	padTo    = 32  // in files with pad tokens
)

// Detect infers the config from names and shapes. What they do not tell (axes, theta, time factor, patch size) comes
// from the JSON under meta["config"] if the file has one, else it is as released.
func Detect(set *weights.Set, meta map[string]string) (family.Config, error) {
	c := Config{Theta: 10000, TimeFactor: 1, PatchSize: 2}
	plain, axes := set.Has(keyPlain), []int{32, 32, 32}
	if plain {
		c.Theta, c.TimeFactor, axes = 256, 1000, []int{32, 48, 48}
	}
	if err := family.ReadConfig("zimage", meta, &c); err != nil {
		return nil, err
	}
	if c.PatchSize < 1 {
		return nil, fmt.Errorf("zimage: patch_size %d in the file's metadata, want at least 1", c.PatchSize)
	}
	c.Hidden, c.Channels = set.Dim("x_embedder.weight", 0), set.Dim("x_embedder.weight", 1)/(c.PatchSize*c.PatchSize)
	c.ContextDim, c.TimeHidden = set.Dim("cap_embedder.1.weight", 1), set.Dim("t_embedder.mlp.0.weight", 0)
	c.Plain, c.Refiners, c.Depth = plain, set.Count("noise_refiner"), set.Count("layers")
	c.MLPHidden = set.Dim("layers.0.feed_forward.w1.weight", 0)
	c.Multiple = 0
	if set.Has("cap_pad_token") {
		c.Multiple = padTo
	}
	d := set.Dim("layers.0.attention.q_norm.weight", 0)
	if n := set.Count("context_refiner"); n != c.Refiners {
		return nil, fmt.Errorf("zimage: %d blocks refine the picture and %d the text, want as many", c.Refiners, n)
	}
	var err error
	c.Heads, c.Axes, err = family.Heads("zimage", "axes_dims", c.Axes, axes, c.Hidden, d)
	if err != nil {
		return nil, err
	}
	if c.KVHeads = (set.Dim("layers.0.attention.qkv.weight", 0) - c.Hidden) / 2 / d; c.KVHeads < 1 ||
		c.Heads%c.KVHeads != 0 {
		return nil, fmt.Errorf("zimage: %d heads of queries and %d of keys, the second must divide the first", c.Heads,
			c.KVHeads)
	}
	if c.KVHeads == c.Heads {
		c.KVHeads = 0
	}
	return c, nil
}
