package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is one member of "added_tokens": text that is split off before anything else looks at it.
type addedToken struct {
	ID         int    `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
}

// UnmarshalJSON decodes a token and returns an error if it has no text.
func (t *addedToken) UnmarshalJSON(data []byte) error {
	type plain addedToken // without this method
	if err := json.Unmarshal(data, (*plain)(t)); err != nil {
		return err
	}
	if t.Content == "" {
		return fmt.Errorf("added token %.40q has no content", data)
	}
	return nil
}

// check returns an error if the token's id or length is out of bounds.
func (t *addedToken) check() error {
	if t.ID < 0 || t.ID >= maxID {
		return fmt.Errorf("added token %.40q has id %d, allowed are 0..%d", t.Content, t.ID, maxID-1)
	}
	if len(t.Content) > longestPiece {
		return fmt.Errorf("added token %d has %d bytes, allowed are %d", t.ID, len(t.Content), longestPiece)
	}
	return nil
}

func join(vocab map[string]int32, added []addedToken) error {
	for i := range added {
		if err := added[i].check(); err != nil {
			return err
		}
		vocab[added[i].Content] = int32(added[i].ID)
	}
	return nil
}

// addedTokens splits a text at its added tokens, leftmost and longest match first.
type addedTokens struct {
	list  []addedToken
	exact *trie // tokens to find in the raw text; ids are indexes into list
	after *trie // tokens to find in the normalized text; nil if there are none
	prep  normalizer
}

// newAddedTokens checks the tokens and builds the tries. prep, which may be nil, is applied between the two searches.
func newAddedTokens(list []addedToken, prep normalizer) (*addedTokens, error) {
	a := &addedTokens{list: list, prep: prep}
	var exact, after []vocabEntry
	for i, t := range list {
		if err := t.check(); err != nil {
			return nil, err
		}
		if t.Normalized && prep != nil {
			after = append(after, vocabEntry{prep(t.Content), int32(i)})
		} else {
			exact = append(exact, vocabEntry{t.Content, int32(i)})
		}
	}
	a.exact = buildTrie(exact)
	if len(after) > 0 {
		a.after = buildTrie(after)
	}
	return a, nil
}

// encode appends the ids of text: those of added tokens, and what the model makes of the normalized text between them.
func (a *addedTokens) encode(text string, m model, ids []int) []int {
	token := func(t *addedToken) { ids = append(ids, t.ID) }
	a.cut(a.exact, text, token, func(part string, atStart bool) {
		if a.prep != nil {
			part = a.prep(part)
		}
		if a.after == nil {
			ids = m.encode(part, atStart, ids)
			return
		}
		a.cut(a.after, part, token, func(rest string, first bool) { ids = m.encode(rest, first && atStart, ids) })
	})
	return ids
}

// cut walks through text once and reports tokens and the non-empty parts between them, in order.
func (a *addedTokens) cut(searcher *trie, text string, token func(*addedToken), part func(text string, atStart bool)) {
	from := 0
	flush := func(to int) {
		if to > from {
			part(text[from:to], from == 0)
		}
	}
	for at := 0; at < len(text); {
		length, index := searcher.longest(text[at:])
		if length == 0 {
			at++
			continue
		}
		t := &a.list[index]
		start, end := at, at+length
		if t.SingleWord && !isolated(text, start, end) {
			at = end
			continue
		}
		if t.LStrip {
			start = max(from, len(strings.TrimRightFunc(text[:start], unicode.IsSpace)))
		}
		if t.RStrip {
			end = len(text) - len(strings.TrimLeftFunc(text[end:], unicode.IsSpace))
		}
		flush(start)
		token(t)
		from, at = end, end
	}
	flush(len(text))
}

// isolated reports whether text[start:end] has no word character on either side.
func isolated(text string, start, end int) bool {
	word := func(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r) || unicode.IsMark(r) }
	before, _ := utf8.DecodeLastRuneInString(text[:start])
	after, _ := utf8.DecodeRuneInString(text[end:])
	return (start == 0 || !word(before)) && (end == len(text) || !word(after))
}
