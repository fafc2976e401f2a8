package classes

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
)

// countingRunner returns a runner whose Count node counts in runs how often it ran.
func countingRunner(t *testing.T, runs *int) *graph.Runner {
	t.Helper()
	r, err := graph.NewRunner(graph.Config{Catalogue: All(sink(), graph.Class{
		Name: "Count", Inputs: []graph.Input{graph.Number("n", "INT", "")}, Outputs: graph.Slots("INT"),
		Run: func(c *graph.Call) ([]any, error) { *runs++; return []any{int64(c.Integer("n"))}, nil },
	})})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestSignatureFollowsContentNotIDs(t *testing.T) {
	runs := 0
	r := countingRunner(t, &runs)
	for i, c := range []struct {
		graph string
		want  int // runs of Count so far
	}{
		{`{"1": {"class_type": "Count", "inputs": {"n": 1}}, "2": {"class_type": "Sink", "inputs": {"value": ["1", 0]}}}`, 1},
		// other node ids, number as text
		{
			`{"x": {"class_type": "Sink", "inputs": {"value": ["y", 0]}}, "y": {"class_type": "Count", "inputs": {"n": "1"}}}`,
			1,
		},
		// 1.0 equals 1
		{`{"1": {"class_type": "Count", "inputs": {"n": 1.0}, "_meta": {"title": "t"}}, "2": {"class_type": "Sink", ` +
			`"inputs": {"value": ["1", 0]}}}`, 1},
		// undeclared inputs are part of the signature
		{`{"1": {"class_type": "Count", "inputs": {"n": 1, "extra": "x"}}, "2": {"class_type": "Sink", "inputs": ` +
			`{"value": ["1", 0]}}}`, 2},
		{`{"1": {"class_type": "Count", "inputs": {"n": 1}, "is_changed": ["h"]}, "2": {"class_type": "Sink", "inputs": ` +
			`{"value": ["1", 0]}}}`, 3},
		// equal twins run once
		{`{"1": {"class_type": "Count", "inputs": {"n": 2}}, "3": {"class_type": "Count", "inputs": {"n": 2}}, "2": ` +
			`{"class_type": "Sink", "inputs": {"value": ["1", 0]}}, "4": {"class_type": "Sink", "inputs": {"value": ["3", ` +
			`0]}}}`, 4},
	} {
		if _, err := r.Run(context.Background(), graph.Job{Workflow: graphOf(t, c.graph)}, nil); err != nil {
			t.Fatal(err)
		}
		if runs != c.want {
			t.Errorf("graph %d: Count has run %d times, want %d", i, runs, c.want)
		}
	}
	r.Free()
	if _, err := r.Run(context.Background(),
		graph.Job{Workflow: graphOf(t, `{"1": {"class_type": "Count", "inputs": {"n": 1}}, "2": {"class_type": "Sink", `+
			`"inputs": {"value": ["1", 0]}}}`)}, nil); err != nil || runs != 5 {
		t.Errorf("after Free: %v, %d runs", err, runs)
	}
}

func TestMetadataIsLeftOutWhenAsked(t *testing.T) {
	r, err := graph.NewRunner(graph.Config{Catalogue: All()})
	if err != nil {
		t.Fatal(err)
	}
	job := graph.Job{
		Workflow: graphOf(t, `{"1": {"class_type": "LoadImage", "inputs": {"image": "a.png"}}, "2": {"class_type": `+
			`"SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}}}`),
		Inputs:       map[string][]byte{"a.png": picture.EncodePNG(make([]byte, 12), 2, 2, 3)},
		ExtraPNGInfo: map[string]any{"workflow": pyjson.NewObject("nodes", []any{})},
	}
	with, err := r.Run(context.Background(), job, nil)
	if err != nil {
		t.Fatal(err)
	}
	job.NoMetadata = true
	without, err := r.Run(context.Background(), job, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(with.Outputs[0].Data, []byte("LoadImage")) ||
		bytes.Contains(without.Outputs[0].Data, []byte("LoadImage")) {
		t.Error("the workflow is in the wrong picture")
	}
	if _, extra, err := picture.WorkflowFrom(with.Outputs[0].Data); err != nil || extra["workflow"] == nil {
		t.Errorf("extra info: %v, %v", extra, err)
	}
	if _, _, err := picture.WorkflowFrom(without.Outputs[0].Data); err == nil ||
		!strings.Contains(err.Error(), "prompt") {
		t.Errorf("a picture without a workflow: %v", err)
	}
}
