//go:build cgo && fakegpu

package cuda

import (
	"testing"
	"time"
)

// TestStamps checks that stamps have the times at which the stream reached them, even if events are reused and the
// newest stamp is read first. On the fake device everything in a stream takes a microsecond.
func TestStamps(t *testing.T) {
	t.Setenv("FAKEGPU_EAGER", "")
	o := openOps(t)
	fake := o.dev.Name == "Fake GPU"
	x := vector(t, o, 64)
	var zero, last time.Duration
	before := o.dev.Counts().Allocations
	for round := range 4 {
		var stamps []func() time.Duration
		for i := range 5 {
			stamps = append(stamps, o.Stamp())
			for range i + 1 {
				o.Fill(x, 1)
			}
		}
		stamps = append(stamps, o.Stamp())
		if err := o.Sync(); err != nil {
			t.Fatal(err)
		}
		end := stamps[5]()
		if round == 0 {
			zero = stamps[0]()
		}
		for i := range 5 {
			took := stamps[i+1]() - stamps[i]()
			if want := time.Duration(i+2) * time.Microsecond; fake && took != want || took <= 0 {
				t.Errorf("round %d: stamp %d came %s after the one before, want %s", round, i+1, took, want)
			}
		}
		if want := time.Duration(20*(round+1)+round) * time.Microsecond; fake && end-zero != want || end <= last {
			t.Errorf("round %d ends %s after the first, want %s", round, end-zero, want)
		}
		last = end
	}
	if n := o.dev.Counts().Allocations - before; n > 7 { // the last event of a round serves the next round too
		t.Errorf("%d events for 6 stamps at a time", n)
	}
	o.Stamp() // never read: Close must free it, or the device reports the leak
	o.Free(x.Buf)
}
