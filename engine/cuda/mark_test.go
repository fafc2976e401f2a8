//go:build cgo && fakegpu

package cuda

import (
	"os"
	"path/filepath"
	"testing"
)

// TestMarksAfterARefusedCapture checks that a stream whose capture CUDA refuses to begin still tells how far it has
// got: without marks, progress and watchdog take its rank for a stalled one.
func TestMarksAfterARefusedCapture(t *testing.T) {
	refuse := filepath.Join(t.TempDir(), "refuse")
	t.Setenv("FAKEGPU_REFUSE_CAPTURE", refuse)
	o := openOps(t)
	if o.dev.Name != "Fake GPU" {
		t.Skip("NOT RUN: only the fake device refuses to begin a capture")
	}
	if err := os.WriteFile(refuse, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := newStep(t, o, 4)
	for i := range 4 {
		if s.run(t, o, "a", i) {
			t.Errorf("evaluation %d was replayed", i)
		}
	}
	if o.graphs.count.refused != 1 || !o.graphs.eager {
		t.Errorf("graphs: %+v, want one refused", o.graphs.count)
	}
	o.Mark(1)
	if err := o.Sync(); err != nil {
		t.Fatal(err)
	}
	if n := o.Marked(); n != 1 {
		t.Errorf("marked %d after the stream ran, want 1", n)
	}
	s.m.free()
}

// TestMarks checks that Marked returns a mark once the stream has reached it and not before, that marks of more than 32
// bits are not torn, and that reading one does not wait.
func TestMarks(t *testing.T) {
	t.Setenv("FAKEGPU_EAGER", "")
	o := openOps(t)
	lazy := o.dev.Name == "Fake GPU" // a GPU may be done before it is asked
	before := int64(0)
	for n := int64(1); n < 1<<35; n += 1<<31 + 12345 {
		o.Mark(n)
		if got := o.Marked(); lazy && got != before || got != before && got != n {
			t.Fatalf("marked %d before the stream ran, want %d", got, before)
		}
		if err := o.Sync(); err != nil {
			t.Fatal(err)
		}
		if got := o.Marked(); got != n {
			t.Fatalf("marked %d, want %d", got, n)
		}
		before = n
	}
	x, got := vector(t, o, 64), make([]float32, 64)
	o.Mark(before + 1)
	o.Fill(x, 2)
	o.Mark(before + 2)
	pending := o.Download(got, x)
	o.Fill(x, 3)
	o.Mark(before + 3)
	if err := pending.Wait(); err != nil {
		t.Fatal(err)
	}
	waits := o.dev.Counts().Waits
	if n := o.Marked(); lazy && n != before+2 || n < before+2 || n > before+3 {
		t.Errorf("marked %d behind a download, want %d", n, before+2)
	}
	if n := o.dev.Counts().Waits - waits; n != 0 {
		t.Errorf("to read a mark waited %d times", n)
	}
	o.Free(x.Buf)
}
