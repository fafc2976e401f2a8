// Package spawn starts programs that the caller talks to over a socket pair, and says why one has ended. Whether it is
// started again is up to the caller.
package spawn

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"patchbay/fault"
)

// Child is a program that Start has started. It is safe for concurrent use.
type Child struct {
	name string
	cmd  *exec.Cmd
	tail tail
	dead chan struct{} // closed after cause is set

	mu    sync.Mutex
	why   string // why it ended; before that, why it was killed
	cause *fault.Error
}

// Start starts a command and returns our end of its socket pair, which the caller closes. The program has the other end
// as file descriptor fd: 0 means both stdin and stdout, 3 is the first free one. Its stderr is passed on; the end of it
// is kept for Cause. A signal from a terminal does not reach the program. name is what errors call it; begin starts the
// prepared command, as its Start does.
func Start(name string, cmd *exec.Cmd, fd int, begin func(*exec.Cmd) error) (*Child, *net.UnixConn, error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socket pair for %s: %w", name, err)
	}
	end, theirs := os.NewFile(uintptr(pair[0]), name), os.NewFile(uintptr(pair[1]), name)
	conn, err := net.FileConn(end)
	_ = end.Close() // conn is a duplicate
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("socket pair for %s: there are no descriptors left: %w", name, err),
			theirs.Close())
	}
	ours := conn.(*net.UnixConn)
	c := &Child{name: name, cmd: cmd, dead: make(chan struct{})}
	if fd == 0 {
		cmd.Stdin, cmd.Stdout = theirs, theirs
	} else {
		cmd.ExtraFiles = []*os.File{theirs}
	}
	cmd.Stderr, cmd.WaitDelay = &c.tail, 2*time.Second // a grandchild may keep stderr open
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = begin(cmd)
	_ = theirs.Close() // or the end of a program that has not answered yet would not show
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("start %s: %w", name, err), ours.Close())
	}
	go c.wait()
	return c, ours, nil
}

func (c *Child) PID() int { return c.cmd.Process.Pid }

// Dead is closed when the program has ended and Cause is set.
func (c *Child) Dead() <-chan struct{} { return c.dead }

// Cause says how the program ended, with code WorkerLost and the most telling line of its stderr as details. Dead must
// be closed.
func (c *Child) Cause() *fault.Error { return c.cause }

// Clean reports whether the program exited by itself with code 0. Dead must be closed.
func (c *Child) Clean() bool { return c.cmd.ProcessState != nil && c.cmd.ProcessState.Success() }

// Why is the part of Cause that says how the program ended, without its name.
func (c *Child) Why() string { return c.why }

// Kill kills the program; the first why becomes the cause.
func (c *Child) Kill(why string) {
	c.mu.Lock()
	if c.why == "" {
		c.why = why
	}
	c.mu.Unlock()
	_ = c.cmd.Process.Kill()
}

// Within waits until the program has ended, and kills it after a time: why becomes the cause.
func (c *Child) Within(limit time.Duration, why string) {
	select {
	case <-c.dead:
	case <-time.After(limit):
		c.Kill(why)
		<-c.dead
	}
}

// wait reaps the program and records why it ended.
func (c *Child) wait() {
	err := c.cmd.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why == "" {
		c.why = exitText(c.cmd.ProcessState, err)
	}
	c.cause = fault.New(fault.WorkerLost, "%s (pid %d) was lost: %s", c.name, c.PID(), c.why)
	c.cause.Details = c.tail.last()
	close(c.dead)
}

// exitText says how a process ended.
func exitText(st *os.ProcessState, err error) string {
	if st == nil { // Wait failed
		return err.Error()
	}
	ws, ok := st.Sys().(syscall.WaitStatus)
	switch {
	case ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL:
		return "it was killed by SIGKILL (by hand, or by the kernel when memory ran out)"
	case ok && ws.Signaled():
		return fmt.Sprintf("it was killed by %s", ws.Signal())
	case st.ExitCode() == 0:
		return "it exited"
	}
	return fmt.Sprintf("it exited with code %d", st.ExitCode())
}

// tail passes stderr on and keeps its end.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailSize = 8 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	if n := len(t.buf) - tailSize; n > 0 {
		n += bytes.IndexByte(t.buf[n:], '\n') + 1 // not from the middle of a line, if there are several
		t.buf = append(t.buf[:0], t.buf[n:]...)
	}
	return os.Stderr.Write(b)
}

// last returns the most telling line: the last one of a panic, a fatal error or the runtime, or else the last line that
// is no news of a log. It returns "" if there is none.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.buf)), "\n")
	for _, line := range slices.Backward(lines) {
		if strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:") ||
			strings.HasPrefix(line, "runtime:") {
			return line
		}
	}
	for _, line := range slices.Backward(lines) {
		if !strings.HasPrefix(line, `{"level":"info"`) && !strings.HasPrefix(line, `{"level":"debug"`) {
			return line
		}
	}
	return ""
}
