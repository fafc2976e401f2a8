package serve_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"patchbay/ipc/client"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/wire/wiretest"
)

// noDescriptors takes every free descriptor of this process until the returned function is called.
func noDescriptors(t *testing.T) (restore func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	lowest, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(lowest)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(lowest), Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	restore = func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &was) }
	t.Cleanup(restore)
	return restore
}

// TestSocketWithoutDescriptors checks that a process without a descriptor for a connection takes it once it has one.
func TestSocketWithoutDescriptors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.sock")
	serveSocket(t, path, ipctest.NewRig(t, jobs.Config{}, jobs.OutputsConfig{}))
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	restore := noDescriptors(t)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // accept fails meanwhile
	restore()
	f := os.NewFile(uintptr(fd), path)
	c := client.NewFrameClient(f, f, f.Close)
	defer func() { _ = c.Close() }()
	if _, _, err := client.List(wiretest.Context(t), c, "", 1); err != nil {
		t.Errorf("the connection that waited: %v", err)
	}
	next, err := client.DialSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = next.Close() }()
	if _, _, err := client.List(wiretest.Context(t), next, "", 1); err != nil {
		t.Errorf("a connection after it: %v", err)
	}
}

// TestFilesWithoutDescriptors checks that files of a job that the process has no descriptor for are staged, named and
// read once it has one.
func TestFilesWithoutDescriptors(t *testing.T) {
	out := t.TempDir()
	s, err := jobs.NewOutputs(jobs.OutputsConfig{Stage: filepath.Join(out, "stage"), Output: out})
	if err != nil {
		t.Fatal(err)
	}
	file := message.FileOf(messagetest.Picture("1", 1000))
	for _, do := range []func() error{
		func() error { return s.Stage("j", []message.File{file}) },
		func() error { _, err := s.Commit("j"); return err },
		func() error { _, err := s.Read("j", 0); return err },
	} {
		restore := noDescriptors(t)
		time.AfterFunc(50*time.Millisecond, restore)
		if err := do(); err != nil {
			t.Error(err)
		}
		restore()
	}
}

// TestSocketFileIsMadeAgain checks that clients find the daemon again after its socket, or the whole folder, was
// removed.
func TestSocketFileIsMadeAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	path := filepath.Join(dir, "p.sock")
	serveSocket(t, path, ipctest.NewRig(t, jobs.Config{}, jobs.OutputsConfig{}))
	for range 2 {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		ctx := wiretest.Context(t)
		c, err := client.DialSocket(path)
		for ; err != nil; c, err = client.DialSocket(path) {
			if ctx.Err() != nil {
				t.Fatalf("the socket does not come back: %v", err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if _, _, err := client.List(ctx, c, "", 1); err != nil {
			t.Error(err)
		}
		_ = c.Close()
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("got %v, %v; want mode 0600", st, err)
		}
	}
}
