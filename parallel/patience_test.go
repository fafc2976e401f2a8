package parallel

import (
	"context"
	"errors"
	"testing"
	"time"

	"patchbay/fault"
)

// TestPatienceCountsFromTheLastProgress checks that ranks that have made progress since the last look get the
// watchdog's whole patience again, however long the request has run, and that ranks without progress are reported once
// it is over.
func TestPatienceCountsFromTheLastProgress(t *testing.T) {
	e, err := NewPool(Config{NewOps: testOps, Patience: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	r := parityRequest(t, openGolden(t, "flux-c"), "flux-c", 1, 6, 6, 2)
	r.Plan = "ulysses=2"
	run := func() {
		t.Helper()
		if _, err := e.Sample(context.Background(), r, nil); err != nil {
			t.Fatal(err)
		}
	}
	run()
	look := e.whole.team.Stalled
	// as if that much time passed
	after := func(d time.Duration) { e.whole.team.Watch.Since = e.whole.team.Watch.Since.Add(-d) }
	if err := look(); err != nil {
		t.Fatalf("at the first look: %v", err)
	}
	after(2 * time.Hour)
	run()
	for range 2 {
		if err := look(); err != nil {
			t.Fatalf("ranks moved two hours after the start: %v", err)
		}
	}
	after(59 * time.Minute)
	if err := look(); err != nil {
		t.Fatalf("59 minutes after the last progress: %v", err)
	}
	after(time.Minute)
	var pe *fault.Error
	if err := look(); !errors.As(err, &pe) || pe.Code != fault.PeerLost {
		t.Errorf("an hour after the last progress: got %v, want the verdict that ranks stand still", err)
	}
}
