package parallel

import (
	"math"
	"testing"
)

// TestGroupsLeaveNobodyAlone checks that no device is idle while some job fits a group, and that no group is too small
// for its job.
func TestGroupsLeaveNobodyAlone(t *testing.T) {
	for least := 1; least <= 4; least++ {
		seconds := func(n int) float64 {
			if n < least {
				return math.Inf(1)
			}
			return 1 / math.Pow(float64(n), 0.9)
		}
		for free := range 17 {
			for waiting := range 20 {
				groups, sum := ShareSizes(waiting, free, seconds), 0
				for _, n := range groups {
					if sum += n; n < least {
						t.Errorf("%d jobs on %d devices: a group of %d, want at least %d", waiting, free, n, least)
					}
				}
				if can := waiting > 0 && free >= least; can && sum != free || !can && sum != 0 || len(groups) > waiting {
					t.Errorf("%d jobs on %d devices, at least %d each: groups %v", waiting, free, least, groups)
				}
			}
		}
	}
}
