// Package ltx is LTX-2 by Lightricks (arXiv:2601.03233) and what followed it, 2.3 and 2.5, which make a video with its
// sound from a text. It reads the original names, which are ComfyUI's.
//
// Facts that have caused bugs: a block has two streams of different widths, the video and its sound, with weights of
// their own. They attend to themselves, to the text, and then to each other, both ways from the states before: only
// the video has what it took from the sound when the sound attends to it. Queries and keys are normalized over all
// heads, and each head is rotated by frequencies of its own, computed in float32, which are zero in the first heads.
// Videos are placed in seconds and pixels, at the middles of tokens, so that the frame rate is an input of the network.
// The text goes through a small transformer for each stream first, in which learned rows fill it up to 1024; all of
// them are attended to. Shifts come before scales in the tables of a stream, behind them in those of its attention to
// the other one. That attention is gated by the largest timestep of the other stream. In 2.3 the attention to the text
// is modulated too, so its keys and values differ from step to step, and heads have gates.
package ltx

import (
	"cmp"
	"encoding/json"
	"fmt"

	"patchbay/models/family"
	"patchbay/models/weights"
)

// Config holds the sizes of one LTX model. JSON names are those of "transformer" in the config of a file's metadata,
// where they are there.
type Config struct {
	Hidden   int `json:"-"`          // 4096, width of the video
	Sound    int `json:"-"`          // 2048, width of the sound
	Depth    int `json:"num_layers"` // 48
	Channels int `json:"in_channels"`
	// SoundFeatures is the width of a token of sound: 8 channels of 16 columns.
	SoundFeatures int `json:"audio_in_channels"`
	Heads         int `json:"num_attention_heads"`       // 32
	SoundHeads    int `json:"audio_num_attention_heads"` // 32
	TextDim       int `json:"caption_channels"`          // 3840
	Connectors
	// Gated: heads have gates. TextModulation: the attention to the text is modulated. Keyframes: tokens of a single
	// picture are marked. Three are of 2.3, or of later models.
	Gated, TextModulation, Keyframes bool `json:"-"`
	// MLPBias and SoundMLPBias: the MLPs of blocks have biases.
	MLPBias      bool    `json:"-"`
	SoundMLPBias bool    `json:"-"`
	MaxPos       []int   `json:"positional_embedding_max_pos"`       // 20 seconds, 2048, 2048 pixels
	SoundMaxPos  []int   `json:"audio_positional_embedding_max_pos"` // 20 seconds
	Causal       bool    `json:"causal_temporal_positioning"`        // the first frame is one picture
	Middles      bool    `json:"use_middle_indices_grid"`            // a token is at its middle, not at its start
	Rotation     string  `json:"rope_type"`                          // "split" or "interleaved"
	Precision    string  `json:"frequencies_precision"`              // of the frequencies: "float64" or "float32"
	TimeScale    float64 `json:"timestep_scale_multiplier"`          // 1000
	// GateScale is the factor of the timestep that gates the attention between the streams.
	GateScale float64 `json:"av_ca_timestep_scale_multiplier"`
}

// Connectors are the sizes of the small transformers that texts go through first.
type Connectors struct {
	Width        int  `json:"-"`                                  // 3840; that of the video from 2.3 on
	SoundWidth   int  `json:"-"`                                  // 3840; that of the sound from 2.3 on
	Depth        int  `json:"-"`                                  // 2
	Registers    int  `json:"-"`                                  // 128 learned rows
	HeadDim      int  `json:"connector_attention_head_dim"`       // 128
	SoundHeadDim int  `json:"audio_connector_attention_head_dim"` // 128; 64 from 2.3 on
	Gated        bool `json:"-"`
	// Project is what projects the text: after the connectors in LTX-2, from 2.3 on before them or in the text encoder.
	Project Projection `json:"-"`
}

// Projection is where the network projects a text to the widths of its streams.
type Projection uint8

// The projections.
const (
	After  Projection = iota // an MLP behind the connectors
	Before                   // a norm and a linear layer in front of them
	None                     // the text encoder has done so: its rows are those of the video, then those of the sound
)

// sounds is a name that only these files have.
const sounds = "audio_adaln_single.linear.weight"

// released returns what a file without a config is, as ComfyUI has it.
func released() transformer {
	return transformer{
		Channels: 128, SoundFeatures: 128, Heads: 32, SoundHeads: 32, TextDim: 3840, MLPBias: true, SoundMLPBias: true,
		MaxPos: []int{20, 2048, 2048}, SoundMaxPos: []int{20}, Rotation: interleaved, Precision: "float32",
		TimeScale: 1000, GateScale: 1,
	}
}

