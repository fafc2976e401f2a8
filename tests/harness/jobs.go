package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
)

// Submit hands in a job, again while the daemon says that it may be sent again, as clients do.
func Submit(t *testing.T, c client.Client, id, workflow string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	for {
		_, err := client.Submit(ctx, c, &message.RunRequest{ID: id, Workflow: workflow})
		if err == nil {
			return
		}
		if e := fault.From(err); !e.Retryable() || ctx.Err() != nil {
			t.Fatalf("submit %s: %v", id, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// Cancel cancels a job.
func Cancel(t *testing.T, c client.Client, id string) {
	t.Helper()
	if _, _, err := client.Cancel(context.Background(), c, id); err != nil {
		t.Fatalf("cancel %s: %v", id, err)
	}
}

// Children returns the child processes of a parent.
func Children(parent int) (pids []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	for _, path := range tasks {
		text, _ := os.ReadFile(path)
		for _, f := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// ExitCode returns the exit code of a command from the error it ended with. Any other error fails the test.
func ExitCode(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	t.Fatal(err)
	return -1
}

// Dial connects to the socket of a daemon.
func Dial(t testing.TB, s *Server) client.Client {
	t.Helper()
	c, err := client.DialSocket(s.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Picture runs three steps of the demo with a seed that no job has had, so that no cached result answers.
func (s *Server) Picture(id, plan string, seed int) ([]byte, error) {
	flow := regexp.MustCompile(`"seed": \d+`).ReplaceAllString(DemoFlow(s.T, 3), fmt.Sprintf(`"seed": %d`, seed))
	ctx, end := context.WithTimeout(context.Background(), Patience)
	defer end()
	var col client.Collector
	last, err := client.Run(ctx, s.Client(), &message.RunRequest{ID: id, Workflow: flow, Plan: plan}, &col)
	switch {
	case err != nil:
		return nil, err
	case last.Error != nil:
		return nil, last.Error
	case len(col.Files) == 0:
		return nil, errors.New("there is no picture")
	}
	return col.Files[0].Data, nil
}

// Try runs a command and returns its exit code and what it printed.
func Try(t *testing.T, program string, env []string, args ...string) (int, string) {
	t.Helper()
	secretsOf(t, slices.Concat(args, env))
	cmd := exec.Command(program, args...)
	cmd.Dir = t.TempDir() // run and get write pictures there
	cmd.Env = append(append(os.Environ(), "PATCHBAY_NATS_URL=", "PATCHBAY_SOCKET="), env...)
	out, err := Printed(cmd)
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	watch(string(out))
	return cmd.ProcessState.ExitCode(), string(out)
}

// Photo returns a PNG with smooth colors and some grain, which compresses about as a photograph does.
func Photo(size int) []byte {
	rnd := rand.New(rand.NewPCG(1, 2))
	m := image.NewNRGBA(image.Rect(0, 0, size, size))
	for y := range size {
		for x := range size {
			grain := uint8(rnd.IntN(8))
			m.SetNRGBA(x, y, color.NRGBA{
				uint8(x*200/size) + grain, uint8(y*200/size) + grain,
				uint8((x+y)*100/size) + grain, 255,
			})
		}
	}
	var out bytes.Buffer
	if err := png.Encode(&out, m); err != nil {
		panic(err)
	}
	return out.Bytes()
}
