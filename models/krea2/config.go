// Package krea2 is Krea 2 (K2): one stream of text and image tokens with grouped-query attention (arXiv:2305.13245),
// whose result is multiplied by a gate projected from its input. The text is the states of several layers of its
// encoder (taps), which blocks of the network's own merge, first over the taps of each token, then over the tokens. It
// reads the original names, bare or inside a full checkpoint.
//
// Facts that have caused bugs: norms multiply by 1 + scale with eps 1e-5. Text projection and timestep embedding have
// tanh GELUs as activations. Modulations are (scale, shift, gate), one vector for all blocks plus one of each block;
// the last layer's come from the timestep embedding itself, before the activation. All text tokens are at (0, 0, 0),
// image tokens at (0, row, column), those of reference n, from 1 on, at (n, row, column). References without a method
// are ignored.
package krea2

import (
	"fmt"

	"patchbay/models/family"
	"patchbay/models/weights"
)

// Config holds the sizes of one Krea 2 model. JSON names are ComfyUI's; Detect reads no JSON.
type Config struct {
	Hidden    int `json:"features"`    // 6144
	Heads     int `json:"heads"`       // 48
	KVHeads   int `json:"kvheads"`     // 12
	Depth     int `json:"layers"`      // 28
	Channels  int `json:"channels"`    // 16
	MLPHidden int `json:"mlp_hidden"`  // 16384
	Taps      int `json:"txtlayers"`   // 12
	TextWidth int `json:"txtdim"`      // 2560, Qwen3-VL-4B
	TextHeads int `json:"txtheads"`    // 20
	TextMLP   int `json:"txt_hidden"`  // 6912
	Layerwise int `json:"txt_layer"`   // 2 blocks over the taps
	Refiners  int `json:"txt_refiner"` // 2 blocks over the tokens
}

const (
	patch  = 2    // side of a token in the latent
	eps    = 1e-5 // of all norms
	factor = 1000 // of timesteps
	theta  = 1000
)

// Detect infers the config from names and shapes.
func Detect(set *weights.Set, _ map[string]string) (family.Config, error) {
	const block, tap = "blocks.0.", "txtfusion.layerwise_blocks.0."
	c := Config{
		Hidden: set.Dim("first.weight", 0), Channels: set.Dim("first.weight", 1) / (patch * patch),
		Depth: set.Count("blocks"), MLPHidden: set.Dim(block+"mlp.gate.weight", 0),
		Taps: set.Dim("txtfusion.projector.weight", 1), TextWidth: set.Dim(tap+"prenorm.scale", 0),
		TextMLP: set.Dim(tap+"mlp.gate.weight", 0), Layerwise: set.Count("txtfusion.layerwise_blocks"),
		Refiners: set.Count("txtfusion.refiner_blocks"),
	}
	d, td := set.Dim(block+"attn.qknorm.qnorm.scale", 0), set.Dim(tap+"attn.qknorm.qnorm.scale", 0)
	keys := set.Dim(block+"attn.wk.weight", 0)
	switch {
	case d == 0 || d%4 != 0 || c.Hidden == 0 || c.Hidden%d != 0:
		return nil, fmt.Errorf("krea2: width %d is not a multiple of the head dim %d, or that not one of 4", c.Hidden, d)
	case keys == 0 || keys%d != 0 || c.Hidden%keys != 0:
		return nil, fmt.Errorf("krea2: blocks.0.attn.wk has %d rows, want a multiple of the head dim %d that divides the "+
			"width %d", keys, d, c.Hidden)
	case td == 0 || c.TextWidth == 0 || c.TextWidth%td != 0:
		return nil, fmt.Errorf("krea2: text width %d is not a multiple of its head dim %d", c.TextWidth, td)
	case set.Dim("last.linear.weight", 0) != c.Channels*patch*patch:
		return nil, fmt.Errorf("krea2: first reads %d numbers of a token and last.linear writes %d, want as many",
			c.Channels*patch*patch, set.Dim("last.linear.weight", 0))
	}
	c.Heads, c.KVHeads, c.TextHeads = c.Hidden/d, keys/d, c.TextWidth/td
	return c, nil
}

// axes returns the sizes of the rotation's axes in a head of width d.
func axes(d int) []int { return []int{d - 12*(d/16), 6 * (d / 16), 6 * (d / 16)} }
