package forecast

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"patchbay/parallel/plan"
)

// TestScheduleEqualsNetwork compares schedules with a network of actors and channels that states their order action by
// action (network_judge_test.go, program_judge_test.go): every span and the end, for random times on straight and
// folded stages, links of every kind, several groups and entries, with and without spread evaluations.
func TestScheduleEqualsNetwork(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 11))
	for i := range 400 {
		folded, stages, ahead := i%2 == 1, 1+random.IntN(5), []int{0, 1, 2, 3, unbounded}[random.IntN(5)]
		w := plainTiming(stages, 1+random.IntN(9), 2+random.IntN(4), random.IntN(3), folded, ahead)
		w.groups, w.spread, w.handover = 1+random.IntN(3), random.IntN(2) == 0, float64(random.IntN(3))/4
		seconds := map[string]float64{}
		drawn := func(kind string, most float64) func(int, int, plan.Micro) float64 {
			return func(g, lane int, m plan.Micro) float64 {
				key := fmt.Sprint(kind, g, lane, m.Whole, m.Patch)
				if _, ok := seconds[key]; !ok {
					seconds[key] = most * random.Float64()
				}
				return seconds[key]
			}
		}
		w.work, w.transfer = drawn("work", 4), drawn("transfer", 2)
		w.entries = func(g int) int { return 1 + g%2 }
		s := newSchedule(w, false)
		end, err := s.run()
		if err != nil {
			t.Fatal(err)
		}
		p := newProgram(w)
		ends, spans, err := p.net.run(false)
		if err != nil {
			t.Fatal(err)
		}
		if want := slices.Max(ends); !near(end, want, 1e-12*want) {
			t.Fatalf("case %d, %d stages, folded %v, ahead %d: %.6f s, the network %.6f s", i, stages, folded, ahead, end, want)
		}
		order := func(a, b Span) int {
			return cmp.Or(cmp.Compare(a.Actor, b.Actor), cmp.Compare(a.Start, b.Start), cmp.Compare(a.Kind, b.Kind))
		}
		slices.SortFunc(s.spans, order)
		slices.SortFunc(spans, order)
		if !slices.EqualFunc(s.spans, spans, func(a, b Span) bool {
			return a.Actor == b.Actor && a.Kind == b.Kind && a.Micro == b.Micro &&
				near(a.Start, b.Start, 1e-9) && near(a.End, b.End, 1e-9)
		}) {
			t.Fatalf("case %d, %d stages, folded %v, ahead %d:\n%v\nthe network:\n%v", i, stages, folded, ahead, s.spans, spans)
		}
	}
}
