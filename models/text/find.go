package text

import (
	"fmt"
	"slices"
	"strings"

	"patchbay/models/weights"
)

// Part is one text encoder in a file.
type Part struct {
	Kind   string // "clip_l", "clip_g", "t5", "mt5" or "bert"
	Prefix string // what its names begin with: "", "text_encoders.clip_l.transformer." ...
}

// anchors are the names by which encoders are recognised.
func anchors() []struct{ kind, name string } {
	return []struct{ kind, name string }{
		{"clip_l", "text_model.embeddings.token_embedding.weight"},
		{"bert", "bert.embeddings.word_embeddings.weight"},
		{"t5", "encoder.block.0.layer.0.SelfAttention.q.weight"},
	}
}

// Find lists the text encoders of a file by the names of its tensors, in order of prefixes. A CLIP with 31 layers or
// more is CLIP-G, a T5 with more than 200000 tokens is mT5. An empty list means that the file holds none that we know.
func Find(set *weights.Set) []Part {
	var parts []Part
	for _, a := range anchors() {
		for _, name := range set.Names() {
			prefix, ok := strings.CutSuffix(name, a.name)
			if !ok || prefix != "" && !strings.HasSuffix(prefix, ".") {
				continue
			}
			kind := a.kind
			switch {
			case kind == "clip_l" && set.Has(prefix+"text_model.encoder.layers.30.mlp.fc1.weight"):
				kind = "clip_g"
			case kind == "t5" && max(set.Dim(prefix+"shared.weight", 0),
				set.Dim(prefix+"encoder.embed_tokens.weight", 0)) > 200000:
				kind = "mt5"
			}
			parts = append(parts, Part{kind, prefix})
		}
	}
	slices.SortFunc(parts, func(a, b Part) int { return strings.Compare(a.Prefix, b.Prefix) })
	return parts
}

// findPart returns the only encoder of one of the kinds.
func findPart(set *weights.Set, kinds ...string) (Part, error) {
	all := Find(set)
	var fit []Part
	for _, p := range all {
		if slices.Contains(kinds, p.Kind) {
			fit = append(fit, p)
		}
	}
	if len(fit) != 1 {
		return Part{}, fmt.Errorf("load text encoder: the file holds %d encoders of kind %s, wanted is one (found: %v)",
			len(fit), strings.Join(kinds, " or "), all)
	}
	return fit[0], nil
}
