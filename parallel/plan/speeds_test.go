package plan

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestSharedIsInProportion checks that ranges tile, that none is empty if there are enough things, that each is less
// than one from its share of what remains after one for each, and that equal shares give balanced ranges.
func TestSharedIsInProportion(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 5000 {
		n, shares, total := r.IntN(400), make([]int, 1+r.IntN(12)), 0
		for i := range shares {
			shares[i] = 1 + r.IntN(100)
			total += shares[i]
		}
		got := Shared(n, shares)
		ok, least, _ := tiles(got, n)
		if !ok || least < 1 && n >= len(shares) {
			t.Fatalf("%d in shares %v: %v", n, shares, got)
		}
		one := min(1, n/len(shares))
		for i, g := range got {
			want := float64(one) + float64((n-one*len(shares))*shares[i])/float64(total)
			if !(math.Abs(float64(g.Len())-want) < 1) {
				t.Fatalf("%d in shares %v: part %d has %d, want %.2f", n, shares, i, g.Len(), want)
			}
		}
		if even := Shared(n, slices.Repeat(shares[:1], len(shares))); !slices.Equal(even, Balanced(n, len(shares))) {
			t.Fatalf("%d in %d equal shares: %v, want %v", n, len(shares), even, Balanced(n, len(shares)))
		}
	}
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
