package forecast

import (
	"fmt"
	"math"

	"patchbay/parallel/plan"
)

// Job is one of several equal jobs that wait for the same devices: when it runs, on how many of them and by which plan.
type Job struct {
	Start, End float64 // seconds
	Devices    int
	Plan       plan.Plan
}

// ShareSizes divides the free devices of one host among waiting jobs, as evenly as possible, so that the last job ends
// soonest. It returns the sizes of the groups; jobs without one wait. seconds returns the time of a job on a number of
// devices, +Inf if it does not fit. Many jobs get a device each, since no plan's speedup exceeds its number of devices.
// A lone job gets all devices, and so do, one after the other, a few jobs that do not share evenly.
func ShareSizes(waiting, free int, seconds func(devices int) float64) []int {
	var out []int
	if n, _ := soonest(waiting, free, seconds); n > 0 {
		for _, r := range plan.Balanced(free, n) {
			out = append(out, r.Len())
		}
	}
	return out
}

// soonest returns the number of groups to begin with, 0 if a job fits none, and when the last job ends if that many run
// in every round except the last, whose jobs are divided anew.
func soonest(waiting, free int, seconds func(devices int) float64) (groups int, last float64) {
	if waiting == 0 {
		return 0, 0
	}
	last = math.Inf(1)
	for n := 1; n <= min(waiting, free); n++ {
		_, rest := soonest(waiting%n, free, seconds)
		if end := float64(waiting/n)*seconds(free/n) + rest; end < last {
			groups, last = n, end
		}
	}
	return groups, last
}

// Queue predicts jobs of this workload that all wait at the start and run side by side on Groups of the devices. Jobs
// are in the order of their starts, each with the fastest plan that fits its group. Loading weights is not included. It
// returns an error for several hosts, devices that differ, and devices that the workload does not fit.
func (s Search) Queue(jobs int) ([]Job, error) {
	if s.Cluster.Hosts > 1 || s.Cluster.Mixed != nil {
		return nil, fmt.Errorf("%s: want equal devices of one host for jobs side by side", s.Cluster)
	}
	best := s.byDevices()
	if math.IsInf(best[len(best)-1].Seconds, 1) {
		_, err := s.Choose() // says what is missing
		return nil, err
	}
	return sideBySide(jobs, best), nil
}

// byDevices returns the fastest plan for each number of devices; Seconds is +Inf where none fits.
func (s Search) byDevices() []Candidate {
	best := make([]Candidate, s.Cluster.Ranks()+1)
	best[0].Seconds = math.Inf(1)
	for n := 1; n < len(best); n++ {
		s.Cluster.PerHost = n
		var ok bool
		if best[n], ok = s.Fastest(); !ok {
			best[n].Seconds = math.Inf(1)
		}
	}
	return best
}

// sideBySide gives devices to jobs whenever some are free. best is by number of devices.
func sideBySide(jobs int, best []Candidate) (out []Job) {
	for now, free := 0.0, len(best)-1; ; {
		for _, n := range ShareSizes(jobs-len(out), free, func(n int) float64 { return best[n].Seconds }) {
			out = append(out, Job{now, now + best[n].Seconds, n, best[n].Plan})
			free -= n
		}
		if len(out) >= jobs {
			return out
		}
		next := math.Inf(1)
		for _, j := range out {
			if j.End > now {
				next = min(next, j.End)
			}
		}
		for _, j := range out {
			if j.End == next {
				free += j.Devices
			}
		}
		now = next
	}
}
