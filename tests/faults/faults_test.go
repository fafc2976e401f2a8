package faults

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/tests/harness"
	"patchbay/tests/natsserver"
)

// TestFaults covers the faults that TestDurable's storms do not, each with real processes. Most wait for a time limit,
// so they run in parallel.
func TestFaults(t *testing.T) {
	t.Parallel()
	program := harness.Build(t)
	for _, c := range []struct {
		name  string
		test  func(*testing.T, string)
		waits bool
	}{
		{"CancelStorm", cancelStorm, true},
		{"ClientVanishes", clientVanishes, false},
		{"NoJetStream", noJetStream, false},
		{"ServerAway", serverAway, true},
		{"FrozenDaemon", frozenDaemon, true},
		{"DrainWithoutServer", drainWithoutServer, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.waits {
				t.Parallel()
			}
			c.test(t, program)
		})
	}
}

// stormClients is how many clients cancel at random.
const stormClients = 64

// cancelStorm checks that every job ends exactly once and nothing is left behind while 64 clients submit, follow and
// cancel jobs at random moments, and some just hang up.
func cancelStorm(t *testing.T, program string) {
	s := harness.Start(t, program, "", "--workers", "2", "--sync", "interval", "--keep-jobs",
		fmt.Sprint(stormClients*stormCancels+100))
	cancelAtRandom(t, s, stormClients, stormCancels)
}

func cancelAtRandom(t *testing.T, s *harness.Server, clients, each int) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s.Until("a worker is up", func() bool { return len(s.WorkerPIDs()) > 0 })
	before := harness.Census(s.Cmd.Process.Pid)
	var wg sync.WaitGroup
	faults := make(chan error, clients)
	for k := range clients {
		wg.Go(func() { faults <- fickle(s, k, each, rand.New(rand.NewPCG(seed, uint64(k)))) })
	}
	wg.Wait()
	for range clients {
		if err := <-faults; err != nil {
			t.Error(err)
		}
	}
	c := s.Client()
	ends := map[message.State]int{}
	for k := range clients {
		for i := range each {
			id := fmt.Sprintf("c%d-%d", k, i)
			var rec message.Record
			s.Until(id+" has ended", func() bool {
				var err error
				rec, err = harness.Status(c, id)
				return err == nil && rec.State.Final()
			})
			ends[rec.State]++
			terminal := 0
			_, err := client.Follow(context.Background(), c, id, 0, false, &client.Collector{Event: func(ev message.Event) {
				if message.Terminal(ev.Type) {
					terminal++
				}
			}})
			if err != nil || terminal != 1 || rec.Attempt > 1 {
				t.Errorf("%s: %d terminal events in %d attempts, %v; want one of each", id, terminal, rec.Attempt, err)
			}
		}
	}
	t.Logf("jobs ended as %v", ends)
	if ends[message.Failed] > 0 || ends[message.Cancelled] == 0 || len(s.WorkerPIDs()) > 2 {
		t.Errorf("ends %v, workers %v; want none failed, some cancelled, no worker lost", ends, s.WorkerPIDs())
	}
	_ = c.Close()
	s.Until("descriptors are given back", func() bool { return harness.Census(s.Cmd.Process.Pid).Files <= before.Files+4 })
}

// fickle is a client that follows, cancels or ignores its jobs at random.
func fickle(s *harness.Server, k, each int, rnd *rand.Rand) error {
	var c client.Client
	var err error
	if k%2 == 0 {
		c, err = client.DialNATS(s.URL)
	} else {
		c, err = client.DialSocket(s.Socket)
	}
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	ctx, stop := context.WithTimeout(context.Background(), harness.Patience)
	defer stop()
	for i := range each {
		id := fmt.Sprintf("c%d-%d", k, i)
		flow := harness.Quick
		if rnd.IntN(2) == 0 {
			flow = strings.Replace(harness.FlowText(3), `"seed": 1`, fmt.Sprintf(`"seed": %d`, k*100+i), 1)
		}
		if _, err := client.Submit(ctx, c, &message.RunRequest{ID: id, Workflow: flow}); err != nil {
			return fmt.Errorf("submit %s: %w", id, err)
		}
		switch rnd.IntN(4) {
		case 0: // leaves it alone
		case 1: // follows it for a moment and hangs up
			short, leave := context.WithTimeout(ctx, time.Duration(rnd.IntN(50))*time.Millisecond)
			_, _ = client.Follow(short, c, id, 0, true, &client.Collector{})
			leave()
		default:
			time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
			if _, _, err := client.Cancel(ctx, c, id); err != nil {
				return fmt.Errorf("cancel %s: %w", id, err)
			}
		}
	}
	return nil
}

