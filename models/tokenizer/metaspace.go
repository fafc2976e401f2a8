package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
)

// spaceMark is U+2581, which stands for a space in pieces.
const spaceMark = "\u2581"

// metaspace is the model of a tokenizer.json of type Unigram with the Metaspace pre-tokenizer: spaces become U+2581,
// one is prepended to the text, and every word that begins with one is segmented separately.
type metaspace struct {
	words   *unigram
	prepend string // "always", "first" (only at the start of the input) or "never"
	split   bool
}

// parseMetaspace parses the "pre_tokenizer" member: Metaspace, or a Sequence with it as its only member.
func parseMetaspace(data json.RawMessage, words *unigram, depth int) (*metaspace, error) {
	var p struct {
		Type          string
		Replacement   string
		Prefix        *bool   `json:"add_prefix_space"`
		Prepend       *string `json:"prepend_scheme"`
		Split         *bool
		Pretokenizers memberList
	}
	if isNull(data) {
		return nil, fmt.Errorf("pre_tokenizer is missing; a Unigram vocabulary needs Metaspace")
	}
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, fmt.Errorf("pre_tokenizer: %w", err)
	}
	if p.Type == "Sequence" && len(p.Pretokenizers) == 1 && depth < normalizerDepth {
		return parseMetaspace(p.Pretokenizers[0], words, depth+1)
	}
	if p.Type != "Metaspace" {
		return nil, fmt.Errorf("pre_tokenizer type %.40q is not supported for a Unigram vocabulary; known is Metaspace",
			p.Type)
	}
	if p.Replacement != spaceMark {
		return nil, fmt.Errorf("pre_tokenizer replacement is %.10q, allowed is %q", p.Replacement, spaceMark)
	}
	m := &metaspace{words: words, prepend: "always", split: p.Split == nil || *p.Split}
	switch {
	case p.Prepend != nil:
		m.prepend = *p.Prepend
	case p.Prefix != nil && !*p.Prefix:
		m.prepend = "never"
	}
	if m.prepend != "always" && m.prepend != "first" && m.prepend != "never" {
		return nil, fmt.Errorf("pre_tokenizer prepend_scheme is %.20q, allowed are always, first, never", m.prepend)
	}
	return m, nil
}

func (m *metaspace) encode(text string, atStart bool, ids []int) []int {
	if text == "" {
		return ids
	}
	text = strings.ReplaceAll(text, " ", spaceMark)
	if (m.prepend == "always" || m.prepend == "first" && atStart) && !strings.HasPrefix(text, spaceMark) {
		text = spaceMark + text
	}
	if !m.split {
		return m.words.segment(text, ids)
	}
	for text != "" {
		end := len(text)
		if next := strings.Index(text[1:], spaceMark); next >= 0 {
			end = next + 1
		}
		ids = m.words.segment(text[:end], ids)
		text = text[end:]
	}
	return ids
}
