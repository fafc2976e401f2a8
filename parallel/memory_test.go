package parallel

import "testing"

// TestPlannerTakesTheRankThatNeedsMost: the memory of a candidate is that of the rank that needs most, whichever it is,
// and a plan fits where that rank fits.
func TestPlannerTakesTheRankThatNeedsMost(t *testing.T) {
	s := searchFor(t, "flux-dev", 1024, 4, "8xH100-nvlink")
	s.Device = s.Fabric.Device
	notFirst := 0
	for _, text := range []string{
		"ulysses=5", "ring=3", "cfg=1,tensor=5", "pipe=4", "pipe=8",
		"pipe=3,patches=5,shard=on", "pipe=4,shard=on,cut=weights",
	} {
		p := planOf(t, text)
		ranks := ForecastMemory(s.Workload, p, s.Fabric.Device.WeightBytes, s.Fabric.Device.ValueBytes)
		most, at := int64(0), 0
		for r, m := range ranks {
			if m.Total() > most {
				most, at = m.Total(), r
			}
		}
		if ranks[0].Total() < most {
			notFirst++
		}
		for _, c := range []struct {
			free int64
			fits bool
		}{{most, true}, {most - 1, false}} {
			s := s
			s.Fabric.Device.Reserved, s.Fabric.Device.Memory = 0, c.free
			if got := s.weigh(p); got.Fits != c.fits || got.Memory != ranks[at] {
				t.Errorf("%s: with %d bytes free it fits: %v, want %v; memory %+v, want that of rank %d, %+v",
					text, c.free, got.Fits, c.fits, got.Memory, at, ranks[at])
			}
		}
	}
	if notFirst < 3 {
		t.Errorf("only %d plans need most on another rank than the first", notFirst)
	}
}
