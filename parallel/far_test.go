package parallel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models/source"
	"patchbay/parallel/hardware"
	"patchbay/parallel/process"
	"patchbay/parallel/remote"
	"patchbay/parallel/request"
)

// cable is a connection between machines that can be cut: a TCP proxy in front of a host.
type cable struct {
	t       *testing.T
	listen  net.Listener
	to      string
	mu      sync.Mutex
	moved   *sync.Cond
	dead    bool          // connections are closed, and new ones refused
	stopped bool          // bytes are held back, without either side being told
	delay   time.Duration // of every chunk
	conns   []net.Conn
	running sync.WaitGroup
}

func newCable(t *testing.T, to string) *cable {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cable{t: t, listen: l, to: to}
	c.moved = sync.NewCond(&c.mu)
	c.running.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", c.to)
			c.mu.Lock()
			if err != nil || c.dead {
				_ = in.Close()
				if err == nil {
					_ = out.Close()
				}
				c.mu.Unlock()
				continue
			}
			c.conns = append(c.conns, in, out)
			c.mu.Unlock()
			c.running.Go(func() { c.carry(in, out) })
			c.running.Go(func() { c.carry(out, in) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		c.set(func() { c.stopped = false })
		c.cut()
		c.running.Wait()
	})
	return c
}

