package parallel

import (
	"context"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"patchbay/engine"
	"patchbay/parallel/hardware"
	"patchbay/parallel/process"
	"patchbay/parallel/remote"
	"patchbay/parallel/request"
)

// siteOf returns the rates of a host with one place per argument, that many times slower than the table's CPU.
func siteOf(t *testing.T, slower ...float64) (s hardware.Site) {
	t.Helper()
	m, err := hardware.NewMachine("cpu")
	if err != nil {
		t.Fatal(err)
	}
	s.Link = m.Link
	for _, n := range slower {
		d := m.Device
		d.Launch, d.GEMM, d.Attention, d.Traffic = 0, d.GEMM/n, d.Attention/n, d.Traffic/n
		s.Devices = append(s.Devices, d)
	}
	return s
}

// unlikeHosts returns a leader whose ranks run on stations with these numbers of places and these announced rates,
// with its cluster and the stations' addresses.
func unlikeHosts(t *testing.T, models *hosts, places []int, sites ...hardware.Site,
) (*Pool, *remote.Cluster, []string) {
	t.Helper()
	n := remote.Network{Key: farKey(t, "a"), Build: "1.0"}
	var list []string
	for i, s := range sites {
		list = append(list, stationAt(t, n, models, s, places[i]))
	}
	c := remote.NewCluster(n, remote.ByBest, func() []string { return list },
		func(cl *remote.Process) process.Process { return cl }, func(string, error) {})
	e, err := NewPool(Config{NewOps: testOps, Processes: c})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close(); c.Close() })
	return e, c, list
}

// TestHostsThatDiffer checks that ranks on two machines, the first of which announces a quarter of the speed, use the
// fast one first, divide the work in proportion, and give the result of one rank.
func TestHostsThatDiffer(t *testing.T) {
	one := newEngine(t)
	models := &hosts{t: t}
	e, c, list := unlikeHosts(t, models, []int{1, 2}, siteOf(t, 4), siteOf(t, 1, 1))
	for _, name := range []string{"flux", "hunyuandit"} {
		if name == "hunyuandit" && testing.Short() {
			continue
		}
		r := tinyRequest(t, name, 1, 18, 20, 2)
		want, err := one.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		models.weights(r)
		for text, speeds := range map[string]string{
			"ring=3": "100:100:25", "ulysses=3": "100:100:25", "ring=2": "", "pipe=3,patches=3,warmup=99": "100:100:25",
			"pipe=3,patches=1,shard=on": "100:100:25", "ring=3,speeds=30:30:30": "30:30:30", "ranks=1": "",
		} {
			r.Plan = text
			got, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatalf("%s %s: %v", name, text, err)
			}
			if _, has, _ := strings.Cut(got.Stats.Plan, "speeds="); has != speeds {
				t.Errorf("%s %s ran by %s, want speeds %q", name, text, got.Stats.Plan, speeds)
			}
			if d := relative(got.Latent.Data, want.Latent.Data); !(d <= 1e-5) {
				t.Errorf("%s %s: %g from one rank, want at most 1e-5", name, got.Stats.Plan, d)
			}
			tokens := got.Stats.Tokens
			if share := float64(tokens[0].Image) / float64(tokens[len(tokens)-1].Image); text == "ring=3" &&
				!(share > 3.5 && share < 4.5) {
				t.Errorf("%s %s: %d image tokens on the fast and %d on the slow machine, want 4 to 1", name, got.Stats.Plan,
					tokens[0].Image, tokens[2].Image)
			}
		}
	}
	if survey := c.Survey(); !slices.Equal(survey.Places, []int{2, 1}) || len(survey.Devices) != 3 {
		t.Errorf("they have met as %+v, want the second of %v first", survey, list)
	}
}

// TestHostsThatDifferLoad checks that Load, which meets the machines, cuts the stages that the next run uses.
func TestHostsThatDifferLoad(t *testing.T) {
	models := &hosts{t: t}
	e, _, _ := unlikeHosts(t, models, []int{1, 2}, siteOf(t, 4), siteOf(t, 1, 1))
	r := tinyRequest(t, "flux", 1, 18, 20, 2)
	models.weights(r)
	r.Plan = "pipe=3,patches=1,shard=on"
	if got, err := e.Load(context.Background(), r.Model, r.Plan); err != nil || got.Seconds == 0 {
		t.Fatalf("loaded in %v s, %v", got.Seconds, err)
	}
	got, err := e.Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got.Stats.LoadSeconds != 0 {
		t.Errorf("after Load weights were loaded again, for %s", got.Stats.Plan)
	}
}

