package remote

import (
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// timerSlack is how much later than asked for timers of a process that computes may come. Go's runtime sleeps 20
// microseconds between looks for threads that stay in a call, for as long as calls come: with the 50 microseconds more
// that Linux allows by default that takes 4 to 11 % of the processor time of small steps (docs/speed.md).
const timerSlack = time.Millisecond

// Start starts a process that computes. It inherits the slack of this thread, as no process may give it to threads that
// it has.
func Start(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(timerSlack), 0, 0, 0) == nil {
		defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) }() // the default again
	}
	return cmd.Start()
}
