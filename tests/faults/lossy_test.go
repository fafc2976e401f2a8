package faults

import (
	"fmt"
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
	"patchbay/tests/harness"
	"patchbay/tests/natsproxy"
	"patchbay/tests/natsserver"
)

// lossyNetwork is a network on which messages are lost, cut in two or left without an answer.
type lossyNetwork struct {
	*natsproxy.Proxy
	on   atomic.Bool // each fault once for every kind; at random one write in four, one other in forty
	next atomic.Bool // fault the next message, once
	mu   sync.Mutex
	rnd  *rand.Rand
	sure map[string][]natsproxy.Fault // faults still to come for messages of a kind
	put  map[string]int               // writes of a record that went through
	seen map[natsproxy.Fault]int
	left int // random faults still to come
}

// startLossy puts a lossy network in front of a NATS server. It loses nothing yet.
func startLossy(t *testing.T, n *natsserver.Server, seed uint64) *lossyNetwork {
	l := &lossyNetwork{
		rnd: rand.New(rand.NewPCG(seed, 2)), seen: map[natsproxy.Fault]int{}, put: map[string]int{}, left: lossyFaults,
		sure: map[string][]natsproxy.Fault{},
	}
	for _, kind := range []string{"created", "started", "ended", "named", "request", "end"} {
		l.sure[kind] = []natsproxy.Fault{natsproxy.Drop, natsproxy.Cut, natsproxy.Mute}
	}
	l.Proxy = natsproxy.Start(t, strings.TrimPrefix(n.URL, "nats://"), func(_ int, subject string) natsproxy.Fault {
		l.mu.Lock()
		defer l.mu.Unlock()
		fault := l.fault(subject, l.kind(subject))
		l.seen[fault]++
		if fault == natsproxy.Pass || fault == natsproxy.Mute {
			l.put[subject]++
		}
		return fault
	})
	return l
}

// kind tells which step in the life of an undisturbed job a message is, or "" for others. The caller must hold l.mu.
func (l *lossyNetwork) kind(subject string) string {
	switch {
	case strings.HasPrefix(subject, "$KV."+message.JobBucket+"."):
		return []string{"created", "started", "ended", "named"}[min(l.put[subject], 3)]
	case strings.HasPrefix(subject, "$KV."+message.RequestBucket+"."):
		return "request"
	case strings.HasSuffix(subject, "."+message.EventSuccess):
		return "end"
	}
	return ""
}

// fault decides what happens to a message. The caller must hold l.mu.
func (l *lossyNetwork) fault(subject, kind string) natsproxy.Fault {
	if sure := l.sure[kind]; l.on.Load() && len(sure) > 0 {
		l.sure[kind] = sure[1:]
		return sure[0]
	}
	each := 40
	if strings.HasPrefix(subject, "$KV.") {
		each = 4
	}
	if !l.next.CompareAndSwap(true, false) {
		if !l.on.Load() || l.left == 0 || l.rnd.IntN(each) > 0 {
			return natsproxy.Pass
		}
		l.left--
	}
	return natsproxy.Drop + natsproxy.Fault(l.rnd.IntN(3))
}

// spared returns the kinds of messages that have not had every fault yet.
func (l *lossyNetwork) spared() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for kind, sure := range l.sure {
		if len(sure) > 0 {
			out = append(out, kind)
		}
	}
	return out
}

