package tests

import (
	"testing"

	"patchbay/tests/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
