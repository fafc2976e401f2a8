package tests

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/tests/harness"
)

// running is a `patchbay run` that goes on while a test interferes with it.
type running struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  *harness.Output // stdout and stderr
	ends chan error
}

// start starts the demo workflow with the given number of steps.
func (b *badInput) start(t *testing.T, steps int, args ...string) *running {
	t.Helper()
	path := filepath.Join(t.TempDir(), "flow.json")
	if err := os.WriteFile(path, []byte(flow(t, change{"3", "steps", steps})), 0o644); err != nil {
		t.Fatal(err)
	}
	r := &running{t: t, out: &harness.Output{}, ends: make(chan error, 1)}
	r.cmd = b.command(context.Background(), append([]string{path, "--out", ""}, args...))
	r.cmd.Stdout, r.cmd.Stderr = r.out, r.out
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { r.ends <- r.cmd.Wait() }()
	return r
}

// says waits until the run has printed a text the given number of times.
func (r *running) says(what string, times int) {
	r.t.Helper()
	for end := time.Now().Add(harness.Patience); strings.Count(r.out.String(),
		what) < times; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("not within %s: %q %d times in\n%s", harness.Patience, what, times, tail(r.out.String()))
		}
	}
}

// ended waits for the end and returns the exit code.
func (r *running) ended() int {
	r.t.Helper()
	select {
	case err := <-r.ends:
		return harness.ExitCode(r.t, err)
	case <-time.After(harness.Patience):
		_ = r.cmd.Process.Kill()
		r.t.Fatalf("not ended within %s:\n%s", harness.Patience, tail(r.out.String()))
	}
	return -1
}

// tooLarge limits the address space of the running worker: the job must be refused with the number of bytes before the
// first step, and the worker must live on.
func (b *badInput) tooLarge(t *testing.T) {
	pid := b.worker()
	lift := limit(t, pid, unix.RLIMIT_AS, virtual(t, pid)+900<<20)
	path := filepath.Join(t.TempDir(), "flow.json")
	if err := os.WriteFile(path, []byte(flow(t, change{"5", "width", 6144}, change{"5", "height", 6144})),
		0o644); err != nil {
		t.Fatal(err)
	}
	code, text := b.run(t, []string{path, "--socket", b.server.Socket, "--out", t.TempDir()})
	lift()
	for _, w := range []string{"out_of_memory", "node 3 (KSampler)", " MB ", "smaller picture"} {
		if code != 1 || !strings.Contains(text, w) {
			t.Errorf("exit code %d, want 1 and an error that says %q:\n%s", code, w, short(text))
		}
	}
	b.good(t)
	if now := b.worker(); now != pid {
		t.Errorf("worker %d has become %d: it died of the picture\n%s", pid, now, tail(b.server.Log.String()))
	}
}

