// Package wan is Wan 2.1 and 2.2 by Alibaba's Wan team (arXiv:2503.20314), which make videos from a text, and from a
// first picture or a first and a last one: text to video of 1.3 and 14 billion parameters, image to video with and
// without a picture encoder's states, the high-noise and low-noise experts of 2.2, and the 5B model of 2.2. It reads
// the original names, which are ComfyUI's and those of GGUF files, and diffusers' names, bare or inside a full
// checkpoint.
//
// Facts that have caused bugs: queries and keys are normalized over the whole width, not per head, before the rotation,
// and those of the cross-attention are normalized too but not rotated. All rows of the text are attended to, the zeros
// behind it as well, with which the model was trained. The norm before the cross-attention has weights and no
// modulation. The head's modulation is added to the embedding of the timestep itself, that of blocks to a projection of
// its SiLU. Tokens come in as (channel, row, column) and go out as (row, column, channel), which loading undoes. A head
// is 128 wide in every release: 44 for the frame, 42 each for row and column. Odd sides are padded, frame by frame. An
// image-to-video model reads 4 channels of a mask, in which 1 means given, and 16 of a video beside the latent. Those
// of 2.1 attend to a picture encoder's states as well; without a picture these layers read the text. In the 5B model
// frames that are given have timestep 0, and the others that of the run.
package wan

import (
	"fmt"

	"patchbay/models/family"
	"patchbay/models/weights"
)

// Config holds the sizes of one Wan model. JSON names are ComfyUI's, where it has them.
type Config struct {
	Hidden     int `json:"dim"`        // 5120; 1536 and 3072 in the smaller models
	Heads      int `json:"num_heads"`  // 40
	Depth      int `json:"num_layers"` // 40
	MLPHidden  int `json:"ffn_dim"`    // 13824
	ContextDim int `json:"text_dim"`   // 4096, umT5-xxl
	Channels   int `json:"out_dim"`    // 16; 48 in the 5B model
	In         int `json:"in_dim"`     // 16; 36 with a picture beside the latent
	// VisionDim is the width of the picture encoder's states that blocks attend to, PictureRows of how many rows the
	// positions are learned; 0: none.
	VisionDim   int `json:"vision_dim"`   // 1280 in image to video of 2.1
	PictureRows int `json:"picture_rows"` // 514 in first-last frame of 2.1
}

const (
	patch   = 2   // rows and columns of a token in the latent
	headDim = 128 // of every release
	// beside is how many channels a mask takes in front of the video beside the latent.
	beside = 4
)

// anchor and theirs are names that only files with the original and with diffusers' names have.
const (
	anchor = "head.modulation"
	theirs = "condition_embedder.time_proj.weight"
)

// others lists what marks relatives that are not supported.
var others = []struct{ name, kind string }{
	{"vace_patch_embedding.weight", "VACE"},
	{"control_adapter.conv.weight", "Fun Camera"},
	{"casual_audio_encoder.encoder.final_linear.weight", "S2V"},
	{"audio_proj.audio_proj_glob_1.layer.weight", "HuMo"},
	{"face_adapter.fuser_blocks.0.k_norm.weight", "Animate"},
	{"patch_embedding_pose.weight", "SCAIL"},
	{"patch_embedding_mask.weight", "SCAIL"},
	{"patch_embedding_global.weight", "WanDancer"},
	{"ref_conv.weight", "Fun Control with a reference"},
}

// Detect infers the config from names and shapes. The number of heads that are not 128 wide comes from the JSON under
// meta["config"].
func Detect(set *weights.Set, meta map[string]string) (family.Config, error) {
	var c Config
	if err := family.ReadConfig("wan", meta, &c); err != nil {
		return nil, err
	}
	for _, o := range others {
		if set.Has(o.name) {
			return nil, fmt.Errorf("wan: %s is a tensor of Wan's %s, which is not supported: want text to video, image to "+
				"video, first-last frame or TI2V-5B", o.name, o.kind)
		}
	}
	c.Hidden, c.In = set.Dim("patch_embedding.weight", 0), set.Dim("patch_embedding.weight", 1)
	c.Channels, c.Depth = set.Dim("head.head.weight", 0)/(patch*patch), set.Count("blocks")
	c.MLPHidden, c.ContextDim = set.Dim("blocks.0.ffn.0.weight", 0), set.Dim("text_embedding.0.weight", 1)
	c.VisionDim, c.PictureRows = set.Dim("img_emb.proj.0.weight", 0), set.Dim("img_emb.emb_pos", 1)
	if c.Heads == 0 {
		c.Heads = c.Hidden / headDim
	}
	switch {
	case c.Heads < 1 || c.Hidden%c.Heads != 0 || c.Hidden/c.Heads%2 != 0:
		return nil, fmt.Errorf("wan: width %d is not a multiple of %d; files of heads of another, even width carry "+
			"num_heads in their metadata under config", c.Hidden, headDim)
	case c.In != c.Channels && c.In != 2*c.Channels+beside:
		return nil, fmt.Errorf("wan: patch_embedding reads %d channels and the head writes %d, want %d or %d: relatives "+
			"such as Fun Control are not supported", c.In, c.Channels, c.Channels, 2*c.Channels+beside)
	}
	return c, nil
}

// axes returns how many dimensions of a head turn with the frame, the row and the column.
func (c Config) axes() []int {
	d := c.Hidden / c.Heads
	return []int{d - 4*(d/6), 2 * (d / 6), 2 * (d / 6)}
}
