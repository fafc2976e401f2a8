package plan

import (
	"fmt"
	"io"
	"math"

	"patchbay/cli/console"
	"patchbay/parallel"
	"patchbay/parallel/forecast"
	"patchbay/parallel/plan"
)

// queuedJob is one of several equal jobs that wait for the same devices: when it runs, on how many of them and by which
// plan.
type queuedJob struct {
	Start, End float64 // seconds
	Devices    int
	Plan       plan.Plan
}

// queue prints how long jobs that are queued together take, side by side on groups of the devices and one after the
// other on all of them. All wait at the start, in the order of their starts, each with the fastest plan that fits its
// group. Loading weights is not included. It refuses several hosts, devices that differ, and devices that the workload
// does not fit.
func (f *Flags) queue(out io.Writer, s forecast.Search) error {
	if f.jobs < 1 || f.jobs > 10000 || f.plan != "" {
		return console.BadInput(fmt.Errorf("--jobs %d: want 1 to 10000 jobs, and no --plan", f.jobs))
	}
	if s.Cluster.Hosts > 1 || s.Cluster.Mixed != nil {
		return fmt.Errorf("%s: want equal devices of one host for jobs side by side", s.Cluster)
	}
	best := byDevices(s)
	all := best[len(best)-1]
	if math.IsInf(all.Seconds, 1) {
		_, err := s.Choose() // says what is missing
		return err
	}
	jobs := sideBySide(f.jobs, best)
	last, sum := 0.0, 0.0
	var rows [][]string
	count := 0
	for i, j := range jobs {
		last, sum, count = max(last, j.End), sum+j.End, count+1
		if next := i + 1; next == len(jobs) || jobs[next].Devices != j.Devices {
			rows = append(rows, []string{
				fmt.Sprint(count), fmt.Sprint(j.Devices), j.Plan.String(), seconds(j.End - j.Start), seconds(j.End),
			})
			count = 0
		}
	}
	console.PrintTable(out, []string{"jobs", "devices each", "plan", "a job takes", "last ends at"}, rows)
	n := float64(len(jobs))
	console.Printf(out, "side by side       the last ends at %s, the mean job at %s\n", seconds(last), seconds(sum/n))
	console.Printf(out, "one after another  the last ends at %s, the mean job at %s, each on all devices by %s\n",
		seconds(n*all.Seconds), seconds((n+1)/2*all.Seconds), all.Plan)
	return nil
}

// byDevices returns the fastest plan for each number of devices; Seconds is +Inf where none fits.
func byDevices(s forecast.Search) []forecast.Candidate {
	best := make([]forecast.Candidate, s.Cluster.Ranks()+1)
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
func sideBySide(jobs int, best []forecast.Candidate) (out []queuedJob) {
	for now, free := 0.0, len(best)-1; ; {
		for _, n := range parallel.ShareSizes(jobs-len(out), free, func(n int) float64 { return best[n].Seconds }) {
			out = append(out, queuedJob{now, now + best[n].Seconds, n, best[n].Plan})
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
