package plan

import (
	"fmt"
	"io"

	"patchbay/cli/console"
	"patchbay/parallel/forecast"
)

// queue prints how long jobs that are queued together take, side by side on groups of the devices and one after the
// other on all of them.
func (f *Flags) queue(out io.Writer, s forecast.Search) error {
	if f.jobs < 1 || f.jobs > 10000 || f.plan != "" {
		return console.BadInput(fmt.Errorf("--jobs %d: want 1 to 10000 jobs, and no --plan", f.jobs))
	}
	jobs, err := s.Queue(f.jobs)
	if err != nil {
		return err
	}
	all, _ := s.Fastest()
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
