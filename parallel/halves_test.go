package parallel

import (
	"context"
	"testing"

	"patchbay/parallel/plan"
)

// TestHalvesGiveTheSameBits checks that heads=halves exchanges the same values in twice the calls and gives the bits
// of whole exchanges, on ranks whose calls run at once and on ranks whose calls run as late as possible, in several
// orders: nothing is read before it arrives, or overwritten while it is sent.
func TestHalvesGiveTheSameBits(t *testing.T) {
	if testing.Short() {
		t.Skip("long: several orders of late ranks; TestExactPlansEqualOneRank runs plans of every kind")
	}
	engines := []*Engine{newEngine(t), newDeferredEngine(t, 0), newDeferredEngine(t, 1)}
	for _, c := range []struct {
		name  string
		y, x  int
		plans []string
	}{
		{"flux-c", 7, 11, []string{"ulysses=2", "ulysses=3,shard=on", "ring=2,ulysses=2"}},
		{"hydit-a", 7, 6, []string{"ulysses=2", "cfg=2,ulysses=2"}},
		{"zimage-b", 6, 5, []string{"ulysses=2"}},
	} {
		r := parityRequest(t, openGolden(t, c.name), c.name, 2, c.y, c.x, 2)
		for _, text := range c.plans {
			t.Run(c.name+"/"+text, func(t *testing.T) {
				r.Plan = text
				want, err := engines[0].Sample(context.Background(), r, nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Plan += ",heads=halves"
				for i, e := range engines {
					got, err := e.Sample(context.Background(), r, nil)
					if err != nil {
						t.Fatal(err)
					}
					if at := firstDifference(got.Latent.Data, want.Latent.Data); at >= 0 {
						t.Errorf("engine %d: value %d is %v, of whole exchanges %v", i, at, got.Latent.Data[at], want.Latent.Data[at])
					}
					whole, halves := want.Stats.Traffic[0][plan.AxisUlysses], got.Stats.Traffic[0][plan.AxisUlysses]
					if whole.Calls == 0 || halves.Calls != 2*whole.Calls || halves.Bytes != whole.Bytes {
						t.Errorf("engine %d: %d calls and %d bytes, of whole exchanges %d and %d", i, halves.Calls, halves.Bytes,
							whole.Calls, whole.Bytes)
					}
				}
			})
		}
	}
}
