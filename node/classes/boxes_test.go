package classes

import (
	"context"
	"math"
	"strings"
	"testing"

	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
	"patchbay/node/value"
	"patchbay/tests/golden"
)

// boxCase runs CreateBoundingBoxes in a workflow, as the editor sends one: lists are wrapped.
type boxCase struct {
	preview  *picture.Image
	boxes    value.Boxes
	elements value.Array
	ui       map[string]any
}

func (b *boxCase) run(t *testing.T, inputs *pyjson.Object, extra ...any) error {
	t.Helper()
	keep := graph.Class{
		Name: "KeepBoxes", Output: true, Inputs: []graph.Input{
			graph.Bare("preview", "IMAGE"), graph.Bare("bboxes", "BOUNDING_BOX"), graph.Bare("elements", "ARRAY"),
		},
		Run: func(c *graph.Call) ([]any, error) {
			b.preview, b.boxes = c.Image("preview"), graph.Arg[value.Boxes](c, "bboxes")
			b.elements = graph.Arg[value.Array](c, "elements")
			return nil, nil
		},
	}
	back := &picture.Image{B: 1, Y: 40, X: 1100, C: 3}
	for i := range 40 * 1100 * 3 {
		back.Data = append(back.Data, float32((7*(i/3%1100)+13*(i/3300)+29*(i%3))%256)/255)
	}
	given := giving(map[string]given{
		"Background": {"IMAGE", back}, "Frames": {"BOUNDING_BOX", value.Boxes(listOf(inputs.At("bboxes")))},
	}, nil)
	r, err := graph.NewRunner(graph.Config{
		Engine: engineOf(t, fastOps), Roots: files.Roots{}, Catalogue: All(append(given, keep)...),
	})
	check(t, err)
	defer r.Close()
	g := newGraph()
	sent := []any{}
	for _, name := range inputs.Keys() {
		v := inputs.At(name)
		if list, ok := v.([]any); ok && name == "bboxes" {
			v = g.add("Frames")
		} else if ok {
			v = pyjson.NewObject("__value__", list)
		}
		sent = append(sent, name, v)
	}
	for i := 0; i < len(extra); i += 2 {
		sent = append(sent, extra[i], g.add(extra[i+1].(string)))
	}
	link := g.add("CreateBoundingBoxes", sent...)
	g.add("KeepBoxes", "preview", link, "bboxes", second(link), "elements", []any{link[0], int64(2)})
	result, err := r.Run(context.Background(), graph.Job{ID: "b", Workflow: g.workflow(t)}, nil)
	if err == nil {
		b.ui = result.UI[link[0].(string)]
	}
	return err
}

func listOf(v any) []any {
	list, _ := v.([]any)
	return list
}

// TestBoundingBoxesMatchComfyUI compares boxes, elements and what the editor is shown with ComfyUI's, and previews
// outside of the labels, which ours lack.
func TestBoundingBoxesMatchComfyUI(t *testing.T) {
	raw, err := golden.Read("boxes.json")
	check(t, err)
	decoded, err := pyjson.Decode(raw)
	check(t, err)
	cases := decoded.(*pyjson.Object)
	if len(cases.Keys()) < 15 {
		t.Fatalf("%d cases are recorded, want at least 15", len(cases.Keys()))
	}
	for _, name := range cases.Keys() {
		c, b := cases.In(name), boxCase{}
		if name == "background" {
			in := pyjson.NewObject("width", int64(64), "height", int64(64), "editor_state", []any{})
			check(t, b.run(t, in, "background", "Background"))
			comparePreview(t, name, b.preview, c, 1)
			continue
		}
		err := b.run(t, c.In("inputs"))
		if text, ok := c.At("error").(string); ok {
			if err == nil || !strings.Contains(err.Error(), "bbox") {
				t.Errorf("%s: got error %v, ComfyUI says %q", name, err, text)
			}
			continue
		}
		check(t, err)
		ui := pyjson.NewObject()
		for _, k := range c.In("ui").Keys() {
			ui.Set(k, b.ui[k])
		}
		for what, pair := range map[string][2]any{
			"bboxes": {[]any(b.boxes), c.At("bboxes")}, "elements": {[]any(b.elements), c.At("elements")},
			"ui": {ui, c.At("ui")},
		} {
			if got, want := string(pyjson.Dump(pair[0])), string(pyjson.Dump(pair[1])); got != want {
				t.Errorf("%s: %s are\n%s, want\n%s", name, what, got, want)
			}
		}
		if len(b.ui) != len(c.In("ui").Keys()) {
			t.Errorf("%s: the editor is shown %v, want %v", name, b.ui, c.At("ui"))
		}
		comparePreview(t, name, b.preview, c, 0)
	}
}

