package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/rs/zerolog"

	"patchbay/cli/console"
	"patchbay/daemon"
	"patchbay/models/published"
	"patchbay/parallel"
	"patchbay/parallel/forecast"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
	"patchbay/parallel/process"
	"patchbay/parallel/request"
)

// check runs a plan on ranks of this process and prints predicted values beside measured ones. Ranks run one at a
// time, so that each has the whole machine to itself, like a device of its own.
func (f *Flags) check(ctx context.Context, out io.Writer) (err error) {
	if slices.Contains(published.Names(), f.Model) {
		return console.BadInput(fmt.Errorf("--check runs the model, so --model %s must be a file, or left out for the demo's",
			f.Model))
	}
	if f.Devices != "" || f.Batch != 1 {
		return console.BadInput(errors.New("--check runs one picture on ranks of this process: leave --devices and " +
			"--batch out"))
	}
	t := Trial{
		Model: f.Model, Size: f.Size, Compute: "f32", Steps: cmp.Or(f.Steps, 4), Text: cmp.Or(f.text, 32),
		Entries: cmp.Or(f.entries, 2),
	}
	req, err := t.Open("cpu")
	if err != nil {
		return err
	}
	req.Profile = true
	processors := daemon.Config{Devices: "cpu"}
	cfg, release, err := processors.BoundEngine(zerolog.Nop())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	m, err := f.machine(ctx, cfg, *req)
	if err != nil {
		return err
	}
	req.Plan, cfg.Machine, cfg.Order = f.plan, &m, 1
	stats, err := profiled(ctx, cfg, req)
	if err != nil {
		return err
	}
	c, err := compare(req, m, stats)
	if err != nil {
		return err
	}
	c.show(out, t)
	return nil
}

// machine returns the rates that --rates names, or those of a run on one rank.
func (f *Flags) machine(ctx context.Context, cfg parallel.Config, one request.Request) (hardware.Machine, error) {
	if f.rates != "" {
		m, err := daemon.ReadMachine(f.rates)
		if err != nil {
			return m, console.BadInput(fmt.Errorf("--rates: %w", err))
		}
		return m, nil
	}
	m := hardware.CPU()
	stats, err := profiled(ctx, cfg, &one)
	if err != nil {
		return m, err
	}
	return m, Measure(&m, one.Workload(), stats.Spans, one.Compute.Size())
}

// checkedRuns is how often a request runs; the quietest run counts.
const checkedRuns = 4

// profiled runs a request a few times and returns what the run with the shortest steps measured.
func profiled(ctx context.Context, cfg parallel.Config, r *request.Request) (stats request.Stats, err error) {
	e, err := parallel.NewPool(cfg)
	if err != nil {
		return stats, err
	}
	defer e.Close()
	for i := range checkedRuns {
		res, err := e.Sample(ctx, r, nil)
		if err != nil {
			return stats, err
		}
		if i == 0 || total(res.Stats.StepSeconds) < total(stats.StepSeconds) {
			stats = res.Stats
		}
	}
	return stats, nil
}

func total(v []float64) (sum float64) {
	for _, x := range v {
		sum += x
	}
	return sum
}

// comparison is a plan as predicted and as measured, by rank.
type comparison struct {
	plan         plan.Plan
	sim          *forecast.Simulation
	ran          []forecast.RankTime // only Products, Attention and Other are measured
	says, counts []int64             // bytes sent, predicted and measured
	memory, took int64               // bytes of the rank that needs most, without weights, predicted and measured
	wall         float64             // seconds of the steps, ranks one at a time
}

func compare(r *request.Request, m hardware.Machine, stats request.Stats) (c comparison, err error) {
	w := r.Workload()
	w.Device = m.Device
	if stats.Plan != plan.OneRank().String() {
		if c.plan, err = plan.Parse(stats.Plan); err != nil {
			return c, err
		}
	} else {
		c.plan = plan.OneRank()
	}
	n, size := c.plan.Ranks(), r.Compute.Size()
	cluster := hardware.Cluster{Device: m.Device, Link: m.Link, Hosts: 1, PerHost: n}
	c.sim = forecast.Search{Workload: w, Cluster: cluster}.Simulate(c.plan)
	c.ran, c.says, c.counts = make([]forecast.RankTime, n), make([]int64, n), make([]int64, n)
	team := process.TeamSpec{Plan: c.plan, Folded: c.plan.Pipe > 1 && plan.Skips(w.Spec)}
	for _, s := range stats.Spans {
		rank, _ := team.Device(s.Rank)
		addSpan(&c.ran[rank], s)
	}
	for i, axes := range forecast.TrafficByRank(w, c.plan, m.Device.WeightBytes, size) {
		for a, t := range axes {
			c.says[i] += t.Bytes
			c.counts[i] += stats.Traffic[i][a].Bytes
		}
	}
	memory, err := forecast.MemoryByRank(w, c.plan, m.Device.WeightBytes, size)
	if err != nil {
		return c, err
	}
	for _, need := range memory {
		c.memory = max(c.memory, need.Total()-need.Weights)
	}
	c.took, c.wall = stats.PeakBytes, total(stats.StepSeconds)
	return c, nil
}

// show prints the comparison for people.
func (c *comparison) show(out io.Writer, t Trial) {
	console.Printf(out, "%s, %s px, %d steps, plan %s; predicted / measured\n\n", t.Model, t.Size, t.Steps, c.plan)
	off := func(says, is float64) string {
		if is == 0 {
			return ""
		}
		return fmt.Sprintf("%+.0f %%", 100*(says/is-1))
	}
	both := func(says, is float64) string { return seconds(says) + " / " + seconds(is) }
	var rows [][]string
	var says, is forecast.RankTime
	add := func(name string, p, m forecast.RankTime, sent string) {
		work := func(r forecast.RankTime) float64 { return r.Products + r.Attention + r.Other }
		rows = append(rows, []string{
			name, both(p.Products, m.Products), both(p.Attention, m.Attention), both(p.Other, m.Other),
			both(work(p), work(m)), off(work(p), work(m)), sent,
		})
	}
	megabytes := func(n int64) float64 { return math.Round(float64(n)/1e4) / 100 }
	for i, p := range c.sim.Ranks {
		m := c.ran[i]
		add(fmt.Sprintf("rank %d", i), p, m, fmt.Sprintf("%v / %v MB", megabytes(c.says[i]), megabytes(c.counts[i])))
		says.Products, is.Products = says.Products+p.Products, is.Products+m.Products
		says.Attention, is.Attention = says.Attention+p.Attention, is.Attention+m.Attention
		says.Other, is.Other = says.Other+p.Other, is.Other+m.Other
	}
	if len(rows) > 1 {
		add("all", says, is, "")
	}
	console.PrintTable(out, []string{"", "products", "attention", "other", "together", "error", "sent"}, rows)
	console.Printf(out, "\nmemory    %v / %v MB without weights, on the rank that needs most\n", megabytes(c.memory),
		megabytes(c.took))
	console.Printf(out, "run       %s predicted with a device for each rank; %s here, where ranks ran one at a time\n",
		seconds(c.sim.Seconds), seconds(c.wall))
}
