//go:build cgo

package audio_test

import (
	"testing"

	"patchbay/engine"
	"patchbay/engine/cpu"
)

// nativeBackends returns the CPU backend at every level that this machine supports.
func nativeBackends(t testing.TB) map[string]engine.Ops {
	t.Helper()
	all := map[string]engine.Ops{}
	for _, level := range cpu.Levels() {
		ops, err := cpu.New(cpu.Config{Level: level})
		if err != nil {
			t.Fatal(err)
		}
		all[ops.Name()] = ops
	}
	return all
}
