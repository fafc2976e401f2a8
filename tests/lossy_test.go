package tests

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"patchbay/ipc/message"
	"patchbay/tests/natsproxy"
)

// lossyNetwork is a network on which messages are lost, or cut in two with the end of their connection.
type lossyNetwork struct {
	*natsproxy.Proxy
	on   atomic.Bool // at random, one write of a record or request of four, one other message of forty
	next atomic.Bool // the next one, once
	mu   sync.Mutex
	rnd  *rand.Rand
	seen map[natsproxy.Fault]int
}

// startLossy puts such a network before a NATS server; nothing is lost yet.
func startLossy(t *testing.T, n *natsServer, seed uint64) *lossyNetwork {
	l := &lossyNetwork{rnd: rand.New(rand.NewPCG(seed, 2)), seen: map[natsproxy.Fault]int{}}
	l.Proxy = natsproxy.Start(t, strings.TrimPrefix(n.url, "nats://"), func(_ int, subject string) natsproxy.Fault {
		l.mu.Lock()
		defer l.mu.Unlock()
		each := 40
		if strings.HasPrefix(subject, "$KV.") {
			each = 4
		}
		most := l.seen[natsproxy.Drop]+l.seen[natsproxy.Cut] == lossyFaults
		if !l.next.CompareAndSwap(true, false) && (!l.on.Load() || most || l.rnd.IntN(each) > 0) {
			return natsproxy.Pass
		}
		fault := natsproxy.Drop + natsproxy.Fault(l.rnd.IntN(2))
		l.seen[fault]++
		return fault
	})
	return l
}

// TestLossyNetwork runs jobs over a network that loses any message and cuts single connections. No process ends, so
// nothing is put right by a start: every job is done in one attempt, and run, which follows one, ends with its picture.
func TestLossyNetwork(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("NOT RUN with -short: builds nats-server and waits for time limits")
	}
	program := buildProgram(t)
	want := quietRun(t, program, lossyJobs)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	n := startNATS(t)
	l := startLossy(t, n, seed)
	s := startServer(t, program, "", append(stormArgs(), "--nats", l.URL)...)
	l.on.Store(true)
	var url atomic.Value
	url.Store(l.URL)
	submitted := make(chan error, 1)
	go func() { submitted <- submitAll(t, &url, len(want)) }()
	stop, cuts := make(chan struct{}), make(chan int)
	go func() {
		for cut := 0; ; time.Sleep(2 * time.Second) {
			select {
			case <-stop:
				cuts <- cut
				return
			default:
			}
			if l.CutOne() {
				cut++
			}
		}
	}()
	follower := filepath.Join(t.TempDir(), "flow.json")
	if err := os.WriteFile(follower, []byte(demoFlow(t, 20)), 0o644); err != nil {
		t.Fatal(err)
	}
	dir, said := t.TempDir(), &output{}
	ran := make(chan error, 1)
	go func() {
		for {
			before := len(said.String())
			run := exec.Command(program, "run", follower, "--nats", l.URL, "--id", "followed")
			run.Dir, run.Stdout, run.Stderr = dir, said, said
			run.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			err := run.Run()
			if err == nil || !strings.Contains(said.String()[before:], "send it again with the same id") {
				ran <- err
				return
			}
		}
	}()
	if err := <-submitted; err != nil {
		t.Fatal(err)
	}
	if err := <-ran; err != nil {
		t.Errorf("run ended with %v\n%s", err, said)
	}
	if made, _ := filepath.Glob(filepath.Join(dir, "*.png")); len(made) != 1 {
		t.Errorf("run saved %v, want one picture\n%s", made, said)
	}
	c := s.client()
	for i := range want {
		if rec := s.waitState(c, chaosID(i), message.Done); rec.Attempt != 1 {
			t.Errorf("%s took %d attempts, want 1: %v", rec.Job, rec.Attempt, rec.Causes)
		}
	}
	close(stop)
	cut := <-cuts
	l.on.Store(false)
	t.Logf("%d messages, %d lost, %d cut in two; %d connections cut", l.Count(), l.seen[natsproxy.Drop],
		l.seen[natsproxy.Cut], cut)
	if followed := filepath.Join(s.out, "demo_00001_.png"); os.Remove(followed) != nil {
		t.Errorf("%s is not there", followed)
	}
	checkStorm(t, s, want)
	if err := s.stop(); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
}
