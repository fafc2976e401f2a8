package tokenizer

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// tekken is Mistral's vocabulary file tekken.json (mistral-common).
type tekken struct {
	Config struct {
		Size     int `json:"default_vocab_size"`
		Specials int `json:"default_num_special_tokens"`
	} `json:"config"`
	Vocab    []tekkenPiece `json:"vocab"`
	Specials []struct {
		Rank int    `json:"rank"`
		Text string `json:"token_str"`
	} `json:"special_tokens"`
}

type tekkenPiece struct {
	Rank  int    `json:"rank"`
	Bytes []byte `json:"token_bytes"` // base64
}

// FromTekken reads Mistral's tekken.json as ComfyUI does (comfy/text_encoders/bpe_tokenizer.py): special tokens have
// their ranks as ids, pieces follow, and those beyond the vocabulary's size are dropped. Merges are ranked by the piece
// that they make, then by the ids of the pair. Words are split as in LLaMA 3, whatever pattern the file has.
func FromTekken(data []byte) (*Tokenizer, error) {
	var f tekken
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("tekken.json: %w", err)
	}
	first := f.Config.Specials
	if len(f.Vocab) == 0 || first < 0 || f.Config.Size <= first {
		return nil, errors.New("tekken.json: no pieces, or a default_vocab_size that is not above default_num_special_tokens")
	}
	vocab, raw, pieces := map[string]int32{}, map[string]int32{}, make([][]byte, 0, len(f.Vocab))
	slices.SortStableFunc(f.Vocab, func(a, b tekkenPiece) int { return cmp.Compare(a.Rank, b.Rank) })
	for _, p := range f.Vocab {
		switch {
		case p.Rank >= f.Config.Size-first:
			continue
		case p.Rank < 0 || len(p.Bytes) == 0 || len(p.Bytes) > longestPiece:
			return nil, fmt.Errorf("tekken.json: piece of rank %d has %d bytes, allowed are 1..%d, and ranks from 0 on", p.Rank,
				len(p.Bytes), longestPiece)
		}
		raw[string(p.Bytes)], vocab[spelled(p.Bytes)] = int32(p.Rank+first), int32(p.Rank+first)
		pieces = append(pieces, p.Bytes)
	}
	var added []addedToken
	for _, s := range f.Specials {
		if s.Text != "" {
			added = append(added, addedToken{ID: s.Rank, Content: s.Text})
		}
	}
	bytes := byteIDs(vocab, "")
	m := &qwen{byteBPE{tekkenMerges(raw, pieces), bytes, bytes, None}, true}
	if slices.Contains(bytes[:], None) {
		return nil, errors.New("tekken.json: the vocabulary lacks pieces for single bytes")
	}
	t, err := newTokenizer("tekken-bpe", vocab, m)
	if err != nil {
		return nil, err
	}
	t.added, err = newAddedTokens(added, nil)
	return t, err
}

// spelled returns bytes as byte-level vocabularies write them.
func spelled(piece []byte) string {
	out := make([]rune, len(piece))
	for i, b := range piece {
		out[i] = byteRune(b)
	}
	return string(out)
}

// tekkenMerges returns the table of all pairs that make a piece; pieces must be in ascending order of their ids.
func tekkenMerges(ids map[string]int32, pieces [][]byte) *bpe {
	b := &bpe{merges: map[uint64]merge{}}
	rank := int32(0)
	for _, p := range pieces {
		var keys []uint64
		for i := 1; i < len(p); i++ {
			left, okLeft := ids[string(p[:i])]
			if right, ok := ids[string(p[i:])]; ok && okLeft {
				keys = append(keys, pairKey(left, right))
			}
		}
		slices.Sort(keys)
		for _, key := range keys {
			if _, twice := b.merges[key]; !twice {
				b.merges[key] = merge{rank, ids[string(p)]}
			}
			rank++
		}
	}
	return b
}