// comparePreview compares pixels within so many 255ths, but those of labels.
func comparePreview(t *testing.T, name string, im *picture.Image, c *pyjson.Object, within float64) {
	t.Helper()
	shape := c.At("preview_shape").([]any)
	if int64(im.Y) != shape[1] || int64(im.X) != shape[2] {
		t.Errorf("%s: a preview of %d x %d, want %v", name, im.Y, im.X, shape)
		return
	}
	label := func(x, y int) bool {
		for _, f := range listOf(c.At("bboxes")) {
			for _, v := range f.([]any) {
				at := func(k string) int { return int(v.(*pyjson.Object).At(k).(int64)) }
				dx, dy := x-at("x"), y-at("y")
				tag := dx >= 0 && dx <= 30 && dy >= 0 && dy <= 13
				if tag || dx > 2 && dx < at("width")-2 && dy > 12 && dy < at("height")+14 {
					return true
				}
			}
		}
		return false
	}
	wrong, seen := 0, 0
	for i, v := range listOf(c.At("preview")) {
		x, y := i/3%im.X, i/3/im.X
		if label(x, y) {
			continue
		}
		seen++
		if !(math.Abs(float64(im.Data[i])*255-float64(v.(int64))) <= within+1e-3) {
			if wrong++; wrong < 4 {
				t.Errorf("%s: pixel (%d, %d) is %.1f, want %d", name, x, y, im.Data[i]*255, v)
			}
		}
	}
	if n := len(listOf(c.At("preview"))); seen < n/2 {
		t.Errorf("%s: compared %d of %d values", name, seen, n)
	}
}

// TestLayoutPrompt checks the table behind a prompt, against one written by hand.
func TestLayoutPrompt(t *testing.T) {
	element := func(pairs ...any) any { return pyjson.NewObject(pairs...) }
	got := ""
	keep := graph.Class{
		Name: "KeepWords", Output: true, Inputs: []graph.Input{graph.Link("text", "STRING", "")},
		Run: func(c *graph.Call) ([]any, error) { got = c.Str("text"); return nil, nil },
	}
	for _, c := range []struct {
		elements value.Array
		want     string
	}{
		{nil, "a <obj_1>"},
		{value.Array{}, "a <obj_1>"},
		{value.Array{
			element("type", "obj", "bbox", []any{int64(1), int64(20), int64(300), int64(1000)}, "desc", "eine \"Tür\" <3",
				"color_palette", []any{"#FF0000"}),
			element("type", "text", "bbox", []any{int64(0), int64(0), int64(5), int64(6)}, "text", "OPEN", "desc", "red neon"),
			element("type", "text", "bbox", []any{int64(0), int64(0), int64(5), int64(6)}, "text", "猫", "desc", ""),
		}, `a <obj_1> [{"id": "obj_1", "bbox": [1, 20, 300, 1000], "desc": "eine \"Tür\" <3"}, ` +
			`{"id": "obj_2", "bbox": [0, 0, 5, 6], "desc": "\"OPEN\" red neon"}, ` +
			`{"id": "obj_3", "bbox": [0, 0, 5, 6], "desc": "\"猫\""}]`},
	} {
		g, inputs := newGraph(), []any{"prompt", "a <obj_1>"}
		if c.elements != nil {
			inputs = append(inputs, "element", g.add("Elements"))
		}
		g.add("KeepWords", "text", g.add("Flux3LayoutPrompt", inputs...))
		r, err := graph.NewRunner(graph.Config{
			Engine:    engineOf(t, fastOps),
			Catalogue: All(append(giving(map[string]given{"Elements": {"ARRAY", c.elements}}, nil), keep)...),
		})
		check(t, err)
		_, err = r.Run(context.Background(), graph.Job{ID: "l", Workflow: g.workflow(t)}, nil)
		check(t, err)
		r.Close()
		if got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}