// carry copies bytes from one side to the other.
func (c *cable) carry(from, to net.Conn) {
	defer func() { _, _ = from.Close(), to.Close() }()
	piece := make([]byte, 64<<10)
	for {
		n, err := from.Read(piece)
		c.mu.Lock()
		for c.stopped {
			c.moved.Wait()
		}
		delay := c.delay
		c.mu.Unlock()
		time.Sleep(delay)
		if n > 0 {
			if _, err := to.Write(piece[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (c *cable) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	c.moved.Broadcast()
}

// cut closes all connections and refuses new ones.
func (c *cable) cut() {
	c.set(func() {
		c.dead = true
		for _, conn := range c.conns {
			_ = conn.Close()
		}
		c.conns = nil
	})
}

func (c *cable) address() string { return c.listen.Addr().String() }

// farKey returns a cluster key made of a repeated letter.
func farKey(t *testing.T, secret string) *remote.Key {
	t.Helper()
	k, err := remote.NewKey([]byte(strings.Repeat(secret, remote.SecretLength)))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// farHosts returns a leader whose ranks run on that many stations with two places each, behind cables.
func farHosts(t *testing.T, count int, silence time.Duration) (*Pool, *hosts, []*cable, *remote.Cluster) {
	t.Helper()
	models := &hosts{t: t}
	n := remote.Network{Key: farKey(t, "a"), Build: "1.0", Silence: silence}
	var cables []*cable
	for range count {
		cables = append(cables, newCable(t, station(t, n, models)))
	}
	addresses := func() (out []string) {
		for _, c := range cables {
			out = append(out, c.address())
		}
		return out
	}
	c := remote.NewCluster(n, remote.ByBest, addresses, func(cl *remote.Process) process.Process { return cl },
		func(string, error) {})
	e, err := NewPool(Config{NewOps: testOps, Processes: c})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.Close()
		c.Close()
	})
	return e, models, cables, c
}

// station starts a host with two places that announces no rates, and returns its address.
func station(t *testing.T, n remote.Network, models *hosts) string {
	t.Helper()
	return stationAt(t, n, models, hardware.Site{}, 2)
}

// stationAt starts a host with that many places that announces site, and returns its address.
func stationAt(t *testing.T, n remote.Network, models *hosts, site hardware.Site, places int) string {
	t.Helper()
	ops := testOps
	if models.ops != nil {
		ops = models.ops
	}
	proc, err := process.New(process.Config{NewOps: ops, Places: places})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &remote.Listener{
		Network: n, Offer: remote.Config{Host: proc, Site: site, Open: models.open(&source.Loader{})},
		Hung: func(err error) {
			if models.hung == nil {
				t.Error(err)
				return
			}
			models.hung <- err
		},
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Serve(ctx, l)
		proc.Close()
	}()
	t.Cleanup(func() { stop(); <-ended })
	return l.Addr().String()
}

// TestFarPlansKnowTheNetwork checks that a plan is chosen by what the machines measured when they met: with 25 ms for
// every message between two machines no exchange crosses the network, with a free network it would.
func TestFarPlansKnowTheNetwork(t *testing.T) {
	t.Parallel() // mostly waits
	e, h, cables, c := farHosts(t, 2, 0)
	for _, way := range cables {
		way.set(func() { way.delay = 25 * time.Millisecond })
	}
	g := openGolden(t, "flux-c")
	r := parityRequest(t, g, "flux-c", 1, 48, 48, 2)
	h.weights(r)
	r.Guider, r.Branches = request.Guider{Kind: request.GuideBasic}, r.Branches[1:]
	r.Plan = "ranks=4"
	res, err := e.Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if p := planOf(t, strings.TrimPrefix(res.Stats.Plan, "one rank")); p.Ranks() > 2 {
		t.Errorf("chose %s, which exchanges between the machines", p)
	}
	survey := c.Survey()
	if !survey.Remote || !(survey.Bandwidth > 0) || !(survey.Latency >= 0.025) {
		t.Errorf("measured %.3g bytes a second and %v s, want 25 ms or more", survey.Bandwidth, survey.Latency)
	}
	s := e.whole.search(r.Model, r.Workload(), planOf(t, "ranks=4"))
	s.Cluster.Network = hardware.Interconnect{Bandwidth: 1e15}
	if best, ok := s.Fastest(); !ok || best.Plan.Ranks() <= 2 ||
		!slices.Equal(s.Cluster.Places, []int{2, 2}) {
		t.Errorf("on %v with a free network %s: the test shows nothing", s.Cluster.Places, best.Plan)
	}
}

// TestMeasuredNetworkIsKept checks that the next leader of the same hosts knows their measured network before they
// meet, and predicts with it until they meet again. A leader of other hosts, or with a corrupt file, knows nothing.
func TestMeasuredNetworkIsKept(t *testing.T) {
	t.Parallel() // mostly waits
	n := remote.Network{Key: farKey(t, "a"), Build: "1.0"}
	models := &hosts{t: t}
	var cables []*cable
	var list []string
	for range 2 {
		way := newCable(t, station(t, n, models))
		cables, list = append(cables, way), append(list, way.address())
	}
	file := filepath.Join(t.TempDir(), "home", "networks.json")
	lead := func(hosts []string) (*Pool, *remote.Cluster, error) {
		t.Helper()
		c := remote.NewCluster(n, remote.ByBest, func() []string { return hosts },
			func(cl *remote.Process) process.Process { return cl }, func(string, error) {})
		keepErr := c.Keep(file, func(err error) { t.Error(err) })
		e, err := NewPool(Config{NewOps: testOps, Processes: c})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return e, c, keepErr
	}
	r := parityRequest(t, openGolden(t, "flux-c"), "flux-c", 1, 4, 5, 1)
	models.weights(r)
	r.Plan = "ulysses=4"
	run := func(delay time.Duration) float64 {
		t.Helper()
		e, c, _ := lead(list)
		defer e.Close()
		for _, way := range cables {
			way.set(func() { way.delay = delay })
		}
		if _, err := e.Sample(context.Background(), r, nil); err != nil {
			t.Fatal(err)
		}
		return c.Survey().Latency
	}
	for _, delay := range []time.Duration{0, 25 * time.Millisecond} {
		measured := run(delay)
		e, c, err := lead(list)
		survey := c.Survey()
		if err != nil || !survey.Remote || !(survey.Bandwidth > 0) || survey.Latency != measured ||
			!slices.Equal(survey.Places, []int{2, 2}) {
			t.Errorf("with %v: kept %+v, %v; measured %v s", delay, survey, err, measured)
		}
		if delay > 0 && !(survey.Latency >= 0.025) {
			t.Errorf("kept %v s, of a meeting before the last", survey.Latency)
		}
		s := e.whole.search(r.Model, r.Workload(), planOf(t, "ranks=4"))
		if s.Cluster.Network.Latency != measured || !slices.Equal(s.Cluster.Places, []int{2, 2}) {
			t.Errorf("predictions have the network %+v between %v", s.Cluster.Network, s.Cluster.Places)
		}
		e.Close()
	}
	e, c, _ := lead(list[:1])
	if survey := c.Survey(); survey.Bandwidth != 0 {
		t.Errorf("other hosts are thought to have measured %.3g bytes a second", survey.Bandwidth)
	}
	e.Close()
	if err := os.WriteFile(file, []byte("[{"), 0o600); err != nil {
		t.Fatal(err)
	}
	e, c, err := lead(list)
	if survey := c.Survey(); survey.Bandwidth != 0 || err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file that is spoilt: %.3g bytes a second, %v", survey.Bandwidth, err)
	}
	e.Close()
	run(0)
	e, _, err = lead(list)
	if err != nil {
		t.Errorf("the file was not replaced: %v", err)
	}
	e.Close()
}

// TestFarHostsEqualOneProcess checks that ranks on three machines, two on each, give the bits of ranks in one process.
func TestFarHostsEqualOneProcess(t *testing.T) {
	one := newEngine(t)
	e, h, cables, _ := farHosts(t, 3, 0)
	cables[1].set(func() { cables[1].delay = time.Millisecond })
	r := parityRequest(t, openGolden(t, anyModel), anyModel, 2, 7, 6, 3)
	far := *r
	h.weights(&far)
	plans := []string{
		"", "ulysses=2,cfg=2", "ring=3", "gather=3", "tensor=3,form=scatter", "cfg=2,ring=3", "cfg=2,tensor=3",
		"data=2,ulysses=3", "pipe=3,ulysses=2,patches=1", "ring=2,tensor=2,shard=on", "ulysses=3,tensor=2",
		"pipe=3,patches=3,warmup=1",
	}
	for i, text := range plans {
		if testing.Short() && i%3 != 1 {
			continue // two and three machines, and stages
		}
		r.Plan, far.Plan = text, text
		want, err := one.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		got, err := e.Sample(context.Background(), &far, nil)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if at := firstDifference(got.Latent.Data, want.Latent.Data); at >= 0 {
			t.Errorf("%s: element %d is %v, in one process %v", text, at, got.Latent.Data[at], want.Latent.Data[at])
		}
	}
	far.Plan = "ring=7"
	var f *fault.Error
	if _, err := e.Sample(context.Background(), &far, nil); !errors.As(err, &f) || f.Field != "plan" ||
		!strings.Contains(f.Text, "places for 6") {
		t.Errorf("seven ranks on six places: %v", err)
	}
	far.Plan = "ranks=7"
	got, err := e.Sample(context.Background(), &far, nil)
	if err != nil || len(got.Stats.Traffic) > 6 || len(got.Stats.Traffic) < 2 {
		t.Errorf("at most seven ranks on six places: %v, %+v", err, got)
	}
}

// TestAPulledCableIsNamed checks that a host whose cable is cut, or carries nothing more, fails the run and is named.
// The next run gets a plan for the remaining hosts, and later runs use the host again once it is back.
func TestAPulledCableIsNamed(t *testing.T) {
	t.Parallel() // mostly waits
	for name, pull := range map[string]func(*cable){
		"cut":     (*cable).cut,
		"stopped": func(c *cable) { c.set(func() { c.stopped = true }) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, h, cables, c := farHosts(t, 2, 3*time.Second)
			r := parityRequest(t, openGolden(t, "flux-c"), "flux-c", 1, 7, 6, 40)
			h.weights(r)
			r.Plan = "ulysses=4"
			_, err := e.Sample(context.Background(), r, func(p request.Progress) error {
				if p.Step == 2 {
					pull(cables[1])
				}
				return nil
			})
			var f *fault.Error
			if !errors.As(err, &f) || f.Code != fault.HostLost ||
				!strings.Contains(f.Error(), "host "+cables[1].address()+" has gone") {
				t.Fatalf("got %v, want a loss of host %s", err, cables[1].address())
			}
			r.Sigmas = r.Sigmas[:3]
			got, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatalf("the next run: %v", err)
			}
			if !strings.Contains(got.Stats.Plan, "=2") || len(e.whole.processes) != 1 {
				t.Errorf("it ran with %q on %d hosts, want two ranks on one", got.Stats.Plan, len(e.whole.processes))
			}
			if m := c.Missing(); len(m) != 1 || !strings.Contains(m[0], cables[1].address()) {
				t.Errorf("missing are %q", m)
			}
			cables[1].set(func() { cables[1].dead, cables[1].stopped = false, false })
			for limit := time.Now().Add(2 * time.Minute); !c.Changed(1); time.Sleep(10 * time.Millisecond) {
				if time.Now().After(limit) {
					t.Fatal("the host is not seen to be back")
				}
			}
			if got, err = e.Sample(context.Background(), r, nil); err != nil || got.Stats.Plan != "ulysses=4" {
				t.Errorf("when it is back: %v, %v, want the plan of the request", got, err)
			}
		})
	}
}

