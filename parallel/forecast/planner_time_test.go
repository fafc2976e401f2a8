package forecast

import (
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"
)

// processorTime is what this process has computed so far.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestChoosingIsQuick: a plan for 8 devices takes less than a second and one for 16 less than two, on a processor that
// sorts four million numbers in half a second; others get as much longer as they sort slower.
func TestChoosingIsQuick(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT RUN: the race detector slows the planner more than the sort")
	}
	r := rand.New(rand.NewPCG(1, 2))
	numbers := make([]float64, 4<<20)
	for i := range numbers {
		numbers[i] = r.Float64()
	}
	before := processorTime(t)
	slices.Sort(numbers)
	unit := processorTime(t) - before
	for _, c := range []struct {
		model, devices string
		units          float64
	}{
		{"hunyuandit", "8xH100-nvlink", 2},
		{"flux-dev", "8x4090-pcie", 2},
		{"hunyuandit", "16xH100-nvlink", 4},
		{"sd3.5-large", "2x8xL40-pcie", 4},
	} {
		s := searchFor(t, c.model, 1024, 50, c.devices)
		before := processorTime(t)
		choose(t, s)
		took := float64(processorTime(t)-before) / float64(unit)
		t.Logf("%s on %s: %.2f times a sort of %s", c.model, c.devices, took, unit.Round(time.Millisecond))
		if !(took <= c.units) {
			t.Errorf("%s on %s: %.2f times a sort, want at most %v", c.model, c.devices, took, c.units)
		}
	}
}
