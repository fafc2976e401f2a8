package golden

import (
	"math"
	"strings"
	"testing"
)

// TestRead checks that a file that is stored compressed is read by its name, and that one that is missing is an error
// with that name.
func TestRead(t *testing.T) {
	var cases map[string]any
	if err := JSON("sigmas.json", &cases); err != nil || len(cases) == 0 {
		t.Errorf("%d entries of sigmas.json: %v", len(cases), err)
	}
	if _, err := Read("none.json"); err == nil || !strings.Contains(err.Error(), "none.json") {
		t.Errorf("a missing file: %v", err)
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
