package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/tests/harness"
	"patchbay/tests/natsserver"
)

// TestDurable kills real daemons, workers and NATS servers while jobs run, and checks that no job is lost or recorded
// twice and that all pictures are those of an undisturbed run.
func TestDurable(t *testing.T) {
	t.Parallel()
	program := harness.Build(t)
	want := quietRun(t, program, chaosJobs)
	t.Run("FullDisk", func(t *testing.T) { fullDisk(t, program, want[:6]) })
	t.Run("Embedded", func(t *testing.T) { storm(t, harness.Start(t, program, "", stormArgs()...), nil, nil, want) })
	t.Run("External", func(t *testing.T) {
		n := natsserver.Start(t, natsserver.JetStream(t))
		l := startLossy(t, n, uint64(time.Now().UnixNano()))
		storm(t, harness.Start(t, program, "", append(stormArgs(), "--nats", l.URL)...), n, l, want)
	})
	t.Run("FullDiskOutside", func(t *testing.T) { fullDiskOutside(t, program, want[:6]) })
	t.Run("TwoDaemons", func(t *testing.T) { twoDaemons(t, program, want[:20]) })
	t.Run("RetryAndExpire", func(t *testing.T) { retryAndExpire(t, program) })
}

// stormArgs returns flags that keep every job of a storm until it has been checked.
func stormArgs() []string {
	return []string{"--workers", "2", "--attempts", "50", "--keep-jobs", fmt.Sprint(chaosJobs + 100)}
}

// chaosFlow returns job i: its own picture, under its own name.
func chaosFlow(t testing.TB, i int) string {
	text := strings.Replace(harness.DemoFlow(t, 4), `"seed": 1`, fmt.Sprintf(`"seed": %d`, 100+i), 1)
	return strings.Replace(text, `"filename_prefix": "demo"`, fmt.Sprintf(`"filename_prefix": "%s"`, chaosID(i)), 1)
}

func chaosID(i int) string { return fmt.Sprintf("order-%02d", i) }

// quietRun returns the pictures of the first jobs, made without disturbance.
func quietRun(t *testing.T, program string, jobs int) [][]byte {
	t.Helper()
	s := harness.Start(t, program, "", "--queue", "memory")
	c := s.Client()
	out := make([][]byte, jobs)
	for i := range out {
		end, err := client.Run(context.Background(), c, &message.RunRequest{ID: chaosID(i), Workflow: chaosFlow(t, i)},
			&client.Collector{})
		if err != nil || end == nil || end.Type != message.EventSuccess {
			t.Fatalf("quiet job %d: %+v %v", i, end, err)
		}
		out[i] = onlyPicture(t, s.Out, i)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	return out
}

// onlyPicture reads the only file of job i. It fails the test if there is none or more than one.
func onlyPicture(t *testing.T, dir string, i int) []byte {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, chaosID(i)+"_*"))
	if err != nil || len(names) != 1 {
		t.Fatalf("job %s has the files %v, want one (%v)", chaosID(i), names, err)
	}
	b, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// storm submits the jobs while the daemon, workers and, if it is external, the NATS server and single connections to it
// are killed at random.
func storm(t *testing.T, s *harness.Server, n *natsserver.Server, l *lossyNetwork, want [][]byte) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	var url atomic.Value
	url.Store(s.URL)
	submitted := make(chan error, 1)
	go func() { submitted <- submitAll(t, &url, len(want)) }()
	kills := map[string]int{}
	for i := range chaosKills {
		if i == chaosKills/3 {
			kills["client"]++
			vanish(t, s)
		}
		if each := chaosKills / chaosFills; i%each == each/2 {
			kills["disk"]++
			fillOnce(t, s, n)
		}
		time.Sleep(time.Duration(100+rnd.IntN(500)) * time.Millisecond)
		switch what := rnd.IntN(6); {
		case what < 3:
			kills["daemon"]++
			s.Kill()
			s.Launch()
			url.Store(s.URL)
		case l != nil && i%2 == 0:
			kills["connection"]++
			l.CutOne()
		case l != nil && what == 4:
			kills["message"]++
			l.next.Store(true)
			s.Until("a message is lost", func() bool { return !l.next.Load() })
		case n != nil && what == 3:
			kills["nats-server"]++
			n.Kill()
			time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
			n.Start()
		default:
			if pids := s.WorkerPIDs(); len(pids) > 0 {
				kills["worker"]++
				_ = syscall.Kill(pids[len(pids)-1], syscall.SIGKILL)
			}
		}
	}
	if err := <-submitted; err != nil {
		t.Fatal(err)
	}
	c := s.Client()
	attempts := 0
	for i := range want {
		attempts += s.WaitState(c, chaosID(i), message.Done).Attempt
	}
	t.Logf("killed: %v; %d jobs took %d attempts", kills, len(want), attempts)
	checkStorm(t, s, want)
	s.Until("the job whose client is gone has ended", func() bool {
		rec, err := harness.Status(c, "vanished")
		var none *fault.Error
		return err == nil && rec.State == message.Cancelled || errors.As(err, &none) && none.Public() == fault.NoJob
	})
	if err := s.Stop(); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
	for _, pid := range s.WorkerPIDs() {
		if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); bytes.Contains(line, []byte("worker")) &&
			bytes.Contains(line, []byte(s.Out)) {
			t.Errorf("worker %d outlived its daemon", pid)
		}
	}
}

