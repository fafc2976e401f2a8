package faults

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"patchbay/ipc/message"
	"patchbay/tests/harness"
)

// TestReconnect checks that what follows a job outlives the daemon that runs it: run and watch say what they wait for,
// resume the job under its id and end as it does. When no daemon comes back they end with 3.
func TestReconnect(t *testing.T) {
	t.Parallel()
	program := harness.Build(t)
	s := harness.Start(t, program, "")
	s.Line[slices.Index(s.Line, "127.0.0.1:0")] = strings.TrimPrefix(s.URL, "nats://")
	flow := filepath.Join(t.TempDir(), "flow.json")
	if err := os.WriteFile(flow, []byte(harness.DemoFlow(t, 300)), 0o644); err != nil {
		t.Fatal(err)
	}
	start := func(args ...string) (*exec.Cmd, *harness.Output) {
		cmd, out := exec.Command(program, args...), &harness.Output{}
		cmd.Stdout, cmd.Stderr, cmd.Dir = out, out, t.TempDir()
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, out
	}
	code := func(cmd *exec.Cmd) int {
		var exit *exec.ExitError
		if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode()
	}
	for name, to := range map[string][]string{"nats": {"--nats", s.URL}, "socket": {"--socket", s.Socket}} {
		run, out := start(append([]string{"run", flow, "--id", name, "--set", "6.text=" + name}, to...)...)
		s.Until("steps are shown", func() bool { return strings.Contains(out.String(), " 2/") })
		watch, seen := start(append([]string{"watch", name}, to...)...)
		s.Until("steps are watched", func() bool { return strings.Contains(seen.String(), " 2/") })
		s.Kill()
		s.Launch()
		for what, end := range map[string]int{"run": code(run), "watch": code(watch)} {
			// over the socket a job ends with its connection; run starts it again, watch may have seen that end
			if end != 0 && (what == "run" || name == "nats") {
				t.Errorf("%s over %s ended with %d, want 0\n%s\n%s", what, name, end, out, seen)
			}
		}
		if !strings.Contains(out.String(), "waiting up to 1m0s") || !strings.Contains(seen.String(), "waiting up to") {
			t.Errorf("%s: it was not said that the daemon went away:\n%s\n%s", name, out, seen)
		}
		if n := strings.Count(out.String(), "job "+name+" queued"); n != 1 {
			t.Errorf("%s: the receipt was shown %d times:\n%s", name, n, out)
		}
		if made, _ := filepath.Glob(filepath.Join(run.Dir, "demo_*.png")); len(made) != 1 {
			t.Errorf("%s: run saved %v, want one picture\n%s", name, made, out)
		}
		s.WaitState(s.Client(), name, message.Done)
	}

	run, out := start("run", flow, "--id", "frozen", "--set", "3.steps=5000", "--nats", s.URL, "--reconnect", "1s")
	s.Until("steps are shown", func() bool { return strings.Contains(out.String(), " 2/") })
	for _, pid := range append(s.WorkerPIDs()[len(s.WorkerPIDs())-1:], s.Cmd.Process.Pid) { // alive, but silent
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	// --reconnect is a second, or only the daemon would end the run
	if end := code(run); end != 3 || !strings.Contains(out.String(), "waiting up to 1s ") ||
		!strings.Contains(out.String(), "patchbay get frozen") {
		t.Errorf("without a daemon run ended with %d, want 3 and what to do next\n%s", end, out)
	}
	jobs, out := start("jobs", "--nats", s.URL)
	if code(jobs) != 3 || !strings.Contains(out.String(), "no daemon answers") {
		t.Errorf("jobs of a frozen daemon: want exit code 3\n%s", out)
	}
	_ = syscall.Kill(s.Cmd.Process.Pid, syscall.SIGKILL)
}
