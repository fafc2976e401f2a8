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

// TestPrintedEndsWhatHangs checks that a command that neither prints nor computes is killed, and its output kept.
func TestPrintedEndsWhatHangs(t *testing.T) {
	t.Parallel()
	out, err := printed(exec.Command("sh", "-c", "echo begins; sleep 3600"), 200*time.Millisecond)
	if !errors.Is(err, ErrLate) || string(out) != "begins\n" {
		t.Errorf("got %q, %v", out, err)
	}
}

// TestLifeSigns checks that printing and computing keep a process alive, and that a heartbeat is no computing.
func TestLifeSigns(t *testing.T) {
	began := time.Unix(1000, 0)
	rows := []struct {
		name    string
		used    time.Duration // of a processor in a second
		printed int           // in a second
		idle    time.Duration // after ten seconds
	}{
		{"prints", 0, 1, 0},
		{"computes", 100 * time.Millisecond, 0, 0},
		{"has a heartbeat", 20 * time.Millisecond, 0, 10 * time.Second},
		{"hangs", 0, 0, 10 * time.Second},
	}
	for _, row := range rows {
		life, idle := lifeSigns{idle: began, mark: began}, time.Duration(0)
		for s := 1; s <= 10; s++ {
			idle = life.idleFor(began.Add(time.Duration(s)*time.Second), time.Duration(s)*row.used, s*row.printed)
		}
		if idle != row.idle {
			t.Errorf("%s: idle for %s, want %s", row.name, idle, row.idle)
		}
	}
}

// TestGroupUsed checks that the processor time of a child that has ended counts.
func TestGroupUsed(t *testing.T) {
	cmd := exec.Command("sh", "-c", "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; echo; read x")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if used := groupUsed(cmd.Process.Pid); used < 50*time.Millisecond || used > time.Minute {
		t.Errorf("%s used, want some hundred milliseconds", used)
	}
	_ = in.Close()
	_ = cmd.Wait() // read finds the end of its input
}
