package forecast

import (
	"fmt"
	"testing"

	"patchbay/models/dit"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
)

// TestStagesOfFluxFit checks the forecast for FLUX-dev in bf16: a rank holds at most 16 GB of weights on two stages and
// 10 GB on four. Its double blocks have twice the weights of single ones for the same work, so the first stage has
// more.
func TestStagesOfFluxFit(t *testing.T) {
	s := searchFor(t, "flux-dev", 1024, 28, "8xH100-nvlink")
	s.Device = s.Cluster.Device
	for _, c := range []struct {
		plan  string
		bound float64 // GB
	}{
		{"pipe=2,shard=on", 16},
		{"pipe=4,shard=on", 10},
	} {
		most := int64(0)
		for _, m := range memoryByRank(t, s.Workload, planOf(t, c.plan), 2, 2) {
			most = max(most, m.Weights)
		}
		t.Logf("%s: %.2f GB of weights", c.plan, float64(most)/1e9)
		if got := float64(most) / 1e9; got > c.bound {
			t.Errorf("%s: %.2f GB of weights on a rank, bound %.1f", c.plan, got, c.bound)
		}
	}
}

// TestOwnStagesCoverEverything checks for published models and all stage counts that the stages hold each
// block and each end exactly once.
func TestOwnStagesCoverEverything(t *testing.T) {
	cpu, err := hardware.NewMachine("cpu")
	if err != nil {
		t.Fatal(err)
	}
	for _, model := range []string{"flux-dev", "sd3-medium", "sd3.5-large", "pixart-alpha", "hunyuandit"} {
		spec := searchFor(t, model, 1024, 1, "H100").Spec
		for n := 2; n <= min(plan.MaxStages(spec), 16); n++ {
			p := plan.Plan{Data: 1, CFG: 1, Pipe: n, Ring: 1, Ulysses: 1, Tensor: 1, Shard: true}
			lanes, seen := OwnLanes(spec, p, cpu.Device), map[string]int{}
			for stage := range n {
				h := p.StageHeld(lanes, stage)
				for i := range spec.Blocks {
					if h.Has(i) {
						seen[fmt.Sprint("block ", i)]++
					}
				}
				for _, u := range []dit.Use{dit.ForEmbed, dit.ForHead} {
					if h.Uses(u) {
						seen[string(u)]++
					}
				}
			}
			if len(seen) != len(spec.Blocks)+2 {
				t.Errorf("%s, %s: %d pieces are held, want %d", model, p, len(seen), len(spec.Blocks)+2)
			}
			for piece, times := range seen {
				if times != 1 {
					t.Errorf("%s, %s: %s is held by %d stages, want one", model, p, piece, times)
				}
			}
		}
	}
}
