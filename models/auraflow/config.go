// Package auraflow is AuraFlow by fal: MMDiT blocks with two streams, then blocks with one (arXiv:2403.03206 for the
// form). It reads the original tensor names, bare or inside a full checkpoint, and those of diffusers.
//
// Facts that have caused bugs: in every block the attention's result goes to the MLP only, and the stream receives the
// MLP's result only. Eight learned tokens precede the text. Queries and keys have a LayerNorm without weights (eps
// 1e-5) and no rotation. Learned positions form a square of which the middle is used; for larger images it is
// interpolated to a square of the longer side. The last layer has no norm. Token features are (channel, row, column) on
// the way in and (row, column, channel) on the way out. Modulations are (shift, scale, gate) for the attention, then
// for the MLP.
package auraflow

import (
	"fmt"
	"math"

	"patchbay/models/family"
	"patchbay/models/weights"
)

// Config holds the sizes of one AuraFlow model.
type Config struct {
	Hidden     int `json:"dim"`             // 3072
	Heads      int `json:"n_heads"`         // 12
	Double     int `json:"n_double_layers"` // 4
	Single     int `json:"n_single_layers"` // 32
	ContextDim int `json:"cond_seq_dim"`    // 2048, Pile-T5-XL
	Channels   int `json:"in_channels"`     // 4
	PatchSize  int `json:"patch_size"`      // 2
	MLPHidden  int `json:"mlp_hidden"`      // 8192
	Edge       int `json:"pos_edge"`        // rows and columns of positions: 64 (0.2), 96 (0.3)
}

const (
	headDim   = 256 // of released models
	registers = 8
)

// Detect infers the config from names and shapes. The number of heads, if they are not 256 wide, and the patch size, if
// it is not 2, come from the JSON under meta["config"].
func Detect(set *weights.Set, meta map[string]string) (family.Config, error) {
	c := Config{PatchSize: 2}
	if err := family.ReadConfig("auraflow", meta, &c); err != nil {
		return nil, err
	}
	if c.PatchSize < 1 {
		return nil, fmt.Errorf("auraflow: patch_size %d in the file's metadata, want at least 1", c.PatchSize)
	}
	c.Hidden = set.Dim("init_x_linear.weight", 0)
	c.Channels = set.Dim("final_linear.weight", 0) / (c.PatchSize * c.PatchSize)
	c.Double, c.Single = set.Count("double_layers"), set.Count("single_layers")
	c.ContextDim, c.MLPHidden = set.Dim("cond_seq_linear.weight", 1), set.Dim("double_layers.0.mlpX.c_fc1.weight", 0)
	positions := set.Dim("positional_encoding", 1)
	c.Edge = int(math.Round(math.Sqrt(float64(positions))))
	if c.Heads == 0 {
		c.Heads = c.Hidden / headDim
	}
	switch {
	case c.Heads < 1 || c.Hidden == 0 || c.Hidden%c.Heads != 0:
		return nil, fmt.Errorf("auraflow: width %d is not a multiple of %d heads; files whose heads are not %d wide carry "+
			"n_heads in their metadata under config", c.Hidden, c.Heads, headDim)
	case c.Edge*c.Edge != positions:
		return nil, fmt.Errorf("auraflow: positional_encoding has %d rows, want a square", positions)
	case c.Single == 0:
		return nil, fmt.Errorf("auraflow: no single_layers, want at least one")
	}
	return c, nil
}
