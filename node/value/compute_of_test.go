package value

import (
	"fmt"
	"os"
	"testing"

	"patchbay/engine"
	"patchbay/models/weights"
)

// TestComputeOf checks the activation type that each value of --compute selects.
func TestComputeOf(t *testing.T) {
	info, _ := os.ReadFile("/proc/cpuinfo")
	fastest := fasterType(string(info))
	for _, c := range []struct {
		compute Compute
		device  string
		narrow  bool
		half    bool
		want    engine.DType
	}{
		{"", "cpu/avx512bf16", true, true, engine.F32},
		{ComputeF32, "cpu/avx512bf16", true, true, engine.F32},
		{ComputeBF16, "cpu/avx2", false, false, engine.BF16},
		{ComputeAuto, "cpu/avx512bf16", true, true, fastest},
		{ComputeAuto, "cuda", true, true, engine.BF16},
		{ComputeAuto, "cpu/amx", true, true, engine.BF16},
		{ComputeAuto, "cpu/amx", false, true, engine.F32},
		{ComputeAuto, "cpu/avx512bf16", false, false, engine.F32},
		{ComputeAuto, "cpu/avx512bf16", false, true, engine.F32},
		{ComputeAuto, "cuda", false, true, engine.BF16},
		{ComputeAuto, "cuda", false, false, engine.F32},
		{ComputeF32, "cuda", false, true, engine.F32},
		{ComputeAuto, "cpu/avx512", true, true, engine.F32},
		{ComputeAuto, "cpu/portable512bf16", true, true, engine.F32},
		{ComputeAuto, "ref", true, true, engine.F32},
	} {
		if got := c.compute.Of(c.device, &Model{narrow: c.narrow, half: c.half}); got != c.want {
			t.Errorf("%q on %s, narrow %v, half %v: got %s, want %s", c.compute, c.device, c.narrow,
				c.half, got, c.want)
		}
	}
	if _, err := ParseCompute("f16"); err == nil {
		t.Error("f16 is accepted, want a refusal")
	}
}

// TestWidths checks that the type of most bytes of a file decides, not its scales and biases.
func TestWidths(t *testing.T) {
	of := func(list ...engine.DType) *weights.Set {
		m := map[string]weights.Stored{"bias": {DType: engine.F32, Shape: []int{2}, Data: make([]byte, 8)}}
		for i, d := range list {
			m[fmt.Sprint(i)] = weights.Stored{DType: d, Shape: []int{64 / d.Size()}, Data: make([]byte, 64)}
		}
		return weights.FromMap(m)
	}
	for _, c := range []struct {
		set          *weights.Set
		narrow, half bool
	}{
		{of(engine.BF16), true, true},
		{of(engine.F8E4M3, engine.F32, engine.BF16), true, true},
		{of(engine.F16), false, true},
		{of(engine.F16, engine.BF16), false, true},
		{of(engine.F16, engine.F32), false, false},
		{of(engine.F32), false, false},
	} {
		if narrow, half := widths(c.set); narrow != c.narrow || half != c.half {
			t.Errorf("%v: narrow %t, half %t, want %t, %t", c.set.Names(), narrow, half, c.narrow, c.half)
		}
	}
}
