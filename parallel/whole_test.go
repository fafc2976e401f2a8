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
	"patchbay/parallel/plan"
)

// wholeNetworks returns the models of one piece, tiny ones and those that numbers were recorded with.
func wholeNetworks(t *testing.T) (out []string) {
	t.Helper()
	recorded, err := tiny.Networks()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Concat(append(recorded, tiny.Names())...) {
		if describe(t, name).Spec.Whole && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	if len(out) < 2 {
		t.Fatalf("whole networks are %v", out)
	}
	return out
}

// wholePlans are the plans that a network of one piece takes.
func wholePlans() []string {
	return []string{
		"cfg=2", "data=2", "cfg=2,data=2", "cfg=3,deterministic=on", "cfg=2,speeds=100:30", "data=2,overlap=off",
	}
}

// TestWholeNetworks checks for every plan that networks of one piece take, on odd sides, that pictures have the bits of
// one rank, also if ranks run as late as they may, and that memory and traffic are as forecast.
func TestWholeNetworks(t *testing.T) {
	names := wholeNetworks(t)
	if testing.Short() {
		names = names[len(names)-2:]
	}
	for k, name := range names {
		now, late, recording := newEngine(t), newDeferredEngine(t, uint64(k)), newRecordingEngine(t)
		r := parityRequest(t, openGolden(t, name), name, 2, 9, 5+k%3, 2)
		want, err := now.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, text := range wholePlans() {
			if testing.Short() && (i+k)%2 > 0 {
				continue
			}
			t.Run(name+"/"+text, func(t *testing.T) {
				r := *r
				r.Plan = text
				for _, e := range []*Pool{now, late} {
					got, err := e.Sample(context.Background(), &r, nil)
					if err != nil {
						t.Fatal(err)
					}
					if at := firstDifference(got.Latent.Data, want.Latent.Data); at >= 0 {
						t.Errorf("element %d is %v, on one rank %v", at, got.Latent.Data[at], want.Latent.Data[at])
					}
				}
				compareRecorded(t, recording, r, text, engine.BF16)
			})
		}
	}
}

// TestWholeNetworksRefuseOtherPlans checks that the error names the key and what is allowed instead, and that the
// planner chooses among the plans that are left.
func TestWholeNetworksRefuseOtherPlans(t *testing.T) {
	e := newEngine(t)
	r := tinyRequest(t, "sdxl", 2, 9, 7, 2)
	for _, text := range []string{
		"ulysses=2", "ring=2", "gather=2", "tensor=2", "pipe=2", "cfg=2,shard=on", "data=2,pipe=2,patches=2",
		"tensor=2,form=scatter",
	} {
		r := *r
		r.Plan = text
		_, err := e.Sample(context.Background(), &r, nil)
		var refused *fault.Error
		if !errors.As(err, &refused) || refused.Code != fault.PlanRefused {
			t.Fatalf("%s: got %v", text, err)
		}
		key := strings.TrimPrefix(refused.Field, "plan.")
		if !strings.Contains(text, key+"=") || !strings.Contains(refused.Text, "cfg=2") ||
			!strings.Contains(refused.Text, "sdxl") {
			t.Errorf("%s: got field %s, %q", text, refused.Field, refused.Text)
		}
	}
	for _, ranks := range []string{"ranks=2", "ranks=4"} {
		r := *r
		r.Plan = ranks
		p, err := e.whole.plan(&r)
		if err != nil {
			t.Fatal(err)
		}
		one := plan.OneRank()
		if one.CFG, one.Data = p.CFG, p.Data; p != one || p.Ranks() < 2 {
			t.Errorf("%s: chose %s", ranks, p)
		}
	}
}
