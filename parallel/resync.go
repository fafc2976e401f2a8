package parallel

import "math"

// resync makes an evaluation synchronous if the latent has moved too far for stale keys and values, and counts it: those that a stale patch would read were computed
// from the last evaluation that ran, so what matters is how far the input is from that one's. The change is
//
//	100 * sum|x - x1| / sum|x1| > Plan.Resync
//
// where x is what the network reads of the first patch and x1 what it read in the last evaluation that ran, synchronous or not. It is known when the first patch
// comes, before any rank has work, so the decision is the leader's alone and all ranks take the same branch. How many evaluations it makes synchronous depends on the
// picture: forecasts and the planner count warm-up only.
func (ev *evaluator) resync(input []float32) {
	if percent := ev.d.team.plan.Resync; percent > 0 {
		ev.sync = ev.sync || relativeChange(input, ev.last) > float64(percent)/100
		ev.last = append(ev.last[:0], input...)
	}
	if ev.sync {
		ev.synced = append(ev.synced, ev.ran)
	}
}

// relativeChange is sum|x - before| / sum|before|, 0 if there is nothing before.
func relativeChange(x, before []float32) float64 {
	if len(before) == 0 {
		return 0
	}
	moved, size := 0.0, 0.0
	for i, v := range x {
		moved += math.Abs(float64(v) - float64(before[i]))
		size += math.Abs(float64(before[i]))
	}
	return moved / size
}
