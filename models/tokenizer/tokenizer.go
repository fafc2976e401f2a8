// Package tokenizer turns prompts into the token ids that the text encoders were trained on.
//
// Six kinds of vocabulary are read: SentencePiece unigram from a Hugging Face tokenizer.json, a .model file or a GGUF
// file (T5, mT5), SentencePiece BPE from a .model file (pile-T5), CLIP's byte-level BPE, Qwen2's byte-level BPE,
// Mistral's tekken, and BERT's WordPiece. A Tokenizer only knows text and ids. What a diffusion model makes of a prompt
// (weights in parentheses, embeddings by name, chunks of 77, padding) is a Layout; its Prompt method is what a
// text-encode node calls. Where programs differ, both follow ComfyUI, because the same prompt must give the same
// picture: CLIP ids are those of the slow Python tokenizer without ftfy, T5 ids those of the tokenizers library.
//
// Vocabularies are other people's data and are never compiled in. Open and Find read them from disk, the From functions
// from bytes. All parsers treat their input as hostile: a broken file is an error, and memory is bounded by the file's
// size: a Tokenizer keeps up to 10 times it for the densest valid vocabularies (memory_test.go), up to 40 times for a
// tekken.json of pieces that are prefixes of each other. At most 2^20 pieces are accepted. A Tokenizer is immutable and
// safe for concurrent use.
package tokenizer

import (
	"fmt"
	"strings"
)

// None is the id of a token that a vocabulary does not have.
const None = -1

// Tokenizer is one vocabulary with its rules. Fields are set by the loaders and must not be changed.
type Tokenizer struct {
	// Kind is the kind of vocabulary: "unigram", "sentencepiece-unigram", "sentencepiece-bpe", "clip-bpe", "qwen2-bpe",
	// "tekken-bpe", "wordpiece".
	Kind string
	// Size is the largest id plus one: an embedding table needs at least Size rows.
	Size int
	// Start and End are the ids to put before and after a text; None if absent.
	Start, End int

	pieces map[string]int32
	added  *addedTokens
	model  model
}

// model is the part in which the kinds differ: plain text (without added tokens) to ids. atStart says whether text
// begins at the first byte of the whole input.
type model interface {
	encode(text string, atStart bool, ids []int) []int
}

// Encode returns the ids of text without start and end token. Special tokens written out in the text ("</s>",
// "<|endoftext|>") become their own ids where the original tokenizer does that. Invalid UTF-8 reads as U+FFFD.
func (t *Tokenizer) Encode(text string) []int {
	text = strings.ToValidUTF8(text, "\uFFFD")
	ids := make([]int, 0, len(text)/3+2)
	if t.added == nil {
		return t.model.encode(text, true, ids)
	}
	return t.added.encode(text, t.model, ids)
}

// ID returns the id of a piece exactly as the vocabulary spells it ("▁cat", "cat</w>", "Ġcat", "</s>").
func (t *Tokenizer) ID(piece string) (int, bool) {
	id, ok := t.pieces[piece]
	return int(id), ok
}

// Bounds of a file: larger ids make no sense for any text encoder, longer pieces would only slow encoding down.
const (
	maxID        = 1 << 24
	maxPieces    = 1 << 20 // the largest vocabularies in use have about 260,000
	longestPiece = 1024    // bytes
)

// newTokenizer fills the fields that follow from the piece table, and checks it against the bounds.
func newTokenizer(kind string, pieces map[string]int32, m model) (*Tokenizer, error) {
	if len(pieces) > maxPieces {
		return nil, fmt.Errorf("%d pieces, allowed are %d", len(pieces), maxPieces)
	}
	size := 0
	for piece, id := range pieces {
		if id < 0 || id >= maxID {
			return nil, fmt.Errorf("piece %.40q has id %d, allowed are 0..%d", piece, id, maxID-1)
		}
		size = max(size, int(id)+1)
	}
	return &Tokenizer{Kind: kind, Size: size, Start: None, End: None, pieces: pieces, model: m}, nil
}

func (t *Tokenizer) idOr(piece string) int {
	if id, ok := t.pieces[piece]; ok {
		return int(id)
	}
	return None
}
