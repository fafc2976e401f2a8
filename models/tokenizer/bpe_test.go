package tokenizer

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"patchbay/tests/race"
)

// slowJoin is the published algorithm: find the best pair, join all its occurrences from the left, repeat.
func slowJoin(b *bpe, symbols []int32) []int {
	for {
		best := merge{rank: -1}
		var left, right int32
		for i := 1; i < len(symbols); i++ {
			if m, ok := b.merges[pairKey(symbols[i-1], symbols[i])]; ok && (best.rank < 0 || m.rank < best.rank) {
				best, left, right = m, symbols[i-1], symbols[i]
			}
		}
		if best.rank < 0 {
			break
		}
		var joined []int32
		for i := 0; i < len(symbols); i++ {
			if i+1 < len(symbols) && symbols[i] == left && symbols[i+1] == right {
				joined = append(joined, best.id)
				i++
			} else {
				joined = append(joined, symbols[i])
			}
		}
		symbols = joined
	}
	var ids []int
	for _, s := range symbols {
		ids = append(ids, int(s))
	}
	return ids
}

// TestBPEAgainstDefinition compares with slowJoin on random merge tables. In these, unlike in trained tables, joined
// pieces may have lower ranks than their parts.
func TestBPEAgainstDefinition(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for round := range 300 {
		vocab := map[string]int32{"a": 0, "b": 1, "c": 2}
		names := []string{"a", "b", "c"}
		var pairs []mergePair
		for len(pairs) < 12 {
			p := mergePair{names[random.IntN(len(names))], names[random.IntN(len(names))]}
			joined := p.left + p.right
			if len(joined) > 8 {
				continue
			}
			if _, known := vocab[joined]; !known {
				vocab[joined] = int32(len(names))
				names = append(names, joined)
			}
			pairs = append(pairs, p)
		}
		random.Shuffle(len(pairs), func(i, j int) { pairs[i], pairs[j] = pairs[j], pairs[i] })
		b, err := newBPE(vocab, pairs)
		if err != nil {
			t.Fatal(err)
		}
		j := joiner{symbols: make([]int32, random.IntN(40))}
		for i := range j.symbols {
			j.symbols[i] = int32(random.IntN(3))
		}
		want := slowJoin(b, slices.Clone(j.symbols))
		if got := b.join(&j, None, nil); !slices.Equal(got, want) {
			t.Fatalf("round %d, merges %v:\n got %v\nwant %v", round, pairs, got, want)
		}
	}
}

// TestBPEOfAPairTwice compares with tokenizers 0.23, which cuts "abc" into a, bc by these merges, and into ab, c
// without the last, which repeats the first.
func TestBPEOfAPairTwice(t *testing.T) {
	vocab := map[string]int32{"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4}
	for n, want := range map[int][]int{3: {0, 4}, 2: {3, 2}} {
		b, err := newBPE(vocab, []mergePair{{"a", "b"}, {"b", "c"}, {"a", "b"}}[:n])
		if err != nil {
			t.Fatal(err)
		}
		if got := b.join(&joiner{symbols: []int32{0, 1, 2}}, None, nil); !slices.Equal(got, want) {
			t.Errorf("%d merges give %v, want %v", n, got, want)
		}
	}
}

// TestHugeMergeLists checks that files with more than maxMerges merges of any content, and merges of pieces that the
// vocabulary lacks, are refused with the reason before they take much memory.
func TestHugeMergeLists(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: one goroutine computes")
	}
	const many = maxMerges + 1
	vocab := `{"<|startoftext|>":0,"<|endoftext|>":1,"a":2,"aa":3,"!</w>":4}`
	head := `{"model":{"type":"BPE","end_of_word_suffix":"</w>","vocab":` + vocab + `,"merges":[`
	for name, c := range map[string]struct{ file, data, says string }{
		"a member":     {"tokenizer.json", head + strings.Repeat(`"a a",`, many-1) + `"a a"]}}`, "more than 1048576"},
		"merges.txt":   {"merges.txt", strings.Repeat("a a\n", many), "more than 1048576"},
		"foreign":      {"tokenizer.json", head + `"a a","a zz"]}}`, `merge 1 ("a" "zz") names pieces that are not`},
		"foreign text": {"merges.txt", "a a\na zz\n", `merge 1 ("a" "zz") names pieces that are not`},
		"no number":    {"tokenizer.json", strings.Replace(head, `"aa":3`, `"aa":-3`, 1) + `"a a"]}}`, "-3"},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, c.file)
		for name, data := range map[string]string{c.file: c.data, "vocab.json": vocab} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if c.file == "merges.txt" {
			path = filepath.Join(dir, "vocab.json")
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Open(path)
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error %v, want one that says %q and names %s", name, err, c.says, path)
		}
		if total := after.TotalAlloc - before.TotalAlloc; total > 512<<20 {
			t.Errorf("%s: %d bytes allocated for %d", name, total, len(c.data))
		}
	}
}

func TestBPERefusesForeignMerges(t *testing.T) {
	_, err := newBPE(map[string]int32{"a": 0, "b": 1}, []mergePair{{"a", "b"}})
	if err == nil || !strings.Contains(err.Error(), "not in the vocabulary") {
		t.Errorf("error %v, want one about the vocabulary", err)
	}
}

func TestQwenWords(t *testing.T) {
	for text, want := range map[string][]string{
		"it's  a\n\n b1":  {"it", "'s", " ", " a", "\n\n", " b", "1"},
		"x  \n  y":        {"x", "  \n", " ", " y"},
		" trailing  ":     {" trailing", "  "},
		"!!\nfoo_bar(1)":  {"!!\n", "foo", "_bar", "(", "1", ")"},
		"WE'LL 'ſ\tz":     {"WE", "'LL", " '", "ſ", "\tz"},
		"don'ſ":           {"don", "'ſ"},
		"e\u0301 \u00a0x": {"e", "\u0301", " ", "\u00a0x"},
	} {
		var got []string
		for rest := text; rest != ""; {
			n := qwenWord(rest, 1)
			got = append(got, rest[:n])
			rest = rest[n:]
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q:\n got %q\nwant %q", text, got, want)
		}
	}
}

// TestTekkenWords checks that up to three digits form a word, as in LLaMA 3's pattern (\p{N}{1,3}).
func TestTekkenWords(t *testing.T) {
	var vocab []string
	add := func(piece string) {
		vocab = append(vocab, fmt.Sprintf(`{"rank": %d, "token_bytes": %q}`, len(vocab),
			base64.StdEncoding.EncodeToString([]byte(piece))))
	}
	for b := range 256 {
		add(string([]byte{byte(b)}))
	}
	for _, piece := range []string{"12", "123", "1234", "45"} {
		add(piece)
	}
	tok, err := FromTekken([]byte(`{"config": {"default_vocab_size": 260, "default_num_special_tokens": 0}, "vocab": [` +
		strings.Join(vocab, ",") + "]}"))
	if err != nil {
		t.Fatal(err)
	}
	want := []int{257, 259, '6', '7', 'a', 256}
	if got := tok.Encode("1234567a12"); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestByteRunes(t *testing.T) {
	seen := map[rune]bool{}
	for b := range 256 {
		seen[byteRune(byte(b))] = true
	}
	if len(seen) != 256 || byteRune(' ') != 'Ġ' || byteRune('\n') != 'Ċ' || byteRune('A') != 'A' ||
		byteRune(0xad) != 'Ń' {
		t.Errorf("%d different characters, space %q, newline %q, A %q, 0xad %q", len(seen), byteRune(' '), byteRune('\n'),
			byteRune('A'), byteRune(0xad))
	}
}