// TestHostsThatAreNotUsed checks that the leader leaves out hosts with another key, another version or another leader,
// and addresses without a working host, and names the reason for each.
func TestHostsThatAreNotUsed(t *testing.T) {
	t.Parallel() // mostly waits
	models := &hosts{t: t}
	setup := remote.Network{Key: farKey(t, "a"), Build: "1.0"}
	other, later := setup, setup
	other.Key, later.Build = farKey(t, "b"), "1.1"
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	garbage, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := garbage.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
			_ = c.Close()
		}
	}()
	defer func() { _ = garbage.Close() }()
	taken := station(t, setup, models)
	leader, err := setup.Dial(context.Background(), taken, remote.ToLead)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = leader.Close() }()
	good := station(t, setup, models)
	cases := []struct{ address, want string }{
		{good, ""},
		{station(t, other, models), "another cluster key"},
		{station(t, later, models), fmt.Sprintf("it runs version 1.1 (protocol %d), this machine 1.0 (protocol %[1]d)",
			remote.Version)},
		{taken, "it works for " + leader.LocalAddr().String()},
		{silent.Addr().String(), "it does not answer within 5s"},
		{garbage.Addr().String(), "tls: first record does not look like a TLS handshake"},
		{"127.0.0.1:1", "connection refused"},
	}
	var addresses []string
	for _, c := range cases {
		addresses = append(addresses, c.address)
	}
	c := remote.NewCluster(setup, remote.ByBest, func() []string { return addresses },
		func(cl *remote.Process) process.Process { return cl },
		func(string, error) {})
	defer c.Close()
	got, err := c.Start(2)
	if err != nil || len(got) != 1 || fmt.Sprint(got[0]) != "host "+good {
		t.Fatalf("got %v, %v: want host %s alone", got, err, good)
	}
	got[0].Close()
	missing := c.Missing()
	if len(missing) != len(cases)-1 {
		t.Fatalf("missing are %q", missing)
	}
	for i, want := range cases[1:] {
		if !strings.Contains(missing[i], want.address) || !strings.Contains(missing[i], want.want) {
			t.Errorf("got %q, want %s with %q", missing[i], want.address, want.want)
		}
	}
}

