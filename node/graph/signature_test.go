package graph

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"patchbay/node/pyjson"
)

// TestLiteralsEqualInPythonLookEqual checks what ComfyUI's cache keys take for equal: Python says 1 == 1.0 == True and
// 0 == False, but 1 != "1".
func TestLiteralsEqualInPythonLookEqual(t *testing.T) {
	for _, c := range []struct {
		a, b  any
		equal bool
	}{
		{int64(1), true, true},
		{1.0, true, true},
		{int64(1), 1.0, true},
		{int64(0), false, true},
		{[]any{true}, []any{int64(1)}, true},
		{pyjson.NewObject("x", true), pyjson.NewObject("x", 1.0), true},
		{true, false, false},
		{int64(1), "1", false},
		{1.5, int64(1), false},
		{true, "true", false},
	} {
		if got := canonical(c.a) == canonical(c.b); got != c.equal {
			t.Errorf("%T %v and %T %v look equal: %v, want %v", c.a, c.a, c.b, c.b, got, c.equal)
		}
	}
}

// TestSignatureTellsOutputsOfOneNodeApart runs a workflow whose links change their slots from run to run, and checks
// which outputs arrive behind a node that could be taken from the cache.
func TestSignatureTellsOutputsOfOneNodeApart(t *testing.T) {
	var got []int
	r, err := NewRunner(Config{Catalogue: NewCatalogue([]Class{
		{
			Name: "Pair", Outputs: Slots("INT", "INT"),
			Run: func(*Call) ([]any, error) { return []any{int64(10), int64(20)}, nil },
		},
		{
			Name: "Next", Inputs: []Input{Bare("n", "INT")}, Outputs: Slots("INT"),
			Run: func(c *Call) ([]any, error) { return []any{int64(c.Integer("n") + 1)}, nil },
		},
		{
			Name: "Show", Inputs: []Input{Bare("n", "INT")}, Output: true, Fresh: true,
			Run: func(c *Call) ([]any, error) { got = append(got, c.Integer("n")); return nil, nil },
		},
	})})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, c := range []struct {
		a, b int // slots that the two branches read
		want []int
	}{
		{0, 1, []int{11, 21}}, {1, 1, []int{21, 21}}, {0, 0, []int{11, 11}}, {1, 0, []int{11, 21}},
	} {
		w, failure := ParseWorkflowJSON(fmt.Appendf(nil, `{"1": {"class_type": "Pair", "inputs": {}},
			"2": {"class_type": "Next", "inputs": {"n": ["1", %d]}}, "3": {"class_type": "Next", "inputs": {"n": ["1", %d]}},
			"4": {"class_type": "Show", "inputs": {"n": ["2", 0]}},
			"5": {"class_type": "Show", "inputs": {"n": ["3", 0]}}}`, c.a, c.b))
		if failure != nil {
			t.Fatal(failure)
		}
		got = nil
		if _, err := r.Run(context.Background(), Job{Workflow: w}, nil); err != nil {
			t.Fatal(err)
		}
		if slices.Sort(got); !slices.Equal(got, c.want) {
			t.Errorf("slots %d and %d: got %v, want %v", c.a, c.b, got, c.want)
		}
	}
}
