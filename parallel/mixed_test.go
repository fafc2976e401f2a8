package parallel

import (
	"context"
	"strings"
	"testing"

	"patchbay/parallel/forecast"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
)

// mixedEngine returns a leader whose second place is declared four times as slow as the first.
func mixedEngine(t *testing.T, schedule Schedule) *Pool {
	t.Helper()
	m, err := hardware.NewMachine("cpu")
	if err != nil {
		t.Fatal(err)
	}
	m.Device.Launch = 0
	slow := m.Device
	slow.Name = "slow"
	slow.GEMM, slow.Attention, slow.Traffic = slow.GEMM/4, slow.Attention/4, slow.Traffic/4
	e, err := NewPool(Config{
		NewOps: testOps, Recode: roundTrip, Machine: &m, Mixed: []hardware.Device{m.Device, slow}, Ranks: 2,
		Schedule: schedule,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// TestMixedPlaces checks that plans without speeds get those of their places, whose ranks divide the work in
// proportion and give the result of one rank, and that jobs on a single place, or on equal ones, get none.
func TestMixedPlaces(t *testing.T) {
	one := map[string]bool{
		"ulysses=2": true, "ring=2": true, "pipe=2,patches=3,warmup=99": true, "ranks=1": false,
		"pipe=2,patches=1,shard=on": true, "ulysses=2,speeds=30:30": true,
	}
	for schedule, plans := range map[Schedule]map[string]bool{
		ScheduleOne: one, ScheduleAuto: {"": true, "ranks=1": false},
	} {
		e := mixedEngine(t, schedule)
		for _, name := range []string{"flux", "hunyuandit"} {
			if name == "hunyuandit" && testing.Short() {
				continue
			}
			r := tinyRequest(t, name, 1, 18, 20, 2)
			want, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			for text, speeds := range plans {
				r.Plan = text
				got, err := e.Sample(context.Background(), r, nil)
				if err != nil {
					t.Fatalf("%s %s: %v", name, text, err)
				}
				if has := strings.Contains(got.Stats.Plan, "speeds="); has != speeds {
					t.Errorf("%s %s ran by %s", name, text, got.Stats.Plan)
				}
				if d := relative(got.Latent.Data, want.Latent.Data); !(d <= 1e-5) {
					t.Errorf("%s %s: %g from one rank, want at most 1e-5", name, got.Stats.Plan, d)
				}
				tokens := got.Stats.Tokens
				if share := float64(tokens[0].Image) / float64(tokens[len(tokens)-1].Image); text == "ring=2" &&
					!(share > 3.5 && share < 4.5) {
					t.Errorf("%s %s: %d and %d image tokens, want 4 to 1", name, got.Stats.Plan, tokens[0].Image, tokens[1].Image)
				}
			}
		}
	}
}

// TestSlowPlaceIsLeftOut checks that ranks=2 uses one rank if the other place is useless.
func TestSlowPlaceIsLeftOut(t *testing.T) {
	e := mixedEngine(t, ScheduleOne)
	r := tinyRequest(t, "flux", 1, 34, 36, 2)
	r.Plan = "ranks=2"
	slow := &e.whole.cluster.Mixed[1]
	slow.GEMM, slow.Attention, slow.Traffic = slow.GEMM/1e4, slow.Attention/1e4, slow.Traffic/1e4
	if p, err := e.whole.plan(r); err != nil || p.Ranks() != 1 {
		t.Errorf("chose %s, %v: want one rank", p, err)
	}
	slow.GEMM, slow.Attention, slow.Traffic = slow.GEMM*1e4, slow.Attention*1e4, slow.Traffic*1e4
	slow.Memory = 1 << 10
	if p, err := e.whole.plan(r); err != nil || p.Ranks() != 1 {
		t.Errorf("chose %s, %v: want one rank where the other place has no memory", p, err)
	}
}

// TestPairsReachThePlanner checks that the leader plans with the links measured between the devices of its places, and
// for a subset of the places with those between them.
func TestPairsReachThePlanner(t *testing.T) {
	m, err := hardware.NewMachine("H100")
	if err != nil {
		t.Fatal(err)
	}
	m.Pairs = []hardware.Pair{
		{A: "cuda:5", B: "cuda:6", Bandwidth: 3e9},
		{A: "cuda:5", B: "cuda:7", Bandwidth: 2e9},
		{A: "cuda:7", B: "cuda:6", Bandwidth: 1e9},
	}
	e, err := NewPool(Config{
		NewOps: testOps, Machine: &m, Ranks: 3, Schedule: ScheduleEach,
		DeviceOf: func(rank int) string { return []string{"cuda:5", "cuda:6", "cuda:7"}[rank] },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	ways := e.whole.search(tinyRequest(t, "flux", 1, 16, 16, 1).Model, forecast.Workload{}, plan.OneRank()).Cluster.Between
	if len(ways) != 3 || ways[0][1].Bandwidth != 3e9 || ways[2][0].Bandwidth != 2e9 || ways[1][2].Bandwidth != 1e9 {
		t.Errorf("the planner has the ways %+v", ways)
	}
	if part := e.on([]int{1, 2}).cluster.Between; len(part) != 2 || part[0][1].Bandwidth != 1e9 {
		t.Errorf("the last two places have the ways %+v", part)
	}
	if text := e.Rates(); !strings.Contains(text, "H100: ") || !strings.Contains(text, "link nvlink4: ") {
		t.Errorf("rates are %s", text)
	}
}
