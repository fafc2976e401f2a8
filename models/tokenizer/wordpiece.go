package tokenizer

import (
	"bufio"
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// wordpiece is BERT's tokenizer (Devlin et al. 2018, tokenization.py): words are lowercased, stripped of accents, split
// at punctuation and covered greedily by the longest pieces; pieces inside a word begin with "##".
type wordpiece struct {
	first, inner *trie
	unknown      int
}

// longestWord is BERT's limit in characters; a longer word is one unknown token.
const longestWord = 100

// FromBERTVocab reads a vocab.txt with one piece per line, whose id is the line number counted from 0.
func FromBERTVocab(data []byte) (*Tokenizer, error) {
	vocab := map[string]int32{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for id := int32(0); lines.Scan(); id++ {
		if id >= maxPieces {
			return nil, fmt.Errorf("vocab.txt: more than %d lines", maxPieces)
		}
		if !utf8.Valid(lines.Bytes()) {
			return nil, fmt.Errorf("vocab.txt: line %d is not UTF-8", id+1)
		}
		vocab[strings.TrimRight(lines.Text(), "\r")] = id
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("vocab.txt: %w", err)
	}
	w := &wordpiece{}
	t, err := newTokenizer("wordpiece", vocab, w)
	if err != nil {
		return nil, fmt.Errorf("vocab.txt: %w", err)
	}
	var special []addedToken
	for _, name := range []string{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"} {
		id := t.idOr(name)
		if id == None {
			return nil, fmt.Errorf("vocab.txt: piece %s is missing", name)
		}
		special = append(special, addedToken{ID: id, Content: name})
	}
	var first, inner []vocabEntry
	for piece, id := range vocab {
		if rest, ok := strings.CutPrefix(piece, "##"); ok && rest != "" {
			inner = append(inner, vocabEntry{rest, id})
		}
		first = append(first, vocabEntry{piece, id})
	}
	w.first, w.inner, w.unknown = buildTrie(first), buildTrie(inner), t.idOr("[UNK]")
	t.Start, t.End = t.idOr("[CLS]"), t.idOr("[SEP]")
	t.added, err = newAddedTokens(special, nil)
	return t, err
}

func (w *wordpiece) encode(text string, _ bool, ids []int) []int {
	for _, word := range basicWords(text) {
		// Lowercased character by character, as the Python tokenizer does before it splits words: no final sigma.
		word = dropMarks(lowerEach(word))
		for _, part := range strings.FieldsFunc(word, pythonSpace) {
			for part != "" {
				end := span(part, func(r rune) bool { return !punctuation(r) })
				if end == 0 {
					_, end = utf8.DecodeRuneInString(part)
				}
				ids = w.word(part[:end], ids)
				part = part[end:]
			}
		}
	}
	return ids
}

func (w *wordpiece) word(word string, ids []int) []int {
	before := len(ids)
	if utf8.RuneCountInString(word) > longestWord {
		return append(ids, w.unknown)
	}
	for searcher := w.first; word != ""; searcher = w.inner {
		length, id := searcher.longest(word)
		if length == 0 {
			return append(ids[:before], w.unknown)
		}
		ids = append(ids, int(id))
		word = word[length:]
	}
	return ids
}
