package tests

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

	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/tests/natsserver"
)

// TestDurable kills real daemons, workers and NATS servers while jobs run, and checks that no job is lost or recorded
// twice and that all pictures are those of an undisturbed run.
func TestDurable(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("NOT RUN with -short: storms on 30 jobs, a nats-server outside, two daemons on one")
	}
	program := buildProgram(t)
	want := quietRun(t, program, chaosJobs)
	t.Run("FullDisk", func(t *testing.T) { fullDisk(t, program, want[:6]) })
	t.Run("Embedded", func(t *testing.T) { storm(t, startServer(t, program, "", stormArgs()...), nil, nil, want) })
	t.Run("External", func(t *testing.T) {
		n := natsserver.Start(t, natsserver.JetStream(t))
		l := startLossy(t, n, uint64(time.Now().UnixNano()))
		storm(t, startServer(t, program, "", append(stormArgs(), "--nats", l.URL)...), n, l, want)
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
	text := strings.Replace(demoFlow(t, 4), `"seed": 1`, fmt.Sprintf(`"seed": %d`, 100+i), 1)
	return strings.Replace(text, `"filename_prefix": "demo"`, fmt.Sprintf(`"filename_prefix": "%s"`, chaosID(i)), 1)
}

func chaosID(i int) string { return fmt.Sprintf("order-%02d", i) }

// quietRun returns the pictures of the first jobs, made without disturbance.
func quietRun(t *testing.T, program string, jobs int) [][]byte {
	t.Helper()
	s := startServer(t, program, "", "--queue", "memory")
	c := s.client()
	out := make([][]byte, jobs)
	for i := range out {
		end, err := client.Run(context.Background(), c, &message.RunRequest{ID: chaosID(i), Workflow: chaosFlow(t, i)},
			&client.Collector{})
		if err != nil || end == nil || end.Type != message.EventSuccess {
			t.Fatalf("quiet job %d: %+v %v", i, end, err)
		}
		out[i] = onlyPicture(t, s.out, i)
	}
	if err := s.stop(); err != nil {
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
func storm(t *testing.T, s *server, n *natsserver.Server, l *lossyNetwork, want [][]byte) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	var url atomic.Value
	url.Store(s.url)
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
			s.kill()
			s.launch()
			url.Store(s.url)
		case l != nil && i%2 == 0:
			kills["connection"]++
			l.CutOne()
		case l != nil && what == 4:
			kills["message"]++
			l.next.Store(true)
			s.until("a message is lost", func() bool { return !l.next.Load() })
		case n != nil && what == 3:
			kills["nats-server"]++
			n.Kill()
			time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
			n.Start()
		default:
			if pids := s.workerPIDs(); len(pids) > 0 {
				kills["worker"]++
				_ = syscall.Kill(pids[len(pids)-1], syscall.SIGKILL)
			}
		}
	}
	if err := <-submitted; err != nil {
		t.Fatal(err)
	}
	c := s.client()
	attempts := 0
	for i := range want {
		attempts += s.waitState(c, chaosID(i), message.Done).Attempt
	}
	t.Logf("killed: %v; %d jobs took %d attempts", kills, len(want), attempts)
	checkStorm(t, s, want)
	s.until("the job whose client is gone has ended", func() bool {
		rec, err := status(c, "vanished")
		var none *wire.Error
		return err == nil && rec.State == message.Cancelled || errors.As(err, &none) && none.Code == wire.ErrNoJob
	})
	if err := s.stop(); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
	for _, pid := range s.workerPIDs() {
		if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); bytes.Contains(line, []byte("worker")) &&
			bytes.Contains(line, []byte(s.out)) {
			t.Errorf("worker %d outlived its daemon", pid)
		}
	}
}

