package parallel

import (
	"strings"
	"testing"
)

// everyNth returns the plans that network k of a matrix runs: every n-th, beginning with another one for each network,
// so that n networks run every plan. The short form has a third of them, the long form all plans.
func everyNth(plans []string, k, n int) (out []string) {
	for i, plan := range plans {
		if soak || (i+k)%n == 0 && (!testing.Short() || (i+k)/n%3 == k%3) {
			out = append(out, plan)
		}
	}
	return out
}

// somePlans is everyNth and, but in the short form, the first plans with keys that network k would not meet at all.
func somePlans(plans []string, k, n int) []string {
	out, met := everyNth(plans, k, n), map[string]bool{}
	news := func(plan string) (some bool) {
		for pair := range strings.SplitSeq(plan, ",") {
			key := strings.TrimRight(pair, "0123456789")
			some = some || !met[key]
			met[key] = true
		}
		return some
	}
	for _, plan := range out {
		news(plan)
	}
	for i := range plans {
		if plan := plans[(i+k)%len(plans)]; !soak && !testing.Short() && news(plan) {
			out = append(out, plan)
		}
	}
	return out
}
