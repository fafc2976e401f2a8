// Package goldenrun evaluates diffusion models on the recorded cases of tests/golden/models.json, for the tests of all
// model families and of the packages that run them.
//
// goldenweights lists the recorded evaluations. Whole computes one on a single rank. Parts computes the same with the
// rows of every sequence split among goroutines that gather keys and values from each other. Family is the battery of
// tests that every model family must pass.
package goldenrun

import (
	"fmt"
	"math"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/weights/goldenweights"
)

// Case is one recorded evaluation of a network.
type Case = goldenweights.Case

// Compare returns the largest absolute difference relative to the largest absolute value of want. It returns an error
// if the lengths differ or a value is NaN, or one that names the first index whose difference exceeds rel.
func Compare(got, want []float32, rel float64) (float64, error) {
	if len(got) != len(want) {
		return math.Inf(1), fmt.Errorf("got %d values, want %d", len(got), len(want))
	}
	top := 0.0
	for _, w := range want {
		top = math.Max(top, math.Abs(float64(w)))
	}
	worst, first := 0.0, -1
	for i := range want {
		d := math.Abs(float64(got[i]) - float64(want[i]))
		if (d > rel*top || d != d) && first < 0 {
			first = i
		}
		if d != d {
			d = math.Inf(1)
		}
		worst = math.Max(worst, d)
	}
	if first >= 0 {
		return worst / top, fmt.Errorf("element %d: got %v, want %v; error %.3g of bound %.3g relative to the largest "+
			"value %.3g", first, got[first], want[first], worst/top, rel, top)
	}
	return worst / top, nil
}

// product is the number of elements of a shape.
func product(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}

// arenaBytes is enough for every tiny model.
const arenaBytes = 32 << 20

// NewEnv makes an Env with an arena of its own and the given attention hook. Nil means attention over all local rows.
func NewEnv(ops engine.Ops, attend func(dit.Attention)) (dit.Env, error) {
	buf, err := ops.Alloc(arenaBytes)
	if err != nil {
		return dit.Env{}, err
	}
	smallPages(buf.Host)
	arena := engine.NewArena("activations", buf, arenaBytes)
	if attend == nil {
		attend = dit.Whole(ops, arena)
	}
	return dit.Env{Ops: ops, Arena: arena, Attend: attend}, nil
}
