//go:build !cgo

package audio_test

import (
	"testing"

	"patchbay/engine"
)

// nativeBackends returns nothing: a build without cgo has no CPU backend.
func nativeBackends(t testing.TB) map[string]engine.Ops {
	t.Helper()
	t.Log("NOT RUN on engine/cpu: this build has no cgo")
	return map[string]engine.Ops{}
}
