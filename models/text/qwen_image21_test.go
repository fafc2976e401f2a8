package text_test

import (
	"fmt"
	"slices"
	"testing"

	"patchbay/models/qwenimage21"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// TestQwenImage21 compares a small Qwen3-VL as Qwen-Image-2.1 reads it with ComfyUI's classes: what it sees of
// pictures, the states of prompts from the user's turn on, and those without the pictures' tokens, which leave slots.
func TestQwenImage21(t *testing.T) {
	const model = "q21-qwen3vl-a"
	f, err := golden.Open("qwen21/text.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var cases map[string]struct {
		IDs         []any
		First       int   `json:"first_kept_row"`
		Slots       []int `json:"image_slots"`
		Pictures    [][]int
		Cond, Spans any
	}
	if err := golden.JSON("qwen21/text.json", &cases); err != nil {
		t.Fatal(err)
	}
	set, _, err := goldenweights.Set(model)
	if err != nil {
		t.Fatal(err)
	}
	reader := qwenimage21.Family().Text
	as, _ := reader.Encoder("qwen3vl_8b")
	for name, ops := range backends(t) {
		eyes, err := text.OpenVisionTower(ops, set, []byte(`{"vision": {"deepstack_visual_indexes": [0, 2, 3]}}`), 0)
		if err != nil {
			t.Fatal(err)
		}
		m, err := text.OpenPart(ops, "qwen3vl_8b", set, nil, 0, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		for key, c := range cases {
			form, picture := as.Form, 0
			var chunk []tokenizer.Token
			for _, id := range c.IDs {
				if n, ok := id.(float64); ok {
					chunk = append(chunk, tokenizer.Token{ID: int(n), Weight: 1})
					continue
				}
				p := text.Picture{Y: c.Pictures[picture][1], X: c.Pictures[picture][2]}
				p.Data = golden.Fill(fmt.Sprintf("input:%s/picture%c.%d/%dx%d", model, key[len(key)-1], picture, p.Y, p.X),
					p.Y*p.X*3, 1, 0.5)
				rows, y, x, err := eyes.See(env(t, ops), p)
				if err != nil {
					t.Fatal(err)
				}
				for k := range 4 {
					part := fmt.Sprintf("%s#vision.%d", key, picture)
					if k > 0 {
						part = fmt.Sprintf("%s#deepstack.%d.%d", key, picture, k-1)
					}
					var got []float32
					for _, row := range rows {
						got = append(got, row[k*16:(k+1)*16]...)
					}
					compare(t, name+" "+part, got, values(t, f, part), tolerance)
				}
				for _, row := range rows {
					chunk = append(chunk, tokenizer.Token{Vector: row, Weight: 1})
				}
				form.Pictures, picture = append(form.Pictures, [2]int{y, x}), picture+1
			}
			got, err := m.Encode(env(t, ops), [][]tokenizer.Token{chunk}, form)
			if err != nil {
				t.Fatal(err)
			}
			compare(t, name+" "+key+"#all_rows", got.Context.Data, values(t, f, key+"#all_rows")[16*c.First:], tolerance)
			bare := got.WithoutPictures(chunk, form.Pictures)
			compare(t, name+" "+key+"#cond", bare.Context.Data, values(t, f, key+"#cond"), tolerance)
			if !slices.Equal(bare.Slots, c.Slots) || bare.Context.Rows != len(bare.Valid) {
				t.Errorf("%s %s: slots %v, want %v; %d rows, %d of them judged", name, key, bare.Slots, c.Slots, bare.Context.Rows,
					len(bare.Valid))
			}
		}
		eyes.Close()
		m.Close()
	}
}
