// Package pixart is PixArt-alpha (arXiv:2310.00426) and PixArt-Sigma (arXiv:2403.04692): a transformer over image
// tokens whose blocks attend to the image and then to the text. It reads the original tensor names, bare or inside a
// full checkpoint.
//
// Facts that have caused bugs: one timestep layer (t_block) serves all blocks and each block adds its own table of six
// rows. The last layer adds two rows to the timestep embedding itself, before t_block and without SiLU. The caption has
// no padding; all its tokens are attended to, unless Entry.ContextLen says otherwise. Queries and keys are neither
// normalized nor rotated. Positions are sines of coordinates that depend on the latent's size (see positions in
// model.go). Alpha models are conditioned on size and aspect ratio (micro-conditioning), Sigma models are not. The
// network also predicts a variance, so it writes twice the channels and the second half is dropped. The last layer
// writes (row, column, channel), which loading turns into (channel, row, column). Odd sides are refused.
package pixart

import (
	"fmt"
	"math"

	"patchbay/models/family"
	"patchbay/models/weights"
)

// Config holds the sizes of one PixArt model. JSON names are ComfyUI's.
type Config struct {
	Hidden     int  `json:"hidden_size"`      // 1152
	Heads      int  `json:"num_heads"`        // 16
	Depth      int  `json:"depth"`            // 28
	Channels   int  `json:"in_channels"`      // 4
	PatchSize  int  `json:"patch_size"`       // 2
	ContextDim int  `json:"caption_channels"` // 4096, T5
	MLPHidden  int  `json:"mlp_hidden"`       // 4608
	MicroSize  bool `json:"micro_condition"`  // true for alpha: image size and aspect ratio are inputs
	// Interpolation divides the position coordinates; 0: it depends on the latent's size.
	Interpolation float64 `json:"pe_interpolation"` // 2 for files of 1024 px with a position table, 0 without
}

// defaultHeads is the number of heads of all released models, which names and shapes do not tell.
const defaultHeads = 16

// Detect infers the config from names and shapes. The number of heads (16 in all released models) and the interpolation
// may come from the JSON under meta["config"].
func Detect(set *weights.Set, meta map[string]string) (family.Config, error) {
	c := Config{Heads: defaultHeads}
	// a table of side*side tokens was trained at 2*side latent rows; 64 of them mean interpolation 1
	if n := set.Dim("pos_embed", 1); n > 0 {
		c.Interpolation = math.Floor(math.Floor(math.Sqrt(float64(n))) * 2 / 64)
	}
	if err := family.ReadConfig("pixart", meta, &c); err != nil {
		return Config{}, err
	}
	c.Hidden, c.Channels = set.Dim("x_embedder.proj.weight", 0), set.Dim("x_embedder.proj.weight", 1)
	c.PatchSize, c.Depth = set.Dim("x_embedder.proj.weight", 2), set.Count("blocks")
	c.ContextDim, c.MLPHidden = set.Dim("y_embedder.y_proj.fc1.weight", 1), set.Dim("blocks.0.mlp.fc1.weight", 0)
	c.MicroSize = set.Has("ar_embedder.mlp.0.weight")
	if set.Has("blocks.0.attn.q_norm.weight") || set.Has("blocks.0.attn.sr.weight") {
		return Config{}, fmt.Errorf("pixart: variants with normalised queries or compressed keys are not supported")
	}
	if c.Heads < 1 || c.Hidden == 0 || c.Hidden%c.Heads != 0 || c.Hidden%12 != 0 {
		return Config{}, fmt.Errorf("pixart: width %d is not a multiple of 12 and of %d heads; files of other sizes "+
			"carry num_heads in their metadata under config", c.Hidden, c.Heads)
	}
	if c.PatchSize == 0 || set.Dim("final_layer.linear.weight", 0) != 2*c.Channels*c.PatchSize*c.PatchSize {
		return Config{}, fmt.Errorf("pixart: the last layer writes %d values per token, want twice %d channels in "+
			"patches of %d", set.Dim("final_layer.linear.weight", 0), c.Channels, c.PatchSize)
	}
	return c, nil
}
