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
	"strings"
	"syscall"
	"testing"
	"time"

	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/tests/harness"
)

// TestDaemon runs the real program: its daemon, its workers, its clients.
func TestDaemon(t *testing.T) {
	t.Parallel()
	program := harness.Build(t)
	for _, c := range []struct {
		name string
		test func(*testing.T, string)
	}{
		{"TwoJobsAtOnce", twoJobsAtOnce},
		{"WorkerKilled", workerKilled},
		{"CtrlC", ctrlC},
		{"DiskFull", diskFull},
		{"Drain", drains},
		{"DaemonKilled", daemonKilled},
		{"OneDaemonPerStore", oneDaemonPerStore},
		{"SameAnswerOnAllCarriers", allCarriers},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, program) })
	}
}

func twoJobsAtOnce(t *testing.T, program string) {
	s := harness.Start(t, program, "", "--workers", "2")
	c := s.Client()
	harness.Submit(t, c, "a", harness.DemoFlow(t, 5000))
	harness.Submit(t, c, "b", harness.DemoFlow(t, 5001))
	a := s.WaitState(c, "a", message.Running)
	b := s.WaitState(c, "b", message.Running)
	if a.Worker == b.Worker {
		t.Errorf("both jobs run on %s", a.Worker)
	}
	harness.Submit(t, c, "q", harness.Quick) // waits until another one is gone
	if rec, _ := harness.Status(c, "q"); rec.State != message.Queued {
		t.Errorf("the third job is %s, want queued", rec.State)
	}
	harness.Cancel(t, c, "a")
	s.WaitState(c, "a", message.Cancelled)
	s.WaitState(c, "q", message.Done)
	if rec := s.WaitState(c, "b", message.Running); rec.Attempt != 1 {
		t.Errorf("job b is in attempt %d", rec.Attempt)
	}
	harness.Cancel(t, c, "b")
	s.WaitState(c, "b", message.Cancelled)
}

