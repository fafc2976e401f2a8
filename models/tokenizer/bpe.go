package tokenizer

import "fmt"

// bpe is the merge table of byte-pair encoding (Sennrich et al., "Neural Machine Translation of Rare Words with Subword
// Units", 2016): while any adjacent pair is in the table, all occurrences of the one with the lowest rank are merged,
// from left to right.
type bpe struct {
	merges map[uint64]merge // key: id of the left piece << 32 | id of the right piece
	// oneByOne merges what the tokenizers library does: a pair that appears does not wait for others of one rank.
	oneByOne bool
}

type merge struct {
	rank int32
	id   int32 // the merged piece
}

// maxMerges bounds a list of merges; the longest in use have 280,000.
const maxMerges = 1 << 20

// newBPE builds the table. Every part and every merged piece must be in the vocabulary. If a pair is listed twice, its
// last rank counts, as in the original programs.
func newBPE(vocab map[string]int32, pairs []mergePair) (*bpe, error) {
	b := &bpe{merges: make(map[uint64]merge, min(len(pairs), len(vocab)))}
	for rank, p := range pairs {
		left, okLeft := vocab[p.left]
		right, okRight := vocab[p.right]
		joined, okJoined := vocab[p.left+p.right]
		if !okLeft || !okRight || !okJoined {
			return nil, fmt.Errorf("merge %d (%.40q %.40q) names pieces that are not in the vocabulary; do both files "+
				"belong together?", rank, p.left, p.right)
		}
		b.merges[pairKey(left, right)] = merge{int32(rank), joined}
	}
	return b, nil
}

func pairKey(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

// joiner holds the scratch space of bpe.join, so that all words of a text can share it.
type joiner struct {
	symbols    []int32 // ids; gone marks a symbol that was merged into the one before it
	next, prev []int32
	heap       []uint64 // rank << 32 | position of the left symbol, smallest first
	batch      []int32
}

const gone = -2

// join applies the merges to j.symbols and appends the result to ids. Symbols of id None (outside the vocabulary) are
// never merged and come out as unknown. It takes O(n log n) time for any input.
func (b *bpe) join(j *joiner, unknown int, ids []int) []int {
	n := len(j.symbols)
	j.next, j.prev, j.heap = j.next[:0], j.prev[:0], j.heap[:0]
	for i := range n {
		j.next, j.prev = append(j.next, int32(i+1)), append(j.prev, int32(i-1))
		if i > 0 {
			b.offer(j, int32(i-1))
		}
	}
	for len(j.heap) > 0 {
		// Occurrences of one rank are taken out together: pairs that appear while they are merged wait, even if their
		// rank is lower, as in the original algorithm.
		rank := int32(j.heap[0] >> 32)
		j.batch = j.batch[:0]
		for len(j.heap) > 0 && int32(j.heap[0]>>32) == rank && !(b.oneByOne && len(j.batch) > 0) {
			j.batch = append(j.batch, int32(j.pop()))
		}
		for _, at := range j.batch {
			right := j.next[at]
			if j.symbols[at] == gone || int(right) >= n {
				continue
			}
			m, ok := b.merges[pairKey(j.symbols[at], j.symbols[right])]
			if !ok || m.rank != rank {
				continue
			}
			j.symbols[at], j.symbols[right] = m.id, gone
			j.next[at] = j.next[right]
			if int(j.next[at]) < n {
				j.prev[j.next[at]] = at
				b.offer(j, at)
			}
			if j.prev[at] >= 0 {
				b.offer(j, j.prev[at])
			}
		}
	}
	for i := 0; i < n; i = int(j.next[i]) {
		if id := int(j.symbols[i]); id == None {
			ids = append(ids, unknown)
		} else {
			ids = append(ids, id)
		}
	}
	return ids
}

// offer pushes the pair that begins at a position onto the heap if it can be merged.
func (b *bpe) offer(j *joiner, at int32) {
	m, ok := b.merges[pairKey(j.symbols[at], j.symbols[j.next[at]])]
	if !ok {
		return
	}
	j.heap = append(j.heap, uint64(m.rank)<<32|uint64(at))
	for i := len(j.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if j.heap[parent] <= j.heap[i] {
			break
		}
		j.heap[parent], j.heap[i] = j.heap[i], j.heap[parent]
		i = parent
	}
}

// byteBPE encodes words by merging their bytes.
type byteBPE struct {
	merges      *bpe
	inner, last [256]int32 // ids of a byte inside a word and at its end
	unknown     int
}

// newByteBPE takes the byte ids from a vocabulary in which the last piece of a word has a suffix.
func newByteBPE(vocab map[string]int32, pairs []mergePair, suffix string) (byteBPE, error) {
	merges, err := newBPE(vocab, pairs)
	return byteBPE{merges, byteIDs(vocab, ""), byteIDs(vocab, suffix), None}, err
}

// word appends the ids of a non-empty word.
func (b *byteBPE) word(j *joiner, word string, ids []int) []int {
	j.symbols = j.symbols[:0]
	for i := range len(word) - 1 {
		j.symbols = append(j.symbols, b.inner[word[i]])
	}
	j.symbols = append(j.symbols, b.last[word[len(word)-1]])
	return b.merges.join(j, b.unknown, ids)
}

// pop removes and returns the smallest entry of the heap.
func (j *joiner) pop() uint64 {
	top, last := j.heap[0], len(j.heap)-1
	j.heap[0] = j.heap[last]
	j.heap = j.heap[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			return top
		}
		if child+1 < last && j.heap[child+1] < j.heap[child] {
			child++
		}
		if j.heap[i] <= j.heap[child] {
			return top
		}
		j.heap[i], j.heap[child] = j.heap[child], j.heap[i]
		i = child
	}
}
