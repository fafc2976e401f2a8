package tokenizer

import "sort"

// trie finds all pieces that begin at a byte position. Nodes are in breadth-first order, so the children of a node are
// adjacent, sorted by label: 12 bytes a node, no pointers.
type trie struct {
	nodes []trieNode
}

type trieNode struct {
	first int32 // index of the first child
	id    int32 // id of the piece that ends here, or None
	count uint16
	label byte
}

// entry is one piece of a trie.
type vocabEntry struct {
	piece string
	id    int32
}

// buildTrie sorts entries in place. Of equal pieces the last one wins; empty pieces are ignored.
func buildTrie(entries []vocabEntry) *trie {
	sort.SliceStable(entries, func(i, j int) bool { return entries[i].piece < entries[j].piece })
	type span struct{ lo, hi, depth int32 }
	t := &trie{nodes: []trieNode{{id: None}}}
	spans := []span{{0, int32(len(entries)), 0}}
	for at := 0; at < len(t.nodes); at++ {
		s := spans[at]
		for s.lo < s.hi && len(entries[s.lo].piece) == int(s.depth) {
			if s.depth > 0 {
				t.nodes[at].id = entries[s.lo].id
			}
			s.lo++
		}
		t.nodes[at].first = int32(len(t.nodes))
		for s.lo < s.hi {
			label := entries[s.lo].piece[s.depth]
			end := s.lo + 1
			for end < s.hi && entries[end].piece[s.depth] == label {
				end++
			}
			t.nodes = append(t.nodes, trieNode{id: None, label: label})
			spans = append(spans, span{s.lo, end, s.depth + 1})
			t.nodes[at].count++
			s.lo = end
		}
	}
	return t
}

// next returns the child of node reached by label, or -1.
func (t *trie) next(node int32, label byte) int32 {
	n := &t.nodes[node]
	lo, hi := n.first, n.first+int32(n.count)
	for lo < hi {
		mid := (lo + hi) / 2
		if t.nodes[mid].label < label {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < n.first+int32(n.count) && t.nodes[lo].label == label {
		return lo
	}
	return -1
}

// longest returns the length in bytes and the id of the longest piece that is a prefix of text; length 0 if none is.
func (t *trie) longest(text string) (length int, id int32) {
	node := int32(0)
	for i := 0; i < len(text); i++ {
		if node = t.next(node, text[i]); node < 0 {
			break
		}
		if found := t.nodes[node].id; found != None {
			length, id = i+1, found
		}
	}
	return length, id
}
