package value

import (
	"os"
	"testing"

	"patchbay/engine"
)

// TestComputeOf is the table of --compute.
func TestComputeOf(t *testing.T) {
	info, _ := os.ReadFile("/proc/cpuinfo")
	here := fasterType(string(info))
	for _, c := range []struct {
		compute Compute
		device  string
		narrow  bool
		want    engine.DType
	}{
		{"", "cpu/avx512bf16", true, engine.F32},
		{ComputeF32, "cpu/avx512bf16", true, engine.F32},
		{ComputeBF16, "cpu/avx2", false, engine.BF16},
		{ComputeAuto, "cpu/avx512bf16", true, here},
		{ComputeAuto, "cuda", true, engine.BF16},
		{ComputeAuto, "cpu/avx512bf16", false, engine.F32},
		{ComputeAuto, "cpu/avx512", true, engine.F32},
		{ComputeAuto, "cpu/portable512bf16", true, engine.F32},
		{ComputeAuto, "ref", true, engine.F32},
	} {
		if got := c.compute.of(c.device, &Model{narrow: c.narrow}); got != c.want {
			t.Errorf("%q on %s, narrow %v: got %s, want %s", c.compute, c.device, c.narrow, got, c.want)
		}
	}
	if _, err := ParseCompute("f16"); err == nil {
		t.Error("f16 is accepted, want a refusal")
	}
}