// TestLossyNetwork checks jobs on a network that loses any message or its answer and cuts single connections. No
// restart repairs anything, as no process ends: every job is done in one attempt, and run, which follows one, ends with
// its picture.
func TestLossyNetwork(t *testing.T) {
	t.Parallel()
	program := harness.Build(t)
	want := quietRun(t, program, lossyJobs)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	n := natsserver.Start(t, natsserver.JetStream(t))
	l := startLossy(t, n, seed)
	s := harness.Start(t, program, "", append(stormArgs(), "--nats", l.URL)...)
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
	if err := os.WriteFile(follower, []byte(harness.DemoFlow(t, 20)), 0o644); err != nil {
		t.Fatal(err)
	}
	dir, said := t.TempDir(), &harness.Output{}
	ran := make(chan error, 1)
	go func() {
		for {
			before := len(said.String())
			run := exec.CommandContext(t.Context(), program, "run", follower, "--nats", l.URL, "--id", "followed")
			run.Dir, run.Stdout, run.Stderr = dir, said, said
			run.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			err := run.Run()
			// A busy machine may take longer to accept a connection than run waits for one: nothing is sent then.
			again := func(what string) bool { return strings.Contains(said.String()[before:], what) }
			if err == nil || !again("send it again with the same id") && !again("no daemon answers at") {
				ran <- err
				return
			}
		}
	}()
	untroubled(s, len(want), submitted)
	s.Until("run has ended", func() bool { return len(ran) > 0 })
	if err := <-ran; err != nil {
		t.Errorf("run ended with %v\n%s", err, said)
	}
	if made, _ := filepath.Glob(filepath.Join(dir, "*.png")); len(made) != 1 {
		t.Errorf("run saved %v, want one picture\n%s", made, said)
	}
	close(stop)
	cut := <-cuts
	l.on.Store(false)
	t.Logf("%d messages, %d lost, %d cut in two, %d unanswered; %d connections cut", l.Count(), l.seen[natsproxy.Drop],
		l.seen[natsproxy.Cut], l.seen[natsproxy.Mute], cut)
	if spared := l.spared(); len(spared) > 0 {
		t.Errorf("nothing has happened to a message of %v: the storm proves less than it says", spared)
	}
	if followed := filepath.Join(s.Out, "demo_00001_.png"); os.Remove(followed) != nil {
		t.Errorf("%s is not there", followed)
	}
	checkStorm(t, s, want)
	if err := s.Stop(); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
}

// untroubled waits until the jobs of a storm are done and their files have names. It fails the test at the first job
// that fails or takes another attempt, and when no job has got that far for patience: a broken guarantee shows in
// single jobs, not in how long all of them take.
func untroubled(s *harness.Server, jobs int, submitted <-chan error) {
	s.T.Helper()
	c, moved := s.Client(), time.Now()
	var rec message.Record
	for i := 0; i < jobs; time.Sleep(10 * time.Millisecond) {
		now, err := harness.Status(c, chaosID(i))
		if err == nil {
			rec = now
		}
		switch {
		case err == nil && (rec.Attempt > 1 || rec.State.Final() && rec.State != message.Done):
			s.T.Fatalf("%s is %s in attempt %d, want one attempt and %s: %v %v\n%s", rec.Job, rec.State, rec.Attempt,
				message.Done, rec.Causes, rec.Error, logOf(s, rec.Job))
		case err == nil && rec.State == message.Done && rec.Outputs[len(rec.Outputs)-1].Filename != "":
			i, moved = i+1, time.Now()
		case time.Since(moved) > harness.Patience:
			s.T.Fatalf("for %s nothing becomes of %s: %s, files %v, %v\n%s", harness.Patience, chaosID(i), rec.State,
				rec.Outputs, err,
				logOf(s, chaosID(i)))
		}
		select {
		case err := <-submitted:
			if submitted = nil; err != nil {
				s.T.Fatal(err)
			}
		default:
		}
	}
	if submitted != nil { // submitAll asks for every receipt twice
		if err := <-submitted; err != nil {
			s.T.Fatal(err)
		}
	}
}

// logOf returns the daemon's log lines about a job.
func logOf(s *harness.Server, job string) string {
	var out strings.Builder
	for line := range strings.Lines(s.Log.String()) {
		if strings.Contains(line, fmt.Sprintf("%q", job)) {
			out.WriteString(line)
		}
	}
	return out.String()
}
