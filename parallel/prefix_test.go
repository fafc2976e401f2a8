package parallel

import (
	"context"
	"errors"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
	"patchbay/tests/race"
)

// prefixed adds rows before the text of every entry.
func prefixed(r *request.Request, rows int) {
	width := r.Model.Spec.Width
	for b := range r.Branches {
		for i := range r.Branches[b].Entries {
			entry := &r.Branches[b].Entries[i]
			entry.Prefix = dit.Array{Rows: rows, Cols: width, Data: golden.Input("prefix", rows*width)}
			entry.Biases = nil // a prefix excludes them
		}
	}
}

// TestPrefixesAreForecast checks memory, bytes and calls of each rank against a recorded run, with far more prefix
// rows than text and with few.
func TestPrefixesAreForecast(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: planning has no goroutines of its own")
	}
	e := newRecordingEngine(t)
	for _, rows := range []int{3, 900} {
		for _, compute := range []engine.DType{engine.F32, engine.BF16} {
			for _, text := range []string{
				"", "ulysses=3", "ring=2,ulysses=2", "tensor=2,form=scatter", "cfg=2", "data=2", "pipe=2,patches=3",
				"pipe=2,patches=2,warmup=99,sync=spread", "gather=3",
			} {
				r := tinyRequest(t, "flux", 2, 10, 14, 2)
				bare := r.Workload()
				prefixed(r, rows)
				if w := r.Workload(); w.Sequence(0).Text != bare.Sequence(0).Text+rows {
					t.Fatalf("%d tokens of text, want %d more than %d", w.Sequence(0).Text, rows, bare.Sequence(0).Text)
				}
				compareRecorded(t, e, *r, text, compute)
			}
		}
	}
}

// TestExactPlansRunPrefixesAsOneRank checks exact plans with prefixes against one rank, with references too.
func TestExactPlansRunPrefixesAsOneRank(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansEqualOneRank has the same goroutines")
	}
	e := newEngine(t)
	for k, name := range []string{"kontext-a", "flux-c"} {
		r := parityRequest(t, openGolden(t, name), name, 2, 5, 7, 2)
		plain, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		prefixed(r, 5)
		want, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if rel := relative(plain.Latent.Data, want.Latent.Data); !(rel > 1e-3) {
			t.Errorf("%s: rows in front of the text move the picture by %.3g", name, rel)
		}
		for _, plan := range somePlans(kinds(exactPlans()), k, 6) {
			r.Plan = planFor(r.Model.Spec, plan)
			got, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatalf("%s %s: %v", name, plan, err)
			}
			if rel := relative(got.Latent.Data, want.Latent.Data); !(rel <= 1e-5) {
				t.Errorf("%s %s: relative difference to one rank %.3g, bound 1e-5", name, plan, rel)
			}
		}
	}
}

// TestBadPrefixesAreRefused checks that the error names the branch and what is expected.
func TestBadPrefixesAreRefused(t *testing.T) {
	e := newEngine(t)
	for want, spoil := range map[string]func(*request.Request){
		"positive: entry 0 has a prefix of [5, 191]: want [5, 192]": func(r *request.Request) {
			r.Branches[0].Entries[0].Prefix.Cols--
		},
		"negative: entry 0 has a prefix of [0, 0]: want [5, 192]": func(r *request.Request) {
			r.Branches[1].Entries[0].Prefix = dit.Array{}
		},
		"and a model that takes one": func(r *request.Request) {
			*r = *parityRequest(t, openGolden(t, "qwen-a"), "qwen-a", 1, 5, 7, 1)
			prefixed(r, 5)
		},
	} {
		r := parityRequest(t, openGolden(t, "flux-c"), "flux-c", 1, 5, 7, 1)
		prefixed(r, 5)
		spoil(r)
		_, err := e.Sample(context.Background(), r, nil)
		var f *fault.Error
		if !errors.As(err, &f) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want a refusal with %q", err, want)
		}
	}
}
