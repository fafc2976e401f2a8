package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"patchbay/engine/profile"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/parallel/plan"
)

// RunStats collects what metrics events report about a job and its sampling runs.
type RunStats struct {
	Timings *Timings // nil: no metrics yet
	runs    []samplingRun
}

// Timings are the seconds that the parts of a job took, and each of its steps.
type Timings struct {
	Load, Text, Denoise, VAE float64
	Steps                    []float64
}

// samplingRun is one sampling run as the worker reports it.
type samplingRun struct {
	Plan                     string
	Evaluations, Synchronous int
	Reused                   []any
	Ranks                    []rankWork
	Profile                  []struct {
		profile.Row
		Seconds float64
	}
	Spans []span
	Total int `json:"spans_total"`
}

type rankWork struct {
	Micro int                     `json:"micro_steps"`
	Text  int                     `json:"text_tokens"`
	Image int                     `json:"image_tokens"`
	Sent  [plan.AxisCount]traffic `json:"-"`
}

// traffic is what a rank has sent along an axis.
type traffic struct{ Calls, Bytes int64 }

// UnmarshalJSON reads a rank: the counters, and the traffic of each axis under the name of the axis.
func (r *rankWork) UnmarshalJSON(text []byte) error {
	type counters rankWork
	var axes map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(text, (*counters)(r)), json.Unmarshal(text, &axes)); err != nil {
		return err
	}
	for a := range plan.AxisCount {
		if sent, ok := axes[a.String()]; ok {
			if err := json.Unmarshal(sent, &r.Sent[a]); err != nil {
				return err
			}
		}
	}
	return nil
}

// span is a profile.Span as it is transmitted: [rank, layer, operation, start us, duration us, bytes].
type span profile.Span

func (s *span) UnmarshalJSON(text []byte) error {
	err := json.Unmarshal(text, &[]any{&s.Rank, &s.Layer, &s.Op, &s.Start, &s.Took, &s.Bytes})
	s.Start, s.Took = s.Start*time.Microsecond, s.Took*time.Microsecond
	return err
}

// Take adds the statistics of a metrics event. It ignores unreadable ones, as a worker of another version may send.
func (p *RunStats) Take(ev message.Event) {
	if _, whole := ev.Data["stats"]; !whole || ev.Type != message.EventMetrics { // a job that failed has only warnings
		return
	}
	var metrics struct {
		Timings Timings
		Stats   []samplingRun
	}
	text, err := wire.Encode(ev.Data, wire.JSON)
	if err == nil && json.Unmarshal(text, &metrics) == nil {
		p.Timings, p.runs = &metrics.Timings, append(p.runs, metrics.Stats...)
	}
}

// WriteProfile prints a table for every sampling run and writes the spans of all of them to path as a Chrome trace.
func (p *RunStats) WriteProfile(s *Progress, path string) error {
	if len(p.runs) == 0 {
		return fmt.Errorf("nothing was sampled, so there is no profile: all of it came from the cache (change the seed)")
	}
	var spans []profile.Span
	total := 0
	for _, run := range p.runs {
		var rows []profile.Row
		for _, r := range run.Profile {
			r.Took = time.Duration(r.Seconds * 1e9)
			rows = append(rows, r.Row)
		}
		var b strings.Builder
		if err := profile.Write(&b, rows); err != nil {
			return err
		}
		s.Say("%s", strings.TrimRight(b.String(), "\n"))
		for _, sp := range run.Spans {
			spans = append(spans, profile.Span(sp))
		}
		total += run.Total
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := profile.Trace(f, spans); err != nil {
		_ = f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	s.Say("%s: %d of %d spans; open it in Perfetto or chrome://tracing", path, len(spans), total)
	return nil
}

// ShowWork prints how the sampling runs were split: plan, evaluations, what each axis moved.
func (p *RunStats) ShowWork(s *Progress) {
	for _, run := range p.runs {
		sent, tokens, micro := [plan.AxisCount]traffic{}, 0, 0
		for _, r := range run.Ranks {
			micro += r.Micro
			tokens = max(tokens, r.Text+r.Image)
			for a, t := range r.Sent {
				sent[a].Calls += t.Calls
				sent[a].Bytes += t.Bytes
			}
		}
		besides := "" // evaluations that ran all patches at once, and those that a cache answered
		if run.Synchronous > 0 {
			besides = fmt.Sprintf(" (%d synchronous)", run.Synchronous)
		}
		if len(run.Reused) > 0 {
			besides += fmt.Sprintf(" and %d answered by the cache", len(run.Reused))
		}
		s.Say("plan: %s on %d ranks, %d evaluations%s, %d micro-steps, %d tokens through the busiest rank", run.Plan,
			len(run.Ranks), run.Evaluations, besides, micro, tokens)
		for a, t := range sent {
			if t.Calls > 0 {
				s.Say("  %-8s %10.2f MB in %d exchanges", plan.Axis(a), float64(t.Bytes)/1e6, t.Calls)
			}
		}
	}
}

// Streamed reports whether any run brought blocks from host memory.
func (p *RunStats) Streamed() bool {
	return slices.ContainsFunc(p.runs, func(run samplingRun) bool {
		for _, r := range run.Ranks {
			if r.Sent[plan.AxisStream].Calls > 0 {
				return true
			}
		}
		return false
	})
}

// Reused reports whether a cache answered any evaluation.
func (p *RunStats) Reused() bool {
	return slices.ContainsFunc(p.runs, func(run samplingRun) bool { return len(run.Reused) > 0 })
}
