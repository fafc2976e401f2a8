package tokenizer

import "strings"

// Decode returns the text of ids of a byte-level vocabulary ("qwen2-bpe"). Special tokens (<|...|>) and ids outside the
// vocabulary are skipped, invalid UTF-8 becomes U+FFFD.
func (t *Tokenizer) Decode(ids []int) string {
	pieces, bytes := map[int]string{}, map[rune]byte{}
	for piece, id := range t.pieces {
		pieces[int(id)] = piece
	}
	for b := range 256 {
		bytes[byteRune(byte(b))] = byte(b)
	}
	added := map[int]string{}
	if t.added != nil {
		for _, a := range t.added.list {
			added[a.ID] = a.Content
		}
	}
	var out strings.Builder
	for _, id := range ids {
		if text, ok := added[id]; ok {
			if !strings.HasPrefix(text, "<|") {
				out.WriteString(text)
			}
			continue
		}
		for _, r := range pieces[id] {
			if b, ok := bytes[r]; ok {
				out.WriteByte(b)
			}
		}
	}
	return strings.ToValidUTF8(out.String(), "\uFFFD")
}