// vanish starts a long run that is tied to its client, and drops the client.
func vanish(t *testing.T, s *server) {
	c, err := client.DialNATS(s.url)
	if err != nil {
		t.Logf("no client could connect: %v", err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_, _ = client.Run(ctx, c, &message.RunRequest{ID: "vanished", Workflow: demoFlow(t, 5000), Tied: true},
		&client.Collector{})
	_ = c.Close()
}

// fillOnce leaves the NATS server no room to write for a while. An external one has to be restarted then.
func fillOnce(t *testing.T, s *server, n *natsserver.Server) {
	pid := s.cmd.Process.Pid
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
		for end, receipts := time.Now().Add(patience), 0; receipts < 2; {
			if time.Now().After(end) {
				return fmt.Errorf("no receipt for %s within %s", req.ID, patience)
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
func checkStorm(t *testing.T, s *server, want [][]byte) {
	t.Helper()
	c := s.client()
	for i := range want {
		s.waitFiles(c, chaosID(i))
		if !bytes.Equal(onlyPicture(t, s.out, i), want[i]) {
			t.Errorf("the picture of %s differs from that of a quiet run", chaosID(i))
		}
	}
	if all, err := filepath.Glob(filepath.Join(s.out, "*.png")); err != nil || len(all) != len(want) {
		t.Errorf("%d pictures are in the output folder, want %d (%v)", len(all), len(want), err)
	}
	nc, err := nats.Connect(s.url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	events, err := js.Stream(ctx, "PATCHBAY_EVENTS_1")
	if err != nil {
		t.Fatal(err)
	}
	var info *jetstream.StreamInfo
	missing := ""
	s.until("every job has its terminal event", func() bool {
		info, err = events.Info(ctx, jetstream.WithSubjectFilter("patchbay.v1.events.>"))
		if err != nil {
			t.Fatalf("the end of %s is not told: %v\n%s", missing, err, s.logOf(missing))
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
	queue, err := js.Stream(ctx, "PATCHBAY_JOBS_1")
	if err != nil {
		t.Fatal(err)
	}
	s.until("the queue is empty", func() bool {
		info, err := queue.Info(ctx)
		return err == nil && info.State.Msgs == 0
	})
	staged, err := filepath.Glob(filepath.Join(s.out, ".patchbay-stage-*", "*"))
	if err != nil || len(staged) > 0 {
		t.Errorf("%v are left in the stage (%v)", staged, err)
	}
}

// twoDaemons checks two daemons that share the queue of one server, one of which is killed and does not come back.
func twoDaemons(t *testing.T, program string, want [][]byte) {
	n := natsserver.Start(t, natsserver.JetStream(t))
	a := startServer(t, program, "", append(stormArgs(), "--nats", n.URL)...)
	b := startServer(t, program, "", append(stormArgs(), "--nats", n.URL, "--output", a.out)...)
	var url atomic.Value
	url.Store(n.URL)
	c := b.client()
	submit(t, c, "long", demoFlow(t, 4000))
	rec := b.waitState(c, "long", message.Running)
	victim, heir := a, b
	if name, err := os.ReadFile(filepath.Join(b.store, "daemon-name")); err == nil && string(name) == rec.Owner {
		victim, heir = b, a
	}
	throttle(t, victim.worker(rec.Worker))
	if err := submitAll(t, &url, len(want)); err != nil {
		t.Fatal(err)
	}
	owners := map[string]int{}
	for i := range want {
		owners[b.waitState(c, chaosID(i), message.Done).Owner]++
	}
	if len(owners) != 2 {
		t.Errorf("the jobs were run by %v, want two daemons", owners)
	}
	t.Logf("jobs by daemon: %v", owners)
	for i := range want {
		b.waitFiles(c, chaosID(i))
		if !bytes.Equal(onlyPicture(t, a.out, i), want[i]) {
			t.Errorf("the picture of %s differs from that of a quiet run", chaosID(i))
		}
	}
	victim.kill()
	began := time.Now()
	hc := heir.client()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	if rec, err := client.Status(ctx, hc, "long"); err != nil || rec.Job != "long" {
		t.Errorf("a question to the daemon that has just died: %+v, %v, want the answer of another", rec, err)
	}
	t.Logf("a question to the dead daemon was answered after %s", time.Since(began).Round(time.Millisecond))
	heir.until("the other daemon runs the job", func() bool {
		rec, err := status(hc, "long")
		return err == nil && rec.State == message.Running && rec.Attempt == 2
	})
	t.Logf("the job of a dead daemon ran again after %s", time.Since(began).Round(time.Millisecond))
	cancel(t, hc, "long")
	heir.waitState(hc, "long", message.Cancelled)
}

// retryAndExpire checks that a job that waits too long expires, that a failed one is a dead letter, and that the retry
// command starts both again.
func retryAndExpire(t *testing.T, program string) {
	s := startServer(t, program, "", "--attempts", "1")
	c := s.client()
	submit(t, c, "long", demoFlow(t, 5000))
	s.waitState(c, "long", message.Running)
	if _, err := client.Submit(context.Background(), c,
		&message.RunRequest{ID: "late", Workflow: quick, QueueTTLMS: 50}); err != nil {
		t.Fatal(err)
	}
	s.waitState(c, "late", message.Expired)
	pids := s.workerPIDs()
	if err := syscall.Kill(pids[len(pids)-1], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	rec := s.waitState(c, "long", message.Failed)
	if rec.Error == nil || rec.Error.Code != wire.ErrWorkerLost {
		t.Errorf("got %+v, want %s", rec.Error, wire.ErrWorkerLost)
	}
	s.kill()
	s.launch()
	c = s.client()
	if out, err := exec.Command(program, "retry", "late", "long", "--nats", s.url).CombinedOutput(); err != nil {
		t.Fatalf("retry: %v\n%s", err, out)
	}
	s.until("both run again", func() bool {
		rec, err := status(c, "long")
		return err == nil && rec.State == message.Running && rec.Attempt == 2 && len(rec.Causes) == 1 &&
			strings.Contains(rec.Causes[0], "SIGKILL")
	})
	cancel(t, c, "long")
	s.waitState(c, "long", message.Cancelled)
	s.waitState(c, "late", message.Done)
	var e *wire.Error
	if err := client.Retry(context.Background(), c, "late"); !errors.As(err, &e) || e.Code != wire.ErrBadRequest {
		t.Errorf("retry of a job that is done: %v", err)
	}
}
