package parallel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"regexp"
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

// named is a test's weights, which a host finds by name.
type named struct {
	process.Weights
	name string
}

func (n named) MarshalBinary() ([]byte, error) { return []byte(n.name), nil }

// hosts starts processes of ranks, which in tests are goroutines: they share nothing with the leader except what
// travels over pipes and sockets. Closing one of conns kills a process.
type hosts struct {
	t       *testing.T
	models  sync.Map // process.Weights by name
	starts  int
	room    int           // ranks that processes were started for
	conns   []net.Conn    // the processes' ends of their connections
	mute    chan struct{} // once closed, nothing that process 1 sends arrives; nil: everything does
	silence time.Duration // after which a process is given up; 0: remote.Silence
	ops     func(rank, ranks int) (engine.Ops, error)
	hung    chan error        // receives the error of a station whose rank does not end; nil: none may
	killed  func(process int) // called when a process must end, if not nil
	served  sync.WaitGroup
	device  func(process int, c *process.Config, offer *remote.Config) // gives a process a GPU, if not nil
}

// weights makes the weights of a request available to hosts by name.
func (h *hosts) weights(r *request.Request) {
	h.models.Store(r.Model.Key, r.Model.Weights)
	r.Model.Weights = named{r.Model.Weights, r.Model.Key}
}

// open returns the weights that a process finds by name, or those of the file that the name describes.
func (h *hosts) open(loader *source.Loader) func(string, []byte) (process.Weights, error) {
	return func(_ string, model []byte) (process.Weights, error) {
		if w, ok := h.models.Load(string(model)); ok {
			return w.(process.Weights), nil
		}
		return loader.Decode(model)
	}
}

func (h *hosts) Changed(ranks int) bool { return ranks > h.room }

func (h *hosts) Missing() []string { return nil }

func (h *hosts) Survey() hardware.Survey { return hardware.Survey{} }

func (h *hosts) Start(ranks int) ([]process.Process, error) {
	h.starts++
	h.room = ranks
	h.conns = nil
	var clients []*remote.Process
	var out []process.Process
	for i := range ranks {
		c, err := h.process(i)
		if err != nil {
			return nil, err
		}
		clients, out = append(clients, c), append(out, c)
	}
	_, err := remote.Meet(clients, remote.ByBest, false)
	return out, err
}

// process starts process i.
func (h *hosts) process(i int) (*remote.Process, error) {
	listen, err := net.Listen("unix", filepath.Join(h.t.TempDir(), fmt.Sprintf("%d.sock", i)))
	if err != nil {
		return nil, err
	}
	clientEnd, serverEnd := net.Pipe()
	h.conns = append(h.conns, serverEnd)
	h.served.Add(1)
	go func() {
		defer h.served.Done()
		defer func() { _ = listen.Close() }()
		ops := func(place, ranks int) (engine.Ops, error) { return h.ops(i+place, ranks) }
		cfg, offer := process.Config{NewOps: ops, Places: 1}, remote.Config{Listen: listen, Open: h.open(&source.Loader{})}
		if h.device != nil {
			h.device(i, &cfg, &offer)
		}
		proc, err := process.New(cfg)
		if err != nil {
			h.t.Error(err)
			return
		}
		defer proc.Close()
		var end io.ReadWriter = serverEnd
		if i == 1 && h.mute != nil {
			end = muted{serverEnd, h.mute}
		}
		offer.Host = proc
		_ = remote.Serve(end, offer)
	}()
	return remote.NewClient(fmt.Sprintf("process %d", i), clientEnd, h.silence, func() error {
		if h.killed != nil {
			h.killed(i)
		}
		return nil
	})
}

// muted is a process's end of a connection that drops writes once the channel is closed.
type muted struct {
	net.Conn
	lost chan struct{}
}

func (m muted) Write(b []byte) (int, error) {
	select {
	case <-m.lost:
		return len(b), nil
	default:
		return m.Conn.Write(b)
	}
}

func newHosts(t *testing.T) (*Pool, *hosts) { return newPatientHosts(t, time.Minute) }

func newPatientHosts(t *testing.T, patience time.Duration) (*Pool, *hosts) {
	t.Helper()
	h := &hosts{t: t, ops: testOps}
	e, err := NewPool(Config{NewOps: testOps, Processes: h, Patience: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close(); h.served.Wait() })
	return e, h
}

// TestHostsEqualOneProcess checks that ranks in processes of their own give the bits of ranks in one process, for
// exact and stale plans, with more ranks than before and with fewer.
func TestHostsEqualOneProcess(t *testing.T) {
	one := newEngine(t)
	e, h := newHosts(t)
	stale := []string{
		"pipe=2,patches=3,warmup=1", "pipe=2,ulysses=2,patches=2,warmup=1,kv=fp8",
		"pipe=2,shard=on,warmup=1",
	}
	plans := append([]string{""}, append(exactPlans(), stale...)...)
	for k, name := range []string{"flux-c", "hydit-a"} {
		g := openGolden(t, name)
		r := parityRequest(t, g, name, 2, 7, 6, 3)
		far := *r
		h.weights(&far)
		for _, text := range everyNth(kinds(plans), k, 8) {
			text = planFor(g.model.Spec, text)
			r.Plan, far.Plan = text, text
			want, err := one.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := e.Sample(context.Background(), &far, nil)
			if err != nil {
				t.Fatalf("%s %s: %v", name, text, err)
			}
			if at := firstDifference(got.Latent.Data, want.Latent.Data); at >= 0 {
				t.Errorf("%s %s: element %d is %v, in one process %v", name, text, at, got.Latent.Data[at],
					want.Latent.Data[at])
			}
			if got.Stats.Tokens[0] != want.Stats.Tokens[0] {
				t.Errorf("%s %s: rank 0 computed %+v, in one process %+v", name, text, got.Stats.Tokens[0], want.Stats.Tokens[0])
			}
		}
	}
	if h.starts > 8 { // for one rank, then for each plan with more than any before
		t.Errorf("processes were started %d times", h.starts)
	}
}

