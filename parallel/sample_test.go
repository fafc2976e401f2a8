package parallel

import (
	"strings"
	"testing"
)

// sample returns the plans that network k of a matrix runs: in the long form all of them; else every n-th, so that n
// networks run every plan, and then the first ones with a key that the network would not meet at all. The short form
// has every third of the n-th.
func sample(plans []string, k, n int) (out []string) {
	if soak {
		return plans
	}
	met := map[string]bool{}
	news := func(plan string) (some bool) {
		for pair := range strings.SplitSeq(plan, ",") {
			key := strings.TrimRight(pair, "0123456789")
			some = some || !met[key]
			met[key] = true
		}
		return some
	}
	for i, plan := range plans {
		if (i+k)%n == 0 && (!testing.Short() || (i+k)/n%3 == 0) {
			news(plan)
			out = append(out, plan)
		}
	}
	for i := range plans {
		plan := plans[(i+k)%len(plans)]
		if !testing.Short() && news(plan) {
			out = append(out, plan)
		}
	}
	return out
}
