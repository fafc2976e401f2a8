package parallel

import (
	"context"
	"strings"
	"testing"

	"patchbay/parallel/hardware"
)

// TestUnevenStagesEqualOneRank checks that stages cut by the costs of a device where attention takes nearly all the
// time give the result of one rank if every evaluation is synchronous. Commands, and the cuts in them, pass through an
// encoder.
func TestUnevenStagesEqualOneRank(t *testing.T) {
	if testing.Short() {
		t.Skip("long: TestMeasuredStages cuts uneven stages")
	}
	m, err := hardware.NewMachine("cpu")
	if err != nil {
		t.Fatal(err)
	}
	m.Device.Attention = 1e6
	e, err := NewPool(Config{NewOps: testOps, Machine: &m, Recode: roundTrip})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, name := range []string{"flux", "pixart", "hunyuandit"} {
		r := tinyRequest(t, name, 1, 34, 36, 2)
		want, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, r.Plan = range []string{"pipe=2,patches=3,warmup=99", "pipe=4,patches=4,warmup=99"} {
			got, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatalf("%s %s: %v", name, r.Plan, err)
			}
			if rel := relative(got.Latent.Data, want.Latent.Data); rel > 1e-5 {
				t.Errorf("%s %s: relative difference to one rank %.3g, bound 1e-5", name, r.Plan, rel)
			}
		}
	}
}

// TestUnknownDevicesAreRefused checks that a leader does not start on an unknown device, and lists the known ones.
func TestUnknownDevicesAreRefused(t *testing.T) {
	if _, err := NewPool(Config{NewOps: testOps, Devices: "abacus"}); err == nil ||
		!strings.Contains(err.Error(), "H100") {
		t.Errorf("an engine on abacus: got %v, want an error that lists devices", err)
	}
}
