package parallel

import (
	"context"
	"slices"
	"sync"
	"testing"

	"patchbay/engine"
	"patchbay/parallel/forecast"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
	"patchbay/tests/race"
)

// watching is an Ops that records which rank works on which micro-step, in the order of their first products.
type watching struct {
	engine.Ops
	rank int
	e    **Pool
	mu   *sync.Mutex
	seen *[]rankMicro
}

type rankMicro struct {
	rank int
	m    plan.Micro
}

func (w *watching) Linear(y, x engine.Tensor, wt *engine.Weight, e engine.Epilogue) {
	if team := (*w.e).whole.team; team != nil && w.rank >= 0 && w.rank < len(team.Members) {
		at := rankMicro{w.rank, rankOf(team.Members[w.rank]).Pos.Now()}
		w.mu.Lock()
		if n := len(*w.seen); n == 0 || (*w.seen)[n-1] != at {
			*w.seen = append(*w.seen, at)
		}
		w.mu.Unlock()
	}
	w.Ops.Linear(y, x, wt, e)
}

// TestEvaluationsOverlapInThePipe checks that the first stage begins evaluation e+1 while the last stage still has
// patches of e to do, so that only the warm-up and the two ends of a run are serial. Seeds fix the order of ranks, so
// the counts are reproducible.
func TestEvaluationsOverlapInThePipe(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: ranks run one at a time")
	}
	for _, c := range []struct {
		plan string
		last int // last rank
		end  int // last patch
	}{{"pipe=2,patches=4,warmup=1", 1, 3}, {
		"pipe=2,patches=4,warmup=1,sync=spread", 1,
		3,
	}, {"pipe=3,patches=6,warmup=1", 2, 5}} {
		overlapped, possible := 0, 0
		for seed := uint64(1); seed <= 4; seed++ {
			var e *Pool
			var mu sync.Mutex
			var seen []rankMicro
			var err error
			e, err = NewPool(Config{Order: seed, NewOps: func(rank, ranks int) (engine.Ops, error) {
				ops, err := testOps(rank, ranks)
				return &watching{Ops: ops, rank: rank, e: &e, mu: &mu, seen: &seen}, err
			}})
			if err != nil {
				t.Fatal(err)
			}
			r := parityRequest(t, openGolden(t, anyModel), anyModel, 1, 12, 12, 8)
			r.Plan = c.plan
			if _, err := e.Sample(context.Background(), r, nil); err != nil {
				t.Fatal(err)
			}
			e.Close()
			first := map[rankMicro]int{}
			for i, s := range seen {
				if _, ok := first[s]; !ok {
					first[s] = i
				}
			}
			for ev := 1; ev < 7; ev++ {
				next, ok := first[rankMicro{0, plan.Micro{Evaluation: ev + 1}}]
				tail, ok2 := first[rankMicro{c.last, plan.Micro{Evaluation: ev, Patch: c.end}}]
				if !ok || !ok2 {
					t.Fatalf("%s: evaluation %d was not seen", c.plan, ev)
				}
				possible++
				if next < tail {
					overlapped++
				}
			}
		}
		t.Logf("%s: %d of %d evaluations begin before the one before has ended", c.plan, overlapped, possible)
		if overlapped < possible/6 {
			t.Errorf("%s: %d of %d evaluations begin before the one before has ended, want a sixth of them in a random "+
				"order of ranks", c.plan, overlapped, possible)
		}
	}
}

// TestExecutorFollowsTheProgram checks that every rank does the micro-steps of its lane in the simulator's program, in
// the same order.
func TestExecutorFollowsTheProgram(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: ranks run one at a time")
	}
	for _, c := range []struct{ model, plan string }{
		{"flux-c", ""},
		{"flux-c", "ulysses=2"},
		{"flux-c", "pipe=3,patches=4,warmup=1"},
		{"flux-c", "pipe=2,patches=5,warmup=2,sync=spread"},
		{"flux-c", "cfg=2,pipe=2,ulysses=2,patches=3,warmup=0"},
		{"flux-c", "pipe=4,patches=1"},
		{"hydit-a", "pipe=3,patches=4,warmup=1"},
	} {
		t.Run(c.model+"/"+c.plan, func(t *testing.T) {
			var e *Pool
			var mu sync.Mutex
			var seen []rankMicro
			member := -2 // the first Ops load weights; those of the members follow in order
			e, err := NewPool(Config{NewOps: func(rank, ranks int) (engine.Ops, error) {
				ops, err := testOps(rank, ranks)
				member++
				return &watching{Ops: ops, rank: member, e: &e, mu: &mu, seen: &seen}, err
			}})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			r := parityRequest(t, openGolden(t, c.model), c.model, 1, 12, 12, 4)
			r.Plan = c.plan
			if _, err := e.Sample(context.Background(), r, nil); err != nil {
				t.Fatal(err)
			}
			p, err := plan.Parse(c.plan)
			if err != nil {
				t.Fatal(err)
			}
			cpu, err := hardware.ParseCluster("cpu")
			if err != nil {
				t.Fatal(err)
			}
			cpu.PerHost = p.Ranks()
			sim := forecast.Search{Workload: r.Workload(), Cluster: cpu}.Simulate(p)
			program, lanes := make([][]plan.Micro, len(sim.Actors)), e.whole.team.Mesh.Plan.Pipe
			for _, s := range sim.Spans {
				if s.Kind == forecast.Working {
					program[s.Actor] = append(program[s.Actor], s.Micro)
				}
			}
			did := make([][]plan.Micro, len(e.whole.team.Members))
			for _, s := range seen {
				if s.m == (plan.Micro{}) { // opening the session: evaluation 0 is always synchronous
					continue
				}
				if list := did[s.rank]; len(list) == 0 || list[len(list)-1] != s.m {
					did[s.rank] = append(list, s.m)
				}
			}
			for rank, got := range did {
				at := e.whole.team.Mesh.At(rank)
				want := program[(at.Data*p.CFG+at.CFG)*lanes+at.Pipe]
				if !slices.Equal(got, want) {
					t.Errorf("rank %d did %v, the program has %v", rank, got, want)
				}
			}
		})
	}
}
