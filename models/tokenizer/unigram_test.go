package tokenizer

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestTrieAgainstMap(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	word := func(longest int) string {
		b := make([]byte, random.IntN(longest+1))
		for i := range b {
			b[i] = "abc\xe2\xff"[random.IntN(5)]
		}
		return string(b)
	}
	for range 50 {
		pieces := map[string]int32{}
		var entries []vocabEntry
		for id := range int32(60) {
			w := word(6)
			pieces[w] = id
			entries = append(entries, vocabEntry{w, id})
		}
		delete(pieces, "")
		built := buildTrie(entries)
		for range 200 {
			text := word(12)
			want, wantID := 0, int32(0)
			for n := 1; n <= len(text); n++ {
				if id, ok := pieces[text[:n]]; ok {
					want, wantID = n, id
				}
			}
			if n, id := built.longest(text); n != want || n > 0 && id != wantID {
				t.Fatalf("longest(%q) = %d, id %d; want %d, id %d", text, n, id, want, wantID)
			}
		}
	}
}

// bestScore returns the score of the best segmentation by definition, by trying every cut.
func bestScore(text string, pieces map[string]float64, unknown float64) float64 {
	if text == "" {
		return 0
	}
	best := math.Inf(-1)
	if _, ok := pieces[text[:1]]; !ok {
		best = unknown + bestScore(text[1:], pieces, unknown)
	}
	for n := 1; n <= len(text); n++ {
		if score, ok := pieces[text[:n]]; ok {
			best = max(best, score+bestScore(text[n:], pieces, unknown))
		}
	}
	return best
}

func TestUnigramFindsTheBestCut(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		pieces := []scoredPiece{{"<unk>", 0, pieceNormal}}
		table, lowest := map[string]float64{}, 0.0
		for len(pieces) < 12 {
			b := make([]byte, 1+random.IntN(4))
			for i := range b {
				b[i] = "abcd"[random.IntN(3)]
			}
			if _, twice := table[string(b)]; twice {
				continue
			}
			score := -8 * random.Float64()
			table[string(b)], lowest = score, min(lowest, score)
			pieces = append(pieces, scoredPiece{string(b), score, pieceNormal})
		}
		u, err := newUnigram(pieces, 0)
		if err != nil {
			t.Fatal(err)
		}
		text := make([]byte, random.IntN(11))
		for i := range text {
			text[i] = "abcd"[random.IntN(4)]
		}
		cells := u.best(string(text))
		ids := u.collect(string(text), nil, cells)
		want := bestScore(string(text), table, lowest-unknownPenalty)
		if got := cells[len(text)].score; len(text) > 0 && !(math.Abs(got-want) <= 1e-9) {
			t.Fatalf("%q with %v: score %v, want %v", text, table, got, want)
		}
		if !strings.Contains(string(text), "d") {
			continue
		}
		for i := 1; i < len(ids); i++ {
			if ids[i] == 0 && ids[i-1] == 0 {
				t.Fatalf("%q: unknown tokens side by side in %v", text, ids)
			}
		}
	}
}

func TestUnigramUnknownAndBytes(t *testing.T) {
	pieces := []scoredPiece{{"<unk>", 0, pieceNormal}, {"▁", -1, pieceNormal}, {"a", -1, pieceNormal}}
	for b := range 256 {
		name := "<0x" + strings.ToUpper(string("0123456789abcdef"[b>>4])+string("0123456789abcdef"[b&15])) + ">"
		pieces = append(pieces, scoredPiece{name, -20, pieceNormal})
	}
	u, err := newUnigram(pieces, 0)
	if err != nil {
		t.Fatal(err)
	}
	if ids := u.segment("aé√a", nil); !slices.Equal(ids, []int{2, 0, 2}) {
		t.Errorf("without byte pieces: %v, want one unknown token between two a", ids)
	}
	ids, err := pieceIDs(pieces)
	if err != nil {
		t.Fatal(err)
	}
	u.bytes = byteTable(func(s string) (int32, bool) { id, ok := ids[s]; return id, ok })
	if ids := u.segment("aéa", nil); !slices.Equal(ids, []int{2, 3 + 0xc3, 3 + 0xa9, 2}) {
		t.Errorf("with byte pieces: %v, want the two bytes of é", ids)
	}
	if _, err := newUnigram(pieces, len(pieces)); err == nil {
		t.Error("an unk_id outside the vocabulary was accepted")
	}
}