// clientVanishes checks that when clients vanish, a tied run on NATS is cancelled, an untied one finishes, and the
// daemon takes the next job.
func clientVanishes(t *testing.T, program string) {
	s := harness.Start(t, program, "")
	c := s.Client()
	dir := t.TempDir()
	flow := filepath.Join(dir, "flow.json")
	if err := os.WriteFile(flow, []byte(chaosFlow(t, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	gone, err := client.DialNATS(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = client.Run(context.Background(), gone,
			&message.RunRequest{ID: "tied", Workflow: harness.DemoFlow(t, 5000), Tied: true}, &client.Collector{})
	}()
	s.Until("the tied run is under way", func() bool {
		rec, err := harness.Status(c, "tied")
		return err == nil && rec.State == message.Running
	})
	_ = gone.Close()
	s.WaitState(c, "tied", message.Cancelled)

	cmd := exec.Command(program, "run", flow, "--id", "free", "--nats", s.URL, "--out", dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.Until("the free run is known", func() bool { _, err := harness.Status(c, "free"); return err == nil })
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	s.WaitFiles(c, "free")
	onlyPicture(t, s.Out, 1)
	harness.Submit(t, c, "after", harness.Quick)
	s.WaitState(c, "after", message.Done)
}

// noJetStream checks that a server without JetStream is refused with an error that says what to do, and that it serves
// a daemon that keeps its jobs in memory.
func noJetStream(t *testing.T, program string) {
	n := natsserver.Start(t, natsserver.JetStream(t))
	n.Kill()
	if err := os.WriteFile(n.Conf, []byte("listen: "+strings.TrimPrefix(n.URL, "nats://")), 0o600); err != nil {
		t.Fatal(err)
	}
	n.Start()
	out, err := harness.Printed(exec.Command(program, "serve", "--nats", n.URL, "--socket", "off", "--store", t.TempDir(),
		"--output", t.TempDir()))
	if harness.ExitCode(t, err) == 0 || !bytes.Contains(out, []byte("--queue memory")) ||
		!bytes.Contains(out, []byte("nats-server -js")) {
		t.Errorf("got %v, want an error that says what to do:\n%s", err, out)
	}
	s := harness.Start(t, program, "", "--nats", n.URL, "--queue", "memory")
	harness.Submit(t, s.Client(), "m", harness.Quick)
	s.WaitState(s.Client(), "m", message.Done)
}

// serverAway checks a job that runs while the NATS server is away for longer than an acknowledgement may take: it is
// not started again, and its end is recorded once.
func serverAway(t *testing.T, program string) {
	n := natsserver.Start(t, natsserver.JetStream(t))
	s := harness.Start(t, program, "", "--nats", n.URL)
	harness.Submit(t, s.Client(), "short", harness.DemoFlow(t, 100)) // ends while the server is away
	harness.Submit(t, s.Client(), "waits", harness.Quick)
	s.WaitState(s.Client(), "short", message.Running)
	release := harness.Throttle(t, s.Worker())
	n.Kill()
	release()
	time.Sleep(7 * time.Second)
	n.Start()
	c := s.Client()
	for _, id := range []string{"short", "waits"} {
		s.Until(id+" is done", func() bool {
			rec, err := harness.Status(c, id)
			return err == nil && rec.State == message.Done
		})
		if rec, err := harness.Status(c, id); err != nil || rec.Attempt != 1 {
			t.Errorf("%s took %d attempts (%v), want 1", id, rec.Attempt, err)
		}
	}
	checkEnds(t, s, "short", "waits")
}

// frozenDaemon checks a daemon that is stopped for so long that another one takes its job, and then resumed: one result
// is recorded and one file made.
func frozenDaemon(t *testing.T, program string) {
	n := natsserver.Start(t, natsserver.JetStream(t))
	a := harness.Start(t, program, "", "--nats", n.URL)
	c := a.Client()
	harness.Submit(t, c, chaosID(2), strings.Replace(chaosFlow(t, 2), `"steps": 4`, `"steps": 100`, 1))
	a.WaitState(c, chaosID(2), message.Running)
	release := harness.Throttle(t, a.Worker())
	b := harness.Start(t, program, "", "--nats", n.URL, "--output", a.Out)
	release()
	frozen := []int{a.Cmd.Process.Pid, a.Worker()}
	for _, pid := range frozen {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	bc := harness.Dial(t, b) // a request on NATS may reach the stopped daemon
	b.Until("the other daemon has the job", func() bool {
		rec, err := harness.Status(bc, chaosID(2))
		return err == nil && rec.Attempt == 2
	})
	for _, pid := range frozen {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	rec := b.WaitState(bc, chaosID(2), message.Done)
	name, err := os.ReadFile(filepath.Join(b.Store, "daemon-name"))
	if err != nil || rec.Attempt != 2 || rec.Owner != string(name) || len(rec.Causes) != 1 {
		t.Errorf("got %+v, %v; want attempt 2 by %s", rec, err, name)
	}
	a.Until("the first daemon has dropped its result",
		func() bool { return strings.Contains(a.Log.String(), `"message":"result dropped"`) })
	b.WaitFiles(b.Client(), chaosID(2))
	onlyPicture(t, a.Out, 2)
	checkEnds(t, b, chaosID(2))
	harness.Submit(t, b.Client(), "after", harness.Quick)
	b.WaitState(b.Client(), "after", message.Done)
}

// drainWithoutServer checks that SIGTERM ends the daemon in time while the NATS server is away, and that its job runs
// again after the next start.
func drainWithoutServer(t *testing.T, program string) {
	n := natsserver.Start(t, natsserver.JetStream(t))
	s := harness.Start(t, program, "", "--nats", n.URL, "--drain", "1s")
	harness.Submit(t, s.Client(), chaosID(3), strings.Replace(chaosFlow(t, 3), `"steps": 4`, `"steps": 100`, 1))
	s.WaitState(s.Client(), chaosID(3), message.Running)
	harness.Throttle(t, s.Worker()) // the job is not done when the drain time is over
	n.Kill()
	if err := s.Stop(); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
	n.Start()
	s.Launch()
	c := s.Client()
	s.Until("the job is done", func() bool {
		rec, err := harness.Status(c, chaosID(3))
		return err == nil && rec.State == message.Done
	})
	s.WaitFiles(s.Client(), chaosID(3))
	onlyPicture(t, s.Out, 3)
}

// checkEnds checks that the stream has exactly one terminal event of each job.
func checkEnds(t *testing.T, s *harness.Server, jobs ...string) {
	t.Helper()
	for _, id := range jobs {
		var subjects map[string]uint64
		s.Until(id+" has its terminal event", func() bool {
			subjects = harness.EventCounts(t, s.URL)
			return subjects[message.EventSubject(id, message.EventSuccess)] > 0
		})
		for _, kind := range []string{message.EventError, message.EventInterrupted, message.EventExpired} {
			subjects[message.EventSubject(id, message.EventSuccess)] += subjects[message.EventSubject(id, kind)]
		}
		if got := subjects[message.EventSubject(id, message.EventSuccess)]; got != 1 {
			t.Errorf("%s has %d terminal events, want 1", id, got)
		}
	}
}
