//go:build cgo && fakegpu

package cuda

import (
	"testing"

	"patchbay/tests/fakegpu"
)

// TestPlantedFaultsInPTX changes the committed PTX, not its sources, and runs the test that must notice it on the
// translation.
func TestPlantedFaultsInPTX(t *testing.T) {
	const once = "TestConformance/once/"
	fakegpu.Faults(t, []struct{ Name, File, Old, New, Test, Want string }{
		{
			"a difference the other way round", "norm.ptx", `(sub(?:\.rn)?\.f32\s+%f\d+), (%f\d+), (%f\d+);`, "$1, $3, $2;",
			once + "LayerNorm", "got",
		},
		{
			"halves of a fragment swapped", "attend.ptx",
			`(mma\.sync\.aligned\.m16n8k16\S+\s+\{[^}]*\},\s*\{[^}]*\},\s*)\{(%r\d+),\s*(%r\d+)\}`, "$1{$3,$2}",
			"TestEveryHead",
			"got",
		},
		{
			"a copy that is not waited for", "attend.ptx", `cp\.async\.wait_group \d`, "cp.async.wait_group 7",
			"TestEveryHead", "race: a thread reads what an asynchronous copy may still write",
		},
		{
			"no barrier of the block", "attend.ptx", `bar\.sync\s+0;`, ";", "TestEveryHead", "race: a thread",
		},
		{
			"a vector beside its place", "pointwise.ptx", `(ld\.global\.v4\.u32\s+\{[^}]*\}, \[%rd\d+)\]`, "$1+8]",
			once + "GatedAdd", "misaligned access of global memory",
		},
		{
			"tables read beside their place", "heads.ptx", `(ld\.global\.v4\.u32\s+\{[^}]*\}, \[%rd\d+)\]`, "$1+4]",
			once + "QKNormRoPE", "misaligned access of global memory",
		},
		{
			"two blocks for one row", "norm.ptx", `%ctaid\.x`, "%ctaid.y", once + "RMSNorm",
			"race: a thread writes what another block wrote",
		},
	})
}
