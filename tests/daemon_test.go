package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// TestDaemon runs the real program: its daemon, its workers, its clients.
func TestDaemon(t *testing.T) {
	t.Parallel()
	program := buildProgram(t)
	for _, c := range []struct {
		name string
		test func(*testing.T, string)
	}{
		{"TwoJobsAtOnce", twoJobsAtOnce},
		{"WorkerKilled", workerKilled},
		{"RankKilled", rankLost(syscall.SIGKILL, "signal: killed")},
		{"RankStopped", rankLost(syscall.SIGSTOP, "it has said nothing for 5s: signal: killed", "--patience", "5s")},
		{"CtrlC", ctrlC},
		{"DiskFull", diskFull},
		{"Drain", drains},
		{"DaemonKilled", daemonKilled},
		{"OneDaemonPerStore", oneDaemonPerStore},
		{"DoctorShowsStore", doctorShowsStore},
		{"SameAnswerOnAllCarriers", allCarriers},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, program) })
	}
}

func submit(t *testing.T, c client.Client, id, workflow string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := client.Submit(ctx, c, &message.RunRequest{ID: id, Workflow: workflow}); err != nil {
		t.Fatalf("submit %s: %v", id, err)
	}
}

func cancel(t *testing.T, c client.Client, id string) {
	t.Helper()
	if _, _, err := client.Cancel(context.Background(), c, id); err != nil {
		t.Fatalf("cancel %s: %v", id, err)
	}
}

func twoJobsAtOnce(t *testing.T, program string) {
	s := startServer(t, program, "", "--workers", "2")
	c := s.client()
	submit(t, c, "a", demoFlow(t, 5000))
	submit(t, c, "b", demoFlow(t, 5001))
	a := s.waitState(c, "a", message.Running)
	b := s.waitState(c, "b", message.Running)
	if a.Worker == b.Worker {
		t.Errorf("both jobs run on %s", a.Worker)
	}
	submit(t, c, "q", quick) // waits until another one is gone
	if rec, _ := status(c, "q"); rec.State != message.Queued {
		t.Errorf("the third job is %s, want queued", rec.State)
	}
	cancel(t, c, "a")
	s.waitState(c, "a", message.Cancelled)
	s.waitState(c, "q", message.Done)
	if rec := s.waitState(c, "b", message.Running); rec.Attempt != 1 {
		t.Errorf("job b is in attempt %d", rec.Attempt)
	}
	cancel(t, c, "b")
	s.waitState(c, "b", message.Cancelled)
}

