package classes

import (
	"slices"
	"testing"

	"patchbay/node/picture"
)

// TestIntroduced checks what stands in front of a prompt: numbers count by kind, and a video is shown two pictures at a
// time, at their mean time, the last one alone.
func TestIntroduced(t *testing.T) {
	of := func(b int) *picture.Image {
		return &picture.Image{B: b, Y: 1, X: 1, C: 3, Data: make([]float32, 3*b)}
	}
	texts, seen := introduced([]referenced{
		{"Picture", of(2)}, {"Audio", nil}, {"Video", of(5)}, {"Picture", of(1)}, {"Audio", nil},
	})
	const p = "<|vision_start|><|image_pad|><|vision_end|>"
	want := []string{
		"<Picture 1>: ", p, "<Audio 1>: ", "<Video 1>: ", "<0.2 seconds>", p, "<1.2 seconds>", p, "<2.0 seconds>", p,
		"<Picture 2>: ", p, "<Audio 2>: ",
	}
	if !slices.Equal(texts, want) {
		t.Errorf("texts %q, want %q", texts, want)
	}
	var counts []int
	for _, im := range seen {
		counts = append(counts, im.B)
	}
	if !slices.Equal(counts, []int{1, 2, 2, 1, 1}) {
		t.Errorf("pictures %v", counts)
	}
}
