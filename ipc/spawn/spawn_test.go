package spawn_test

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"patchbay/fault"
	"patchbay/ipc/spawn"
)

// TestHowAProgramEnds checks what is said of a program that exits, fails with a panic, is killed by a signal, or does
// not end when it is asked to, and that it is talked to over the descriptor that was asked for.
func TestHowAProgramEnds(t *testing.T) {
	const program = "the program"
	for name, c := range map[string]struct {
		script, why, details string
		fd                   int
		clean                bool
		within               time.Duration // 0: it ends by itself
	}{
		"exits": {script: "echo hello", why: "it exited", clean: true},
		"fails": {
			script: "echo hello; echo panic: no >&2; echo later >&2; exit 3", why: "it exited with code 3", details: "panic: no",
		},
		"killed":        {script: "echo hello; kill -9 $$", why: "it was killed by SIGKILL"},
		"terminated":    {script: "echo hello; kill -15 $$", why: "it was killed by terminated"},
		"another file":  {script: "echo hello >&3", why: "it exited", fd: 3, clean: true},
		"does not exit": {script: "echo hello; exec sleep 600", why: "it hung", within: time.Millisecond},
		"last of several": {
			script: "echo hello; echo one >&2; echo two >&2; exit 1", why: "it exited with code 1", details: "two",
		},
		"news is no reason": {
			script: `echo hello; echo odd >&2; echo '{"level":"info","message":"ready"}' >&2; kill -9 $$`,
			why:    "it was killed by SIGKILL", details: "odd",
		},
		"only news": {
			script: `echo hello; for i in $(seq 300); do echo '{"level":"debug","message":"step of many"}' >&2; done; exit 1`,
			why:    "it exited with code 1",
		},
		"a warning": {
			script: `echo hello; echo '{"level":"warn","message":"bad"}' >&2; echo '{"level":"info"}' >&2; exit 1`,
			why:    "it exited with code 1", details: `{"level":"warn","message":"bad"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			child, end, err := spawn.Start(program, exec.Command("sh", "-c", c.script), c.fd, (*exec.Cmd).Start)
			if err != nil {
				t.Fatal(err)
			}
			defer end.Close()
			text := make([]byte, len("hello"))
			if _, err := io.ReadFull(end, text); err != nil || string(text) != "hello" {
				t.Errorf("it says %q, %v", text, err)
			}
			if c.within > 0 {
				child.Within(c.within, c.why)
			}
			<-child.Dead()
			cause := child.Cause()
			if !strings.HasPrefix(child.Why(), c.why) || child.Clean() != c.clean || cause.Code != fault.WorkerLost ||
				!strings.Contains(cause.Error(), program) || !strings.Contains(cause.Error(), c.why) || cause.Details != c.details {
				t.Errorf("why %q, clean %v, cause %v, details %q", child.Why(), child.Clean(), cause, cause.Details)
			}
		})
	}
	if _, _, err := spawn.Start(program, exec.Command("/no/such/program"), 0, (*exec.Cmd).Start); !os.IsNotExist(err) &&
		(err == nil || !strings.Contains(err.Error(), program)) {
		t.Errorf("a program that is not there: %v", err)
	}
}
