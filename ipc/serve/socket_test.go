package serve_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/ipc/client"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire/wiretest"
)

func serveSocket(t testing.TB, path string, r *ipctest.Rig) *serve.Socket {
	t.Helper()
	s, err := serve.ListenSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, ctx, r.Service) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); err == nil {
			t.Error("the socket file is still there")
		}
	})
	return s
}

func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "p.sock")
	r := ipctest.NewRig(t, jobs.Config{}, jobs.OutputsConfig{})
	serveSocket(t, path, r)
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("got mode %v, %v, want 0600", st.Mode(), err)
	}
	a, err := client.DialSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := client.DialSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, c := range []client.Client{a, b} {
		if _, col, end := ipctest.RunJob(t, c, &message.RunRequest{
			Workflow: messagetest.Graph("Picture 600000"),
		}); end.Type != message.EventSuccess || len(col.Files) != 1 {
			t.Errorf("got %+v", end)
		}
	}
	if _, err := serve.ListenSocket(path); err == nil || !strings.Contains(err.Error(), "another daemon") {
		t.Errorf("a second listener: %v", err)
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	r := ipctest.NewRig(t, jobs.Config{}, jobs.OutputsConfig{})
	serveSocket(t, path, r)
	c, err := client.DialSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Models(wiretest.Context(t), c); err != nil {
		t.Error(err)
	}
	_ = c.Close()
	file := filepath.Join(t.TempDir(), "notes.txt")
	if err := os.WriteFile(file, []byte("keep"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := serve.ListenSocket(file); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a file that is no socket: %v", err)
	}
	if b, _ := os.ReadFile(file); string(b) != "keep" {
		t.Error("the file was changed")
	}
}