func workerKilled(t *testing.T, program string) {
	s := harness.Start(t, program, "")
	c := s.Client()
	harness.Submit(t, c, "k", harness.DemoFlow(t, 5000))
	s.WaitState(c, "k", message.Running)
	if err := syscall.Kill(s.WorkerPIDs()[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.Until("attempt 2 runs", func() bool {
		rec, err := harness.Status(c, "k")
		return err == nil && rec.State == message.Running && rec.Attempt == 2
	})
	harness.Cancel(t, c, "k")
	s.WaitState(c, "k", message.Cancelled)
	var retries []string
	_, err := client.Follow(context.Background(), c, "k", 0, false, &client.Collector{Event: func(ev message.Event) {
		if ev.Type == message.EventRetrying {
			retries = append(retries, fmt.Sprint(ev.Data["cause"]))
		}
	}})
	if err != nil || len(retries) != 1 || !strings.Contains(retries[0], "SIGKILL") {
		t.Errorf("got retries %q, %v; want one that names SIGKILL", retries, err)
	}
	harness.Submit(t, c, "after", harness.Quick)
	s.WaitState(c, "after", message.Done)
}

func ctrlC(t *testing.T, program string) {
	s := harness.Start(t, program, "")
	c := s.Client()
	flow := filepath.Join(t.TempDir(), "flow.json")
	if err := os.WriteFile(flow, []byte(harness.DemoFlow(t, 5000)), 0o644); err != nil {
		t.Fatal(err)
	}
	for i, args := range [][]string{{"--nats", s.URL}, {"--socket", s.Socket}} {
		id := fmt.Sprint("c", i)
		cmd := exec.Command(program, append([]string{"run", flow, "--id", id}, args...)...)
		out := &harness.Output{}
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		s.Until("steps are shown", func() bool { return strings.Contains(out.String(), "step 2/") })
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 130 {
			t.Errorf("%v: ended with %v, want exit code 130\n%s", args, err, out)
		}
		s.WaitState(c, id, message.Cancelled)
	}
	// A client that is killed cannot say goodbye; on the socket its run ends all the same.
	cmd := exec.Command(program, "run", flow, "--id", "gone", "--socket", s.Socket)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.Until("the job runs", func() bool {
		rec, err := harness.Status(c, "gone")
		return err == nil && rec.State == message.Running
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	s.WaitState(c, "gone", message.Cancelled)
}

// diskFull limits the size of the daemon's files so that its small files fit and pictures do not.
func diskFull(t *testing.T, program string) {
	s := harness.Start(t, program, `ulimit -f 2; exec "$@"`, "--queue", "memory")
	c := s.Client()
	harness.Submit(t, c, "full", harness.Quick)
	harness.Submit(t, c, "picture", harness.DemoFlow(t, 2))
	s.Until("the job has ended", func() bool {
		rec, err := harness.Status(c, "picture")
		return err == nil && rec.State.Final()
	})
	rec, err := harness.Status(c, "picture")
	if err != nil || rec.State != message.Failed || rec.Error == nil || rec.Error.Public() != fault.DiskFull {
		t.Fatalf("got %s %v, %v; want failed with %s\n%s", rec.State, rec.Error, err, fault.DiskFull, s.Log)
	}
	left, err := filepath.Glob(filepath.Join(s.Out, "demo*"))
	if err != nil || len(left) > 0 {
		t.Errorf("files %v are in the output folder, %v", left, err)
	}
	if err := s.Stop(); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
}

func drains(t *testing.T, program string) {
	s := harness.Start(t, program, "")
	c := s.Client()
	harness.Submit(t, c, "last", harness.DemoFlow(t, 30))
	harness.Submit(t, c, "later", harness.DemoFlow(t, 31))
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
	s.WaitState(c, "last", message.Running)
	_ = s.Cmd.Process.Signal(syscall.SIGTERM)
	s.Until("new jobs are refused", func() bool {
		_, err := client.Submit(context.Background(), c, &message.RunRequest{Workflow: harness.Quick})
		var e *fault.Error
		return errors.As(err, &e) && e.Public() == fault.Draining
	})
	if err := s.Wait(); err != nil {
		t.Errorf("the daemon ended with %v\n%s", err, s.Log)
	}
	for range 2 {
		select {
		case got := <-endings:
			var e *fault.Error
			if got.job == "last" && (got.ev == nil || got.ev.Type != message.EventSuccess) {
				t.Errorf("the running job ended with %+v, %v", got.ev, got.err)
			}
			if got.job == "later" && (!errors.As(got.err, &e) || e.Public() != fault.Draining) {
				t.Errorf("the follower of the waiting job was told %+v, %v; want %s", got.ev, got.err, fault.Draining)
			}
		case <-time.After(harness.Patience):
			t.Fatal("a follower was told nothing")
		}
	}
	if _, err := os.Stat(s.Socket); err == nil {
		t.Error("the socket file is still there")
	}
	s.Launch()
	s.WaitState(s.Client(), "later", message.Done)
}

// daemonKilled checks that the workers of a daemon that is killed end within about a second.
func daemonKilled(t *testing.T, program string) {
	s := harness.Start(t, program, "", "--workers", "2")
	c := s.Client()
	harness.Submit(t, c, "x", harness.DemoFlow(t, 5000))
	s.WaitState(c, "x", message.Running)
	s.Until("both workers are up", func() bool { return len(s.WorkerPIDs()) == 2 })
	s.Kill()
	began, last := harness.Census(s.WorkerPIDs()[0]).CPU+harness.Census(s.WorkerPIDs()[1]).CPU, time.Duration(0)
	for _, pid := range s.WorkerPIDs() {
		before := last
		s.Until("the worker is gone", func() bool {
			last = max(last, before+harness.Census(pid).CPU)
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			return err != nil || bytes.Contains(b, []byte(") Z ")) || bytes.Contains(b, []byte(") X "))
		})
	}
	if took := last - began; took > 10*time.Second { // of one second on at most four processors; the job takes a minute
		t.Errorf("the workers computed for %s after the daemon's end, want about a second", took)
	}
}

func oneDaemonPerStore(t *testing.T, program string) {
	s := harness.Start(t, program, "")
	port := strings.TrimPrefix(s.URL, "nats://")
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--store", s.Store}, "another daemon"},
		{[]string{"--store", t.TempDir(), "--listen", port}, "listen " + port + ": address already in use; is"},
		{[]string{"--store", t.TempDir(), "--socket", s.Socket}, "another daemon answers"},
		{[]string{"--store", t.TempDir(), "--listen", "0.0.0.0:0"}, "token"},
		{[]string{"--store", t.TempDir(), "--devices", "abacus"}, "cpu"},
		{[]string{"--store", t.TempDir(), "--devices", "daemon_test.go"}, "--rates daemon_test.go"},
		{[]string{"--store", t.TempDir(), "--rates", "abacus"}, "bench step --save"},
	} {
		args := append([]string{"serve", "--listen", "127.0.0.1:0", "--socket", "off", "--output", t.TempDir()}, c.args...)
		out, err := harness.Printed(exec.Command(program, args...))
		if err == nil || !strings.Contains(string(out), c.says) {
			t.Errorf("%v: ended with %v and said %s; want a failure that says %q", c.args, err, out, c.says)
		}
	}
	harness.Submit(t, s.Client(), "fine", harness.Quick)
	s.WaitState(s.Client(), "fine", message.Done)
}

// allCarriers runs one workflow over NATS, socket and the stdio of a worker, and compares the files and events.
func allCarriers(t *testing.T, program string) {
	s := harness.Start(t, program, "")
	var first []byte
	var names string
	for _, args := range [][]string{
		{"--nats", s.URL},
		{"--socket", s.Socket},
		{"--local", "--models", harness.DemoModels(t)},
	} {
		dir := t.TempDir()
		flow := filepath.Join(dir, "flow.json")
		if err := os.WriteFile(flow, []byte(harness.DemoFlow(t, 3)), 0o644); err != nil {
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
// transport, graph, file; and the processor time of the daemon's own process, in which the NATS server is.
func BenchmarkQuickWorkflow(b *testing.B) {
	program := harness.Build(b)
	s := harness.Start(b, program, "")
	c := s.Client()
	socket, err := client.DialSocket(s.Socket)
	if err != nil {
		b.Fatal(err)
	}
	defer socket.Close()
	for _, way := range []struct {
		name string
		c    client.Client
	}{{"nats", c}, {"socket", socket}} {
		b.Run(way.name, func(b *testing.B) {
			before := harness.Census(s.Cmd.Process.Pid).CPU
			for b.Loop() {
				end, err := client.Run(context.Background(), way.c, &message.RunRequest{Workflow: harness.Quick},
					&client.Collector{})
				if err != nil || end == nil || end.Type != message.EventSuccess {
					b.Fatalf("%+v %v", end, err)
				}
			}
			took := harness.Census(s.Cmd.Process.Pid).CPU - before
			b.ReportMetric(took.Seconds()*1000/float64(b.N), "daemon-cpu-ms/op")
		})
	}
}
