package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// Decode returns the text of ids of a byte-level vocabulary ("qwen2-bpe"), of SentencePiece's BPE or of Gemma 4's.
// Special tokens (<|...|> of the first, control pieces of the second, none of the third) and ids outside the vocabulary
// are skipped, invalid UTF-8 becomes U+FFFD.
func (t *Tokenizer) Decode(ids []int) string {
	if w, ok := t.model.(*wholeBPE); ok {
		return w.decode(t.pieces, ids)
	}
	if s, ok := t.model.(*spBPE); ok {
		return s.decode(ids)
	}
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

// decode returns what SentencePiece's DecodeIds does (src/sentencepiece_processor.cc), for vocabularies that put no
// space in front of a text: every byte of a run of byte pieces that is no UTF-8 becomes one U+FFFD.
func (s *spBPE) decode(ids []int) string {
	bytes := map[int32]byte{}
	if s.bytes != nil {
		for b, id := range s.bytes {
			bytes[id] = byte(b)
		}
	}
	var out strings.Builder
	var run []byte
	flush := func() {
		for len(run) > 0 {
			r, n := utf8.DecodeRune(run)
			out.WriteRune(r)
			run = run[n:]
		}
	}
	for _, id := range ids {
		if id < 0 || id >= len(s.pieces) {
			continue
		}
		if b, ok := bytes[int32(id)]; ok {
			run = append(run, b)
			continue
		}
		flush()
		switch p := s.pieces[id]; p.kind {
		case pieceControl:
		case pieceUnknown:
			out.WriteString(" \u2047 ")
		default:
			out.WriteString(strings.ReplaceAll(p.piece, spaceMark, " "))
		}
	}
	flush()
	return out.String()
}
