// Package plantest predicts what the K/V stores of a pipeline hold, for tests to compare with what ranks do.
package plantest

import (
	"fmt"
	"strings"

	"patchbay/parallel/plan"
)

// Freshness is the age in evaluations of the keys and values that one micro-step reads; 0: from the same evaluation.
type Freshness struct {
	Micro plan.Micro
	Text  int
	// Image holds the age of the tokens of each patch.
	Image []int
}

// FreshnessTable returns what every micro-step of a pipeline reads from its K/V store: patches up to its own are fresh,
// later ones are one evaluation old (PipeFusion, arXiv:2405.14430, sec. 3.3). In synchronous evaluations everything is
// fresh. Text is computed with the first patch and is fresh for all. The table depends on the order of micro-steps
// alone. warmup counts evaluations; the first one is synchronous whatever its value. Evaluations that a cache answers
// do not count: they leave the store as it is.
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
