package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// wholeBPE is Gemma 4's BPE: a whole text is merged at once, from its characters, with U+2581 for spaces; those that
// the vocabulary lacks are bytes.
type wholeBPE struct {
	merges *bpe
	chars  map[string]int32
	bytes  *[256]int32
}

// newWholeBPE builds the tokenizer; vocab must already contain the added tokens. It returns an error if words would be
// split in any other way.
func newWholeBPE(vocab map[string]int32, pairs []mergePair, normal, pre json.RawMessage, added []addedToken,
) (*Tokenizer, error) {
	var cut struct {
		Type    string
		Pattern struct{ String string }
	}
	if !isNull(pre) {
		if err := json.Unmarshal(pre, &cut); err != nil {
			return nil, fmt.Errorf("pre_tokenizer: %w", err)
		}
	}
	prep, err := parseNormalizer(normal, 0)
	switch {
	case err != nil:
		return nil, err
	case prep == nil || strings.Contains(prep("a b"), " "):
		return nil, errors.New("normalizer: BPE with byte_fallback needs one that replaces spaces, as Gemma's")
	case !isNull(pre) && (cut.Type != "Split" || cut.Pattern.String != " "):
		return nil, fmt.Errorf("pre_tokenizer type %.40q is not supported for BPE with byte_fallback; known is none, and "+
			"Split at spaces, of which the normalizer leaves none", cut.Type)
	}
	merges, err := newBPE(vocab, pairs)
	if err != nil {
		return nil, err
	}
	merges.oneByOne = true
	w := &wholeBPE{merges: merges, chars: map[string]int32{}}
	for piece, id := range vocab {
		if utf8.RuneCountInString(piece) == 1 {
			w.chars[piece] = id
		}
	}
	if w.bytes = byteTable(func(s string) (int32, bool) { id, ok := vocab[s]; return id, ok }); w.bytes == nil {
		return nil, errors.New("model: byte_fallback is set, and the vocabulary lacks pieces for bytes (<0x00> to <0xFF>)")
	}
	t, err := newTokenizer("gemma-bpe", vocab, w)
	if err != nil {
		return nil, err
	}
	t.added, err = newAddedTokens(added, prep)
	return t, err
}

func (w *wholeBPE) encode(text string, _ bool, ids []int) []int {
	var j joiner
	for text != "" {
		_, n := utf8.DecodeRuneInString(text)
		if id, ok := w.chars[text[:n]]; ok {
			j.symbols = append(j.symbols, id)
		} else {
			for i := range n {
				j.symbols = append(j.symbols, w.bytes[text[i]])
			}
		}
		text = text[n:]
	}
	return w.merges.join(&j, None, ids)
}

// decode returns the text of ids with all added tokens. A run of bytes that is no UTF-8 becomes one U+FFFD a byte, as
// in the tokenizers library.
func (w *wholeBPE) decode(pieces map[string]int32, ids []int) string {
	names, bytes := map[int]string{}, map[int]byte{}
	for piece, id := range pieces {
		names[int(id)] = piece
	}
	for b, id := range w.bytes {
		bytes[int(id)] = byte(b)
	}
	var out strings.Builder
	var run []byte
	flush := func() {
		if utf8.Valid(run) {
			out.Write(run)
		} else {
			out.WriteString(strings.Repeat("\uFFFD", len(run)))
		}
		run = run[:0]
	}
	for _, id := range ids {
		if b, ok := bytes[id]; ok {
			run = append(run, b)
			continue
		}
		flush()
		out.WriteString(strings.ReplaceAll(names[id], spaceMark, " "))
	}
	flush()
	return out.String()
}
