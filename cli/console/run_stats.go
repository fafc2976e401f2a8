package console

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"patchbay/engine/profile"
	"patchbay/ipc/message"
	"patchbay/node/pyjson"
)

// RunStats collects what metrics events say of the sampling runs of a job.
type RunStats struct {
	spans []profile.Span
	total int64
	runs  []*pyjson.Object
}

// Take remembers the statistics of a metrics event.
func (p *RunStats) Take(ev message.Event) {
	if ev.Type != message.EventMetrics {
		return
	}
	stats, _ := ev.Data["stats"].([]any)
	for _, s := range stats {
		run, ok := s.(*pyjson.Object)
		if !ok {
			continue
		}
		p.runs = append(p.runs, run)
		spans, _ := run.Get("spans")
		list, _ := spans.([]any)
		for _, v := range list {
			p.spans = append(p.spans, spanOf(v))
		}
		p.total += number(run, "spans_total")
	}
}

// spanOf reads one span as ipc writes it: [rank, layer, operation, start us, duration us, bytes].
func spanOf(v any) profile.Span {
	f, _ := v.([]any)
	if len(f) != 6 {
		return profile.Span{}
	}
	n := func(i int) int64 { v, _ := f[i].(int64); return v }
	text := func(i int) string { v, _ := f[i].(string); return v }
	return profile.Span{
		Rank: int(n(0)), Layer: text(1), Op: text(2), Bytes: n(5),
		Start: time.Duration(n(3)) * time.Microsecond, Took: time.Duration(n(4)) * time.Microsecond,
	}
}

// number reads an integer or a whole number of seconds out of a message.
func number(o *pyjson.Object, key string) int64 {
	v, _ := o.Get(key)
	switch n := v.(type) {
	case int64:
		return n
	case uint64:
		return int64(n)
	case float64:
		return int64(n)
	}
	return 0
}

// rows reads the table of a run.
func rows(run *pyjson.Object) []profile.Row {
	v, _ := run.Get("profile")
	list, _ := v.([]any)
	var out []profile.Row
	for _, item := range list {
		o, ok := item.(*pyjson.Object)
		if !ok {
			continue
		}
		layer, _ := o.Get("layer")
		name, _ := layer.(string)
		seconds, _ := o.Get("seconds")
		took, _ := seconds.(float64)
		out = append(out, profile.Row{
			Rank: int(number(o, "rank")), Layer: name, Calls: int(number(o, "calls")),
			Bytes: number(o, "bytes"), Took: time.Duration(took * 1e9),
		})
	}
	return out
}

// WriteProfile prints the table of every sampling run and writes the trace.
func (p *RunStats) WriteProfile(s *Progress, path string) error {
	if len(p.runs) == 0 {
		return fmt.Errorf("nothing was sampled, so there is no profile: all of it came from the cache (change the seed)")
	}
	for _, run := range p.runs {
		var b strings.Builder
		if err := profile.Write(&b, rows(run)); err != nil {
			return err
		}
		s.Say("%s", strings.TrimRight(b.String(), "\n"))
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := profile.Trace(f, p.spans); err != nil {
		_ = f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	s.Say("%s: %d of %d spans; open it in Perfetto or chrome://tracing", path, len(p.spans), p.total)
	return nil
}

// ShowWork prints how the sampling runs were split: plan, evaluations, what each axis moved.
func (p *RunStats) ShowWork(s *Progress) {
	for _, run := range p.runs {
		plan, _ := run.Get("plan")
		v, _ := run.Get("ranks")
		ranks, _ := v.([]any)
		moved, calls, tokens, micro := map[string]int64{}, map[string]int64{}, int64(0), int64(0)
		for _, r := range ranks {
			rank, ok := r.(*pyjson.Object)
			if !ok {
				continue
			}
			micro += number(rank, "micro_steps")
			tokens = max(tokens, number(rank, "text_tokens")+number(rank, "image_tokens"))
			for _, axis := range []string{"ulysses", "ring", "pipe", "tensor", "shard"} {
				if v, ok := rank.Get(axis); ok {
					if t, ok := v.(*pyjson.Object); ok {
						moved[axis] += number(t, "bytes")
						calls[axis] += number(t, "calls")
					}
				}
			}
		}
		s.Say("plan: %v on %d ranks, %d evaluations%s, %d micro-steps, %d tokens through the busiest rank", plan, len(ranks),
			number(run, "evaluations"), besides(run), micro, tokens)
		for _, axis := range []string{"ulysses", "ring", "pipe", "tensor", "shard"} {
			if calls[axis] > 0 {
				s.Say("  %-8s %10.2f MB in %d exchanges", axis, float64(moved[axis])/1e6, calls[axis])
			}
		}
	}
}

// besides tells what else there is to say of the evaluations: how many ran all patches at once, and those that a cache
// answered.
func besides(run *pyjson.Object) string {
	if n := number(run, "synchronous"); n > 0 {
		return fmt.Sprintf(" (%d synchronous)", n) + answered(run)
	}
	return answered(run)
}

// answered tells of evaluations that a cache answered.
func answered(run *pyjson.Object) string {
	v, _ := run.Get("reused")
	if reused, ok := v.([]any); ok && len(reused) > 0 {
		return fmt.Sprintf(" and %d answered by the cache", len(reused))
	}
	return ""
}

// Reused tells whether some evaluation was answered by a cache.
func (p *RunStats) Reused() bool {
	return slices.ContainsFunc(p.runs, func(run *pyjson.Object) bool { return answered(run) != "" })
}
