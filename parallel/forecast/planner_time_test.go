package forecast

import (
	"runtime"
	"testing"
)

// choices are searches that should take at most one second for 8 devices and two for 16, as measured by
// BenchmarkChoose. Machines differ too much for a test of time, so the test allows the work counted when it was
// measured plus a tenth.
var choices = []struct {
	model, devices string
	simulated      int // plans that a bound did not rule out
	megabytes      int // allocated during the search
}{
	{"hunyuandit", "8xH100-nvlink", 83, 90},
	{"flux-dev", "8x4090-pcie", 142, 200},
	{"hunyuandit", "16xH100-nvlink", 214, 237},
	{"sd3.5-large", "2x8xL40-pcie", 139, 285},
}

// TestChoosingIsQuick bounds the plans that are simulated, which take nearly all the time, and the bytes allocated.
func TestChoosingIsQuick(t *testing.T) {
	if testing.Short() {
		t.Skip("long: plannings for large machines; TestChosenPlanIsTheFastest has a few")
	}
	for _, want := range choices {
		s := searchFor(t, want.model, 1024, 50, want.devices)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		c := choose(t, s)
		runtime.ReadMemStats(&after)
		simulated := 0
		for _, o := range append(c.Others, c.Best) {
			if o.Fits && !o.Bound {
				simulated++
			}
		}
		megabytes := int(after.TotalAlloc-before.TotalAlloc) >> 20
		most := func(n int) int { return n + n/10 }
		if simulated > most(want.simulated) || megabytes > most(want.megabytes) {
			t.Errorf("%s on %s: %d of %d plans are simulated, %d MB allocated; want at most %d, %d", want.model, want.devices,
				simulated, len(c.Others)+1, megabytes, most(want.simulated), most(want.megabytes))
		}
	}
}

// BenchmarkChoose measures the time of those searches.
func BenchmarkChoose(b *testing.B) {
	for _, c := range choices {
		b.Run(c.model+"/"+c.devices, func(b *testing.B) {
			s := searchFor(b, c.model, 1024, 50, c.devices)
			for b.Loop() {
				if _, err := s.Choose(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
