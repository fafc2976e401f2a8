package tokenizer

import (
	"container/heap"
	"unicode/utf8"
)

// spBPE is SentencePiece's BPE (src/bpe_model.cc): starting from characters, the adjacent pair whose merged text is the
// piece with the highest score is merged, leftmost first among equals.
type spBPE struct {
	norm    *spNormalizer
	ids     map[string]int32
	pieces  []scoredPiece
	unknown int
	bytes   *[256]int32
}

func newSPBPE(m *spModel, norm *spNormalizer, unknown int, bytePieces *[256]int32) *spBPE {
	s := &spBPE{norm: norm, pieces: m.pieces, unknown: unknown, bytes: bytePieces, ids: map[string]int32{}}
	for id, p := range m.pieces {
		if p.kind == pieceNormal || p.kind == pieceUser || p.kind == pieceUnused {
			s.ids[p.piece] = int32(id)
		}
	}
	return s
}

// spSymbol is a stretch of the text, linked to its neighbors.
type spSymbol struct {
	start, end int32
	prev, next int32
	frozen     bool // a user-defined piece, never merged
}

// spPair is a merge candidate: two neighbors and the extent of their union when it was found.
type spPair struct {
	score       float64
	left, right int32
	start, end  int32
}

type spQueue []spPair

func (q spQueue) Len() int      { return len(q) }
func (q spQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q spQueue) Less(i, j int) bool {
	return q[i].score > q[j].score || q[i].score == q[j].score && q[i].left < q[j].left
}
func (q *spQueue) Push(x any) { *q = append(*q, x.(spPair)) }
func (q *spQueue) Pop() any {
	old := *q
	last := old[len(old)-1]
	*q = old[:len(old)-1]
	return last
}

// unusedJoin records the parts from which an unused piece was merged, so that it can be taken apart again at the end.
type unusedJoin struct{ left, right string }

func (s *spBPE) encode(text string, _ bool, ids []int) []int {
	text = s.norm.apply(text)
	var symbols []spSymbol
	for at := 0; at < len(text); {
		length, _ := s.norm.user.longest(text[at:])
		frozen := length > 0
		if !frozen {
			_, length = utf8.DecodeRuneInString(text[at:])
		}
		n := int32(len(symbols))
		symbols = append(symbols, spSymbol{int32(at), int32(at + length), n - 1, n + 1, frozen})
		at += length
	}
	var queue spQueue
	unused := map[string]unusedJoin{}
	offer := func(left, right int32) {
		if left < 0 || int(right) >= len(symbols) || symbols[left].frozen || symbols[right].frozen {
			return
		}
		start, middle, end := symbols[left].start, symbols[left].end, symbols[right].end
		if id, ok := s.ids[text[start:end]]; ok {
			heap.Push(&queue, spPair{s.pieces[id].score, left, right, start, end})
			if s.pieces[id].kind == pieceUnused {
				unused[text[start:end]] = unusedJoin{text[start:middle], text[middle:end]}
			}
		}
	}
	for i := 1; i < len(symbols); i++ {
		offer(int32(i-1), int32(i))
	}
	for queue.Len() > 0 {
		p := heap.Pop(&queue).(spPair)
		left, right := &symbols[p.left], &symbols[p.right]
		if left.start != p.start || left.next != p.right || right.end != p.end || left.end == left.start ||
			right.end == right.start {
			continue
		}
		left.end, left.next = right.end, right.next
		right.start = right.end
		if int(left.next) < len(symbols) {
			symbols[left.next].prev = p.left
		}
		offer(left.prev, p.left)
		offer(p.left, left.next)
	}
	unknownBefore := false
	for i := 0; i < len(symbols); i = int(symbols[i].next) {
		ids, unknownBefore = s.emit(text[symbols[i].start:symbols[i].end], unused, unknownBefore, ids)
	}
	return ids
}

// emit appends one symbol: its id, its parts if it is an unused piece, its bytes, or one unknown token for a run of
// unknown symbols.
func (s *spBPE) emit(piece string, unused map[string]unusedJoin, unknownBefore bool, ids []int) ([]int, bool) {
	id, ok := s.ids[piece]
	if ok && s.pieces[id].kind == pieceUnused {
		if parts, made := unused[piece]; made {
			ids, unknownBefore = s.emit(parts.left, unused, unknownBefore, ids)
			return s.emit(parts.right, unused, unknownBefore, ids)
		}
	}
	switch {
	case ok:
		return append(ids, int(id)), false
	case s.bytes != nil:
		for i := range len(piece) {
			ids = append(ids, int(s.bytes[piece[i]]))
		}
		return ids, true
	case unknownBefore:
		return ids, true
	}
	return append(ids, s.unknown), true
}