func workerKilled(t *testing.T, program string) {
	s := startServer(t, program, "")
	c := s.client()
	submit(t, c, "k", demoFlow(t, 5000))
	s.waitState(c, "k", message.Running)
	if err := syscall.Kill(s.workerPIDs()[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.until("attempt 2 runs", func() bool {
		rec, err := status(c, "k")
		return err == nil && rec.State == message.Running && rec.Attempt == 2
	})
	cancel(t, c, "k")
	s.waitState(c, "k", message.Cancelled)
	var retries []string
	_, err := client.Follow(context.Background(), c, "k", 0, false, &client.Collector{Event: func(ev message.Event) {
		if ev.Type == message.EventRetrying {
			retries = append(retries, fmt.Sprint(ev.Data["cause"]))
		}
	}})
	if err != nil || len(retries) != 1 || !strings.Contains(retries[0], "SIGKILL") {
		t.Errorf("got retries %q, %v; want one that names SIGKILL", retries, err)
	}
	submit(t, c, "after", quick)
	s.waitState(c, "after", message.Done)
}

// rankLost checks that a job whose rank is killed, or stopped so that its worker kills it, is run again by the same
// worker in new processes, and that the cause names the process.
func rankLost(signal syscall.Signal, want string, args ...string) func(*testing.T, string) {
	return func(t *testing.T, program string) {
		if testing.Short() {
			t.Skip("NOT RUN with -short: a job of 60 steps on two processes, twice")
		}
		s := startServer(t, program, "", append([]string{"--placement", "children"}, args...)...)
		c := s.client()
		ctx, end := context.WithTimeout(context.Background(), patience)
		defer end()
		long := &message.RunRequest{ID: "k", Workflow: demoFlow(t, 60), Plan: "ulysses=2"}
		if _, err := client.Submit(ctx, c, long); err != nil {
			t.Fatal(err)
		}
		s.until("a worker is up", func() bool { return len(s.workerPIDs()) > 0 })
		worker := s.workerPIDs()[0]
		drawing := make(chan struct{})
		begin := sync.OnceFunc(func() { close(drawing) })
		go func() { // until the job ends
			_, _ = client.Follow(ctx, c, "k", 0, false, &client.Collector{Event: func(ev message.Event) {
				if ev.Type == message.EventProgress {
					begin()
				}
			}})
		}()
		s.until("the ranks draw", func() bool {
			select {
			case <-drawing:
				return true
			default:
				return false
			}
		})
		var ranks []int
		s.until("two ranks run", func() bool {
			ranks = children(worker)
			return len(ranks) == 2
		})
		if err := syscall.Kill(ranks[1], signal); err != nil {
			t.Fatal(err)
		}
		sent := time.Now()
		s.until("the rank ends", func() bool { return !slices.Contains(children(worker), ranks[1]) })
		ended := time.Now()
		s.until("two other ranks run", func() bool {
			now := children(worker)
			return len(now) == 2 && !slices.Contains(now, ranks[0]) && !slices.Contains(now, ranks[1])
		})
		t.Logf("%v after the %v the rank has ended, %v later there are others", ended.Sub(sent), signal, time.Since(ended))
		s.waitState(c, "k", message.Done)
		var retries []string
		_, err := client.Follow(context.Background(), c, "k", 0, false, &client.Collector{Event: func(ev message.Event) {
			if ev.Type == message.EventRetrying {
				retries = append(retries, fmt.Sprint(ev.Data["cause"]))
			}
		}})
		if err != nil || len(retries) != 1 || !strings.Contains(retries[0], want) ||
			!strings.Contains(retries[0], fmt.Sprintf("pid %d", ranks[1])) {
			t.Errorf("got retries %q, %v; want one that names process %d and %q", retries, err, ranks[1], want)
		}
		if got := s.workerPIDs(); len(got) != 1 {
			t.Errorf("workers were started %d times, want once", len(got))
		}
	}
}

// children returns the child processes of a parent.
func children(parent int) (pids []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	for _, path := range tasks {
		text, _ := os.ReadFile(path)
		for _, f := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func ctrlC(t *testing.T, program string) {
	s := startServer(t, program, "")
	c := s.client()
	flow := filepath.Join(t.TempDir(), "flow.json")
	if err := os.WriteFile(flow, []byte(demoFlow(t, 5000)), 0o644); err != nil {
		t.Fatal(err)
	}
	for i, args := range [][]string{{"--nats", s.url}, {"--socket", s.socket}} {
		id := fmt.Sprint("c", i)
		cmd := exec.Command(program, append([]string{"run", flow, "--id", id}, args...)...)
		out := &output{}
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		s.until("steps are shown", func() bool { return strings.Contains(out.String(), "step 2/") })
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 130 {
			t.Errorf("%v: ended with %v, want exit code 130\n%s", args, err, out)
		}
		s.waitState(c, id, message.Cancelled)
	}
	// A client that is killed cannot say goodbye; on the socket its run ends all the same.
	cmd := exec.Command(program, "run", flow, "--id", "gone", "--socket", s.socket)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.until("the job runs", func() bool {
		rec, err := status(c, "gone")
		return err == nil && rec.State == message.Running
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	s.waitState(c, "gone", message.Cancelled)
}

// diskFull limits the size of the daemon's files so that its small files fit and pictures do not.
func diskFull(t *testing.T, program string) {
	s := startServer(t, program, `ulimit -f 2; exec "$@"`, "--queue", "memory")
	c := s.client()
	submit(t, c, "full", quick)
	submit(t, c, "picture", demoFlow(t, 2))
	s.until("the job has ended", func() bool {
		rec, err := status(c, "picture")
		return err == nil && rec.State.Final()
	})
	rec, err := status(c, "picture")
	if err != nil || rec.State != message.Failed || rec.Error == nil || rec.Error.Code != wire.ErrDiskFull {
		t.Fatalf("got %s %v, %v; want failed with %s\n%s", rec.State, rec.Error, err, wire.ErrDiskFull, s.log)
	}
	left, err := filepath.Glob(filepath.Join(s.out, "demo*"))
	if err != nil || len(left) > 0 {
		t.Errorf("files %v are in the output folder, %v", left, err)
	}
	if err := s.stop(); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
}

func drains(t *testing.T, program string) {
	s := startServer(t, program, "")
	c := s.client()
	submit(t, c, "last", demoFlow(t, 30))
	submit(t, c, "later", demoFlow(t, 31))
	type ending struct {
		job string
		ev  *message.Event
		err error
	}
	endings := make(chan ending, 2)
	for _, id := range []string{"last", "later"} {
		go func() {
			ev, err := client.Follow(context.Background(), c, id, 0, false, &client.Collector{})
			endings <- ending{id, ev, err}
		}()
	}
	s.waitState(c, "last", message.Running)
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	s.until("new jobs are refused", func() bool {
		_, err := client.Submit(context.Background(), c, &message.RunRequest{Workflow: quick})
		var e *wire.Error
		return errors.As(err, &e) && e.Code == wire.ErrDraining
	})
	if err := s.wait(); err != nil {
		t.Errorf("the daemon ended with %v\n%s", err, s.log)
	}
	for range 2 {
		select {
		case got := <-endings:
			var e *wire.Error
			if got.job == "last" && (got.ev == nil || got.ev.Type != message.EventSuccess) {
				t.Errorf("the running job ended with %+v, %v", got.ev, got.err)
			}
			if got.job == "later" && (!errors.As(got.err, &e) || e.Code != wire.ErrDraining) {
				t.Errorf("the follower of the waiting job was told %+v, %v; want %s", got.ev, got.err, wire.ErrDraining)
			}
		case <-time.After(patience):
			t.Fatal("a follower was told nothing")
		}
	}
	if _, err := os.Stat(s.socket); err == nil {
		t.Error("the socket file is still there")
	}
	s.launch()
	s.waitState(s.client(), "later", message.Done)
}

// daemonKilled checks that the workers of a daemon that is killed end within about a second.
func daemonKilled(t *testing.T, program string) {
	s := startServer(t, program, "", "--workers", "2")
	c := s.client()
	submit(t, c, "x", demoFlow(t, 5000))
	s.waitState(c, "x", message.Running)
	s.until("both workers are up", func() bool { return len(s.workerPIDs()) == 2 })
	s.kill()
	began, last := census(s.workerPIDs()[0]).cpu+census(s.workerPIDs()[1]).cpu, time.Duration(0)
	for _, pid := range s.workerPIDs() {
		before := last
		s.until("the worker is gone", func() bool {
			last = max(last, before+census(pid).cpu)
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			return err != nil || bytes.Contains(b, []byte(") Z ")) || bytes.Contains(b, []byte(") X "))
		})
	}
	if took := last - began; took > 10*time.Second { // of one second on at most four processors; the job takes a minute
		t.Errorf("the workers computed for %s after the daemon's end, want about a second", took)
	}
}

func oneDaemonPerStore(t *testing.T, program string) {
	s := startServer(t, program, "")
	port := strings.TrimPrefix(s.url, "nats://")
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--store", s.store}, "another daemon"},
		{[]string{"--store", t.TempDir(), "--listen", port}, "address already in use"},
		{[]string{"--store", t.TempDir(), "--socket", s.socket}, "another daemon answers"},
		{[]string{"--store", t.TempDir(), "--listen", "0.0.0.0:0"}, "token"},
		{[]string{"--store", t.TempDir(), "--devices", "abacus"}, "cpu"},
		{[]string{"--store", t.TempDir(), "--devices", "daemon_test.go"}, "--rates daemon_test.go"},
		{[]string{"--store", t.TempDir(), "--rates", "abacus"}, "bench step --save"},
	} {
		args := append([]string{"serve", "--listen", "127.0.0.1:0", "--socket", "off", "--output", t.TempDir()}, c.args...)
		out, err := exec.Command(program, args...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.says) {
			t.Errorf("%v: ended with %v and said %s; want a failure that says %q", c.args, err, out, c.says)
		}
	}
	submit(t, s.client(), "fine", quick)
	s.waitState(s.client(), "fine", message.Done)
}

// allCarriers runs one workflow over NATS, socket and the stdio of a worker, and compares the files and events.
func allCarriers(t *testing.T, program string) {
	s := startServer(t, program, "")
	var first []byte
	var names string
	for _, args := range [][]string{{"--nats", s.url}, {"--socket", s.socket}, {"--local", "--models", demoModels(t)}} {
		dir := t.TempDir()
		flow := filepath.Join(dir, "flow.json")
		if err := os.WriteFile(flow, []byte(demoFlow(t, 3)), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(program, append([]string{"run", flow, "--json", "--out", dir}, args...)...)
		cmd.Env = append(os.Environ(), "PATCHBAY_HOME="+dir)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		var types []string
		for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
			var ev struct{ Type string }
			if err := json.Unmarshal([]byte(line), &ev); err != nil {
				t.Fatalf("%v: line %q is not JSON", args, line)
			}
			types = append(types, ev.Type)
		}
		b, err := os.ReadFile(filepath.Join(dir, "demo_00001_.png"))
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		if first == nil {
			first, names = b, strings.Join(types, " ")
			for _, want := range []string{
				"accepted", "execution_start", "progress", "executed", "metrics",
				"execution_success saved",
			} {
				if !strings.Contains(names, want) {
					t.Errorf("got %s, want %s among them", names, want)
				}
			}
		}
		if !bytes.Equal(b, first) {
			t.Errorf("%v: the picture differs from that over NATS", args)
		}
		if cached := strings.ReplaceAll(names, "executing ", ""); strings.ReplaceAll(strings.Join(types, " "), "executing ",
			"") != cached && len(types) > 4 {
			// later runs take values from the cache of the worker: fewer nodes execute, nothing else may differ in kind
			for _, ty := range types {
				if !strings.Contains(names, ty) {
					t.Errorf("%v: event %s, which the run over NATS did not have", args, ty)
				}
			}
		}
	}
}

// BenchmarkQuickWorkflow measures the time from the request to the terminal event of a workflow that computes nothing:
// transport, graph, file.
func BenchmarkQuickWorkflow(b *testing.B) {
	program := buildProgram(b)
	s := startServer(b, program, "")
	c := s.client()
	socket, err := client.DialSocket(s.socket)
	if err != nil {
		b.Fatal(err)
	}
	defer socket.Close()
	for _, way := range []struct {
		name string
		c    client.Client
	}{{"nats", c}, {"socket", socket}} {
		b.Run(way.name, func(b *testing.B) {
			for b.Loop() {
				end, err := client.Run(context.Background(), way.c, &message.RunRequest{Workflow: quick}, &client.Collector{})
				if err != nil || end == nil || end.Type != message.EventSuccess {
					b.Fatalf("%+v %v", end, err)
				}
			}
		})
	}
}
