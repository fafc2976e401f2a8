package text_test

import (
	"slices"
	"testing"

	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// TestCutQwen compares a small Qwen3-VL-32B, cut and without a final norm, with ComfyUI's class: the last states of
// bare prompts, also of the empty one, which is a pad that nothing masks; a first frame; and pictures of a video, two
// in each patch. The tokens of a picture and those around it have the tag 0.
func TestCutQwen(t *testing.T) {
	const model = "h3te-a"
	f, err := golden.Open("h3/text.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var recorded map[string]struct {
		Tags []int `json:"token_tags"`
	}
	if err := golden.JSON("h3/text.json", &recorded); err != nil {
		t.Fatal(err)
	}
	set, _, err := goldenweights.Set(model)
	if err != nil {
		t.Fatal(err)
	}
	if found := text.Find(set); len(found) != 1 || found[0].Kind != "qwen3vl_32b" {
		t.Fatalf("the file holds %v, want a qwen3vl_32b", found)
	}
	picture := text.Picture{Y: 64, X: 96, Data: golden.Fill("input:h3/picture/"+model+"/64x96", 64*96*3, 1, 0.5)}
	const frame = 64 * 32 * 3
	video := golden.Fill("input:h3/picture/"+model+"/video", 3*frame, 1, 0.5)
	pair := text.Picture{Y: 96, X: 64, Data: append(resized(video[:frame]), resized(video[frame:2*frame])...)}
	last := text.Picture{Y: 96, X: 64, Data: resized(video[2*frame:])}
	label := []any{21604, 3826, 220, 16, 26818, 220} // <Picture 1>:
	// what our tokenizer, which has tests of its own, makes of the texts with the public vocabulary
	cases := map[string][]any{
		"t2va/0": {64, 8251, 22479},
		"t2va/1": {151643},
		"t2va/2": {
			10253, 366, 24669, 220, 16, 29, 323, 366, 14755, 220, 16, 29816, 15666, 1555, 11, 320, 13327, 25, 16, 13, 18, 8,
		},
		"t2va/3":      {396, 47172, 26290, 318, 57597, 11448, 25, 508, 36402, 220, 16, 60, 6884, 34381},
		"fl2va/64x96": slices.Concat(label, []any{151652, picture, 151653, 66, 1070}),
		"ref2va": slices.Concat(label, []any{151652, picture, 151653, 65406, 220, 16, 26818, 220}, []any{
			27, 10724, 220, 16, 26818, 220, 27, 15, 13, 17, 6486, 29, 151652, pair, 151653, 27, 16, 13, 15, 6486, 29,
			151652, last, 151653, 3346,
		}),
	}
	if len(cases) != len(recorded) {
		t.Fatalf("%d cases are recorded, %d are compared", len(recorded), len(cases))
	}
	for name, ops := range backends(t) {
		eyes, err := text.OpenVisionTower(ops, set, []byte(`{"vision": {"deepstack_visual_indexes": [0, 2, 3]}}`), 0)
		if err != nil {
			t.Fatal(err)
		}
		m, err := text.OpenPart(ops, "qwen3vl_32b", set, nil, 0, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		for key, ids := range cases {
			var chunk []tokenizer.Token
			var form text.Form
			for _, id := range ids {
				p, ok := id.(text.Picture)
				if !ok {
					chunk = append(chunk, tokenizer.Token{ID: id.(int), Weight: 1})
					continue
				}
				rows, y, x, err := eyes.See(env(t, ops), p)
				if err != nil {
					t.Fatal(err)
				}
				var got []float32
				for _, row := range rows {
					chunk, got = append(chunk, tokenizer.Token{Vector: row, Weight: 1}), append(got, row[:16]...)
				}
				form.Pictures = append(form.Pictures, [2]int{y, x})
				if key == "fl2va/64x96" {
					compare(t, name+" "+key+"#vision", got, values(t, f, model+"/"+key+"#vision"), tolerance)
				}
			}
			got, err := m.Encode(env(t, ops), [][]tokenizer.Token{chunk}, form)
			if err != nil {
				t.Fatal(err)
			}
			want := model + "/" + key
			compare(t, name+" "+want, got.Context.Data, values(t, f, want+"#cond"), tolerance)
			if got = got.Tagged(chunk, form.Pictures); !slices.Equal(got.Tags, recorded[want].Tags) {
				t.Errorf("%s %s: tags %v, want %v", name, want, got.Tags, recorded[want].Tags)
			}
		}
		eyes.Close()
		m.Close()
	}
}

// resized scales a picture of 64 x 32 bilinearly to the least that the encoder takes, 96 x 64.
func resized(v []float32) (out []float32) {
	at := func(i, from, to int) (low, high int, part float32) {
		p := max(0, (float32(i)+0.5)*float32(from)/float32(to)-0.5)
		low = int(p)
		return low, min(low+1, from-1), p - float32(low)
	}
	for y := range 96 {
		top, bottom, dy := at(y, 64, 96)
		for x := range 64 {
			left, right, dx := at(x, 32, 64)
			for c := range 3 {
				p := func(y, x int) float32 { return v[(y*32+x)*3+c] }
				out = append(out, (1-dy)*((1-dx)*p(top, left)+dx*p(top, right))+dy*((1-dx)*p(bottom, left)+dx*p(bottom, right)))
			}
		}
	}
	return out
}

// TestFindQwen3VL checks by which sizes the encoders with this vision tower are told apart: 32B from its width, or
// because a cut file has no final norm.
func TestFindQwen3VL(t *testing.T) {
	for _, c := range []struct {
		width int
		norm  bool
		want  string
	}{
		{5120, false, "qwen3vl_32b"},
		{5120, true, "qwen3vl_32b"},
		{16, false, "qwen3vl_32b"},
		{16, true, "qwen3vl_4b"},
		{4096, false, "qwen3vl_8b"},
		{4096, true, "qwen3vl_8b"},
		{2560, true, "qwen3vl_4b"},
	} {
		set := map[string]weights.Stored{
			"model.embed_tokens.weight":                  weights.Floats(make([]float32, c.width), 1, c.width),
			"model.layers.0.self_attn.q_norm.weight":     weights.Floats(make([]float32, 128), 128),
			"visual.deepstack_merger_list.0.norm.weight": weights.Floats(make([]float32, 4), 4),
		}
		if c.norm {
			set["model.norm.weight"] = weights.Floats(make([]float32, c.width), c.width)
		}
		if found := text.Find(weights.FromMap(set)); len(found) != 1 || found[0].Kind != c.want {
			t.Errorf("width %d, final norm %t: %v, want %s", c.width, c.norm, found, c.want)
		}
	}
}
