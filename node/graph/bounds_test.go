package graph

import (
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/node/picture"
	"patchbay/node/value"
	"patchbay/parallel/request"
)

// TestBounds checks values at every limit and just above it.
func TestBounds(t *testing.T) {
	b := Bounds{Pixels: 4096, Steps: 7}
	latent := func(n, y, x int) *value.Latent {
		return &value.Latent{Samples: request.Latent{B: n, C: 16, Y: y, X: x}}
	}
	for _, row := range []struct {
		name string
		in   map[string]any
		says string // empty: accepted
	}{
		{"side times side", map[string]any{"width": int64(64), "height": int64(64)}, ""},
		{"one row more", map[string]any{"width": int64(64), "height": int64(65)}, "4160 pixels, at most 4096"},
		{"a batch", map[string]any{"width": int64(64), "height": int64(32), "batch_size": int64(2)}, ""},
		{"a larger batch", map[string]any{"width": int64(64), "height": int64(32), "batch_size": int64(3)}, "6144 pixels"},
		{"numbers that overflow", map[string]any{"width": uint64(1) << 63, "height": uint64(1) << 63}, "at most 4096"},
		{"width alone", map[string]any{"width": int64(1 << 40)}, ""},
		{"steps", map[string]any{"steps": int64(7)}, ""},
		{"a step more", map[string]any{"steps": int64(8)}, "8 steps, at most 7"},
		{"sigmas", map[string]any{"s": make(value.Sigmas, 8)}, ""},
		{"more sigmas", map[string]any{"s": make(value.Sigmas, 9)}, "8 steps"},
		{"an image", map[string]any{"i": &picture.Image{B: 1, Y: 64, X: 64, C: 3}}, ""},
		{"a wider image", map[string]any{"i": &picture.Image{B: 1, Y: 64, X: 65, C: 3}}, "i: 4160 pixels"},
		{"a latent", map[string]any{"l": latent(1, 8, 8)}, ""},
		{"two latents", map[string]any{"l": latent(2, 8, 8)}, "l: 8192 pixels"},
	} {
		err := b.inputs(row.in)
		if (err == nil) != (row.says == "") || err != nil &&
			(!strings.Contains(err.Error(), row.says) || fault.From(err).Code != fault.WorkflowTooLarge) {
			t.Errorf("%s: got %v, want %q", row.name, err, row.says)
		}
		if err := (Bounds{}).inputs(row.in); err != nil {
			t.Errorf("%s without bounds: %v", row.name, err)
		}
	}
	if b.Client([]int{1, 16, 8, 8}, 8) != nil || b.Client([]int{1, 16, 8, 9}, 8) == nil ||
		b.Client([]int{1, 16, 8, 8}, 9) == nil {
		t.Error("the bounds of a host's run are not those of a node's")
	}
	w, f := ParseWorkflow(map[string]any{"4": map[string]any{
		"class_type": "KSampler",
		"inputs":     map[string]any{"steps": 8},
	}})
	if f != nil {
		t.Fatal(f)
	}
	if f := b.Workflow(w); f == nil || f.Node != "4" || f.Class != "KSampler" || f.Field != "steps" {
		t.Errorf("a workflow with too many steps: %+v", f)
	}
}
