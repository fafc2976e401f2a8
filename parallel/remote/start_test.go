package remote

import (
	"net"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestStartGivesSlack checks that Start gives timer slack to the process it starts, but not to its caller.
func TestStartGivesSlack(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	slack := func() int {
		n, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
		if err != nil {
			t.Skip("NOT RUN: ", err)
		}
		return n
	}
	before := slack()
	var out strings.Builder
	cmd := exec.Command("cat", "/proc/self/timerslack_ns")
	cmd.Stdout = &out
	if err := Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Skip("NOT RUN: ", err)
	}
	if got := strings.TrimSpace(out.String()); got != "1000000" {
		t.Errorf("the process has a slack of %s ns, want 1000000", got)
	}
	if after := slack(); after != before {
		t.Errorf("this thread has a slack of %d ns, before %d", after, before)
	}
}

// TestServeWantsAListener checks that Serve without a listener fails at once, before it answers a leader.
func TestServeWantsAListener(t *testing.T) {
	leader, host := net.Pipe()
	_ = leader.Close()
	if err := Serve(host, Config{}); err == nil || !strings.Contains(err.Error(), "Listen") {
		t.Errorf("got %v, want an error that names Listen", err)
	}
}
