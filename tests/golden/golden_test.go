package golden

import (
	"math"
	"testing"
)

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
