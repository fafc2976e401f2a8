package parallel

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models/tiny"
)

// networksWithSoundBeside returns the models whose sound every rank of a sequence computes.
func networksWithSoundBeside(t *testing.T) (out []string) {
	t.Helper()
	recorded, err := tiny.Networks()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Concat(append(recorded, tiny.Names())...) {
		if describe(t, name).Spec.Sound.Width > 0 && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	if len(out) < 4 {
		t.Fatalf("networks with sound beside the video are %v", out)
	}
	return out
}

// besidePlans are the kinds of plans that such a network takes.
func besidePlans() []string {
	return []string{
		"ulysses=2", "ring=2", "ulysses=3", "ring=3", "ring=2,ulysses=2", "ring=5", "cfg=2", "data=2", "pipe=2,patches=1",
		"cfg=2,ulysses=2,data=2", "pipe=2,patches=1,ulysses=3", "pipe=2,patches=1,ring=2,cfg=2", "ulysses=2,shard=on",
		"pipe=2,patches=1,stream=1", "ulysses=3,speeds=60:100:25", "pipe=2,patches=1,ring=2,sync=spread",
		"ulysses=2,overlap=off", "gather=2", "gather=3", "gather=2,ulysses=2,overlap=off",
	}
}

// TestNetworksWithSoundBeside checks that every exact plan gives the answer of one rank, twice the same bits, also if
// ranks run as late as they may, that with deterministic=on plans give the bits of one rank, and that memory and
// traffic are as forecast.
func TestNetworksWithSoundBeside(t *testing.T) {
	names := networksWithSoundBeside(t)
	if testing.Short() {
		names = names[len(names)-2:]
	}
	for k, name := range names {
		now, late, recording := newEngine(t), newDeferredEngine(t, uint64(k)), newRecordingEngine(t)
		r := parityRequest(t, openGolden(t, name), name, 2, 9-2*(k%2), 2+k%2, 2)
		want, err := now.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, text := range besidePlans() {
			if testing.Short() && (i+k)%3 > 0 {
				continue
			}
			t.Run(name+"/"+text, func(t *testing.T) {
				r := *r
				r.Plan = planFor(r.Model.Spec, text)
				var first []float32
				for _, e := range []*Pool{now, late, now} {
					got, err := e.Sample(context.Background(), &r, nil)
					if err != nil {
						t.Fatal(err)
					}
					if rel := relative(got.Latent.Data, want.Latent.Data); !(rel <= 1e-5) {
						t.Fatalf("relative difference to one rank %.3g, bound 1e-5", rel)
					}
					if first == nil {
						first = got.Latent.Data
					}
					if at := firstDifference(got.Latent.Data, first); at >= 0 {
						t.Errorf("element %d is %v, before %v", at, got.Latent.Data[at], first[at])
					}
				}
				compareRecorded(t, recording, r, r.Plan, engine.BF16)
				if strings.Contains(text, "speeds") {
					return
				}
				r.Plan += ",deterministic=on"
				got, err := now.Sample(context.Background(), &r, nil)
				if err != nil {
					t.Fatal(err)
				}
				if at := firstDifference(got.Latent.Data, want.Latent.Data); at >= 0 {
					t.Errorf("deterministic: element %d is %v, on one rank %v", at, got.Latent.Data[at], want.Latent.Data[at])
				}
			})
		}
	}
}

// TestNetworksWithSoundBesideRefusePlans checks that the error names the key and what is allowed instead.
func TestNetworksWithSoundBesideRefusePlans(t *testing.T) {
	e := newEngine(t)
	r := parityRequest(t, openGolden(t, "ltx"), "ltx", 1, 9, 2, 1)
	for text, instead := range map[string]string{
		"tensor=2": "ulysses=2", "pipe=2": "patches=1", "tensor=3,form=scatter": "ulysses=3",
		"ulysses=2,pipe=2,patches=3": "patches=1",
	} {
		r := *r
		r.Plan = text
		_, err := e.Sample(context.Background(), &r, nil)
		var refused *fault.Error
		if !errors.As(err, &refused) || refused.Code != fault.PlanRefused || !strings.Contains(refused.Text, instead) ||
			!strings.Contains(refused.Text, "ltx") {
			t.Errorf("%s: got %v, want a refusal that names %s", text, err, instead)
		}
	}
}
