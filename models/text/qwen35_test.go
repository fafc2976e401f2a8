package text_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// qwen35Case is one entry of qwen35/text.json.
type qwen35Case struct {
	IDs      []any
	Pictures [][2]int
	Runs     map[string]struct {
		Sample      bool `json:"do_sample"`
		Most        int  `json:"max_length"`
		Temperature float64
		TopK        int     `json:"top_k"`
		TopP        float64 `json:"top_p"`
		MinP        float64 `json:"min_p"`
		Repetition  float64 `json:"repetition_penalty"`
		Presence    float64 `json:"presence_penalty"`
		Seed        uint64
		IDs         []int
	}
}

// TestQwen35 compares small Qwen3.5s with ComfyUI's: what they see of pictures, the states of prompts (of two tokens,
// fewer than the convolution has taps, and of more than the 64 that ComfyUI computes at once), and the tokens that they
// write, the likeliest and sampled ones. One has an output matrix of its own, and the other more heads of values than
// of keys.
func TestQwen35(t *testing.T) {
	f, err := golden.Open("qwen35/text.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var cases map[string]qwen35Case
	if err := golden.JSON("qwen35/text.json", &cases); err != nil {
		t.Fatal(err)
	}
	for name, ops := range backends(t) {
		for _, model := range []string{"qwen35-a", "qwen35-b"} {
			set, _, err := goldenweights.Set(model)
			if err != nil {
				t.Fatal(err)
			}
			if got := text.Find(set); len(got) != 1 || got[0].Kind != "qwen35" {
				t.Fatalf("%s holds %v", model, got)
			}
			m, err := text.OpenPart(ops, "qwen35", set, nil, 0, 1, 0)
			if err != nil {
				t.Fatal(err)
			}
			if len(m.Unused()) > 0 {
				t.Errorf("%s: unknown tensors %v", model, m.Unused())
			}
			head, err := text.OpenHead(ops, set)
			if err != nil {
				t.Fatal(err)
			}
			var eyes text.VisionTower
			if model == "qwen35-b" {
				if eyes, err = text.OpenVisionTower(ops, set, nil, 0); err != nil {
					t.Fatal(err)
				}
				defer eyes.Close()
			}
			for key, c := range cases {
				if !strings.HasPrefix(key, model) {
					continue
				}
				form := text.Form{}
				var chunk []tokenizer.Token
				for _, id := range c.IDs {
					if n, ok := id.(float64); ok {
						chunk = append(chunk, tokenizer.Token{ID: int(n), Weight: 1})
						continue
					}
					i := len(form.Pictures)
					p := text.Picture{Y: c.Pictures[i][0], X: c.Pictures[i][1]}
					p.Data = golden.Fill(fmt.Sprintf("input:%s/picture.%d/%dx%d", model, i, p.Y, p.X), p.Y*p.X*3, 1, 0.5)
					rows, y, x, err := eyes.See(env(t, ops), p)
					if err != nil {
						t.Fatal(err)
					}
					part := fmt.Sprintf("%s#vision.%d", key, i)
					compare(t, name+" "+part, slices.Concat(rows...), values(t, f, part), tolerance)
					for _, row := range rows {
						chunk = append(chunk, tokenizer.Token{Vector: row, Weight: 1})
					}
					form.Pictures = append(form.Pictures, [2]int{y, x})
				}
				got, err := m.Encode(env(t, ops), [][]tokenizer.Token{chunk}, form)
				if err != nil {
					t.Fatal(err)
				}
				compare(t, name+" "+key+"#states", got.Context.Data, values(t, f, key+"#states"), tolerance)
				for run, r := range c.Runs {
					d := text.Sampling{
						MaxTokens: r.Most, Greedy: !r.Sample, TopK: r.TopK, Temperature: r.Temperature, MinP: r.MinP, TopP: r.TopP,
						Repetition: r.Repetition, Presence: r.Presence, Seed: r.Seed,
					}
					ids, err := m.(*text.LM).Generate(env(t, ops), head, chunk, form, d)
					if err != nil || !slices.Equal(ids, r.IDs) {
						t.Errorf("%s %s %s: got %v, %v, want %v", name, key, run, ids, err, r.IDs)
					}
				}
			}
			head.Close()
			m.Close()
		}
	}
}

// TestQwen35InBatches checks that chunks of one length, which are encoded at once, do not see each other.
func TestQwen35InBatches(t *testing.T) {
	set, _, err := goldenweights.Set("qwen35-a")
	if err != nil {
		t.Fatal(err)
	}
	ops, name := fastest(backends(t))
	m, err := text.OpenPart(ops, "qwen35", set, nil, 0, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	encode := func(chunks ...[]tokenizer.Token) []float32 {
		got, err := m.Encode(env(t, ops), chunks, text.Form{})
		if err != nil {
			t.Fatal(err)
		}
		return got.Context.Data
	}
	one := []tokenizer.Token{{ID: 5, Weight: 1}, {ID: 70, Weight: 1}, {ID: 900, Weight: 1}}
	two := []tokenizer.Token{{ID: 6, Weight: 1}, {ID: 7, Weight: 1}, {ID: 8000, Weight: 1}}
	compare(t, name, encode(one, two), slices.Concat(encode(one), encode(two)), tolerance)
}
