package text_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"patchbay/engine/ref"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// TestVision compares a small Qwen2.5-VL with ComfyUI: its rows for two images, one of them of several windows, and its
// states for a prompt with them. Rows are in image order (0.8.0 leaves them in window order).
func TestVision(t *testing.T) {
	f, err := golden.Open("modern/text.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var cases map[string]struct {
		Grid  [][]int
		Order []int `json:"window_order"`
	}
	raw := map[string]json.RawMessage{}
	if err := golden.JSON("modern/text.json", &raw); err != nil {
		t.Fatal(err)
	}
	for key := range raw {
		if !strings.HasPrefix(key, "qwen25vl-a/image/") {
			delete(raw, key)
		}
	}
	only, _ := json.Marshal(raw)
	if err := json.Unmarshal(only, &cases); err != nil || len(cases) != 2 {
		t.Fatalf("%d cases, want 2: %v", len(cases), err)
	}
	set, config, err := goldenweights.Set("qwen25vl-a")
	if err != nil {
		t.Fatal(err)
	}
	for name, ops := range backends(t) {
		eyes, err := text.OpenVisionTower(ops, set, config, 0)
		if err != nil {
			t.Fatal(err)
		}
		m, err := text.OpenPart(ops, "qwen25_7b", set, config, 0, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		for key, c := range cases {
			p := text.Picture{Y: 14 * c.Grid[0][1], X: 14 * c.Grid[0][2]}
			size := strings.TrimPrefix(key, "qwen25vl-a/image/")
			p.Data = golden.Fill("input:qwen25vl-a/picture/"+size, p.Y*p.X*3, 1, 0.5)
			rows, y, x, err := eyes.See(env(t, ops), p)
			if err != nil {
				t.Fatal(err)
			}
			var windows []float32
			for _, at := range c.Order {
				windows = append(windows, rows[at]...)
			}
			compare(t, name+" "+key, windows, values(t, f, key+"#vision"), tolerance)
			var chunk []tokenizer.Token
			for _, id := range editTemplate(t) {
				if id >= 0 {
					chunk = append(chunk, tokenizer.Token{ID: id, Weight: 1})
					continue
				}
				for _, row := range rows {
					chunk = append(chunk, tokenizer.Token{Vector: row, Weight: 1})
				}
			}
			got, err := m.Encode(env(t, ops), [][]tokenizer.Token{chunk},
				text.Form{Chat: true, Pictures: [][2]int{{y, x}}})
			if err != nil {
				t.Fatal(err)
			}
			compare(t, name+" "+key+" states", got.Context.Data, values(t, f, key+"#cond_row_major"), tolerance)
		}
		eyes.Close()
		m.Close()
	}
}

// editTemplate returns the recorded ids of "make it blue" with one image, whose id is -1.
func editTemplate(t *testing.T) (out []int) {
	t.Helper()
	var all map[string]struct{ IDs [][]any }
	if err := golden.JSON("modern/tokens.json", &all); err != nil {
		t.Fatal(err)
	}
	for _, id := range all["edit_template/0"].IDs[0] {
		if n, ok := id.(float64); ok {
			out = append(out, int(n))
		} else {
			out = append(out, -1)
		}
	}
	return out
}

// TestVisionRefusals checks the errors for images and files that do not fit.
func TestVisionRefusals(t *testing.T) {
	set, config, err := goldenweights.Set("qwen25vl-a")
	if err != nil {
		t.Fatal(err)
	}
	blind := map[string]weights.Stored{}
	for _, name := range set.Names() {
		if !strings.HasPrefix(name, "visual.") {
			blind[name], _ = set.Get(name)
		}
	}
	_, err = text.OpenVisionTower(nil, weights.FromMap(blind), config, 0)
	if err == nil || !strings.Contains(err.Error(), "cannot look at pictures") {
		t.Errorf("a file without eyes: got error %v", err)
	}
	if _, err = text.OpenVisionTower(nil, set, []byte(`{"vision": {"num_heads": 5}}`), 0); err == nil ||
		!strings.Contains(err.Error(), "num_heads is 5") {
		t.Errorf("five heads: got error %v", err)
	}
	deep, _, err := goldenweights.Set("krea2-qwen3vl-a")
	if err != nil {
		t.Fatal(err)
	}
	deepConfig := []byte(`{"vision": {"deepstack_visual_indexes": [0, 2, 3]}}`)
	const table = "visual.pos_embed.weight"
	e := deep.Dim(table, 1)
	for _, shape := range [][]int{{0, e}, {5, e}, {4, e - 1}} { // missing, not square, another width
		changed := map[string]weights.Stored{}
		for _, name := range deep.Names() {
			changed[name], _ = deep.Get(name)
		}
		if changed[table] = weights.Floats(make([]float32, shape[0]*shape[1]), shape...); shape[0] == 0 {
			delete(changed, table)
		}
		eyes, err := text.OpenVisionTower(ref.New(), weights.FromMap(changed), deepConfig, 0)
		if err == nil {
			eyes.Close()
		}
		if err == nil || !strings.Contains(err.Error(), table) {
			t.Errorf("positions %v: got error %v, want one that names them", shape, err)
		}
	}
	for _, taps := range []string{"[-1, 2, 3]", "[0, 2, 4]"} {
		_, err = text.OpenVisionTower(ref.New(), deep, []byte(`{"vision": {"deepstack_visual_indexes": `+taps+`}}`), 0)
		if err == nil || !strings.Contains(err.Error(), "deepstack_visual_indexes is") {
			t.Errorf("states behind layers %s: got error %v", taps, err)
		}
	}
	for with, config := range map[*weights.Set][]byte{set: config, deep: deepConfig} {
		bare := map[string]weights.Stored{}
		for _, name := range with.Names() {
			if !strings.HasPrefix(name, "visual.blocks.") {
				bare[name], _ = with.Get(name)
			}
		}
		_, err = text.OpenVisionTower(ref.New(), weights.FromMap(bare), config, 0)
		if err == nil || !strings.Contains(err.Error(), "without layers") {
			t.Errorf("no layers: got error %v", err)
		}
	}
	ops := ref.New()
	eyes, err := text.OpenVisionTower(ops, set, config, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer eyes.Close()
	for _, p := range []text.Picture{{}, {Y: 28, X: 42, Data: make([]float32, 28*42*3)}, {Y: 28, X: 28}} {
		if _, _, _, err := eyes.See(env(t, ops), p); err == nil || !strings.Contains(err.Error(), "multiples of 28") {
			t.Errorf("%s: got error %v", fmt.Sprint(p.Y, p.X), err)
		}
	}
}

// TestDeepVision compares a small Qwen3-VL with ComfyUI: its rows for an image, followed by those for its first layers,
// and its states for a prompt with the image.
func TestDeepVision(t *testing.T) {
	const key = "krea2-qwen3vl-a/image/64x96"
	f, err := golden.Open("modern/text.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var cases map[string]json.RawMessage
	var c struct {
		IDs  []any
		Grid []int
	}
	if err := golden.JSON("modern/text.json", &cases); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(cases[key], &c); err != nil {
		t.Fatal(err)
	}
	set, _, err := goldenweights.Set("krea2-qwen3vl-a")
	if err != nil {
		t.Fatal(err)
	}
	p := text.Picture{Y: 16 * c.Grid[1], X: 16 * c.Grid[2]}
	p.Data = golden.Fill("input:krea2-qwen3vl-a/picture/64x96", p.Y*p.X*3, 1, 0.5)
	for name, ops := range backends(t) {
		eyes, err := text.OpenVisionTower(ops, set, []byte(`{"vision": {"deepstack_visual_indexes": [0, 2, 3]}}`), 0)
		if err != nil {
			t.Fatal(err)
		}
		m, err := text.OpenPart(ops, "qwen3vl_4b", set, nil, 0, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		rows, y, x, err := eyes.See(env(t, ops), p)
		if err != nil || y != 2 || x != 3 {
			t.Fatalf("%d x %d rows, error %v", y, x, err)
		}
		for k, part := range []string{"#vision", "#deepstack.0", "#deepstack.1", "#deepstack.2"} {
			var got []float32
			for _, row := range rows {
				got = append(got, row[k*16:(k+1)*16]...)
			}
			compare(t, name+" "+key+part, got, values(t, f, key+part), tolerance)
		}
		var chunk []tokenizer.Token
		for _, id := range c.IDs {
			if n, ok := id.(float64); ok {
				chunk = append(chunk, tokenizer.Token{ID: int(n), Weight: 1})
				continue
			}
			for _, row := range rows {
				chunk = append(chunk, tokenizer.Token{Vector: row, Weight: 1})
			}
		}
		got, err := m.Encode(env(t, ops), [][]tokenizer.Token{chunk}, text.Form{
			Chat: true, Pictures: [][2]int{{y, x}}, Taps: []int{2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35},
		})
		if err != nil {
			t.Fatal(err)
		}
		compare(t, name+" "+key+"#cond", got.Context.Data, values(t, f, key+"#cond"), tolerance)
		eyes.Close()
		m.Close()
	}
}
