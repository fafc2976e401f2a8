// Package clients checks what drives the daemon from outside the program: the nats command, the Python client, the
// examples, an installation.
package clients

import (
	"testing"

	"patchbay/tests/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
