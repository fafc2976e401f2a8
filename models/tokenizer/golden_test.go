package tokenizer

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"patchbay/tests/golden"
	"patchbay/tests/race"
)

// vocabulary opens one of the vocabularies that are not in the repository. Without it, the test is skipped with a hint.
func vocabulary(tb testing.TB, name string) *Tokenizer {
	tb.Helper()
	dir := os.Getenv("PATCHBAY_TEST_TOKENIZERS")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "tokenizers")
	}
	t, place, err := Find(name, filepath.Join(dir, name))
	if err != nil && place == "" {
		tb.Skipf("NOT RUN: %v\nset PATCHBAY_TEST_TOKENIZERS to the folder that holds clip, t5 and qwen2.5", err)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

// goldenTokens is one tokenizer's result in tokens.json.
type goldenTokens struct {
	IDs     [][]int     `json:"ids"`
	Weights [][]float64 `json:"weights"`
	Raises  string      `json:"raises"`
}

// goldenCases reads tests/golden/tokens.json: case name -> member -> JSON.
func goldenCases(tb testing.TB) map[string]map[string]json.RawMessage {
	tb.Helper()
	var cases map[string]map[string]json.RawMessage
	if err := golden.JSON("tokens.json", &cases); err != nil {
		tb.Fatal(err)
	}
	return cases
}

func member[T any](tb testing.TB, c map[string]json.RawMessage, name string) (v T) {
	tb.Helper()
	if err := json.Unmarshal(c[name], &v); err != nil {
		tb.Fatalf("member %s: %v", name, err)
	}
	return v
}

// promptCases returns the names p00, p01 ... in order.
func promptCases(cases map[string]map[string]json.RawMessage) (names []string) {
	for name := range cases {
		if name[0] == 'p' {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	return names
}

// comparePrompt reports the first place where a prompt differs from the golden answer.
func comparePrompt(got Prompt, err error, want goldenTokens) error {
	if want.Raises != "" {
		if err == nil {
			return fmt.Errorf("no error, want one (ComfyUI raises %s)", want.Raises)
		}
		return nil
	}
	if err != nil {
		return err
	}
	if len(got.Chunks) != len(want.IDs) {
		return fmt.Errorf("%d chunks, want %d", len(got.Chunks), len(want.IDs))
	}
	for c, chunk := range got.Chunks {
		ids, weights := make([]int, len(chunk)), make([]float32, len(chunk))
		for i, t := range chunk {
			ids[i], weights[i] = t.ID, t.Weight
		}
		if i := firstDifference(ids, want.IDs[c]); i >= 0 {
			return fmt.Errorf("chunk %d: %d ids, want %d; first bad index %d\n got %v\nwant %v", c, len(ids), len(want.IDs[c]),
				i, ids, want.IDs[c])
		}
		for i, w := range weights {
			expected := float32(1)
			if want.Weights != nil {
				expected = float32(want.Weights[c][i])
			}
			if w != expected {
				return fmt.Errorf("chunk %d: weight %d is %v, want %v", c, i, w, expected)
			}
		}
	}
	return nil
}

// firstDifference returns the first index at which a and b differ, -1 if they are equal.
func firstDifference(a, b []int) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	if len(a) != len(b) {
		return min(len(a), len(b))
	}
	return -1
}

func TestGoldenPrompts(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: one goroutine computes")
	}
	for _, use := range []struct {
		member, vocabulary string
		layout             Layout
	}{
		{"clip_l", "clip", CLIPL()},
		{"clip_g", "clip", CLIPG()},
		{"t5_flux_min256", "t5", t5Flux()},
		{"t5_sd3_min77", "t5", t5SD3()},
		{"t5_pixart_min1", "t5", t5PixArt()},
		{"qwen_image", "qwen2.5", qwenImage()},
		{"z_image", "qwen2.5", zImage()},
	} {
		t.Run(use.member, func(t *testing.T) {
			tok := vocabulary(t, use.vocabulary)
			cases := goldenCases(t)
			for _, name := range promptCases(cases) {
				text := member[string](t, cases[name], "text")
				got, err := use.layout.Prompt(tok, text, nil)
				if err := comparePrompt(got, err, member[goldenTokens](t, cases[name], use.member)); err != nil {
					t.Errorf("%s %.80q: %v", name, text, err)
				}
			}
		})
	}
}

// TestKrea2Prompts compares prompts with ComfyUI's in the template that Krea 2 shares with Qwen-Image.
func TestKrea2Prompts(t *testing.T) {
	tok := vocabulary(t, "qwen2.5")
	var cases map[string]map[string]json.RawMessage
	if err := golden.JSON("modern/tokens.json", &cases); err != nil {
		t.Fatal(err)
	}
	ran := 0
	for name, c := range cases {
		if _, ok := c["krea2"]; !ok {
			continue
		}
		ran++
		got, err := Describing("qwen3vl_4b").Prompt(tok, member[string](t, c, "text"), nil)
		if err := comparePrompt(got, err, goldenTokens{IDs: [][]int{member[[]int](t, c, "krea2")}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if ran != 6 {
		t.Errorf("%d prompts ran, want the 6 that are recorded", ran)
	}
}

// TestKleinPrompts compares the prompts of FLUX.2-klein, for which only the number of trailing pads was recorded.
func TestKleinPrompts(t *testing.T) {
	tok := vocabulary(t, "qwen2.5")
	var cases map[string]map[string]json.RawMessage
	if err := golden.JSON("modern/tokens.json", &cases); err != nil {
		t.Fatal(err)
	}
	ran := 0
	for name, c := range cases {
		if _, ok := c["klein"]; !ok {
			continue
		}
		ran++
		want := member[struct {
			IDs   []int `json:"ids_without_end_padding"`
			Total int
		}](t, c, "klein")
		for len(want.IDs) < want.Total {
			want.IDs = append(want.IDs, 151643)
		}
		got, err := klein().Prompt(tok, member[string](t, c, "text"), nil)
		if err := comparePrompt(got, err, goldenTokens{IDs: [][]int{want.IDs}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if ran != 6 {
		t.Errorf("%d prompts ran, want the 6 that are recorded", ran)
	}
}

// TestTekken compares the ids that a small vocabulary in Mistral's format gives with and without FLUX.2-dev's template:
// special tokens typed as text, pieces beyond the vocabulary's size, digits, emoji.
func TestTekken(t *testing.T) {
	var cases map[string]map[string]json.RawMessage
	if err := golden.JSON("modern/tokens.json", &cases); err != nil {
		t.Fatal(err)
	}
	tok, err := FromBytes("tekken.json", []byte(member[string](t, cases["tekken_synthetic"], "json")))
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for name, c := range cases {
		if !strings.HasPrefix(name, "flux2_synthetic/") {
			continue
		}
		ran++
		text := member[string](t, c, "text")
		got, err := mistral().Prompt(tok, text, nil)
		if err := comparePrompt(got, err, goldenTokens{IDs: member[[][]int](t, c, "ids")}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, want := append([]int{1}, tok.Encode(text)...), member[[]int](t, c, "plain"); !slices.Equal(got, want) {
			t.Errorf("%s plain: got %v, want %v", name, got, want)
		}
	}
	if ran != 6 {
		t.Errorf("%d prompts ran, want the 6 that are recorded", ran)
	}
	for text, want := range map[string]string{
		`[`: "tekken.json", `{}`: "no pieces", `{"config": {"default_vocab_size": 9}, "vocab": [{"rank": -1}]}`: "rank -1",
		`{"config": {"default_vocab_size": 9}, "vocab": [{"rank": 1, "token_bytes": "YQ=="}]}`: "single bytes",
	} {
		if _, err := FromTekken([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", text, err, want)
		}
	}
}

// TestGoldenPileT5AndBERT needs vocabularies that are rarely available (folders pile-t5 and hunyuan-bert). Without them
// it is skipped, and only the small vocabularies of testdata check these two kinds.
func TestGoldenPileT5AndBERT(t *testing.T) {
	for _, use := range []struct {
		member, vocabulary string
		layout             Layout
	}{
		{"hunyuandit_bert_min77_max512", "hunyuan-bert", BERT("chinese_roberta")},
		{"auraflow_pile_t5_min256", "pile-t5", pileT5()},
	} {
		t.Run(use.member, func(t *testing.T) {
			tok := vocabulary(t, use.vocabulary)
			cases := goldenCases(t)
			for _, name := range promptCases(cases) {
				text := member[string](t, cases[name], "text")
				got, err := use.layout.Prompt(tok, text, nil)
				if err := comparePrompt(got, err, member[goldenTokens](t, cases[name], use.member)); err != nil {
					t.Errorf("%s %.80q: %v", name, text, err)
				}
			}
		})
	}
}

func TestGoldenRaw(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: one goroutine computes")
	}
	for _, use := range []struct{ member, vocabulary string }{
		{"clip_slow_as_used", "clip"},
		{"t5_tokenizers_library", "t5"},
	} {
		t.Run(use.member, func(t *testing.T) {
			tok := vocabulary(t, use.vocabulary)
			cases := goldenCases(t)
			for _, name := range promptCases(cases) {
				text := member[string](t, cases[name], "text")
				want := member[map[string][]int](t, cases[name], "raw")[use.member]
				got := tok.EncodeWithEnds(text)
				if i := firstDifference(got, want); i >= 0 {
					t.Errorf("%s %.80q: first bad index %d\n got %v\nwant %v", name, text, i, got, want)
				}
			}
		})
	}
}

func TestGoldenT5Options(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: one goroutine computes")
	}
	tok := vocabulary(t, "t5")
	cases := goldenCases(t)
	for _, name := range []string{"t5_options/0", "t5_options/1"} {
		options := member[map[string]int](t, cases[name], "tokenizer_options")
		text := member[string](t, cases[name], "text")
		for use, layout := range map[string]Layout{"flux": t5Flux(), "pixart": t5PixArt()} {
			got, err := layout.WithOptions(options).Prompt(tok, text, nil)
			if err := comparePrompt(got, err, member[goldenTokens](t, cases[name], use)); err != nil {
				t.Errorf("%s %s: %v", name, use, err)
			}
		}
	}
}

func TestGoldenWeights(t *testing.T) {
	cases := goldenCases(t)["weights_only"]
	if len(cases) < 30 {
		t.Fatalf("only %d cases", len(cases))
	}
	for text := range cases {
		want := member[[][2]any](t, cases, text)
		got, err := Segments(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		var pairs [][2]any
		for _, s := range got {
			pairs = append(pairs, [2]any{hideEscapes(s.Text), s.Weight})
		}
		for i := range want {
			want[i][0] = hideEscapes(showEscapes(want[i][0].(string)))
		}
		if !slices.Equal(pairs, want) {
			t.Errorf("%q:\n got %q\nwant %q", text, pairs, want)
		}
	}
}

// TestAnalysingPrompts compares the prompts of Qwen-Image-2.1, one of them with a template of its own.
func TestAnalysingPrompts(t *testing.T) {
	tok := vocabulary(t, "qwen2.5")
	var cases map[string]map[string]json.RawMessage
	if err := golden.JSON("qwen21/tokens.json", &cases); err != nil {
		t.Fatal(err)
	}
	ran := 0
	for name, c := range cases {
		if strings.HasPrefix(name, "edit/") {
			continue
		}
		ran++
		got, err := Analysing("qwen3vl_8b").Prompt(tok, member[string](t, c, "text"), nil)
		if err := comparePrompt(got, err, goldenTokens{IDs: [][]int{member[[]int](t, c, "ids")}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if ran != 6 {
		t.Errorf("%d prompts ran, want the 6 that are recorded", ran)
	}
}

// TestPieces compares texts that are tokenized apart, with pictures between them: what MiniMax-H3's prompts refer to
// stands in front of them. "embedding:" is not parsed where it was recorded.
func TestPieces(t *testing.T) {
	tok := vocabulary(t, "qwen2.5")
	var cases map[string]struct {
		Text string
		IDs  []any
	}
	if err := golden.JSON("h3/tokens.json", &cases); err != nil {
		t.Fatal(err)
	}
	const seen, video = "<|vision_start|><|image_pad|><|vision_end|>", "<0.2 seconds>"
	before := map[string][]string{
		"fl2va/0": {"<Picture 1>: ", seen},
		"fl2va/1": {"<Picture 1>: ", seen, "<Picture 2>: ", seen},
		"ref2va/0": {
			"<Picture 1>: ", seen, "<Audio 1>: ", "<Video 1>: ", video, seen, "<1.0 seconds>", seen, "<Picture 2>: ", seen,
			"<Audio 2>: ",
		},
		"ref2va/1": {"<Video 1>: ", video, seen, "<1.0 seconds>", seen},
	}
	l := Chat("qwen3vl_32b", "", 151643)
	l.Embeddings = false
	for name, c := range cases {
		var want []int
		for _, id := range c.IDs {
			n, ok := id.(float64)
			if !ok {
				n = 151655 // the place of a picture
			}
			want = append(want, int(n))
		}
		got, err := l.Pieces(tok, append(before[name], c.Text), nil)
		if err := comparePrompt(got, err, goldenTokens{IDs: [][]int{want}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		delete(before, name)
	}
	if len(before) > 0 {
		t.Errorf("not recorded: %v", before)
	}
}
