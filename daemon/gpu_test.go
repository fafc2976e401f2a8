package daemon

import (
	"slices"
	"strings"
	"testing"
)

// TestGPUs: numbers, lists and ranges are read, everything else is refused, and what is no GPU is left to others.
func TestGPUs(t *testing.T) {
	for text, want := range map[string][]int{
		"cuda:0": {0}, "cuda:3": {3}, "cuda:0-3": {0, 1, 2, 3}, "cuda:0,2": {0, 2},
		"cuda:0,cuda:2-3": {0, 2, 3}, "cuda:2-2": {2}, "cuda:0,0": {0, 0}, "cuda:0-2,1": {0, 1, 2, 1},
		"cpu": nil, "": nil, "rates.json": nil,
	} {
		if got, err := GPUs(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"cuda", "cuda:", "cuda:x", "cuda:-1", "cuda:1-0", "cuda:0,", "cuda0", "cuda:0-",
		"cuda:999", "cuda:+1",
	} {
		if got, err := GPUs(text); err == nil {
			t.Errorf("%q: got %v, want a refusal", text, got)
		}
	}
}

// TestSchedulesThatAreRefused: a --schedule that cannot be is refused with the flag and what may stand there, and says
// how many jobs a worker has in hand where it can.
func TestSchedulesThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string // part of the refusal; empty: none
		jobs int
	}{
		{Config{Devices: "cpu"}, "", 1},
		{Config{Devices: "cpu", Schedule: "one", Ranks: 4}, "", 1},
		{Config{Devices: "cpu", Schedule: "auto", Ranks: 4}, "", 6},
		{Config{Devices: "cuda:0-7", Schedule: "each"}, "", 10},
		{Config{Devices: "cuda:0", Schedule: "auto"}, "", 1},
		{Config{Devices: "cpu", Schedule: "all"}, "want one, auto or each", 0},
		{Config{Devices: "cpu", Schedule: "auto"}, "--ranks", 0},
		{Config{Devices: "cpu", Ranks: -1}, "--ranks -1", 0},
		{Config{Devices: "cuda:0-1", Ranks: 2}, "a GPU is one place", 0},
		{Config{Devices: "cpu", Ranks: 2, Schedule: "auto", Hosts: "a,b"}, "--hosts a,b", 0},
		{Config{Devices: "cpu", Ranks: 2, Schedule: "each", Placement: "children"}, "want --placement threads", 0},
	} {
		err := c.cfg.checkSchedule()
		if c.want == "" && (err != nil || c.cfg.jobs() != c.jobs) {
			t.Errorf("%+v: %v, %d jobs in hand, want %d", c.cfg, err, c.cfg.jobs(), c.jobs)
		}
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: got %v, want %q in it", c.cfg, err, c.want)
		}
	}
}
