// Package sd3 is Stable Diffusion 3 and 3.5 by Stability AI: the multimodal transformer MMDiT (arXiv:2403.03206), whose
// blocks keep text and image in two streams with joint attention. It reads the original tensor names, bare or inside a
// full checkpoint.
//
// Facts that have caused bugs: heads are always 64 wide, so their number is width/64 and has nothing to do with the
// number of blocks (SD3.5 medium: 24 blocks and heads, the tiny test model 3 and 2). The joint sequence is text first.
// The position table is a square from whose middle the latent's grid is cropped, whatever its sides. The last block's
// text stream only provides keys and values (two modulation parts, no projection, no MLP). SD3.5 medium's first blocks
// attend a second time over image tokens alone, and both attentions read the same normalized input before either is
// added. SD3.5 normalizes queries and keys per head (RMS), SD3 does not. Timesteps are 0..1000. The last layer writes
// (row, column, channel), which loading turns into (channel, row, column).
package sd3

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"patchbay/models/family"
	"patchbay/models/weights"
)

// headDim is the width of every head of this family.
const headDim = 64

// Config holds the sizes of one SD3 model.
type Config struct {
	Hidden     int   `json:"hidden_size"`              // 1536 (SD3 medium), 2432 (3.5 large), 1536 (3.5 medium)
	Blocks     int   `json:"num_blocks"`               // 24, 38, 24
	Channels   int   `json:"in_channels"`              // 16
	PatchSize  int   `json:"patch_size"`               // 2
	PosSide    int   `json:"pos_embed_max_size"`       // 192, 192, 384: rows and columns of the position table
	ContextDim int   `json:"context_dim"`              // 4096, T5 and padded CLIP
	PooledDim  int   `json:"adm_in_channels"`          // 2048, both CLIPs
	MLPHidden  int   `json:"mlp_hidden"`               // 4*hidden
	QKNorm     bool  `json:"qk_rms"`                   // true for 3.5
	Dual       []int `json:"x_block_self_attn_layers"` // blocks with a second attention; 0..12 of 3.5 medium
}

// Detect infers the config from names and shapes. It only checks that the config in meta, if any, is JSON.
func Detect(set *weights.Set, meta map[string]string) (family.Config, error) {
	if text, ok := meta["config"]; ok && !json.Valid([]byte(text)) {
		return Config{}, fmt.Errorf("sd3: config in the file's metadata is not JSON")
	}
	c := Config{
		Hidden: set.Dim("x_embedder.proj.weight", 0), Channels: set.Dim("x_embedder.proj.weight", 1),
		PatchSize: set.Dim("x_embedder.proj.weight", 2),
		Blocks:    set.Count("joint_blocks"), ContextDim: set.Dim("context_embedder.weight", 1),
		PooledDim: set.Dim("y_embedder.mlp.0.weight", 1),
		PosSide:   int(math.Round(math.Sqrt(float64(set.Dim("pos_embed", 1))))),
		MLPHidden: set.Dim("joint_blocks.0.x_block.mlp.fc1.weight", 0),
		QKNorm:    set.Has("joint_blocks.0.x_block.attn.ln_q.weight"),
	}
	for i := range c.Blocks {
		if set.Has(fmt.Sprintf("joint_blocks.%d.x_block.attn2.qkv.weight", i)) {
			c.Dual = append(c.Dual, i)
		}
	}
	switch {
	case c.Hidden == 0 || c.Hidden%headDim != 0:
		return Config{}, fmt.Errorf("sd3: width %d is not a multiple of %d", c.Hidden, headDim)
	case c.PosSide == 0:
		return Config{}, fmt.Errorf("sd3: the file has no position table (pos_embed)")
	case c.PatchSize == 0 || set.Dim("final_layer.linear.weight", 0) != c.Channels*c.PatchSize*c.PatchSize:
		return Config{}, fmt.Errorf("sd3: the last layer writes %d values per token, want %d channels in patches of %d",
			set.Dim("final_layer.linear.weight", 0), c.Channels, c.PatchSize)
	}
	return c, nil
}

func (c Config) dual(i int) bool {
	return slices.Contains(c.Dual, i)
}
