package plan

import (
	"patchbay/parallel/forecast"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
)

// report is what plan --json prints. Times are seconds.
type report struct {
	Model          string              `json:"model"`
	Nets           []string            `json:"nets,omitempty"` // control nets and model patches
	Size           string              `json:"size"`
	Frames         int                 `json:"frames,omitempty"` // pictures of a video
	Devices        string              `json:"devices"`
	Rates          string              `json:"rates"` // where they come from
	Plan           string              `json:"plan"`
	Exact          bool                `json:"exact"`
	Seconds        float64             `json:"seconds"`
	StepSeconds    float64             `json:"step_seconds"`
	WarmupSeconds  float64             `json:"warmup_seconds"`
	OneRankSeconds float64             `json:"one_rank_seconds,omitempty"`
	Memory         forecast.Memory     `json:"memory_bytes"`
	FreeBytes      int64               `json:"free_bytes,omitempty"`
	Streams        *streamsReport      `json:"streams,omitempty"` // blocks from host memory
	Traffic        []axisReport        `json:"traffic_per_step"`
	Ranks          []forecast.RankTime `json:"ranks"`
	Idle           int                 `json:"idle_devices"`
	IdleReason     string              `json:"idle_reason,omitempty"`
	Others         []otherReport       `json:"other_plans,omitempty"`
	NotIncluded    string              `json:"not_included"`
}

// axisReport is the traffic on one axis of the rank that sends most, in the mean evaluation.
type axisReport struct {
	Axis      string `json:"axis"`
	MostBytes int64  `json:"bytes"`
	Calls     int64  `json:"exchanges"`
}

// streamsReport is forecast.Streams.
type streamsReport struct {
	Blocks    int     `json:"blocks"`
	Resident  int     `json:"resident_blocks"`
	StepBytes int64   `json:"bytes_per_step"`
	HostBytes int64   `json:"host_bytes"`
	Slowdown  float64 `json:"slowdown"`
}

type otherReport struct {
	Plan    string  `json:"plan"`
	Seconds float64 `json:"seconds,omitempty"`
	Bytes   int64   `json:"bytes"`
	Least   bool    `json:"bytes_at_least,omitempty"` // the plan is too slow to know more, with --all
	Fits    bool    `json:"fits"`
	Why     string  `json:"why"`
}

// shownOthers is how many losing plans are listed without --all.
const shownOthers = 6

// rated says where the rates of a cluster come from.
func (f *Flags) rated(c hardware.Cluster) string {
	switch {
	case f.rates != "":
		return f.rates + ", " + c.Sources()
	case onThisMachine(f.Devices):
		return c.Sources()
	}
	return "of the built-in table: not measured (--rates)"
}

func (f *Flags) report(s forecast.Search, c *forecast.Choice) report {
	r := report{
		Model: f.Model, Nets: f.netNames(), Size: f.Size, Frames: f.frames,
		Devices: s.Cluster.String(), Rates: f.rated(s.Cluster), Plan: c.Best.Plan.String(), Exact: c.Best.Exact,
		Seconds:     c.Simulation.Seconds,
		StepSeconds: c.Simulation.StepSeconds, WarmupSeconds: c.Simulation.WarmupSeconds,
		OneRankSeconds: c.OneRank, Memory: c.Best.Memory,
		FreeBytes: c.Best.On.Free(), Ranks: c.Simulation.Ranks, Idle: c.Idle,
		NotIncluded: "text encoders, VAE, loading",
	}
	if c.Streams.Blocks > 0 {
		r.Streams = (*streamsReport)(&c.Streams)
	}
	if f.plan == "" {
		r.IdleReason = idleReason(s, c)
	}
	for axis := range c.Traffic[0] {
		a := axisReport{Axis: plan.Axis(axis).String()}
		for _, rank := range c.Traffic {
			a.MostBytes = max(a.MostBytes, rank[axis].Bytes/int64(s.Evaluations))
			a.Calls = max(a.Calls, rank[axis].Calls/int64(s.Evaluations))
		}
		r.Traffic = append(r.Traffic, a)
	}
	for i, o := range c.Others {
		if i == shownOthers && !f.all {
			break
		}
		if weighed, err := s.Weigh(o.Plan); err == nil && o.Least && !f.all {
			weighed.Seconds, weighed.Bound = o.Seconds, o.Bound
			o = weighed
		}
		r.Others = append(r.Others, otherReport{
			o.Plan.String(), o.Seconds, o.Memory.Total(), o.Least, o.Fits, reason(s, c, o),
		})
	}
	return r
}
