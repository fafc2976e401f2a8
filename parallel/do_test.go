package parallel

import (
	"context"
	"errors"
	"strings"
	"testing"

	"patchbay/fault"
)

// TestDoKeepsToTheMemory checks that work beside the denoise loop gets an arena of as many bytes as the leader may
// use, but none larger, that its panics become errors that name it, and that the leader stays usable.
func TestDoKeepsToTheMemory(t *testing.T) {
	const room = 1 << 20
	e, err := NewPool(Config{NewOps: testOps, MemoryBytes: room})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for bytes, fits := range map[int]bool{room: true, room + 1: false} {
		err := e.Do(context.Background(), "encode", func(l *Workspace) error {
			arena, err := l.Arena(bytes)
			if err == nil && arena == nil {
				t.Error("no arena and no error")
			}
			return err
		})
		var pe *fault.Error
		if refused := errors.As(err, &pe) && pe.Code == fault.OutOfMemory; refused == fits || fits && err != nil {
			t.Errorf("%d bytes of %d: got %v, want them given: %v", bytes, room, err, fits)
		}
	}
	err = e.Do(context.Background(), "encode", func(*Workspace) error { panic("fault") })
	if err == nil || !strings.Contains(err.Error(), "encode") || !strings.Contains(err.Error(), "fault") {
		t.Errorf("a panic: got %v, want an error that names the work", err)
	}
	if err := e.Do(context.Background(), "decode", func(*Workspace) error { return nil }); err != nil {
		t.Errorf("work after a panic: %v", err)
	}
}
