package worker

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"patchbay/ipc/wire/wiretest"
)

func TestCommandThatIsNoWorker(t *testing.T) {
	end := filepath.Join(t.TempDir(), "end")
	for name, args := range map[string][]string{
		"prints": {"sh", "-c", "echo hello; sleep 60; touch " + end}, "exits": {"false"},
		"is not there": {"/nonexistent/program"},
	} {
		child := NewChild(ChildConfig{
			Name: name, Log: zerolog.Nop(), Start: 2 * time.Second,
			Command: func() *exec.Cmd { return exec.Command(args[0], args[1:]...) },
		})
		if _, err := child.start(wiretest.Context(t)); err == nil {
			t.Errorf("%s: started", name)
		}
		if _, err := os.Stat(end); err == nil {
			t.Errorf("%s: start waited until the program ended by itself", name)
		}
	}
}

// TestNoDescriptorForTheLink checks the error when there are descriptors for the socket pair only.
func TestNoDescriptorForTheLink(t *testing.T) {
	var free [2]int // the lowest
	for i := range free {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		free[i] = fd
	}
	for _, fd := range free {
		_ = unix.Close(fd)
	}
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(free[1] + 1), Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	_, err := NewChild(ChildConfig{
		Log: zerolog.Nop(), Command: func() *exec.Cmd { return exec.Command("true") },
	}).start(t.Context())
	if e := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); e != nil {
		t.Fatal(e)
	}
	if err == nil || !strings.Contains(err.Error(), "descriptors") || strings.Contains(err.Error(), "%!") {
		t.Errorf("got %v, want an error that speaks of descriptors", err)
	}
}
