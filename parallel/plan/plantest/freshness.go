// Package plantest says what the K/V stores of a pipeline hold, for tests to compare with what ranks do.
package plantest

import (
	"fmt"
	"strings"

	"patchbay/parallel/plan"
)

// Freshness is the age of the keys and values that one micro-step reads, in evaluations: 0 is what this evaluation has
// computed.
type Freshness struct {
	Micro plan.Micro
	Text  int
	// Image is the age of the tokens of every patch.
	Image []int
}

// FreshnessTable tells what every micro-step of a pipeline reads from its K/V store: patches up to its own are fresh,
// those behind it one evaluation old (PipeFusion, arXiv:2405.14430, sec. 3.3); synchronous evaluations are fresh
// throughout. Text is computed with the first patch and fresh for all. It depends on the order of micro-steps alone.
// Warm-up counts evaluations; the first one is synchronous whatever it says. Evaluations that a cache answers do not
// count: they leave the store as it is.
func FreshnessTable(patches, evaluations, warmup int) []Freshness {
	var out []Freshness
	last := make([]int, patches) // evaluation that computed each patch
	text := 0
	for e := range evaluations {
		if patches == 1 || e < max(warmup, 1) {
			for j := range last {
				last[j] = e
			}
			text = e
			out = append(out, Freshness{Micro: plan.Micro{Evaluation: e, Whole: true}, Image: make([]int, patches)})
			continue
		}
		for m := range patches {
			last[m] = e
			if m == 0 {
				text = e
			}
			f := Freshness{Micro: plan.Micro{Evaluation: e, Patch: m}, Text: e - text, Image: make([]int, patches)}
			for j, at := range last {
				f.Image[j] = e - at
			}
			out = append(out, f)
		}
	}
	return out
}

// String returns "e1 p0  text 0  image 0 1 1 1".
func (f Freshness) String() string {
	ages := make([]string, len(f.Image))
	for i, a := range f.Image {
		ages[i] = fmt.Sprint(a)
	}
	return fmt.Sprintf("%-8s text %d  image %s", f.Micro, f.Text, strings.Join(ages, " "))
}