// Values of Config.Rotation: the pairs that turn are the halves of a head, or neighbors.
const (
	halves      = "split"
	interleaved = "interleaved"
)

// Detect infers the config from names and shapes. The number of heads, and how tokens are placed, come from
// "transformer" in the JSON under meta["config"]; without it they are those of ComfyUI's classes.
func Detect(set *weights.Set, meta map[string]string) (family.Config, error) {
	file := metadata{Transformer: released()}
	if err := family.ReadConfig("ltx", meta, &file); err != nil {
		return nil, err
	}
	c := file.Transformer
	const b, mlp = "transformer_blocks.0.", "ff.net.2.bias"
	c.Hidden, c.Sound = set.Dim("patchify_proj.weight", 0), set.Dim("audio_patchify_proj.weight", 0)
	c.Channels, c.SoundFeatures = set.Dim("patchify_proj.weight", 1), set.Dim("audio_patchify_proj.weight", 1)
	c.Depth, c.Keyframes = set.Count("transformer_blocks"), set.Has("keyframes_abs_pos_embedding")
	c.Gated, c.TextModulation = set.Has(b+"attn1.to_gate_logits.weight"), set.Has(b+"prompt_scale_shift_table")
	c.MLPBias, c.SoundMLPBias = set.Has(b+mlp), set.Has(b+"audio_"+mlp)
	n := &c.Connectors
	const v, a = "video_embeddings_connector.", "audio_embeddings_connector."
	n.Width, n.SoundWidth = set.Dim(v+"learnable_registers", 1), set.Dim(a+"learnable_registers", 1)
	n.Registers, n.Depth = set.Dim(v+"learnable_registers", 0), set.Count(v+"transformer_1d_blocks")
	n.Gated = set.Has(v + "transformer_1d_blocks.0.attn1.to_gate_logits.weight")
	n.HeadDim = cmp.Or(n.HeadDim, connectorHead)
	n.SoundHeadDim = cmp.Or(n.SoundHeadDim, n.HeadDim)
	switch {
	case set.Has("caption_projection.linear_2.weight"):
		n.Project, c.TextDim = After, n.Width
	case set.Has("caption_projection.linear_1.weight"):
		n.Project, c.TextDim = Before, set.Dim("caption_projection.linear_1.weight", 1)
	default:
		n.Project, c.TextDim = None, c.Hidden+c.Sound
	}
	return Config(c), c.check()
}

// metadata is the config of a file's metadata.
type metadata struct {
	Transformer transformer `json:"transformer"`
}

// transformer is a Config in the form of a member of the metadata's config.
type transformer Config

// MarshalJSON implements json.Marshaler.
func (c Config) MarshalJSON() ([]byte, error) { return json.Marshal(metadata{transformer(c)}) }

// connectorHead is the width of a connector's head in a file without a config.
const connectorHead = 128

// check returns an error for sizes that do not fit each other.
func (c *transformer) check() error {
	n := &c.Connectors
	for _, w := range []struct {
		name, member string
		width, heads int
	}{
		{"video", "num_attention_heads", c.Hidden, c.Heads},
		{"sound", "audio_num_attention_heads", c.Sound, c.SoundHeads},
		{"text connector", "connector_attention_head_dim", n.Width, heads(n.Width, n.HeadDim)},
		{"sound's text connector", "audio_connector_attention_head_dim", n.SoundWidth, heads(n.SoundWidth, n.SoundHeadDim)},
	} {
		if w.heads < 1 || w.width%w.heads != 0 || w.width/w.heads%2 != 0 {
			return fmt.Errorf("ltx: the width %d of the %s is not made of heads of an even width: %s of the metadata's "+
				"config does not fit it", w.width, w.name, w.member)
		}
	}
	if len(c.MaxPos) != 3 || len(c.SoundMaxPos) != 1 {
		return fmt.Errorf("ltx: positional_embedding_max_pos has %d numbers and audio_positional_embedding_max_pos %d, want "+
			"3 and 1", len(c.MaxPos), len(c.SoundMaxPos))
	}
	if c.Rotation != halves && c.Rotation != interleaved {
		return fmt.Errorf("ltx: rope_type is %q: want %q or %q", c.Rotation, halves, interleaved)
	}
	if c.SoundFeatures%soundColumns != 0 {
		return fmt.Errorf("ltx: audio_patchify_proj reads %d columns: want a multiple of %d", c.SoundFeatures, soundColumns)
	}
	return nil
}

// heads returns how many heads of d make a width; 0: none do.
func heads(width, d int) int {
	if d < 1 || width%d != 0 {
		return 0
	}
	return width / d
}

// soundColumns is the number of columns of a sound latent.
const soundColumns = 16
