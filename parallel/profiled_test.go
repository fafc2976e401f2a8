package parallel

import (
	"context"
	"testing"

	"patchbay/engine/profile"
	"patchbay/parallel/plan"
)

// TestProfileCoversRanksAndLayers checks that a profiled run gives the same bits, that every rank shows every layer it
// has, and that bytes equal the traffic counters.
func TestProfileCoversRanksAndLayers(t *testing.T) {
	e := newEngine(t)
	r := parityRequest(t, openGolden(t, "flux-c"), "flux-c", 1, 8, 8, 3)
	r.Plan = "ulysses=2"
	want, err := e.Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Profile = true
	got, err := e.Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if relative(got.Latent.Data, want.Latent.Data) != 0 {
		t.Error("profiling changed the result")
	}
	seen := map[int]map[string]int64{0: {}, 1: {}}
	for _, row := range profile.Table(got.Stats.Spans) {
		if row.Took <= 0 {
			t.Errorf("%+v took no time", row)
		}
		seen[row.Rank][row.Layer] = row.Bytes
	}
	for rank, layers := range seen {
		for _, l := range []string{"text", "embed", "modulation", "qkv", "exchange", "attention", "mlp", "head"} {
			if _, ok := layers[l]; !ok {
				t.Errorf("rank %d has no layer %s", rank, l)
			}
		}
		if sent := got.Stats.Traffic[rank][plan.AxisUlysses].Bytes; layers["exchange"] != sent || sent == 0 {
			t.Errorf("rank %d: spans tell %d bytes, counters %d", rank, layers["exchange"], sent)
		}
	}
}
