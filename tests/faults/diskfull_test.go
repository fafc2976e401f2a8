package faults

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/tests/harness"
	"patchbay/tests/natsserver"
)

// disk can be filled under the files of a process.
type disk struct {
	t    *testing.T
	dir  string // its own small file system; empty: the process has a limit on file sizes instead
	pid  func() int
	fill func()
	free func()
}

// smallDisk mounts a file system of 24 MiB where that is allowed. Elsewhere it uses a limit on the file sizes of the
// process, which can be lowered and raised while it runs: then no file can grow.
func smallDisk(t *testing.T, pid func() int) *disk {
	t.Helper()
	d := &disk{t: t, dir: t.TempDir(), pid: pid}
	if err := syscall.Mount("tmpfs", d.dir, "tmpfs", 0, "size=24m"); err != nil {
		t.Logf("no file system can be mounted (%v); a limit on file sizes takes its place", err)
		return limitedDisk(t, pid)
	}
	t.Cleanup(func() { _ = syscall.Unmount(d.dir, syscall.MNT_DETACH) })
	filler := filepath.Join(d.dir, "filler")
	d.fill = func() {
		f, err := os.Create(filler)
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
		if !errors.Is(errors.Join(err, f.Close()), syscall.ENOSPC) {
			t.Fatalf("fill the disk: %v", err)
		}
	}
	d.free = func() {
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func limitedDisk(t *testing.T, pid func() int) *disk {
	limit := func(n uint64) {
		if err := unix.Prlimit(pid(), unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: n, Max: unix.RLIM_INFINITY}, nil); err != nil {
			t.Fatal(err)
		}
	}
	return &disk{t: t, pid: pid, fill: func() { limit(1) }, free: func() { limit(unix.RLIM_INFINITY) }}
}

// fullDisk fills the disk under the store of a daemon with its own NATS server, once by size and once by a limit, and
// checks that new jobs are refused at once, that accepted ones are finished when there is space, and that nothing has
// to be restarted.
func fullDisk(t *testing.T, program string, want [][]byte) {
	for _, way := range []struct {
		name string
		disk func(*testing.T, func() int) *disk
	}{{"Space", smallDisk}, {"Limit", limitedDisk}} {
		t.Run(way.name, func(t *testing.T) {
			var s *harness.Server
			d := way.disk(t, func() int { return s.Cmd.Process.Pid })
			store := d.dir
			if store == "" {
				store = t.TempDir()
			}
			s = harness.StartIn(t, program, "", harness.DemoModels(t), filepath.Join(store, "store"))
			refused := fillAndFree(t, s, d, len(want), nil)
			if refused.Public() != fault.DiskFull || refused.Status() != 507 || !refused.Retryable() {
				t.Errorf("got %+v, want %s with 507", refused, fault.DiskFull)
			}
			checkStorm(t, s, want)
			if err := s.Stop(); err != nil {
				t.Errorf("the daemon ended with %v", err)
			}
		})
	}
}

// fullDiskOutside does so to an external nats-server, which by its nature has to be restarted when there is space. The
// daemon goes on by itself.
func fullDiskOutside(t *testing.T, program string, want [][]byte) {
	n := natsserver.Start(t, natsserver.JetStream(t))
	d := limitedDisk(t, func() int { return n.Cmd.Process.Pid })
	s := harness.Start(t, program, "", "--nats", n.URL)
	refused := fillAndFree(t, s, d, len(want), func() { n.Kill(); n.Start() })
	if refused.Status() != 503 && refused.Status() != 507 {
		t.Errorf("got %+v, want 503 or 507", refused)
	}
	checkStorm(t, s, want)
}

// fillAndFree submits half of the jobs, fills the disk, submits until a job is refused, frees the disk, and submits the
// rest, the refused one with it. It returns the refusal when all jobs are done.
func fillAndFree(t *testing.T, s *harness.Server, d *disk, jobs int, restart func()) *fault.Error {
	t.Helper()
	c := harness.Dial(t, s)
	ask := func(i int) error {
		ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
		defer cancel()
		_, err := client.Submit(ctx, c, &message.RunRequest{ID: chaosID(i), Workflow: chaosFlow(t, i)})
		return err
	}
	for i := range jobs / 2 {
		if err := ask(i); err != nil {
			t.Fatal(err)
		}
	}
	s.Until("the first job has begun", func() bool {
		rec, err := harness.Status(c, chaosID(0))
		return err == nil && rec.State != message.Queued
	})
	d.fill()
	next, refused := jobs/2, (*fault.Error)(nil)
	for refused == nil && next < jobs {
		err := ask(next) // which gives up: a refusal comes before that
		switch {
		case err == nil:
			next++
		case !errors.As(err, &refused):
			t.Fatalf("a job on a full disk: %v, want a refusal", err)
		}
	}
	if refused == nil {
		t.Fatal("all jobs were taken on a full disk")
	}
	t.Logf("refused: %v", refused)
	if _, err := harness.Status(c, chaosID(0)); err != nil {
		t.Errorf("status while the disk is full: %v", err)
	}
	d.free()
	if restart != nil {
		restart()
	}
	for ; next < jobs; next++ {
		s.Until("the job is taken", func() bool { return ask(next) == nil })
	}
	attempts := 0
	for i := range jobs {
		attempts += s.WaitState(c, chaosID(i), message.Done).Attempt
	}
	t.Logf("%d jobs took %d attempts", jobs, attempts)
	return refused
}
