package text

import (
	"fmt"
	"slices"
	"strings"

	"patchbay/models/weights"
)

// Part is one text encoder within a file.
type Part struct {
	Kind   string // Kind.Name
	Prefix string // prefix of its tensor names: "", "text_encoders.clip_l.transformer." ...
}

// Find lists the text encoders of a file, recognized by tensor names, ordered by prefix. A CLIP with 31 layers or more
// is CLIP-G, a T5 with more than 200000 tokens is mT5. The list is empty if the file holds no known encoder.
func Find(set *weights.Set) []Part {
	var parts []Part
	set = Plain(set)
	for _, name := range set.Names() {
		for _, k := range kinds() {
			prefix, ok := strings.CutSuffix(name, k.anchor)
			if ok && (prefix == "" || strings.HasSuffix(prefix, ".")) && (k.is == nil || k.is(set, prefix)) {
				parts = append(parts, Part{k.Name, prefix})
				break
			}
		}
	}
	slices.SortFunc(parts, func(a, b Part) int { return strings.Compare(a.Prefix, b.Prefix) })
	return parts
}

// Plain maps the tensor names that Hugging Face now uses for vision-language models to the older ones, which the other
// files have, those of OpenCLIP to Hugging Face's, and two names of a projection to one: the names that the additions
// of a Net have (Net.Adapt).
func Plain(set *weights.Set) *weights.Set {
	set = set.Mapped(strings.NewReplacer("model.language_model.", "model.", "model.visual.", "visual.",
		"model.lm_head.", "lm_head.",
		"text_embedding_projection.aggregate_embed.", "text_embedding_projection.").Replace)
	return fromOpenCLIP(set)
}

// findPart returns the only encoder in set that is of one of the kinds, and its tensors without their prefix. It
// returns an error if there is none or more than one.
func findPart(set *weights.Set, kinds ...string) (Part, *weights.Set, error) {
	all := Find(set)
	var fit []Part
	for _, p := range all {
		if slices.Contains(kinds, p.Kind) {
			fit = append(fit, p)
		}
	}
	if len(fit) != 1 {
		return Part{}, nil, fmt.Errorf("load text encoder: the file holds %d encoders of kind %s, wanted is one (found: %v)",
			len(fit), strings.Join(kinds, " or "), all)
	}
	return fit[0], Plain(set).Prefix(fit[0].Prefix), nil
}

// Width returns the width of the token table of the encoder in set, whose names have no prefix; 0 if there is none.
func Width(set *weights.Set) int {
	set = Plain(set)
	for _, name := range []string{
		"text_model.embeddings.token_embedding.weight", "shared.weight", "encoder.embed_tokens.weight",
		"model.embed_tokens.weight",
	} {
		if n := set.Dim(name, 1); n > 0 {
			return n
		}
	}
	return 0
}
