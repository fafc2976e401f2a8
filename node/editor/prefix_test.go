package editor

import (
	"strings"
	"testing"
	"time"

	"patchbay/node/pyjson"
)

// TestFileNamesAreWritten checks that in the filename_prefix of saving nodes dates and values of widgets are replaced
// by the rules of ComfyUI's editor, whose code is the truth for every row: a name in the properties, or the class, goes
// before a title, characters that file systems refuse become _, and everything unknown stays.
func TestFileNamesAreWritten(t *testing.T) {
	class := func(name string, inputs ...any) *pyjson.Object {
		return pyjson.NewObject("display_name", "Shown "+name, "input",
			pyjson.NewObject("required", pyjson.NewObject(inputs...)))
	}
	text := []any{"STRING", pyjson.NewObject()}
	number := []any{"FLOAT", pyjson.NewObject()}
	classes := map[string]*pyjson.Object{
		"Sampler": class("Sampler", "seed", number, "cfg", number, "name", text, "on", []any{"BOOLEAN", pyjson.NewObject()}),
		"Text":    class("Text", "text", text), "SaveImage": class("SaveImage", "filename_prefix", text),
		"SaveLatent": class("SaveLatent", "filename_prefix", text), "Other": class("Other", "filename_prefix", text),
	}
	const graph = `{"nodes": [
		{"id": 9, "type": "Text", "order": 5, "title": "mine", "properties": {}, "widgets_values": ["first"]},
		{"id": 4, "type": "Text", "order": 4, "widgets_values": ["a/b: c?\u0001"],
			"properties": {"Node name for S&R": "named"}},
		{"id": 5, "type": "Text", "order": 1, "title": "mine", "widgets_values": ["second"]},
		{"id": 6, "type": "sub", "order": 2, "title": "box", "widgets_values": ["outer"],
			"inputs": [{"name": "prompt", "type": "STRING", "widget": {"name": "prompt"}}]},
		{"id": 7, "type": "Sampler", "mode": 2, "widgets_values": [18446744073709551615, 8.0, "euler", true],
			"properties": {"Node name for S&R": "big"}},
		{"id": 8, "type": "PrimitiveNode", "title": "dial", "widgets_values": [0.1, "fixed"]},
		{"id": 10, "type": "KIND", "title": "saved", "widgets_values": ["PREFIX"]}],
		"links": [], "definitions": {"subgraphs": [{"id": "sub",
			"inputs": [{"name": "prompt", "type": "STRING", "linkIds": [1]}],
			"nodes": [{"id": 1, "type": "Text", "title": "Sampler", "widgets_values": ["inner"], "inputs": [
				{"name": "text", "type": "STRING", "link": 1, "widget": {"name": "text"}}]},
				{"id": 2, "type": "Sampler", "widgets_values": [1e21, 1e-7, null, false]}],
			"links": [[1, -10, 0, 1, 0, "STRING"]]}]}}`
	now := time.Date(2026, 3, 7, 9, 8, 5, 0, time.Local)
	of := func(kind, prefix string, changes ...*strings.Replacer) string {
		text := graph
		for _, r := range append(changes, strings.NewReplacer("KIND", kind, "PREFIX", prefix)) {
			text = r.Replace(text)
		}
		v, err := pyjson.Decode([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		api, failure := convert(v.(*pyjson.Object), func(class string) *pyjson.Object { return classes[class] }, now)
		if failure != nil {
			t.Fatal(failure)
		}
		return api.In("10").In("inputs").Text("filename_prefix")
	}
	for given, want := range map[string]string{
		"ComfyUI":                         "ComfyUI",
		"%Text.text%":                     "first", // in the order of the file, not that of execution
		"%mine.text%":                     "first",
		"%named.text%":                    "a_b_ c__",
		"%Shown Text.text%":               "a_b_ c__",   // the title of nodes without one
		"%Sampler.seed%_%Sampler.cfg%":    "1e+21_1e-7", // that inside the subgraph
		"%Sampler.name%-%Sampler.on%":     "-false",
		"%Sampler.text%":                  "%Sampler.text%", // a class goes before a title
		"%big.seed%_%big.cfg%_%big.on%":   "18446744073709552000_8_true",
		"%box.prompt%":                    "outer",
		"%dial.value%":                    "0.1",
		"%saved.filename_prefix%x":        "%saved.filename_prefix%xx", // once
		"%SaveImage.filename_prefix%":     "%SaveImage.filename_prefix%",
		"%Text.nothing%":                  "%Text.nothing%",
		"%Nobody.text%":                   "%Nobody.text%",
		"%Text.text.more%":                "%Text.text.more%",
		"%year%/%width%x%batch_num%_100%": "%year%/%width%x%batch_num%_100%",
		"%date:yyyy-MM-dd%/%date:hhmmss%": "2026-03-07/090805",
		"%date:d.M.yy%_%date:h:m:s yyy%":  "7_9:8:5 yyy", // only up to the first of two points
		"%date:yyyy.MM%":                  "%date:yyyy.MM%",
		"%date:day yy%":                   "7ay 26",
		"50%%date:MM%%Text.text%":         "50%03first",
		"%date:dddd%%date:%":              "0707",
		"%width%date:yy%height%":          "%width%date:yy%height%",
	} {
		for _, kind := range []string{"SaveImage", "SaveLatent"} {
			if got := of(kind, given); got != want {
				t.Errorf("%s, %q: got %q, want %q", kind, given, got, want)
			}
		}
		if got := of("Other", given); got != given {
			t.Errorf("%q in a class that does not save: got %q", given, got)
		}
	}
	linked := strings.NewReplacer(`[0.1, "fixed"]`, `["%Text.text%_", "fixed"]`, `"links": [], "def`,
		`"links": [[1, 8, 0, 10, 0, "STRING"]], "def`, `"title": "saved",`, `"title": "saved", "inputs": [{"link": 1,
			"name": "filename_prefix", "type": "STRING", "widget": {"name": "filename_prefix"}}],`)
	if got := of("SaveImage", "unseen", linked); got != "first_" {
		t.Errorf("a PrimitiveNode's text: got %q, want first_", got)
	}
	long := strings.Repeat("%Text.text%", maxPrefix)
	if got := of("SaveImage", long); len(got) > len(long) || !strings.HasPrefix(got, "firstfirst") ||
		!strings.HasSuffix(got, "%Text.text%") {
		t.Errorf("%d variables become %d bytes", maxPrefix, len(got))
	}
}
