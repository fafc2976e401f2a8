package remote

import (
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// timerSlack is how late the timers of a process that computes may fire. While calls keep coming, Go's sysmon thread
// sleeps only 20 microseconds between its checks for threads that are blocked in one. With the 50 microseconds of slack
// that Linux adds by default, that takes 4 to 11 % of the processor time of small steps (docs/speed.md).
const timerSlack = time.Millisecond

// Start starts a process that computes. It inherits the timer slack of this thread. It could not set that of all its
// own threads, because prctl only affects the calling one.
func Start(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(timerSlack), 0, 0, 0) == nil {
		defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) }() // back to the default
	}
	return cmd.Start()
}
