package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// qwen is Qwen2's byte-level BPE: NFC, words split by qwenWords, bytes merged by rank.
type qwen struct {
	byteBPE
	llama bool // LLaMA 3's variant: no NFC, words of up to three digits
}

// qwenWords is the pattern that splits words, as Qwen2's tokenizer.json writes it (`Qwen2TokenizerFast`).
const qwenWords = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ` +
	`?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

// qwenPattern returns qwenWords as it appears inside JSON.
func qwenPattern() string {
	quoted, _ := json.Marshal(qwenWords)
	return string(quoted[1 : len(quoted)-1])
}

// qwenSpecials returns the added tokens from id 151643 on, in order, for folders without a list of their own: those of
// Qwen2.5 and four more that ComfyUI's copy has.
func qwenSpecials() []string {
	return []string{
		"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
		"<|box_start|>", "<|box_end|>",
		"<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
		"<|image_pad|>", "<|video_pad|>",
		"<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
		"<|repo_name|>", "<|file_sep|>",
		"<|img|>", "<|endofimg|>", "<|meta|>", "<|endofmeta|>",
	}
}

// newQwen builds the tokenizer; vocab must already contain the added tokens.
func newQwen(vocab map[string]int32, pairs []mergePair, added []addedToken) (*Tokenizer, error) {
	bytes, err := newByteBPE(vocab, pairs, "")
	if err != nil {
		return nil, err
	}
	q := &qwen{byteBPE: bytes}
	t, err := newTokenizer("qwen2-bpe", vocab, q)
	if err != nil {
		return nil, err
	}
	q.unknown = t.idOr(clipEnd)
	if q.unknown == None && slices.Contains(q.inner[:], None) {
		return nil, fmt.Errorf("the vocabulary lacks pieces for single bytes and has no %s to use instead", clipEnd)
	}
	t.added, err = newAddedTokens(added, nil)
	return t, err
}

func (q *qwen) encode(text string, _ bool, ids []int) []int {
	var j joiner
	digits := 3
	if !q.llama {
		text, digits = norm.NFC.String(text), 1
	}
	for text != "" {
		n := qwenWord(text, digits)
		ids = q.word(&j, text[:n], ids)
		text = text[n:]
	}
	return ids
}

// qwenWord returns the length of the match of qwenWords at the start of text. digits is the maximum number of digits in
// a word.
func qwenWord(text string, digits int) int {
	if n := contraction(text); n > 0 {
		return n
	}
	r, width := utf8.DecodeRuneInString(text)
	if unicode.IsLetter(r) {
		return span(text, unicode.IsLetter)
	}
	if unicode.IsNumber(r) {
		for digits > 1 {
			next, more := utf8.DecodeRuneInString(text[width:])
			if !unicode.IsNumber(next) {
				break
			}
			width, digits = width+more, digits-1
		}
		return width
	}
	newline := func(r rune) bool { return r == '\r' || r == '\n' }
	if !newline(r) {
		if n := span(text[width:], unicode.IsLetter); n > 0 {
			return width + n
		}
	}
	lead := 0
	if r == ' ' {
		lead = 1
	}
	if n := span(text[lead:], symbolRune); n > 0 {
		return lead + n + span(text[lead+n:], newline)
	}
	// Only whitespace is left: up to its last line break, else all of it except one character before a word.
	space := span(text, unicode.IsSpace)
	last, lastWidth := 0, 0
	for i, r := range text[:space] {
		if newline(r) {
			last = i + 1
		}
		lastWidth = utf8.RuneLen(r)
	}
	switch {
	case last > 0:
		return last
	case space == len(text) || space == lastWidth:
		return space
	}
	return space - lastWidth
}
