package ltx

import (
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
)

// prompts describes the text encoder: all states of a Gemma 3 and a projection of them, which files of the network have
// beside it. ComfyUI pads prompts in front up to textRows and leaves these rows out again.
func prompts() family.Text {
	return family.Text{
		Types: []string{"ltxv"},
		Encoders: []family.Encoder{
			{
				Kind: "gemma3_12b", Layout: tokenizer.Gemma3("gemma3_12b"), Form: text.Form{All: true, Behind: textRows},
			},
			{Kind: "projection"},
		},
		Join: func(done map[string]*text.Encoding) (dit.Entry, error) {
			return dit.Entry{Context: done["projection"].Context}, nil
		},
	}
}
