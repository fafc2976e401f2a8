package forecast

import (
	"math"
	"testing"

	"patchbay/models/published"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
)

// TestWorkOfPublishedModels compares the floating point operations of one evaluation of one entry with numbers worked
// out independently: of a video, most are those of attention between all frames.
func TestWorkOfPublishedModels(t *testing.T) {
	unit := hardware.Device{Name: "unit", GEMM: 1, Attention: 1, Traffic: math.Inf(1)}
	for _, c := range []struct {
		model           string
		frames, x, y    int // of the latent; frames: 0 for a picture
		text            int
		tera, attention float64 // 10^12 operations, and the share of attention; 0: not known
	}{
		{"flux-dev", 0, 128, 128, 512, 74.4, 14.9 / 74.4},
		{"flux-dev", 0, 128, 128, 256, 69.5, 0},
		{"wan2.1-t2v-14b", 21, 104, 60, 512, 1678, 0},
		{"wan2.1-t2v-14b", 21, 160, 90, 512, 6523, 0.72},
		{"wan2.1-t2v-1.3b", 21, 104, 60, 512, 283, 0},
	} {
		m, err := published.Find(c.model)
		if err != nil {
			t.Fatal(err)
		}
		w := Workload{
			Spec: m.Spec, T: c.frames, Y: c.y * max(c.frames, 1), X: c.x, Batch: 1, Text: []int{c.text}, Evaluations: 1,
		}
		costs := newCosts(NewPartition(w, plan.OneRank()), hardware.Cluster{Device: unit, Hosts: 1, PerHost: 1})
		rank := simulate(costs, false).Ranks[0]
		total := rank.Products + rank.Attention
		if !near(total/1e12, c.tera, 0.01*c.tera) {
			t.Errorf("%s, %d x %d x %d: %.1f TFLOP, want %.1f", c.model, c.frames, c.x, c.y, total/1e12, c.tera)
		}
		if share := rank.Attention / total; c.attention > 0 && !near(share, c.attention, 0.01) {
			t.Errorf("%s, %d x %d x %d: a share of attention of %.3f, want %.3f", c.model, c.frames, c.x, c.y, share,
				c.attention)
		}
	}
}
