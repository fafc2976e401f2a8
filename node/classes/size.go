package classes

import (
	"math"

	"patchbay/fault"
	"patchbay/node/value"
)

// checkSize returns an error if a result with these sides has more values than a latent or a batch of pictures may
// have.
func checkSize(field string, sides ...int) error {
	n := 1.0
	for _, s := range sides {
		n *= float64(s)
	}
	if n <= value.MaxValues {
		return nil
	}
	return fault.Bad(field, "the result %v has %.0f values, this program holds at most %d", sides, n, value.MaxValues)
}

// sliced resolves the bounds of a Python slice [from:to] of n items: negative bounds count from the end, and all are
// clamped to 0..n.
func sliced(n, from, to int) (int, int) {
	bound := func(i int) int {
		if i < 0 {
			i += n
		}
		return min(max(i, 0), n)
	}
	from, to = bound(from), bound(to)
	return from, max(from, to)
}

// rounded rounds half to even, like Python's round.
func rounded(v float64) int { return int(math.RoundToEven(v)) }
