package sim

import "time"

// The limits of shrink: how often a plan is tried that may not fail each time, and how long all takes on the clock of
// the machine.
const (
	tries     = 3
	shrinking = 5 * time.Minute
)

// shrink returns a shorter plan that fails still: it leaves out ever smaller parts of the steps while the rest fails.
// fails runs a plan and reports whether it fails.
func shrink(p plan, fails func(plan) bool) plan {
	end := time.Now().Add(shrinking)
	often := func(p plan) bool {
		for range tries {
			if time.Now().Before(end) && fails(p) {
				return true
			}
		}
		return false
	}
	for size := len(p.steps) / 2; size > 0; size /= 2 {
		for at := 0; at < len(p.steps); {
			if without := p.without(at, min(at+size, len(p.steps))); often(without) {
				p = without
			} else {
				at += size
			}
		}
	}
	return p
}
