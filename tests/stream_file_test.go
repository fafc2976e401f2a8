package tests

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/tests/harness"
)

// TestFileChangesUnderAStream checks what a job makes of a model file that changes while blocks are read from it. Where
// other weights are written into it, the attempt ends, the worker lives, and the next attempt draws with them. Where
// another file takes its name, the job goes on with the one that it began with, and the next job draws with the other.
func TestFileChangesUnderAStream(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: parallel.TestStreamsReadTheirFile and ipc/jobs.TestPauseBetweenAttempts have the parts")
	}
	program, models := harness.Build(t), filepath.Join(t.TempDir(), "models")
	if err := os.CopyFS(models, os.DirFS(harness.DemoModels(t))); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(models, "diffusion_models", "demo_flux.safetensors")
	first, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	second := slices.Clone(first)
	for i := len(second) / 2; i < len(second)/2+4000; i += 4 {
		second[i+3] ^= 0x80 // the sign of a number
	}
	draw := func(s *harness.Server, id, plan string, during func()) (picture []byte, attempt int) {
		t.Helper()
		var once sync.Once
		if change := during; during != nil {
			release := harness.Throttle(t, s.Worker()) // so that the job is still under way
			during = func() { change(); release() }
		}
		col := client.Collector{Event: func(ev message.Event) {
			if ev.Type == message.EventProgress && during != nil {
				once.Do(during)
			}
		}}
		ctx, end := context.WithTimeout(t.Context(), harness.Patience)
		defer end()
		last, err := client.Run(ctx, s.Client(), &message.RunRequest{
			ID: id, Workflow: harness.DemoFlow(t, 200), Plan: plan,
		}, &col)
		if err != nil || last.Error != nil || len(col.Files) == 0 {
			t.Fatalf("%s: %v, %v, %d files", id, err, last.Error, len(col.Files))
		}
		return col.Files[0].Data, s.WaitState(s.Client(), id, message.Done).Attempt
	}
	write := func(path string, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Error(err)
		}
	}
	whole := harness.StartOn(t, program, "", models)
	ofFirst, _ := draw(whole, "first", "", nil)
	s := harness.StartOn(t, program, "", models)
	s.Until("a worker is up", func() bool { return len(s.WorkerPIDs()) > 0 })
	worker := s.Worker()
	written, attempt := draw(s, "written", "stream=6", func() { write(path, second) })
	if attempt != 2 {
		t.Errorf("a job whose file was written to is done in attempt %d, want 2", attempt)
	}
	ofSecond, _ := draw(whole, "second", "", nil)
	if !bytes.Equal(written, ofSecond) || bytes.Equal(ofFirst, ofSecond) {
		t.Errorf("equals the picture of the weights that were written: %v, of those before: %v",
			bytes.Equal(written, ofSecond), bytes.Equal(written, ofFirst))
	}
	replaced, attempt := draw(s, "replaced", "stream=4", func() {
		write(path+".new", first)
		if err := os.Rename(path+".new", path); err != nil {
			t.Error(err)
		}
	})
	if attempt != 1 || !bytes.Equal(replaced, ofSecond) {
		t.Errorf("while another file takes the name: attempt %d, want 1; the picture of the file that was opened: %v",
			attempt, bytes.Equal(replaced, ofSecond))
	}
	if after, _ := draw(s, "after", "stream=on", nil); !bytes.Equal(after, ofFirst) {
		t.Error("a job behind it has not the picture of the other file")
	}
	if now := s.Worker(); now != worker {
		t.Errorf("the worker is process %d, before %d", now, worker)
	}
}
