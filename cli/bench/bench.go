// Package bench implements `patchbay bench`: commands that measure this machine and save rates in a file.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
)

// timing holds the flags that every benchmark takes.
type timing struct {
	warmup, runs int
	json         bool
}

// command adds the flags to cmd and makes it print the report of measure.
func (f *timing) command(cmd *cobra.Command, warmup, runs int, measure func(context.Context) (*report, error),
) *cobra.Command {
	cmd.Args = console.ExactArgs(0)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.warmup < 0 || f.runs < 1 || f.runs > 100000 {
			return console.BadInput(errors.New("want --warmup 0 or more and --runs 1 to 100000"))
		}
		r, err := measure(cmd.Context())
		if err != nil {
			return err
		}
		return r.print(cmd.OutOrStdout(), f.json)
	}
	fl := cmd.Flags()
	fl.IntVar(&f.warmup, "warmup", warmup, "runs before the clock counts")
	fl.IntVar(&f.runs, "runs", runs, "runs that are counted")
	fl.BoolVar(&f.json, "json", false, "print JSON")
	return cmd
}

// Command returns `patchbay bench` with a subcommand for each benchmark.
func Command(version string) *cobra.Command {
	return console.Group(&cobra.Command{
		Use:   "bench",
		Short: "Measure this machine",
		Long: `bench measures on this machine, and between hosts. It prints median, 95th percentile and spread (median
absolute deviation), with a line that says what is inside the time and what is not.`,
		Example: `  patchbay bench comm --ranks 4 --save here.json
  patchbay bench step --plan ulysses=2 --warmup 1 --runs 5
  patchbay bench plan --model flux-dev --devices 8xL40-pcie`,
	}, commCmd(version), stepCmd(), planCmd(), vaeCmd(), textCmd())
}

// sample is one measured quantity. Times are seconds.
type sample struct {
	What   string  `json:"what"`
	Bytes  int     `json:"bytes,omitempty"` // that one rank sends
	Runs   int     `json:"runs"`
	Median float64 `json:"median"`
	P95    float64 `json:"p95"`
	Spread float64 `json:"spread"` // median absolute deviation
	// Rate is bytes or floating point operations per second at the median; 0: neither.
	Rate float64 `json:"rate,omitempty"`
}

// report is what a benchmark prints.
type report struct {
	Benchmark string   `json:"benchmark"`
	Inside    string   `json:"inside"`
	Outside   string   `json:"outside"`
	Warmup    int      `json:"warmup"`
	Samples   []sample `json:"samples"`
	// Extra is whatever else a benchmark reports.
	Extra map[string]any `json:"extra,omitempty"`
}

// summarise returns the statistics of measured times, of which there must be at least one.
func summarise(what string, times []float64) sample {
	sorted := slices.Sorted(slices.Values(times))
	at := func(v []float64, q float64) float64 { return v[int(math.Ceil(q*float64(len(v))))-1] }
	s := sample{What: what, Runs: len(times), Median: at(sorted, 0.5), P95: at(sorted, 0.95)}
	var off []float64
	for _, t := range sorted {
		off = append(off, math.Abs(t-s.Median))
	}
	slices.Sort(off)
	s.Spread = at(off, 0.5)
	return s
}

// clocked calls run f.warmup times and then f.runs times, and returns the statistics of the latter.
func (f *timing) clocked(what string, run func() error) (sample, error) {
	var times []float64
	for i := range f.warmup + f.runs {
		start := time.Now()
		if err := run(); err != nil {
			return sample{}, err
		}
		if i >= f.warmup {
			times = append(times, time.Since(start).Seconds())
		}
	}
	return summarise(what, times), nil
}

func (r *report) print(out io.Writer, asJSON bool) error {
	if asJSON {
		return console.PrintIndented(out, r)
	}
	var rows [][]string
	for _, s := range r.Samples {
		rate := ""
		switch {
		case s.Rate > 0 && s.Bytes > 0:
			rate = fmt.Sprintf("%.2f GB/s", s.Rate/1e9)
		case s.Rate > 0:
			rate = fmt.Sprintf("%.1f GFLOP/s", s.Rate/1e9)
		}
		rows = append(rows, []string{s.What, short(s.Median), short(s.P95), short(s.Spread), fmt.Sprint(s.Runs), rate})
	}
	console.PrintTable(out, []string{"what", "median", "p95", "spread", "runs", "rate"}, rows)
	console.Printf(out, "inside the time: %s\nnot inside: %s\n", r.Inside, r.Outside)
	return nil
}

// short formats seconds in us, ms or s.
func short(s float64) string {
	switch {
	case s < 1e-3:
		return fmt.Sprintf("%.2f us", 1e6*s)
	case s < 1:
		return fmt.Sprintf("%.2f ms", 1e3*s)
	}
	return fmt.Sprintf("%.3f s", s)
}