// virtual returns the size of a process's address space in bytes.
func virtual(t *testing.T, pid int) uint64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseUint(strings.Fields(string(text))[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * uint64(os.Getpagesize())
}

// diskFull limits the file size of the running daemon, as a full disk does, and lifts the limit afterwards.
func (b *badInput) diskFull(t *testing.T) {
	before, err := os.ReadDir(b.server.Out)
	if err != nil {
		t.Fatal(err)
	}
	lift := limit(t, b.server.Cmd.Process.Pid, unix.RLIMIT_FSIZE, 2048)
	n := b.next()
	_, err = b.makeGood(n)
	lift()
	if err == nil || !strings.Contains(err.Error(), fault.DiskFull) {
		t.Errorf("got %v, want %s", err, fault.DiskFull)
	}
	after, err := os.ReadDir(b.server.Out)
	if err != nil || len(after) != len(before) {
		t.Errorf("the output folder has %d entries, %v; want the %d of before", len(after), err, len(before))
	}
	b.good(t)
}

// localDiskFull checks a client that cannot write the picture itself.
func (b *badInput) localDiskFull(t *testing.T) {
	path, out := filepath.Join(t.TempDir(), "flow.json"), t.TempDir()
	if err := os.WriteFile(path, []byte(flow(t)), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := b.command(context.Background(), append([]string{path, "--out", out}, b.local()...))
	cmd.Args = append([]string{"sh", "-c", `ulimit -f 2; exec "$@"`, "sh", b.program}, cmd.Args[1:]...)
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Path = shell
	text, err := harness.Printed(cmd)
	if code := harness.ExitCode(t, err); code != 1 || !bytes.Contains(text, []byte(fault.DiskFull)) {
		t.Errorf("exit code %d, want 1 and %s:\n%s", code, fault.DiskFull, short(string(text)))
	}
	if files, _ := os.ReadDir(out); len(files) > 0 {
		t.Errorf("%s is left in the folder", files[0].Name())
	}
	b.good(t)
}

// killedAndInterrupted kills the worker in the middle of sampling: the job starts again in another one. Then Ctrl-C
// ends the job.
func (b *badInput) killedAndInterrupted(t *testing.T) {
	r := b.start(t, 10000, "--socket", b.server.Socket, "--id", "interrupted")
	r.says("step 3/", 1)
	if err := syscall.Kill(b.worker(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.says("retrying: ", 1)
	r.says("SIGKILL", 1)
	r.says("step 3/", 2)
	if err := r.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := r.ended(); code != 130 {
		t.Errorf("exit code %d after Ctrl-C, want 130\n%s", code, tail(r.out.String()))
	}
	b.server.WaitState(b.socket, "interrupted", message.Cancelled)
	b.good(t)
}

// killedForGood kills every worker that takes the job: after the last attempt the job fails and says why.
func (b *badInput) killedForGood(t *testing.T) {
	r := b.start(t, 10000, "--socket", b.server.Socket, "--id", "killed")
	for attempt := 1; attempt <= 3; attempt++ {
		r.says("step 2/", attempt)
		if err := syscall.Kill(b.worker(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	code, text := r.ended(), r.out.String()
	if code != 1 || !strings.Contains(text, "patchbay: "+fault.WorkerLost) || strings.Count(text, "SIGKILL") != 3 {
		t.Errorf("exit code %d, want 1 and %s with SIGKILL %d times:\n%s", code, fault.WorkerLost, 3, tail(text))
	}
	b.good(t)
}

// localKilled checks that `run --local` reports that its worker died, and how.
func (b *badInput) localKilled(t *testing.T) {
	r := b.start(t, 10000, b.local()...)
	r.says("step 2/", 1)
	pid := child(t, r.cmd.Process.Pid)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	code, text := r.ended(), r.out.String()
	if last := text[strings.LastIndex(strings.TrimSpace(text), "\n")+1:]; code != 1 ||
		!strings.HasPrefix(last, "patchbay: ") || !strings.Contains(last, "SIGKILL") {
		t.Errorf("exit code %d, want 1 and an error that names the signal that ended the worker:\n%s", code, tail(text))
	}
}

// localInterrupted checks that Ctrl-C ends `run --local` and its worker.
func (b *badInput) localInterrupted(t *testing.T) {
	r := b.start(t, 10000, b.local()...)
	r.says("step 2/", 1)
	pid := child(t, r.cmd.Process.Pid)
	if err := r.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := r.ended(); code != 130 {
		t.Errorf("exit code %d after Ctrl-C, want 130\n%s", code, tail(r.out.String()))
	}
	if strings.Contains(r.out.String(), "step 10000/") {
		t.Error("the job went on to its last step after Ctrl-C")
	}
	if err := syscall.Kill(pid, 0); err == nil {
		t.Errorf("worker %d is still there", pid)
	}
}

// child returns the only child process of a process.
func child(t *testing.T, pid int) int {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range tasks {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		if ids := strings.Fields(string(text)); len(ids) == 1 {
			if id, err := strconv.Atoi(ids[0]); err == nil {
				return id
			}
		}
	}
	t.Fatalf("process %d has no child", pid)
	return 0
}
