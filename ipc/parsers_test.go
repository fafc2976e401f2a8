package ipc

import (
	"testing"

	"patchbay/tests/hammer"
)

// TestParsersUnderTheHammer runs every parser of bytes from outside on mutated inputs: 20,000 each, 10,000,000 in `make soak`. The fuzz targets of the same
// names have the same bodies.
func TestParsersOfRequestsUnderTheHammer(t *testing.T) {
	for _, p := range []struct {
		name string
		run  func(*testing.T, int)
	}{
		{"Headers", headersTarget().Run},
		{"Replies", repliesTarget(t).Run},
	} {
		t.Run(p.name, func(t *testing.T) { p.run(t, hammer.Runs) })
	}
	t.Run("Conn", func(t *testing.T) { connTarget(t).Run(t, hammer.Runs/10) }) // each makes a service and waits for its goroutines
}
