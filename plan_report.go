package main

import (
	"encoding/json"
	"fmt"
	"os"

	"patchbay/parallel"
)

// planReport is what plan --json prints. Times are seconds.
type planReport struct {
	Model          string          `json:"model"`
	Size           string          `json:"size"`
	Devices        string          `json:"devices"`
	Plan           string          `json:"plan"`
	Exact          bool            `json:"exact"`
	Seconds        float64         `json:"seconds"`
	Requests       int             `json:"requests"`
	RowSeconds     float64         `json:"requests_seconds"` // of all requests in a row
	StepSeconds    float64         `json:"step_seconds"`
	WarmupSeconds  float64         `json:"warmup_seconds"`
	OneRankSeconds float64         `json:"one_rank_seconds,omitempty"`
	Memory         parallel.Memory `json:"memory_bytes"`
	FreeBytes      int64           `json:"free_bytes,omitempty"`
	Traffic        []axisReport    `json:"traffic_per_step"`
	Ranks          []rankReport    `json:"ranks"`
	Idle           int             `json:"idle_devices"`
	Others         []otherReport   `json:"other_plans,omitempty"`
	NotIncluded    string          `json:"not_included"`
}

// axisReport is what the rank that sends most sends on one axis in the mean evaluation.
type axisReport struct {
	Axis      string `json:"axis"`
	MostBytes int64  `json:"bytes"`
	Calls     int64  `json:"exchanges"`
}

type rankReport struct {
	Compute  float64 `json:"compute"`
	Exchange float64 `json:"exchange"`
	Hidden   float64 `json:"hidden"`
	Send     float64 `json:"send"`
	Idle     float64 `json:"idle"`
}

type otherReport struct {
	Plan    string  `json:"plan"`
	Seconds float64 `json:"seconds,omitempty"`
	Bytes   int64   `json:"bytes"`
	Fits    bool    `json:"fits"`
	Why     string  `json:"why"`
}

// shownOthers is how many losing plans are listed without --all.
const shownOthers = 6

func (f *planFlags) report(s parallel.Search, c *parallel.Choice, row float64) planReport {
	r := planReport{
		Model: f.model, Size: f.size, Devices: s.Fabric.String(), Plan: c.Best.Plan.String(), Exact: c.Best.Exact, Seconds: c.Simulation.Seconds, Requests: f.requests, RowSeconds: row,
		StepSeconds: c.Simulation.StepSeconds, WarmupSeconds: c.Simulation.WarmupSeconds, OneRankSeconds: c.OneRank, Memory: c.Best.Memory,
		FreeBytes: max(0, s.Fabric.Device.Memory-s.Fabric.Device.Reserved), Idle: c.Idle,
		NotIncluded: "text encoders, VAE, loading",
	}
	for axis := range c.Traffic[0] {
		a := axisReport{Axis: parallel.Axis(axis).String()}
		for _, rank := range c.Traffic {
			a.MostBytes = max(a.MostBytes, rank[axis].Bytes/int64(s.Evaluations))
			a.Calls = max(a.Calls, rank[axis].Calls/int64(s.Evaluations))
		}
		r.Traffic = append(r.Traffic, a)
	}
	for _, t := range c.Simulation.Ranks {
		r.Ranks = append(r.Ranks, rankReport{t.Compute, t.Exchange, t.Hidden, t.Send, t.Idle})
	}
	for i, o := range c.Others {
		if i == shownOthers && !f.all {
			break
		}
		r.Others = append(r.Others, otherReport{o.Plan.String(), o.Seconds, o.Memory.Total(), o.Fits, s.Reason(c, o)})
	}
	return r
}

// measured is what bench comm --save writes and plan --profile reads: rates of this machine, 0 where nothing was measured.
type measured struct {
	GEMM      float64 `json:"gemm"`      // floating point operations per second
	Attention float64 `json:"attention"` // the same
	Bandwidth float64 `json:"bandwidth"` // bytes per second of one rank
	Latency   float64 `json:"latency"`   // seconds of one exchange
	AllToAll  float64 `json:"all_to_all"`
}

// readProfile replaces the rates of a fabric by measured ones.
func readProfile(path string, f *parallel.Fabric) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("--profile: %w", err)
	}
	var m measured
	if err := json.Unmarshal(b, &m); err != nil {
		return fmt.Errorf("--profile %s: %w", path, err)
	}
	for _, v := range []struct {
		from float64
		to   *float64
	}{
		{m.GEMM, &f.Device.GEMM}, {m.Attention, &f.Device.Attention}, {m.Bandwidth, &f.Link.Bandwidth}, {m.Latency, &f.Link.Latency}, {m.AllToAll, &f.Link.AllToAll},
	} {
		if v.from < 0 {
			return fmt.Errorf("--profile %s: rates must be positive", path)
		}
		if v.from > 0 {
			*v.to = v.from
		}
	}
	return nil
}
