//go:build soak

// Package readme runs every command of README.md.
package readme

import (
	"testing"

	"patchbay/tests/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
