package serve_test

import (
	"testing"

	"patchbay/tests/hammer"
)

// TestConnectionsUnderTheHammer sends mutated inputs over connections. Each makes a service and waits for its
// goroutines, so there are fewer than elsewhere.
func TestConnectionsUnderTheHammer(t *testing.T) {
	t.Run("Conn", func(t *testing.T) { connTarget(t).Run(t, hammer.Runs/10) })
}
