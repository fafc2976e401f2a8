package tokenizer

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// spNormalizer is SentencePiece's own normalizer (src/normalizer.cc, Normalizer::Normalize): the longest prefix in the
// charsmap is replaced, runs of spaces are collapsed and spaces become U+2581, user-defined pieces are left untouched.
type spNormalizer struct {
	table       *charsmap
	user        *trie
	space       string // what a space becomes
	dummyPrefix bool
	suffix      bool // the dummy space goes after the text
	dropSpaces  bool
}

func newSPNormalizer(m *spModel) (*spNormalizer, error) {
	table, err := parseCharsmap(m.charsmap)
	if err != nil {
		return nil, fmt.Errorf("normalizer: %w", err)
	}
	n := &spNormalizer{
		table: table, space: " ", dummyPrefix: m.dummyPrefix, suffix: m.spaceSuffix,
		dropSpaces: m.dropSpaces,
	}
	if m.markSpaces {
		n.space = spaceMark
	}
	var user []vocabEntry
	for id, p := range m.pieces {
		if p.kind == pieceUser {
			user = append(user, vocabEntry{p.piece, int32(id)})
		}
	}
	n.user = buildTrie(user)
	return n, nil
}

// prefix returns the normalized form of the first unit of text and the unit's length.
func (n *spNormalizer) prefix(text string) (string, int) {
	if length, _ := n.user.longest(text); length > 0 {
		return text[:length], length
	}
	if n.table != nil {
		if replacement, length, ok := n.table.match(text, true); ok {
			return replacement, length
		}
	}
	_, width := utf8.DecodeRuneInString(text)
	return text[:width], width
}

func (n *spNormalizer) apply(text string) string {
	if n.dropSpaces {
		for text != "" {
			form, width := n.prefix(text)
			if form != " " {
				break
			}
			text = text[width:]
		}
	}
	if text == "" {
		return ""
	}
	var out strings.Builder
	out.Grow(len(text) + len(text)/4 + 3)
	if n.dummyPrefix && !n.suffix {
		out.WriteString(n.space)
	}
	afterSpace := n.dropSpaces
	for text != "" {
		form, width := n.prefix(text)
		text = text[width:]
		if afterSpace {
			form = strings.TrimLeft(form, " ")
		}
		if form == "" {
			continue
		}
		out.WriteString(strings.ReplaceAll(form, " ", n.space))
		afterSpace = n.dropSpaces && form[len(form)-1] == ' '
	}
	result := out.String()
	if n.dropSpaces {
		result = strings.TrimRight(result, n.space)
	}
	if n.dummyPrefix && n.suffix {
		result += n.space
	}
	return result
}
