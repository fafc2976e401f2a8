package plan

import "testing"

// TestBranchesAreDealtToAsManyGroups checks that entries of one branch stay in one cfg group where there are as many
// groups as branches.
func TestBranchesAreDealtToAsManyGroups(t *testing.T) {
	branches := []int{0, 0, 1}
	for i, want := range []int{0, 0, 1} {
		if got := CFGCoord(branches, i, 2); got != want {
			t.Errorf("entry %d of branch %d is in group %d, want %d", i, branches[i], got, want)
		}
	}
}
