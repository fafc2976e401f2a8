package tokenizer

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	wordEnd   = "</w>" // suffix of the last piece of a word
	clipStart = "<|startoftext|>"
	clipEnd   = "<|endoftext|>"

	// ypogegrammeni is a mark whose uppercase form is a letter. CLIP's case-insensitive pattern matches it neither as a
	// letter nor as a symbol, so it vanishes from the text.
	ypogegrammeni = "\u0345"
)

// clip is CLIP's tokenizer (Radford et al. 2021, simple_tokenizer.py) with the text cleaning that the slow Python
// tokenizer falls back on when ftfy is not installed. To match ComfyUI's pictures it must be exactly that.
type clip struct {
	byteBPE
	start, end int
}

// newCLIP builds the tokenizer; vocab must already contain the added tokens.
func newCLIP(vocab map[string]int32, pairs []mergePair, added []addedToken) (*Tokenizer, error) {
	bytes, err := newByteBPE(vocab, pairs, wordEnd)
	if err != nil {
		return nil, err
	}
	c := &clip{byteBPE: bytes}
	t, err := newTokenizer("clip-bpe", vocab, c)
	if err != nil {
		return nil, err
	}
	c.start, c.end = t.idOr(clipStart), t.idOr(clipEnd)
	if c.start == None || c.end == None {
		return nil, fmt.Errorf("a CLIP vocabulary needs the pieces %s and %s", clipStart, clipEnd)
	}
	c.unknown = c.end
	t.Start, t.End = c.start, c.end
	// The slow tokenizer looks for its added tokens in the raw text, whatever the file says about normalization.
	cut := []addedToken{{ID: c.start, Content: clipStart}, {ID: c.end, Content: clipEnd}}
	for _, a := range added {
		if a.Content != clipStart && a.Content != clipEnd {
			a.Normalized = false
			cut = append(cut, a)
		}
	}
	t.added, err = newAddedTokens(cut, nil)
	return t, err
}

func (c *clip) encode(text string, _ bool, ids []int) []int {
	var j joiner
	for _, word := range basicWords(text) {
		for word = lowerText(word); word != ""; {
			n := c.piece(word)
			switch word[:n] {
			case clipStart:
				ids = append(ids, c.start)
			case clipEnd:
				ids = append(ids, c.end)
			case ypogegrammeni:
			default:
				ids = c.word(&j, word[:n], ids)
			}
			word = word[n:]
		}
	}
	return ids
}

// piece returns the length of the match of
// <\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+ at the start of text,
// which has no spaces.
func (c *clip) piece(text string) int {
	for _, special := range []string{clipStart, clipEnd} {
		if strings.HasPrefix(text, special) {
			return len(special)
		}
	}
	if n := contraction(text); n > 0 {
		return n
	}
	r, width := utf8.DecodeRuneInString(text)
	switch {
	case unicode.IsLetter(r):
		return span(text, unicode.IsLetter)
	case unicode.IsNumber(r):
		return width
	}
	return max(width, span(text, func(r rune) bool { return symbolRune(r) && r != '\u0345' }))
}