// TestALostHostEndsTheRun checks that a run whose process dies fails at once and names it, and that the next run gets
// a new group.
func TestALostHostEndsTheRun(t *testing.T) {
	e, h := newPatientHosts(t, 24*time.Hour) // the watchdog does not end it
	r := parityRequest(t, openGolden(t, anyModel), anyModel, 1, 7, 6, 40)
	h.weights(r)
	r.Plan = "ulysses=2"
	_, err := e.Sample(context.Background(), r, func(p request.Progress) error {
		if p.Step == 2 {
			_ = h.conns[1].Close()
		}
		return nil
	})
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != fault.HostLost || !strings.Contains(f.Error(), "process 1 has gone") {
		t.Fatalf("got %v, want a loss of process 1", err)
	}
	r.Sigmas = r.Sigmas[:3]
	if _, err := e.Sample(context.Background(), r, nil); err != nil {
		t.Errorf("the next run: %v", err)
	}
	if h.starts != 2 {
		t.Errorf("processes were started %d times, want 2", h.starts)
	}
}

// TestAHangingHostIsReplaced checks that the watchdog finds a rank stuck in a call while its process still responds.
// All processes are ended, the error names the rank and its process and allows a retry, and the next run has new
// processes.
func TestAHangingHostIsReplaced(t *testing.T) {
	t.Parallel() // mostly waits
	e, h := newPatientHosts(t, 5*time.Second)
	r := parityRequest(t, openGolden(t, "flux-c"), "flux-c", 1, 7, 6, 4)
	h.weights(r)
	r.Plan = "ulysses=2"
	var left atomic.Int64
	left.Store(40)
	release := make(chan struct{})
	kill := sync.OnceFunc(func() { close(release) })
	t.Cleanup(kill)
	h.ops = func(rank, ranks int) (engine.Ops, error) {
		ops, err := testOps(rank, ranks)
		if rank != 1 || ranks == 1 {
			return ops, err
		}
		return &faulty{ops, &left, func() { <-release }}, err
	}
	var ended sync.Map
	h.killed = func(process int) {
		ended.Store(process, true)
		if process == 1 {
			kill()
		}
	}
	_, err := e.Sample(context.Background(), r, nil)
	var f *fault.Error
	want := `the processes of the ranks were ended: no progress for 5s: rank 1 in process 1 at evaluation \d`
	if !errors.As(err, &f) || f.Code != fault.HostLost || !regexp.MustCompile(want).MatchString(f.Error()) {
		t.Errorf("got %v, want a loss that matches %s", err, want)
	}
	for i := range 2 {
		if _, ok := ended.Load(i); !ok {
			t.Errorf("process %d was not ended", i)
		}
	}
	h.killed, h.ops = nil, testOps
	if _, err := e.Sample(context.Background(), r, nil); err != nil {
		t.Errorf("the next run: %v", err)
	}
	if h.starts != 2 {
		t.Errorf("processes were started %d times, want 2", h.starts)
	}
}

// TestASilentHostIsNamed checks that a process that falls silent is reported as the cause, although the ranks of the
// others stall for longer than the watchdog allows before it is given up.
func TestASilentHostIsNamed(t *testing.T) {
	t.Parallel() // mostly waits
	e, h := newPatientHosts(t, 3*time.Second)
	h.silence, h.mute = 9*time.Second, make(chan struct{})
	r := parityRequest(t, openGolden(t, anyModel), anyModel, 1, 7, 6, 40)
	h.weights(r)
	r.Plan = "ulysses=2"
	_, err := e.Sample(context.Background(), r, func(p request.Progress) error {
		if p.Step == 2 {
			close(h.mute)
		}
		return nil
	})
	var f *fault.Error
	want := "process 1 has gone: it has said nothing for 9s"
	if !errors.As(err, &f) || f.Code != fault.HostLost || !strings.Contains(f.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

// TestHostsCancel checks that a canceled run ends within a block on all processes, which then serve the next run.
func TestHostsCancel(t *testing.T) {
	e, h := newHosts(t)
	r := parityRequest(t, openGolden(t, anyModel), anyModel, 1, 7, 6, 40)
	h.weights(r)
	r.Plan = "pipe=2,ulysses=2,patches=2,warmup=1"
	ctx, cancel := context.WithCancel(context.Background())
	_, err := e.Sample(ctx, r, func(p request.Progress) error {
		if p.Step == 2 {
			cancel()
		}
		return nil
	})
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != fault.Cancelled {
		t.Fatalf("got %v, want a cancelled run", err)
	}
	r.Sigmas = r.Sigmas[:3]
	if _, err := e.Sample(context.Background(), r, nil); err != nil {
		t.Errorf("the next run: %v", err)
	}
	if h.starts != 1 {
		t.Errorf("processes were started %d times, want once", h.starts)
	}
}

// TestHostsRefuseWeightsInNoFile checks that weights without a file are refused: a process reads its own.
func TestHostsRefuseWeightsInNoFile(t *testing.T) {
	e, _ := newHosts(t)
	r := parityRequest(t, openGolden(t, "flux-c"), "flux-c", 1, 7, 6, 2)
	_, err := e.Sample(context.Background(), r, nil)
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != fault.BadInput || f.Field != "model" {
		t.Errorf("got %v, want a refusal of the model", err)
	}
}
