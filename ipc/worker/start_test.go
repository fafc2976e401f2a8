package worker

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"

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
		if _, err := child.start(wiretest.Within(t, 10*time.Second)); err == nil {
			t.Errorf("%s: started", name)
		}
		if _, err := os.Stat(end); err == nil {
			t.Errorf("%s: start waited until the program ended by itself", name)
		}
	}
}
