package graph_test

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
	"patchbay/tests/golden"
)

func TestParseWorkflowTakesDecodedMaps(t *testing.T) {
	from := map[string]any{
		"10": map[string]any{
			"class_type": "KSampler",
			"inputs": map[string]any{
				"seed": uint64(math.MaxUint64), "steps": int8(4), "cfg": json.Number("1.5"),
				"model": []any{"2", int16(0)},
			},
		},
		"2": map[any]any{"class_type": "UNETLoader", "inputs": map[any]any{"x": float32(0.5)}},
	}
	w, failure := graph.ParseWorkflow(from)
	if failure != nil {
		t.Fatal(failure)
	}
	if ids := w.IDs(); !reflect.DeepEqual(ids, []string{"2", "10"}) {
		t.Errorf("ids %v, want 2, 10", ids)
	}
	seed, _ := w.Input("10", "seed")
	steps, _ := w.Input("10", "steps")
	cfg, _ := w.Input("10", "cfg")
	if seed != uint64(math.MaxUint64) || steps != int64(4) || cfg != 1.5 {
		t.Errorf("seed %v, steps %v, cfg %v", seed, steps, cfg)
	}
	if err := w.SetInput("10", "seed", 7); err != nil {
		t.Fatal(err)
	}
	if err := w.SetInput("11", "seed", 7); err == nil || !strings.Contains(err.Error(), "2, 10") {
		t.Errorf("setting an input of a node that is not there: %v", err)
	}
	copied := w.Clone()
	if err := copied.SetInput("10", "seed", 8); err != nil {
		t.Fatal(err)
	}
	if seed, _ := w.Input("10", "seed"); seed != int64(7) {
		t.Errorf("changing a clone changed the original: seed %v", seed)
	}
}

func TestParseWorkflowRefuses(t *testing.T) {
	deep := strings.Repeat("[", 200) + strings.Repeat("]", 200)
	for name, c := range map[string]struct{ text, code string }{
		"editor format": {`{"nodes": [], "links": [], "version": 0.4}`, fault.WorkflowFormatUI},
		"list":          {`[1]`, fault.InvalidPrompt},
		"depth":         {`{"1": {"class_type": "A", "inputs": {"x": ` + deep + `}}}`, fault.InvalidPrompt},
		"empty":         {``, fault.InvalidPrompt},
		"trailing":      {`{} x`, fault.InvalidPrompt},
		"bad number":    {`{"1": 01}`, fault.InvalidPrompt},
		"bad string":    {"{\"a\nb\": 1}", fault.InvalidPrompt},
	} {
		if _, f := graph.ParseWorkflowJSON([]byte(c.text)); f == nil || f.Code != c.code {
			t.Errorf("%s: got %v, want %s", name, f, c.code)
		}
	}
	if _, f := graph.ParseWorkflow(map[string]any{"1": make(chan int)}); f == nil || f.Code != fault.WorkflowTooLarge {
		t.Errorf("a channel: %v", f)
	}
}

func FuzzWorkflowJSON(f *testing.F) { workflowTarget().Fuzz(f) }

func TestPNGChunksMatchGolden(t *testing.T) {
	saved, err := os.ReadFile(golden.Path("server/golden_00001_.png"))
	if err != nil {
		t.Fatal(err)
	}
	prompt, extra, err := picture.WorkflowFrom(saved)
	if err != nil {
		t.Fatal(err)
	}
	w, failure := graph.ParseWorkflowJSON(prompt)
	if failure != nil {
		t.Fatal(failure)
	}
	if got := w.JSON(); !bytes.Equal(got, prompt) {
		t.Errorf("a graph that was read and written differs\n got %s\nwant %s", got, prompt)
	}
	if got := string(pyjson.Dump(extra["workflow"])); got != "{\"nodes\": [], \"note\": \"\\u00e9\\u72d0\"}" {
		t.Errorf("workflow text is %s", got)
	}
	// The image that we write with the same texts has the same chunks in the same order, except for the pixels.
	ours := picture.EncodePNG(make([]byte, 64*64*3), 64, 64, 3, [2]string{"prompt", string(w.JSON())},
		[2]string{"workflow", string(pyjson.Dump(extra["workflow"]))})
	a, b := beforePixels(t, saved), beforePixels(t, ours)
	if !bytes.Equal(a, b) {
		t.Errorf("bytes up to the pixels differ\n got %q\nwant %q", b, a)
	}
}

// beforePixels returns the part of a PNG before its first IDAT chunk.
func beforePixels(t *testing.T, data []byte) []byte {
	t.Helper()
	i := bytes.Index(data, []byte("IDAT"))
	if i < 4 {
		t.Fatal("no IDAT")
	}
	return data[:i-4]
}
