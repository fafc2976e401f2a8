package tokenizer

import (
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
)

// unknownPenalty is how far an unknown character scores below the worst piece (kUnkPenalty of SentencePiece,
// src/unigram_model.cc; the tokenizers library uses the same).
const unknownPenalty = 10

// unigram is the segmentation model of Kudo, "Subword Regularization" (2018), section 3: of all ways to split a text
// into pieces, the one with the largest sum of piece scores (log probabilities), found by the Viterbi algorithm.
type unigram struct {
	trie    *trie
	scores  []float64 // by id
	unknown int32
	penalty float64     // score of one unknown character
	single  bool        // add scores in float32, as SentencePiece does
	bytes   *[256]int32 // ids of the byte pieces, nil without byte fallback
}

type scoredPiece struct {
	piece string
	score float64
	kind  uint8 // pieceNormal ...
}

// pieceIDs returns the ids of pieces, which are their indexes. It returns an error if a piece occurs twice.
func pieceIDs(pieces []scoredPiece) (map[string]int32, error) {
	ids := map[string]int32{}
	for id, p := range pieces {
		if first, twice := ids[p.piece]; twice {
			return nil, fmt.Errorf("piece %.40q stands twice, as %d and %d", p.piece, first, id)
		}
		ids[p.piece] = int32(id)
	}
	return ids, nil
}

// newUnigram builds the model from pieces whose index is their id. Only normal and user-defined ones can match text.
// Scores of user-defined ones and the unknown penalty follow SentencePiece src/unigram_model.cc (EncodeOptimized).
func newUnigram(pieces []scoredPiece, unknown int) (*unigram, error) {
	if unknown < 0 || unknown >= len(pieces) {
		return nil, fmt.Errorf("unk_id is %d, allowed are 0..%d", unknown, len(pieces)-1)
	}
	lowest, highest := math.MaxFloat32, -math.MaxFloat32
	for _, p := range pieces {
		if p.kind == pieceNormal {
			lowest, highest = min(lowest, p.score), max(highest, p.score)
		}
	}
	u := &unigram{scores: make([]float64, len(pieces)), unknown: int32(unknown), penalty: lowest - unknownPenalty}
	entries := make([]vocabEntry, 0, len(pieces))
	for id, p := range pieces {
		if len(p.piece) > longestPiece {
			return nil, fmt.Errorf("piece %d has %d bytes, allowed are %d", id, len(p.piece), longestPiece)
		}
		if p.kind == pieceUser {
			p.score = float64(len(p.piece))*highest - 0.1
		}
		if u.scores[id] = p.score; p.kind == pieceNormal || p.kind == pieceUser {
			entries = append(entries, vocabEntry{p.piece, int32(id)})
		}
	}
	u.trie = buildTrie(entries)
	return u, nil
}

// byteTable returns the ids of the 256 pieces <0x00>..<0xFF>, nil unless all exist.
func byteTable(find func(string) (int32, bool)) *[256]int32 {
	var table [256]int32
	for b := range table {
		id, ok := find(fmt.Sprintf("<0x%02X>", b))
		if !ok {
			return nil
		}
		table[b] = id
	}
	return &table
}

// cell is the best segmentation up to a byte position: its score, and the start and id of its last piece.
type cell struct {
	score float64
	start int32 // -1: not reached
	id    int32
}

// segment appends the ids of text (valid UTF-8).
func (u *unigram) segment(text string, ids []int) []int { return u.collect(text, ids, u.best(text)) }

// best returns the best segmentation up to every byte position of text.
func (u *unigram) best(text string) []cell {
	cells := make([]cell, len(text)+1)
	for i := range cells {
		cells[i] = cell{start: -1}
	}
	for at := 0; at < len(text); {
		_, width := utf8.DecodeRuneInString(text[at:])
		base, covered := cells[at].score, false
		node := int32(0)
		for end := at; end < len(text); {
			if node = u.trie.next(node, text[end]); node < 0 {
				break
			}
			end++
			id := u.trie.nodes[node].id
			if id == None {
				continue
			}
			u.offer(&cells[end], base, u.scores[id], at, id)
			covered = covered || end-at == width
		}
		if !covered {
			u.offer(&cells[at+width], base, u.penalty, at, u.unknown)
		}
		at += width
	}
	return cells
}

// offer keeps the better of two segmentations up to a position; the first one found wins a tie.
func (u *unigram) offer(c *cell, base, score float64, start int, id int32) {
	sum := base + score
	if u.single {
		sum = float64(float32(base) + float32(score))
	}
	if c.start < 0 || sum > c.score {
		*c = cell{score: sum, start: int32(start), id: id}
	}
}

// collect walks the cells backwards and appends the ids in order. Adjacent unknown characters are one token, or one
// token per byte if the vocabulary has byte pieces.
func (u *unigram) collect(text string, ids []int, cells []cell) []int {
	first := len(ids)
	unknownBefore := false
	for end := len(text); end > 0; {
		c := cells[end]
		start := int(c.start)
		switch {
		case c.id != u.unknown:
			ids = append(ids, int(c.id))
		case u.bytes != nil:
			for i := end - 1; i >= start; i-- {
				ids = append(ids, int(u.bytes[text[i]]))
			}
		case !unknownBefore:
			ids = append(ids, int(c.id))
		}
		unknownBefore = c.id == u.unknown
		end = start
	}
	slices.Reverse(ids[first:])
	return ids
}
