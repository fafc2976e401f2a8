package tokenizer

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"
	"unicode/utf8"
)

// Run the fuzzers with -fuzzminimizetime 1x: by default the engine spends most of a short run on making the large
// seeds smaller, and reports 0 executions a second meanwhile.

// tryVocabulary encodes texts with the tokenizer of a fuzzed file and checks what every vocabulary guarantees.
func tryVocabulary(t *testing.T, tok *Tokenizer, err error) {
	t.Helper()
	if err != nil {
		if tok != nil {
			t.Fatalf("a tokenizer and the error %v", err)
		}
		return
	}
	for _, text := range []string{
		"", "a red heart", "<|endoftext|></s> \x00\xff é 一 👨‍👩‍👧",
		"aaaaaaaaaaaaaaaaaaaa\r\n  b ",
	} {
		ids := tok.EncodeWithEnds(text)
		for i, id := range ids {
			if id < 0 || id >= tok.Size {
				t.Fatalf("%q: id %d at %d, size %d", text, id, i, tok.Size)
			}
		}
	}
}

func seedFile(f *testing.F, names ...string) []byte {
	f.Helper()
	data, err := os.ReadFile(filepath.Join(append([]string{"testdata"}, names...)...))
	if err != nil {
		f.Fatal(err)
	}
	return data
}

func FuzzFromJSON(f *testing.F) {
	f.Add(seedFile(f, "demo_t5.tokenizer.json"))
	f.Add(seedFile(f, "demo_clip.tokenizer.json"))
	f.Add([]byte(`{"model":{"type":"Unigram","unk_id":0,"vocab":[["u",0],["a",-1],["▁a",-1e308]]},
		"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"},
		"normalizer":{"type":"Sequence","normalizers":[{"type":"Precompiled","precompiled_charsmap":"BAAAAAAAAABh"},
		{"type":"Strip"},
		{"type":"Replace","pattern":{"Regex":" {2,}"},"content":"▁"}]},
		"added_tokens":[{"id":2,"content":"</s>","lstrip":true,"rstrip":true,"single_word":true,"normalized":true}],
		"post_processor":{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A"}},{"SpecialToken":{"id":"</s>"}}]}}`))
	f.Add([]byte(`{"model":{"type":"BPE","end_of_word_suffix":"</w>","vocab":{"<|startoftext|>":0,"<|endoftext|>":1,` +
		`"a":2,"a</w>":3,"aa</w>":4},"merges":["a ` +
		`a</w>"]},"post_processor":{"type":"RobertaProcessing","cls":["x",1],"sep":["<|endoftext|>",1]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := FromJSON(data)
		tryVocabulary(t, tok, err)
	})
}

func FuzzFromSentencePiece(f *testing.F) {
	f.Add(seedFile(f, "tiny_unigram.model"))
	f.Add(seedFile(f, "tiny_bpe.model"))
	f.Add([]byte("\n\x0c\n\x03<unk>\x15\x00\x00\x00\x00\x18\x02"))
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := FromSentencePiece(data)
		tryVocabulary(t, tok, err)
	})
}

func FuzzFromVocabMerges(f *testing.F) {
	f.Add(seedFile(f, "tiny_qwen", "vocab.json"), seedFile(f, "tiny_qwen", "merges.txt"),
		seedFile(f, "tiny_qwen", "tokenizer_config.json"))
	f.Add([]byte(`{"<|startoftext|>":0,"<|endoftext|>":1,"!</w>":2,"a":3,"a</w>":4,"aa</w>":5}`),
		[]byte("#version: 0.2\na a</w>\n"), []byte(""))
	f.Fuzz(func(t *testing.T, vocab, merges, config []byte) {
		tok, err := FromVocabMerges(vocab, merges, config)
		tryVocabulary(t, tok, err)
	})
}

func FuzzFromBERTVocab(f *testing.F) {
	f.Add(seedFile(f, "tiny_bert.vocab.txt"))
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := FromBERTVocab(data)
		tryVocabulary(t, tok, err)
	})
}

func FuzzCharsmap(f *testing.F) {
	m, err := parseSPModel(seedFile(f, "tiny_unigram.model"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(m.charsmap, "Bé\u0301 ﬁ…\u200b")
	f.Add(binary.LittleEndian.AppendUint32([]byte{4, 0, 0, 0}, math.MaxUint32), "ab")
	f.Fuzz(func(t *testing.T, data []byte, text string) {
		table, err := parseCharsmap(data)
		if err != nil || table == nil || !utf8.ValidString(text) {
			return
		}
		got := table.normalizeGraphemes(text)
		if !utf8.ValidString(got) || len(got) > (len(text)+1)*longestReplacement {
			t.Fatalf("%q became %d bytes, valid UTF-8: %v", text, len(got), utf8.ValidString(got))
		}
		n := &spNormalizer{table: table, user: buildTrie(nil), space: spaceMark, dummyPrefix: true, dropSpaces: true}
		if got := n.apply(text); !utf8.ValidString(got) {
			t.Fatalf("%q became invalid UTF-8", text)
		}
	})
}

func FuzzPrompt(f *testing.F) {
	for _, text := range []string{
		"", "(a:1.3) ((b)) \\(c\\)", "red embedding:x, (y embedding:two:-1)", ")(()", "(((((",
		"embedding:", "(a:1_0)(b:nan)",
	} {
		f.Add(text)
	}
	clip, err := Open(filepath.Join("testdata", "demo_clip.tokenizer.json"))
	if err != nil {
		f.Fatal(err)
	}
	t5, err := Open(filepath.Join("testdata", "demo_t5.tokenizer.json"))
	if err != nil {
		f.Fatal(err)
	}
	lookup := func(name string) ([][]float32, error) {
		if name == "two" {
			return [][]float32{{1}, {2}}, nil
		}
		return nil, nil
	}
	f.Fuzz(func(t *testing.T, text string) {
		if p, err := CLIPL().Prompt(clip, text, lookup); err == nil {
			for _, n := range lengths(p) {
				if n != 77 {
					t.Fatalf("%q: chunk of %d tokens, want 77", text, n)
				}
			}
		}
		if p, err := t5Flux().Prompt(t5, text, lookup); err == nil && (len(p.Chunks) != 1 || len(p.Chunks[0]) < 256) {
			t.Fatalf("%q: lengths %v, want one of at least 256", text, lengths(p))
		}
	})
}