// TestAHostJoins checks that a host added to the list during work is used from the next run on, and that one removed
// from it is not used once the list is read again.
func TestAHostJoins(t *testing.T) {
	t.Parallel() // mostly waits
	models := &hosts{t: t}
	n := remote.Network{Key: farKey(t, "a"), Build: "1.0"}
	var mu sync.Mutex
	first, second := station(t, n, models), station(t, n, models)
	list := []string{first}
	c := remote.NewCluster(n, remote.ByBest, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return list
	}, func(cl *remote.Process) process.Process { return cl }, func(string, error) {})
	defer c.Close()
	start := func(want ...string) {
		t.Helper()
		all, err := c.Start(4)
		var got []string
		for _, h := range all {
			got = append(got, strings.TrimPrefix(fmt.Sprint(h), "host "))
			h.Close()
		}
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("got hosts %v, %v, want %v", got, err, want)
		}
	}
	set := func(now ...string) {
		mu.Lock()
		defer mu.Unlock()
		list = now
	}
	start(first)
	if c.Changed(4) {
		t.Error("it has changed before anybody has joined")
	}
	set(first, second)
	for limit := time.Now().Add(2 * time.Minute); !c.Changed(4); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("the second host is not seen")
		}
	}
	start(first, second)
	set(second)
	start(second)
}

// TestARankThatStaysIsToldOf checks that a rank that does not end after its leader has gone is reported to its
// machine, which can only restart, and that no leader is admitted until it ends.
func TestARankThatStaysIsToldOf(t *testing.T) {
	t.Parallel() // mostly waits
	var left atomic.Int64
	left.Store(40)
	release := make(chan struct{})
	models := &hosts{t: t, hung: make(chan error, 1), ops: func(rank, ranks int) (engine.Ops, error) {
		ops, err := testOps(rank, ranks)
		if rank != 1 || ranks == 1 {
			return ops, err
		}
		return &faulty{ops, &left, func() { <-release }}, err
	}}
	n := remote.Network{Key: farKey(t, "a"), Build: "1.0", Silence: time.Second}
	address := station(t, n, models)
	c := remote.NewCluster(n, remote.ByBest, func() []string { return []string{address} },
		func(cl *remote.Process) process.Process { return cl }, func(string, error) {})
	defer c.Close()
	e, err := NewPool(Config{NewOps: testOps, Processes: c, Patience: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	free := sync.OnceFunc(func() { close(release) })
	defer free()
	r := parityRequest(t, openGolden(t, "flux-c"), "flux-c", 1, 7, 6, 4)
	models.weights(r)
	r.Plan = "ulysses=2"
	var f *fault.Error
	if _, err := e.Sample(context.Background(), r, nil); !errors.As(err, &f) || f.Code != fault.HostLost ||
		!strings.Contains(f.Error(), "rank 1 in host "+address) {
		t.Errorf("got %v, want a loss that names the rank and its host", err)
	}
	if err := <-models.hung; !strings.Contains(err.Error(), "have not ended") {
		t.Errorf("the machine is told %v", err)
	}
	if _, err := e.Sample(context.Background(), r, nil); err == nil || !strings.Contains(err.Error(), "it works for ") {
		t.Errorf("beside a rank that stays: %v", err)
	}
	free()
	for limit := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		_, err := e.Sample(context.Background(), r, nil)
		if err == nil {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("when the rank has come back: %v", err)
		}
	}
}
