package tokenizer

import (
	"errors"
	"fmt"
	"slices"
)

// FromGGUF reads the vocabulary in the metadata of a GGUF file (docs/gguf.md of the ggml project, section Tokenizer):
// T5's SentencePiece unigram, with the keys tokenizer.ggml.tokens, scores and token_type, and the optional
// precompiled_charsmap, add_space_prefix and remove_extra_whitespaces. If the file has no vocabulary, or that of
// another model, it returns nil and no error, so that the caller looks elsewhere. It returns an error if the lists have
// the wrong types or different lengths.
func FromGGUF(metadata map[string]any) (*Tokenizer, error) {
	const key = "tokenizer.ggml."
	if metadata[key+"model"] != "t5" {
		return nil, nil
	}
	t, err := ggufModel(metadata, key)
	if err != nil {
		return nil, fmt.Errorf("vocabulary in the GGUF metadata: %w", err)
	}
	return t, nil
}

func ggufModel(metadata map[string]any, key string) (*Tokenizer, error) {
	pieces, ok := metadata[key+"tokens"].([]string)
	scores, ok2 := metadata[key+"scores"].([]float32)
	if !ok || !ok2 || len(pieces) != len(scores) || len(pieces) == 0 || len(pieces) > maxPieces {
		return nil, fmt.Errorf("%stokens has %d texts and %sscores %d numbers; as many of both are needed, 1..%d", key,
			len(pieces), key, len(scores), maxPieces)
	}
	m := newSPModel()
	kinds, typed := metadata[key+"token_type"].([]int32)
	if !typed || len(kinds) != len(pieces) {
		return nil, fmt.Errorf("%stoken_type has %d numbers, %d are needed", key, len(kinds), len(pieces))
	}
	for i, piece := range pieces {
		kind := kinds[i]
		if kind == pieceUnused {
			// Converters pad the table to the rows of the embedding; the names of these pieces need not be unique.
			piece = fmt.Sprintf("<unused %d>", i)
		}
		if kind < pieceNormal || kind > pieceByte {
			return nil, fmt.Errorf("piece %d has type %d, allowed are %d..%d", i, kind, pieceNormal, pieceByte)
		}
		if err := m.add(scoredPiece{piece, float64(scores[i]), uint8(kind)}); err != nil {
			return nil, err
		}
		m.byteFallback = m.byteFallback || kind == pieceByte // the format has no flag; UMT5 has such pieces, T5 not
	}
	if err := m.ggufNormalizer(metadata, key); err != nil {
		return nil, err
	}
	return m.tokenizer()
}

// ggufNormalizer reads the normalization rules.
func (m *spModel) ggufNormalizer(metadata map[string]any, key string) error {
	for name, to := range map[string]*bool{"add_space_prefix": &m.dummyPrefix, "remove_extra_whitespaces": &m.dropSpaces} {
		v, given := metadata[key+name]
		if !given {
			continue
		}
		b, ok := v.(bool)
		if !ok {
			return fmt.Errorf("%s%s is a %T, must be a boolean", key, name, v)
		}
		*to = b
	}
	switch v := metadata[key+"precompiled_charsmap"].(type) {
	case nil:
	case []uint8:
		m.charsmap = slices.Clone(v)
	case []int8: // gguf-py writes bytes as either type
		for _, b := range v {
			m.charsmap = append(m.charsmap, byte(b))
		}
	default:
		return errors.New(key + "precompiled_charsmap must be a list of bytes")
	}
	return nil
}
