package ltx

import (
	"errors"

	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
)

// prompts describes the text encoder: all states of a Gemma 3, or from 2.5 on of a Gemma 4, and a projection of them,
// which files of the network or of the encoder have beside it. ComfyUI pads prompts in front up to textRows and leaves
// these rows out again. Without a projection a Gemma 4 writes texts, whatever type the loader is told.
func prompts() family.Text {
	any := func(string) bool { return true }
	return family.Text{
		Types: []string{"ltxv"},
		Encoders: []family.Encoder{
			{
				Kind: "gemma3_12b", Layout: tokenizer.Gemma3("gemma3_12b"), Form: text.Form{All: true, Behind: textRows},
			},
			{
				Kind: "gemma4", Optional: true, For: "gemma3_12b", Writes: true, Under: any, Layout: tokenizer.Gemma4("gemma4"),
				Form: text.Form{All: true, Behind: textRows},
			},
			{Kind: "gemma4_e", Optional: true, Writes: true, Under: any, Layout: tokenizer.Gemma4("gemma4")},
			{Kind: "projection"},
		},
		Join: func(done map[string]*text.Encoding) (dit.Entry, error) {
			if done["projection"] == nil {
				return dit.Entry{}, errors.New("a Gemma 4 without the projection of its states writes texts and encodes none: " +
					"load the file with the projection, such as gemma4-12b-with-proj-ltx-2.5*")
			}
			return dit.Entry{Context: done["projection"].Context}, nil
		},
	}
}
