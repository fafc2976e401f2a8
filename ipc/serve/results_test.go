package serve_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
)

// TestResultsAreKeptUpToASize: the oldest results go first, their jobs still answer and say so, the newest stays, and
// so does a file that somebody has changed.
func TestResultsAreKeptUpToASize(t *testing.T) {
	out := t.TempDir()
	r := ipctest.NewRig(t, jobs.Config{KeepBytes: 2500},
		jobs.OutputsConfig{Stage: filepath.Join(out, ".stage"), Output: out})
	c := ipctest.DialRig(t, r)
	edited := filepath.Join(out, "fake_00002_.png")
	for i := range 5 {
		_, _, end := ipctest.RunJob(t, c, &message.RunRequest{
			ID:       fmt.Sprint("r", i),
			Workflow: messagetest.Graph("Picture 1000"),
		})
		if end.Type != message.EventSuccess {
			t.Fatalf("job %d: %+v", i, end)
		}
		if i == 1 {
			if err := os.WriteFile(edited, []byte("mine"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Millisecond) // the order of ends is by the millisecond
	}
	until(t, "three results are dropped", func() bool {
		rec, err := r.Jobs.Get("r2")
		return err == nil && rec.Dropped > 0
	})
	for i := range 5 {
		id, dropped := fmt.Sprint("r", i), i < 3
		rec, err := client.Status(wiretest.Context(t), c, id)
		if err != nil || rec.State != message.Done || len(rec.Outputs) != 1 || (rec.Dropped > 0) != dropped {
			t.Errorf("%s: got %+v, %v; want done, dropped %v", id, rec, err, dropped)
		}
		files, err := client.Fetch(wiretest.Context(t), c, id)
		var e *fault.Error
		if dropped && (!errors.As(err, &e) || e.Public() != fault.Expired) || !dropped && (err != nil || len(files) != 1) {
			t.Errorf("%s: got %d files, %v; want them gone: %v", id, len(files), err, dropped)
		}
		end, err := client.Follow(wiretest.Context(t), c, id, 0, true, &client.Collector{})
		if dropped && (!errors.As(err, &e) || e.Public() != fault.Expired) || !dropped && (err != nil || end == nil) {
			t.Errorf("%s: who follows it with its files is told %+v, %v; want them gone: %v", id, end, err, dropped)
		}
		_, err = os.Stat(filepath.Join(out, fmt.Sprintf("fake_%05d_.png", i+1)))
		if want := !dropped || i == 1; (err == nil) != want {
			t.Errorf("file of %s: %v, want it there: %v", id, err, want)
		}
	}
}

// TestHeartbeatsWhileFilesAreFetched: a client hears something while its files come from another daemon, and the
// transfer ends when the client is gone.
func TestHeartbeatsWhileFilesAreFetched(t *testing.T) {
	enough, sendErr := make(chan struct{}), errors.New("nobody listens")
	r := ipctest.NewTunedRig(t, func(c *serve.ServiceConfig) {
		c.Fetch = func(ctx context.Context, job string) ([]message.File, error) {
			select {
			case <-enough:
				return []message.File{{Data: []byte(job)}}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}, jobs.Config{}, jobs.OutputsConfig{})
	beats := 0
	hears := func(parts [][]byte, _ []int, _ *fault.Error, end bool) error {
		if beats++; beats == 3 {
			close(enough)
		}
		if text := string(slices.Concat(parts...)); end || !strings.Contains(text, `"heartbeat"`) {
			t.Errorf("sent %s, want a heartbeat", text)
		}
		return nil
	}
	ctx := wiretest.Context(t)
	files, err := r.Service.FetchFiles(ctx, &serve.Reply{Enc: wire.JSON, Limit: 1 << 20, Send: hears}, "j")
	if err != nil || beats < 3 || len(files) != 1 || string(files[0].Data) != "j" {
		t.Errorf("%d heartbeats, files %v, %v", beats, files, err)
	}
	enough = nil // what is fetched next never comes
	left := func([][]byte, []int, *fault.Error, bool) error { return sendErr }
	files, err = r.Service.FetchFiles(ctx, &serve.Reply{Enc: wire.JSON, Limit: 1 << 20, Send: left}, "j")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the client is gone: files %v, %v", files, err)
	}
}

// until waits for something that comes soon, within a minute on a slow or busy machine.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}
