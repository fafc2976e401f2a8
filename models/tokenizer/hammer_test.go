package tokenizer

import (
	"fmt"
	"strings"
	"testing"

	"patchbay/tests/hammer"
	"patchbay/tests/race"
)

// jsonTarget checks that a corrupted tokenizer.json is refused or gives a vocabulary that encodes to valid ids. Reading
// it and encoding with it must take memory in proportion to the file.
func jsonTarget() *hammer.Target[*Tokenizer] {
	unigram := `{"model":{"type":"Unigram","unk_id":0,"vocab":[["u",0],["a",-1],["▁a",-2],["aa",-3]]},
		"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"},
		"normalizer":{"type":"Sequence","normalizers":[{"type":"Precompiled","precompiled_charsmap":"BAAAAAAAAABh"},
		{"type":"Strip"},{"type":"Replace","pattern":{"Regex":" {2,}"},"content":"▁"}]},
		"added_tokens":[{"id":4,"content":"</s>","lstrip":true,"rstrip":true,"single_word":true,"normalized":true}],
		"post_processor":{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A"}},{"SpecialToken":{"id":"</s>"}}]}}`
	bpe := `{"model":{"type":"BPE","end_of_word_suffix":"</w>","vocab":{"<|startoftext|>":0,"<|endoftext|>":1,"a":2,
		"a</w>":3,"aa</w>":4,"aa":5},"merges":["a a</w>",["a","a"]]},
		"post_processor":{"type":"RobertaProcessing","cls":["<|startoftext|>",0],"sep":["<|endoftext|>",1]}}`
	nested := `{"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"normalizer":` +
		strings.Repeat(`{"type":"Sequence","normalizers":[`, 60) + strings.Repeat(`]}`, 60) + `}`
	return &hammer.Target[*Tokenizer]{
		Name:  "FuzzFromJSON",
		Seeds: []hammer.Input{{Data: []byte(unigram)}, {Data: []byte(bpe)}, {Data: []byte(nested)}},
		Parse: func(in hammer.Input) (*Tokenizer, error) {
			t, err := FromJSON(in.Data)
			if err == nil {
				t.EncodeWithEnds("aaaa  <|endoftext|></s> \x00\xff é 一")
			}
			return t, err
		},
		Bound: func(in hammer.Input) int64 { return 4<<20 + 4096*int64(len(in.Data)) },
		Check: func(_ hammer.Input, t *Tokenizer, refused error) error {
			if (t == nil) != (refused != nil) {
				return fmt.Errorf("a tokenizer %v and the error %w", t != nil, refused)
			}
			if refused != nil {
				return nil
			}
			for _, id := range t.EncodeWithEnds("a red heart aaaa") {
				if id < 0 || id >= t.Size {
					return fmt.Errorf("id %d of %d", id, t.Size)
				}
			}
			return nil
		},
	}
}

func TestHammeredJSON(t *testing.T) { jsonTarget().Run(t, hammer.Runs/4) }

// TestLongWords checks that the time to encode a word of n letters grows like n log n, not n^2, whatever the merges
// are, with words of a million letters.
func TestLongWords(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: one goroutine computes")
	}
	for name, file := range map[string]string{
		"bpe": `{"model":{"type":"BPE","end_of_word_suffix":"</w>","vocab":{"<|startoftext|>":0,"<|endoftext|>":1,"a":2,
			"a</w>":3,"aa":4,"aaaa":5},"merges":["a a","aa aa"]}}`,
		"unigram": `{"model":{"type":"Unigram","unk_id":0,"vocab":[["u",0],["a",-1],["▁a",-2],["aa",-3]]},
			"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"}}`,
	} {
		tok, err := FromJSON([]byte(file))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if ids := tok.EncodeWithEnds(strings.Repeat("a", 1<<20)); len(ids) < 1<<18 {
			t.Errorf("%s: %d ids for a million letters", name, len(ids))
		}
	}
}
