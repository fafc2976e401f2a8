package value

import (
	"strings"
	"testing"

	"patchbay/engine"
)

// TestFasterType checks the table of processors for their descriptions in /proc/cpuinfo. Processors that it does not
// list get f32.
func TestFasterType(t *testing.T) {
	for _, c := range []struct {
		vendor, family, model string
		want                  engine.DType
	}{
		{"AuthenticAMD", "25", "17", engine.BF16},
		{"AuthenticAMD", "25", "97", engine.BF16},
		{"AuthenticAMD", "25", "33", engine.F32}, // Zen 3
		{"AuthenticAMD", "26", "2", engine.F32},  // not measured
		{"GenuineIntel", "6", "143", engine.F32}, // measured: f32 is faster
		{"GenuineIntel", "25", "17", engine.F32},
		{"AuthenticAMD", "25", "", engine.F32},
		{"AuthenticAMD", "x", "17", engine.F32},
	} {
		one := "processor\t: 0\nvendor_id\t: " + c.vendor + "\ncpu family\t: " + c.family + "\nmodel\t\t: " + c.model +
			"\nmodel name\t: a: b\n"
		if got := fasterType(strings.Repeat(one, 2)); got != c.want {
			t.Errorf("%s %s %s: %s, want %s", c.vendor, c.family, c.model, got, c.want)
		}
	}
	if got := fasterType(""); got != engine.F32 {
		t.Errorf("a machine that says nothing: %s", got)
	}
}
