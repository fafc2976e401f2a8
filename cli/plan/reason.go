package plan

import (
	"cmp"
	"fmt"
	"slices"

	"patchbay/parallel/forecast"
)

// reason says in a few words why c loses against the best plan: memory, or where its time goes.
func reason(s forecast.Search, best *forecast.Choice, c forecast.Candidate) string {
	if !c.Fits {
		return fmt.Sprintf("does not fit: %s a rank, %s are free", forecast.Gigabytes(c.Memory.Total()),
			forecast.Gigabytes(c.On.Free()))
	}
	over := fmt.Sprintf("%+.0f %%", 100*(c.Seconds/best.Best.Seconds-1))
	if c.Bound {
		return over + " at least: its busiest device alone takes that long"
	}
	mine, his := mean(s.Simulate(c.Plan)), mean(best.Simulation)
	type part struct {
		name       string
		mine, than float64
	}
	parts := []part{
		{"computing", mine.Compute, his.Compute},
		{"exchanges", mine.Exchange, his.Exchange},
		{"pipeline transfers", mine.Send, his.Send},
		{"bubbles and waiting", mine.Idle, his.Idle},
	}
	worst := slices.MaxFunc(parts, func(a, b part) int {
		return cmp.Compare(a.mine-a.than, b.mine-b.than)
	})
	text := fmt.Sprintf("%s: %s %s against %s", over, worst.name, duration(worst.mine), duration(worst.than))
	if c.Plan.Ranks() < best.Best.Plan.Ranks() && worst.name == "computing" {
		text += fmt.Sprintf(" on %d of %d devices", c.Plan.Ranks(), s.Cluster.Ranks())
	}
	return text
}

// idleReason says why devices stay idle: it names the fastest plan that fits and uses more of them, and where its time
// goes. It is empty if none is idle.
func idleReason(s forecast.Search, best *forecast.Choice) string {
	if best.Idle == 0 {
		return ""
	}
	for _, c := range best.Others {
		if !c.Fits || c.Plan.Ranks() <= best.Best.Plan.Ranks() {
			continue
		}
		if weighed, err := s.Weigh(c.Plan); err == nil && weighed.Fits {
			return fmt.Sprintf("no plan is faster with them: %s, the best of more devices, takes %s", c.Plan, reason(s, best, c))
		}
	}
	return "no plan that fits uses them"
}

// mean returns the mean times of all ranks, without Products, Attention and Other.
func mean(s *forecast.Simulation) forecast.RankTime {
	var m forecast.RankTime
	n := float64(len(s.Ranks))
	for _, r := range s.Ranks {
		m.Compute += r.Compute / n
		m.Exchange += r.Exchange / n
		m.Hidden += r.Hidden / n
		m.Send += r.Send / n
		m.Idle += r.Idle / n
	}
	return m
}

// duration formats seconds for people.
func duration(s float64) string {
	if s >= 1 {
		return fmt.Sprintf("%.2f s", s)
	}
	return fmt.Sprintf("%.1f ms", 1000*s)
}
