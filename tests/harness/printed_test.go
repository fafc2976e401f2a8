package harness

import (
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestPrintedWaitsForNobodyElse checks that a process that a command leaves behind, with the command's output open, is
// an error and ends.
func TestPrintedWaitsForNobodyElse(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: ten seconds")
	}
	out, err := Printed(exec.Command("sh", "-c", "sleep 3600 & echo $!"))
	if !errors.Is(err, exec.ErrWaitDelay) {
		t.Errorf("got %v", err)
	}
	left, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	for range 6000 { // it was killed, and init has to bury it
		if syscall.Kill(left, 0) != nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("process %d still runs", left)
}
