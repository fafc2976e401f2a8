// Package faults checks the running program while something fails: processes are killed or stopped, disks are full or
// lose power, servers and networks go away, clocks jump, certificates expire. Its storms check that no job was lost.
package faults

import (
	"testing"

	"patchbay/tests/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
