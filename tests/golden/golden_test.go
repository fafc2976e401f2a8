package golden

import (
	"math"
	"strings"
	"testing"
)

// TestRead checks that files that are stored compressed are read by their names, and that one that is missing is an
// error with that name.
func TestRead(t *testing.T) {
	var cases map[string]any
	if err := JSON("sigmas.json", &cases); err != nil || len(cases) == 0 {
		t.Errorf("%d entries of sigmas.json: %v", len(cases), err)
	}
	if _, err := Read("none.json"); err == nil || !strings.Contains(err.Error(), "none.json") {
		t.Errorf("a missing file: %v", err)
	}
	f, err := Open("noise.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if len(f.Names()) == 0 {
		t.Error("no tensors in noise.safetensors")
	}
	if _, err := Open("none.safetensors"); err == nil || !strings.Contains(err.Error(), "none.safetensors") {
		t.Errorf("a missing file of tensors: %v", err)
	}
}

func TestValueMatchesVectors(t *testing.T) {
	for _, c := range []struct {
		name          string
		i             uint64
		scale, offset float64
		bits          uint32
	}{
		{"input:x", 0, InputScale, 0, 0xbfccb53f},
		{"flux-a/img_in.weight", 7, 0.4330127018922193, 0, 0x3e2ff1e3},
		{"flux-a/double_blocks.0.img_attn.norm.query_norm.scale", 3, 0.2, 1, 0x3f6922e8},
	} {
		if got := math.Float32bits(Value(c.name, c.i, c.scale, c.offset)); got != c.bits {
			t.Errorf("Value(%q, %d) = %#x, want %#x", c.name, c.i, got, c.bits)
		}
	}
}
