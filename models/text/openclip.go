package text

import (
	"fmt"
	"strings"

	"patchbay/models/weights"
)

// openAnchor is a tensor by which an encoder with OpenCLIP's names is recognized.
const openAnchor = "transformer.resblocks.0.attn.in_proj_weight"

// openNames are OpenCLIP's names of what Hugging Face calls otherwise, first outside of layers, then inside of one.
var openNames = [2][]string{
	{
		"positional_embedding", "text_model.embeddings.position_embedding.weight",
		"token_embedding.", "text_model.embeddings.token_embedding.", "ln_final.", "text_model.final_layer_norm.",
		"transformer.resblocks.", "text_model.encoder.layers.",
	},
	{
		".ln_1.", ".layer_norm1.", ".ln_2.", ".layer_norm2.", ".mlp.c_fc.", ".mlp.fc1.", ".mlp.c_proj.", ".mlp.fc2.",
		".attn.out_proj.", ".self_attn.out_proj.",
	},
}

// openPictures are OpenCLIP's names of a picture encoder, below openPicturesAt, in place of openNames[0].
var openPictures = []string{
	"class_embedding", classAt, "conv1.", visionAt + "embeddings.patch_embedding.",
	"positional_embedding", positionAt, "ln_pre.", visionAt + "pre_layrnorm.", "ln_post.", visionAt + "post_layernorm.",
	"transformer.resblocks.", visionAt + "encoder.layers.",
}

const openPicturesAt = "visual."

// pictureNames gives a picture encoder with OpenCLIP's names those of Hugging Face.
func pictureNames(set *weights.Set) *weights.Set {
	if !set.Has(openPicturesAt + openAnchor) {
		return set
	}
	return renamedOpenCLIP(set.Prefix(openPicturesAt), openPictures)
}

// fromOpenCLIP gives encoders with OpenCLIP's names those of Hugging Face, as full checkpoints of SDXL need: queries,
// keys and values are rows of one matrix there, and text_projection is transposed. Other tensors stay as they are.
func fromOpenCLIP(set *weights.Set) *weights.Set { return renamedOpenCLIP(set, openNames[0]) }

func renamedOpenCLIP(set *weights.Set, outer []string) *weights.Set {
	var prefixes []string
	for _, name := range set.Names() {
		if p, ok := strings.CutSuffix(name, openAnchor); ok {
			prefixes = append(prefixes, p)
		}
	}
	if prefixes == nil {
		return set
	}
	all := map[string]weights.Stored{}
	for _, name := range set.Names() {
		all[name], _ = set.Get(name)
	}
	outside, inside := strings.NewReplacer(outer...), strings.NewReplacer(openNames[1]...)
	for _, p := range prefixes {
		part := set.Prefix(p)
		for _, name := range part.Names() {
			t, _ := part.Get(name)
			delete(all, p+name)
			at := p + inside.Replace(outside.Replace(name))
			switch layer, what, _ := strings.Cut(at, ".attn.in_proj_"); {
			case name == "text_projection":
				all[at+".weight"] = t.Transposed()
			case what == "":
				all[at] = t
			default:
				for i, of := range []string{"q", "k", "v"} {
					if part, err := t.Rows(i*t.Shape[0]/3, t.Shape[0]/3); err == nil {
						all[fmt.Sprintf("%s.self_attn.%s_proj.%s", layer, of, what)] = part
					}
				}
			}
		}
	}
	return weights.FromMap(all)
}