// vanish starts a long run that is tied to its client, and drops the client.
func vanish(t *testing.T, s *harness.Server) {
	c, err := client.DialNATS(s.URL)
	if err != nil {
		t.Logf("no client could connect: %v", err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_, _ = client.Run(ctx, c, &message.RunRequest{ID: "vanished", Workflow: harness.DemoFlow(t, 5000), Tied: true},
		&client.Collector{})
	_ = c.Close()
}

// fillOnce leaves the NATS server no room to write for a while. An external one has to be restarted then.
func fillOnce(t *testing.T, s *harness.Server, n *natsserver.Server) {
	pid := s.Cmd.Process.Pid
	if n != nil {
		pid = n.Cmd.Process.Pid
	}
	d := limitedDisk(t, func() int { return pid })
	d.fill()
	time.Sleep(500 * time.Millisecond)
	d.free()
	if n != nil {
		n.Kill()
		n.Start()
	}
}

// submitAll submits every job until it has a receipt, and once more for good measure, as a careful client does.
func submitAll(t *testing.T, url *atomic.Value, jobs int) error {
	for i := range jobs {
		req := &message.RunRequest{ID: chaosID(i), Workflow: chaosFlow(t, i)}
		for end, receipts := time.Now().Add(harness.Patience), 0; receipts < 2; {
			if time.Now().After(end) {
				return fmt.Errorf("no receipt for %s within %s", req.ID, harness.Patience)
			}
			if submitOnce(url.Load().(string), req) == nil {
				receipts++
				continue
			}
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}

func submitOnce(url string, req *message.RunRequest) error {
	c, err := client.DialNATS(url)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	_, err = client.Submit(ctx, c, req)
	return err
}

// checkStorm compares the files, records, events and leftovers of a storm with the quiet run.
func checkStorm(t *testing.T, s *harness.Server, want [][]byte) {
	t.Helper()
	c := s.Client()
	for i := range want {
		s.WaitFiles(c, chaosID(i))
		if !bytes.Equal(onlyPicture(t, s.Out, i), want[i]) {
			t.Errorf("the picture of %s differs from that of a quiet run", chaosID(i))
		}
	}
	if all, err := filepath.Glob(filepath.Join(s.Out, "*.png")); err != nil || len(all) != len(want) {
		t.Errorf("%d pictures are in the output folder, want %d (%v)", len(all), len(want), err)
	}
	nc, err := nats.Connect(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	events, err := js.Stream(ctx, "PATCHBAY_EVENTS_1")
	if err != nil {
		t.Fatal(err)
	}
	var info *jetstream.StreamInfo
	missing := ""
	s.Until("every job has its terminal event", func() bool {
		info, err = events.Info(ctx, jetstream.WithSubjectFilter("patchbay.v1.events.>"))
		if err != nil {
			t.Fatalf("the end of %s is not told: %v\n%s", missing, err, logOf(s, missing))
		}
		for i := range want {
			if missing = chaosID(i); info.State.Subjects[message.EventSubject(missing, message.EventSuccess)] == 0 {
				return false
			}
		}
		return true
	})
	for i := range want {
		terminal := uint64(0)
		for subject, n := range info.State.Subjects {
			if kind := subject[strings.LastIndexByte(subject, '.')+1:]; message.Terminal(kind) &&
				subject == message.EventSubject(chaosID(i), kind) {
				terminal += n
			}
		}
		if terminal != 1 {
			t.Errorf("%s has %d terminal events, want 1", chaosID(i), terminal)
		}
	}
	s.Until("the stage is empty", func() bool { // a moment after the last end
		staged, err := filepath.Glob(filepath.Join(s.Out, ".patchbay-stage-*", "*"))
		return err == nil && len(staged) == 0
	})
}

// twoDaemons checks two daemons that share the queue of one server, one of which is killed and does not come back.
func twoDaemons(t *testing.T, program string, want [][]byte) {
	n := natsserver.Start(t, natsserver.JetStream(t))
	a := harness.Start(t, program, "", append(stormArgs(), "--nats", n.URL)...)
	b := harness.Start(t, program, "", append(stormArgs(), "--nats", n.URL, "--output", a.Out)...)
	var url atomic.Value
	url.Store(n.URL)
	c := b.Client()
	harness.Submit(t, c, "long", harness.DemoFlow(t, 4000))
	rec := b.WaitState(c, "long", message.Running)
	victim, heir := a, b
	if name, err := os.ReadFile(filepath.Join(b.Store, "daemon-name")); err == nil && string(name) == rec.Owner {
		victim, heir = b, a
	}
	harness.Throttle(t, victim.Worker(rec.Worker))
	if err := submitAll(t, &url, len(want)); err != nil {
		t.Fatal(err)
	}
	owners := map[string]int{}
	for i := range want {
		owners[b.WaitState(c, chaosID(i), message.Done).Owner]++
	}
	if len(owners) != 2 {
		t.Errorf("the jobs were run by %v, want two daemons", owners)
	}
	t.Logf("jobs by daemon: %v", owners)
	for i := range want {
		b.WaitFiles(c, chaosID(i))
		if !bytes.Equal(onlyPicture(t, a.Out, i), want[i]) {
			t.Errorf("the picture of %s differs from that of a quiet run", chaosID(i))
		}
	}
	victim.Kill()
	began := time.Now()
	hc := heir.Client()
	ctx, stop := context.WithTimeout(t.Context(), harness.Patience)
	defer stop()
	if rec, err := client.Status(ctx, hc, "long"); err != nil || rec.Job != "long" {
		t.Errorf("a question to the daemon that has just died: %+v, %v, want the answer of another", rec, err)
	}
	t.Logf("a question to the dead daemon was answered after %s", time.Since(began).Round(time.Millisecond))
	heir.Until("the other daemon runs the job", func() bool {
		rec, err := harness.Status(hc, "long")
		return err == nil && rec.State == message.Running && rec.Attempt == 2
	})
	t.Logf("the job of a dead daemon ran again after %s", time.Since(began).Round(time.Millisecond))
	harness.Cancel(t, hc, "long")
	heir.WaitState(hc, "long", message.Cancelled)
}

// retryAndExpire checks that a job that waits too long expires, that a failed one is a dead letter, and that the retry
// command starts both again.
func retryAndExpire(t *testing.T, program string) {
	s := harness.Start(t, program, "", "--attempts", "1")
	c := s.Client()
	harness.Submit(t, c, "long", harness.DemoFlow(t, 5000))
	s.WaitState(c, "long", message.Running)
	if _, err := client.Submit(context.Background(), c,
		&message.RunRequest{ID: "late", Workflow: harness.Quick, QueueTTLMS: 50}); err != nil {
		t.Fatal(err)
	}
	s.WaitState(c, "late", message.Expired)
	pids := s.WorkerPIDs()
	if err := syscall.Kill(pids[len(pids)-1], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	rec := s.WaitState(c, "long", message.Failed)
	if rec.Error == nil || rec.Error.Public() != fault.WorkerLost {
		t.Errorf("got %+v, want %s", rec.Error, fault.WorkerLost)
	}
	s.Kill()
	s.Launch()
	c = s.Client()
	if out, err := harness.Printed(exec.Command(program, "retry", "late", "long", "--nats", s.URL)); err != nil {
		t.Fatalf("retry: %v\n%s", err, out)
	}
	s.Until("both run again", func() bool {
		rec, err := harness.Status(c, "long")
		return err == nil && rec.State == message.Running && rec.Attempt == 2 && len(rec.Causes) == 1 &&
			strings.Contains(rec.Causes[0], "SIGKILL")
	})
	harness.Cancel(t, c, "long")
	s.WaitState(c, "long", message.Cancelled)
	s.WaitState(c, "late", message.Done)
	var e *fault.Error
	if err := client.Retry(context.Background(), c, "late"); !errors.As(err, &e) || e.Public() != fault.BadRequest {
		t.Errorf("retry of a job that is done: %v", err)
	}
}
