package tests

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"patchbay/tests/harness"
)

// TestSilentTerminal checks that on a terminal that answers no question (a serial line, a recorder) commands print what
// they print elsewhere, that `top` shows the daemon, and that what was typed before it started ends it.
func TestSilentTerminal(t *testing.T) {
	t.Parallel()
	program := harness.Build(t)
	got := onTerminal(t, "", program, "version")
	if !strings.HasPrefix(got, "patchbay ") || strings.Contains(got, "\x1b") {
		t.Errorf("version prints %q", got)
	}
	s := harness.Start(t, program, "")
	if got := onTerminal(t, "q", program, "top", "--nats", s.URL); !strings.Contains(got, "asking") {
		t.Errorf("top shows %q", got)
	}
}

// onTerminal runs a command on a terminal of its own on which keys are typed at once, and returns what it prints.
func onTerminal(t *testing.T, keys string, command ...string) string {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	fd := int(screen.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := screen.WriteString(keys); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.Env = append(os.Environ(), "TERM=xterm-256color")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	_ = tty.Close()
	if err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(harness.Patience, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	var out bytes.Buffer
	var reading sync.WaitGroup
	reading.Go(func() { _, err = out.ReadFrom(screen) })
	failed := cmd.Wait()
	reading.Wait() // it ends with an error, EIO, when no process has the terminal any more
	if failed != nil || !errors.Is(err, syscall.EIO) {
		t.Errorf("%v: %v, %v\n%q", command, failed, err, out.String())
	}
	return out.String()
}
