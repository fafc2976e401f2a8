package plan

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestSharedTakesLeastTime checks that ranges tile, that none is empty if there are enough things, that equal shares
// give balanced ranges, and against all other cuts of a few things that none takes less time: the longest of length
// divided by share.
func TestSharedTakesLeastTime(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for i := range 5000 {
		n, shares := r.IntN(400), make([]int, 1+r.IntN(12))
		if i%2 == 0 { // few enough to try all cuts
			n, shares = r.IntN(25), make([]int, 1+r.IntN(4))
		}
		for i := range shares {
			shares[i] = 1 + r.IntN(100)
		}
		got := Shared(n, shares)
		ok, least, _ := tiles(got, n)
		if !ok || least < 1 && n >= len(shares) {
			t.Fatalf("%d in shares %v: %v", n, shares, got)
		}
		if even := Shared(n, slices.Repeat(shares[:1], len(shares))); !slices.Equal(even, Balanced(n, len(shares))) {
			t.Fatalf("%d in %d equal shares: %v, want %v", n, len(shares), even, Balanced(n, len(shares)))
		}
		if i%2 != 0 {
			continue
		}
		slowest := 0.
		for i, g := range got {
			slowest = max(slowest, float64(g.Len())/float64(shares[i]))
		}
		if best := leastTime(n, shares, min(1, n/len(shares))); !(slowest <= best) {
			t.Fatalf("%d in shares %v: %v takes %.4f, another cut %.4f", n, shares, got, slowest, best)
		}
	}
	if got := Shared(24, []int{100, 20}); got[0].Len() != 20 {
		t.Errorf("24 in shares of 100 and 20: %v, want 20 and 4", got)
	}
}

// leastTime tries all cuts of n things into ranges of at least one length.
func leastTime(n int, shares []int, one int) float64 {
	if len(shares) == 1 {
		return float64(n) / float64(shares[0])
	}
	best := math.Inf(1)
	for first := one; first <= n-one*(len(shares)-1); first++ {
		best = min(best, max(float64(first)/float64(shares[0]), leastTime(n-first, shares[1:], one)))
	}
	return best
}

// TestSpeedsGoToPlaces checks numbers worked out by hand: the slowest rank of a place counts for tokens and heads, and
// a stage is as fast as its rank whose tokens take longest.
func TestSpeedsGoToPlaces(t *testing.T) {
	p, err := Parse("pipe=2,ulysses=2,speeds=100:40:50:30")
	if err != nil || !strings.HasSuffix(p.String(), ",speeds=100:40:50:30") {
		t.Fatalf("%s: %v", p, err)
	}
	if got := p.Places(false); !slices.Equal(got, []int{50, 30}) {
		t.Errorf("places %v, want 50 and 30", got)
	}
	if got := p.Places(true); !slices.Equal(got, []int{100, 40, 50, 30}) {
		t.Errorf("places of spread evaluations %v", got)
	}
	if got := p.GroupHeads(16); got[0].Len() != 10 || got[1].Len() != 6 {
		t.Errorf("heads %v, want 10 and 6", got)
	}
	// 5/8 of a patch on 100 and 3/8 on 40 take 1/106.7; on 50 and 30 1/80
	if got := p.StageSpeeds(); !(math.Abs(got[0]-40*8/3.) <= 1e-9 && math.Abs(got[1]-80) <= 1e-9) {
		t.Errorf("stages %v, want 106.7 and 80", got)
	}
	for _, text := range []string{
		"ulysses=2,speeds=3", "ulysses=2,speeds=3:1:1", "ulysses=2,speeds=0:1", "speeds=101", "ulysses=2,speeds=3:x",
		"ranks=2,speeds=3:1",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), "speeds") {
			t.Errorf("%s: got %v, want a refusal that names speeds", text, err)
		}
	}
}
