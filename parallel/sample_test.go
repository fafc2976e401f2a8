package parallel

import (
	"regexp"
	"strings"
	"testing"
)

// anyModel is the recorded model for tests that work with any: one of the smallest, with five blocks and four heads.
const anyModel = "chroma-b"

// kinds keeps the first of the plans that differ only in numbers. The long form keeps all of them. A group of two,
// whose ranks have the same neighbor on both sides, is of another kind than a larger one.
func kinds(plans []string) (out []string) {
	seen := map[string]bool{}
	for _, plan := range plans {
		kind := regexp.MustCompile(`\d+`).ReplaceAllStringFunc(plan, func(n string) string {
			if n > "2" || len(n) > 1 {
				return "more"
			}
			return "two"
		})
		if soak || !seen[kind] {
			out = append(out, plan)
		}
		seen[kind] = true
	}
	return out
}

// everyNth returns the plans that network k of a matrix runs: every n-th, starting at a different one for each
// network, so that n networks run every plan. The short form has a third of them, the long form all plans.
func everyNth(plans []string, k, n int) (out []string) {
	for i, plan := range plans {
		if soak || (i+k)%n == 0 && (!testing.Short() || (i+k)/n%3 == k%3) {
			out = append(out, plan)
		}
	}
	return out
}

// somePlans is everyNth plus, except in the short form, the few more plans that network k needs to meet every key and
// every value that is a word.
func somePlans(plans []string, k, n int) []string {
	out, seen := everyNth(plans, k, n), map[string]bool{}
	if soak || testing.Short() {
		return out
	}
	news := func(plan string, meet bool) (count int) {
		for pair := range strings.SplitSeq(plan, ",") {
			if key := strings.TrimRight(pair, "0123456789:"); !seen[key] {
				count++
				seen[key] = meet
			}
		}
		return count
	}
	for _, plan := range out {
		news(plan, true)
	}
	for {
		best, most := "", 0
		for i := range plans {
			if plan := plans[(i+k)%len(plans)]; news(plan, false) > most {
				best, most = plan, news(plan, false)
			}
		}
		if most == 0 {
			return out
		}
		news(best, true)
		out = append(out, best)
	}
}
