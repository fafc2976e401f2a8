package vae_test

import (
	"testing"

	"patchbay/engine"
	"patchbay/engine/deferred"
	"patchbay/engine/ref"
	"patchbay/models/vae"
)

// backends returns the Ops that golden tests run on: all that this build has. With -short it returns only the fastest
// one, direct and deferred.
func backends(t testing.TB) map[string]engine.Ops {
	t.Helper()
	fast, name := fastest(t)
	if testing.Short() {
		return map[string]engine.Ops{name: fast, "deferred": deferred.New(fast)}
	}
	all := nativeBackends(t)
	for _, ops := range []engine.Ops{ref.New(), deferred.New(fast)} { // deferred calls are the same on any Ops
		all[ops.Name()] = ops
	}
	return all
}

// fastest returns the best backend of this machine and its name, for expensive tests.
func fastest(t testing.TB) (engine.Ops, string) {
	t.Helper()
	all := nativeBackends(t)
	for _, name := range []string{"cpu/avx512", "cpu/avx2", "cpu/generic"} {
		if ops := all[name]; ops != nil {
			return ops, name
		}
	}
	return ref.New(), "ref"
}

// decodeEnv returns an Env whose arena has exactly the size that DecodeBytes promises. It poisons released memory if
// ops supports that.
func decodeEnv(t testing.TB, ops engine.Ops, v *vae.VAE, y, x int) vae.Env {
	t.Helper()
	return arenaEnv(t, ops, vae.DecodeBytes(v.Config, engine.F32, y, x))
}

func arenaEnv(t testing.TB, ops engine.Ops, bytes int) vae.Env {
	t.Helper()
	buf, err := ops.Alloc(bytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ops.Free(buf) })
	arena := engine.NewArena("test", buf, bytes)
	if late, ok := ops.(*deferred.Ops); ok {
		late.Watch(arena)
	}
	return vae.Env{Ops: ops, Arena: arena}
}