// TestSlowHostIsLeftOut checks that a machine that is useless, by its rates or by its memory, gets no rank, and that
// the next leader of the same machines knows them before they meet, although ranks take them in another order.
func TestSlowHostIsLeftOut(t *testing.T) {
	small := siteOf(t, 2)
	small.Devices[0].Memory = 1 << 10
	for name, site := range map[string]hardware.Site{"slow": siteOf(t, 1e5), "small": small} {
		models := &hosts{t: t}
		e, c, list := unlikeHosts(t, models, []int{1, 2}, site, siteOf(t, 1, 1.01))
		file := filepath.Join(t.TempDir(), "networks.json")
		if err := c.Keep(file, func(err error) { t.Error(err) }); err != nil {
			t.Fatal(err)
		}
		e.whole.cluster.Link = hardware.Interconnect{Bandwidth: 1, AllToAll: 1} // of the leader's machine, where no rank runs
		r := tinyRequest(t, "flux", 1, 34, 36, 2)
		r.Guider, r.Branches, r.Plan = request.Guider{Kind: request.GuideBasic}, r.Branches[1:], "ranks=3"
		models.weights(r)
		got, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if p := planOf(t, strings.TrimPrefix(got.Stats.Plan, "one rank")); p.Ranks() != 2 {
			t.Errorf("%s: chose %s, want the two ranks of the other machine", name, got.Stats.Plan)
		}
		next := remote.NewCluster(remote.Network{}, remote.ByBest, func() []string { return list },
			func(cl *remote.Process) process.Process { return cl }, func(string, error) {})
		defer next.Close()
		if err := next.Keep(file, func(err error) { t.Error(err) }); err != nil {
			t.Fatal(err)
		}
		if was, known := c.Survey(), next.Survey(); len(was.Devices) != 3 || !slices.Equal(was.Devices, known.Devices) {
			t.Errorf("%s: the next leader knows of %d devices, other than the %d that have met", name, len(known.Devices),
				len(was.Devices))
		}
		e.whole.cfg.Processes = next
		if s := e.whole.search(r.Model, r.Workload(), planOf(t, "ranks=3")); !slices.Equal(s.Cluster.Mixed,
			c.Survey().Devices) {
			t.Errorf("%s: it predicts with %d others", name, len(s.Cluster.Mixed))
		}
		e.whole.cfg.Processes = c
	}
}

// TestRatesOfAHostAreChecked checks that a host with unusable rates is named and left out, and that if one host
// announces none, all get the rates of the leader.
func TestRatesOfAHostAreChecked(t *testing.T) {
	good := siteOf(t, 1, 1)
	for want, spoil := range map[string]func(s *hardware.Site){
		"the rates of its devices: devices[1].gemm is NaN":  func(s *hardware.Site) { s.Devices[1].GEMM = math.NaN() },
		"the rates of its devices: devices[0].memory is -1": func(s *hardware.Site) { s.Devices[0].Memory = -1 },
		"the rates of its devices: links[0].bandwidth is 0": func(s *hardware.Site) { s.Link.Bandwidth = 0 },
		"it tells of 1 devices for 2 places":                func(s *hardware.Site) { s.Devices = s.Devices[:1] },
	} {
		bad := good
		bad.Devices = slices.Clone(good.Devices)
		spoil(&bad)
		_, c, list := unlikeHosts(t, &hosts{t: t}, []int{2, 2}, bad, good)
		got, err := c.Start(4)
		if err != nil || len(got) != 1 || len(c.Survey().Devices) != 2 {
			t.Fatalf("%s: got %v, %v, %d devices: want the other host", want, got, err, len(c.Survey().Devices))
		}
		got[0].Close()
		if m := c.Missing(); len(m) != 1 || !strings.Contains(m[0], list[0]) || !strings.Contains(m[0], want) {
			t.Errorf("missing are %q, want %s with %q", m, list[0], want)
		}
	}
	_, c, _ := unlikeHosts(t, &hosts{t: t}, []int{2, 2}, hardware.Site{}, good)
	got, err := c.Start(4)
	if err != nil || len(got) != 2 || c.Survey().Devices != nil {
		t.Errorf("got %v, %v, %d devices: want both hosts and no rates", got, err, len(c.Survey().Devices))
	}
	for _, h := range got {
		h.Close()
	}
}

// TestRanksTakeThePlacesInOrder checks that the first rank of a machine runs at its first place, whatever its number,
// since rates are announced by place.
func TestRanksTakeThePlacesInOrder(t *testing.T) {
	var mu sync.Mutex
	var started []int // places, in the order of ranks
	models := &hosts{t: t, ops: func(rank, ranks int) (engine.Ops, error) {
		if ranks == 3 {
			mu.Lock()
			started = append(started, rank)
			mu.Unlock()
		}
		return testOps(rank, ranks)
	}}
	e, _, _ := unlikeHosts(t, models, []int{1, 2}, siteOf(t, 1), siteOf(t, 2, 4))
	r := tinyRequest(t, "flux", 1, 6, 6, 1)
	models.weights(r)
	r.Plan = "ring=3"
	if _, err := e.Sample(context.Background(), r, nil); err != nil {
		t.Fatal(err)
	}
	if slices.Sort(started); !slices.Equal(started, []int{0, 0, 1}) {
		t.Errorf("ranks work at the places %v, want the only one of one machine and both of the other", started)
	}
}
