// Package hunyuan is HunyuanDiT by Tencent (arXiv:2405.08748), versions 1.0, 1.1 ("hydit1", conditioned on image size
// and style) and 1.2: a transformer over image tokens whose blocks attend to the image and then to the text of two
// encoders, and whose second half takes the first half's results through skip connections. It reads the original tensor
// names, bare or inside a full checkpoint.
//
// Facts that have caused bugs: with n blocks, block i > n/2 takes the result of block n-1-i, so blocks n/2-1 and n/2
// have no partner. The timestep enters each block as a shift added to the first affine norm, without scale or gate.
// Queries of the cross-attention are rotated too, its keys are not. Heads are normalized by LayerNorm with bias. The
// rotation takes the column first, then the row, on a grid scaled into 32 x 32. Padded text is replaced by learned
// vectors only in the last 77 BERT and the last 256 mT5 tokens, and then everything is attended to. The pooler sees the
// first 256 raw mT5 states, padding included. The network predicts twice the channels and the second half is dropped.
// The last layer writes (row, column, channel), which loading turns into (channel, row, column).
package hunyuan

import (
	"fmt"

	"patchbay/models/family"
	"patchbay/models/weights"
)

// Config holds the sizes of one HunyuanDiT model. JSON names are ComfyUI's.
type Config struct {
	Hidden    int  `json:"hidden_size"`        // 1408
	Heads     int  `json:"num_heads"`          // 16
	Depth     int  `json:"depth"`              // 40
	Channels  int  `json:"in_channels"`        // 4
	PatchSize int  `json:"patch_size"`         // 2
	TextDim   int  `json:"text_states_dim"`    // 1024, BERT
	T5Dim     int  `json:"text_states_dim_t5"` // 2048, mT5
	MLPHidden int  `json:"mlp_hidden"`         // 6144
	T5Hidden  int  `json:"t5_hidden"`          // 8192
	PoolDim   int  `json:"pool_dim"`           // 1024
	SizeCond  bool `json:"size_cond"`          // true for 1.0 and 1.1
	StyleCond bool `json:"use_style_cond"`     // true for 1.0 and 1.1
}

const (
	defaultHeads = 16  // of all released models; names and shapes do not tell
	textLen      = 77  // BERT tokens that learned padding covers
	t5Len        = 256 // mT5 tokens that learned padding covers and the pooler sees
	poolHeads    = 8   // of the pooler's attention
	ropeBase     = 32  // side of the square of positions: 512 px / 8 / 2
	sizeValues   = 6   // height, width, target height, target width, crop top, crop left
	features     = 256 // sinusoidal features of a timestep or a size
)

// Detect infers the config from names and shapes. The number of heads (16 in all released models) may come from the
// JSON under meta["config"].
func Detect(set *weights.Set, meta map[string]string) (family.Config, error) {
	c := Config{Heads: defaultHeads}
	if err := family.ReadConfig("hunyuandit", meta, &c); err != nil {
		return Config{}, err
	}
	c.Hidden, c.Channels = set.Dim("x_embedder.proj.weight", 0), set.Dim("x_embedder.proj.weight", 1)
	c.PatchSize, c.Depth = set.Dim("x_embedder.proj.weight", 2), set.Count("blocks")
	c.TextDim, c.T5Dim = set.Dim("mlp_t5.2.weight", 0), set.Dim("mlp_t5.0.weight", 1)
	c.T5Hidden, c.PoolDim = set.Dim("mlp_t5.0.weight", 0), set.Dim("pooler.c_proj.weight", 0)
	c.MLPHidden = set.Dim("blocks.0.mlp.fc1.weight", 0)
	c.StyleCond = set.Has("style_embedder.weight")
	extra := set.Dim("extra_embedder.0.weight", 1) - c.PoolDim
	if c.StyleCond {
		extra -= c.Hidden
	}
	c.SizeCond = extra == sizeValues*features
	switch {
	case c.Heads < 1 || c.Hidden == 0 || c.Hidden%(4*c.Heads) != 0:
		return Config{}, fmt.Errorf("hunyuandit: width %d is not %d heads of a multiple of 4; files of other sizes carry "+
			"num_heads in their metadata under config", c.Hidden, c.Heads)
	case extra != 0 && !c.SizeCond:
		return Config{}, fmt.Errorf("hunyuandit: extra_embedder.0.weight has %d columns besides pooler and style, want 0 "+
			"or %d", extra, sizeValues*features)
	case c.Depth < 2 || c.Depth%2 != 0:
		return Config{}, fmt.Errorf("hunyuandit: %d blocks, want an even number", c.Depth)
	case c.PatchSize == 0 || set.Dim("final_layer.linear.weight", 0) != 2*c.Channels*c.PatchSize*c.PatchSize:
		return Config{}, fmt.Errorf("hunyuandit: the last layer writes %d values per token, want twice %d channels in "+
			"patches of %d", set.Dim("final_layer.linear.weight", 0), c.Channels, c.PatchSize)
	}
	return c, nil
}

// skip returns the block whose result block i takes; -1: none.
func (c Config) skip(i int) int {
	if i > c.Depth/2 {
		return c.Depth - 1 - i
	}
	return -1
}
