package worker

import (
	"os/exec"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"patchbay/ipc/wire/wiretest"
)

func TestCommandThatIsNoWorker(t *testing.T) {
	for name, args := range map[string][]string{
		"prints": {"sh", "-c", "echo hello; sleep 60"}, "exits": {"false"},
		"is not there": {"/nonexistent/program"},
	} {
		child := NewChild(ChildConfig{
			Name: name, Log: zerolog.Nop(), Start: 2 * time.Second,
			Command: func() *exec.Cmd { return exec.Command(args[0], args[1:]...) },
		})
		began := time.Now()
		if _, err := child.start(wiretest.Within(t, 10*time.Second)); err == nil {
			t.Errorf("%s: started", name)
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("%s: took %s", name, took)
		}
	}
}
