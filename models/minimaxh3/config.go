// Package minimaxh3 is MiniMax-H3, which makes videos with sound from a text, and from pictures, videos and sounds: one
// stream of text, conditions, video and sound. It reads the original names, with the embedding of timesteps in full or
// as a table, bare or inside a full checkpoint.
//
// Facts that have caused bugs: the network embeds 1 - sigma, between 0 and 1, and negates its outputs. The sound has a
// time of its own, a conditioning picture one of at least 0.999. Modulations are made for three modalities (video,
// text, sound), of which the rows of pictures inside the text have that of the video. The text goes through blocks of
// its own, which neither rotate nor modulate. Heads together are wider than the stream. Only the first 96 of their 128
// dimensions turn, in halves, with frequencies that the file holds. Time runs on from the text: a picture lasts 5/3, so
// latent frames last 5/3, 20/3, 20/3, 20/3, 20/3 and so on, and a column of the sound 1. Rows and columns of a frame
// are scaled so that its area is 32 x 32, whatever its shape. The two channels of a sound are at the video's first and
// last column, in row 0. All positions are rounded to float32 before they are multiplied.
package minimaxh3

import (
	"fmt"

	"patchbay/models/family"
	"patchbay/models/weights"
)

// Config holds the sizes of one MiniMax-H3 model. JSON names are ComfyUI's.
type Config struct {
	Hidden      int `json:"hidden_size"`              // 5376
	Heads       int `json:"num_attention_heads"`      // 56
	HeadDim     int `json:"attention_head_dim"`       // 128
	Depth       int `json:"num_layers"`               // 50
	Refiners    int `json:"token_refiner_num_layers"` // 2
	MLPHidden   int `json:"ffn_hidden_size"`          // 14336
	Channels    int `json:"latents_dim"`              // 24
	Sound       int `json:"audio_latents_dim"`        // 32
	ContextDim  int `json:"text_dim"`                 // 5120, Qwen3-VL-32B
	TimeDim     int `json:"time_embed_dim"`           // 2688; the columns of the table
	TimeHidden  int `json:"time_embed_hidden_size"`   // 5376; 0: a table
	Table       int `json:"adaln_curve_grid"`         // its rows; 0: none
	Frequencies int `json:"rope_inv_freq_len"`        // 16 for each of three axes
}

const (
	patch      = 2 // rows and columns of a token in the latent
	axes       = 3 // frame, row, column
	modalities = 3 // video, text, sound
	features   = 256
)

// anchor and curve are names that files have, and only those with a table.
const (
	anchor = "audio_patch_proj.weight"
	curve  = "adaln_t_table"
)

// Detect infers the config from names and shapes.
func Detect(set *weights.Set, _ map[string]string) (family.Config, error) {
	const out, first = "final_layer.video_out.weight", "blocks.0.attn."
	c := Config{
		Hidden: set.Dim("video_patch_proj.weight", 0), Depth: set.Count("blocks"),
		Refiners: set.Count("token_refiner.blocks"),
		HeadDim:  set.Dim(first+"q_norm.weight", 0), MLPHidden: set.Dim("blocks.0.mlp.fc2.weight", 1),
		Channels: set.Dim(out, 0) / (patch * patch), Sound: set.Dim("final_layer.audio_out.weight", 0),
		ContextDim: set.Dim("condition_proj.weight", 1), Frequencies: set.Dim("rope.inv_freq", 0),
		TimeDim: set.Dim(curve, 1), Table: set.Dim(curve, 0),
	}
	if c.Table == 0 {
		c.TimeHidden, c.TimeDim = set.Dim("time_embedder.proj_out.weight", 1), set.Dim("time_embedder.proj_out.weight", 0)
	}
	rows := set.Dim(first+"qkv_proj.weight", 0)
	switch {
	case c.HeadDim < 2 || c.HeadDim%2 != 0 || rows == 0 || rows%(3*c.HeadDim) != 0:
		return nil, fmt.Errorf("minimaxh3: %sqkv_proj has %d rows, want a multiple of 3 heads of an even width, that of "+
			"q_norm, which is %d", first, rows, c.HeadDim)
	case 2*axes*c.Frequencies > c.HeadDim:
		return nil, fmt.Errorf("minimaxh3: rope.inv_freq has %d frequencies, heads of %d have room for %d", c.Frequencies,
			c.HeadDim, c.HeadDim/(2*axes))
	case c.Table == 1:
		return nil, fmt.Errorf("minimaxh3: %s has 1 row, want at least 2", curve)
	}
	c.Heads = rows / (3 * c.HeadDim)
	for name, n := range map[string]int{"video_patch_proj.weight": patch * patch * c.Channels, anchor: c.Sound} {
		if got := set.Dim(name, 1); got != n || n == 0 {
			return nil, fmt.Errorf("minimaxh3: %s reads %d numbers, but final_layer writes %d: want as many", name, got, n)
		}
	}
	return c, nil
}
