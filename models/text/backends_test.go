package text_test

import (
	"testing"

	"patchbay/engine"
	"patchbay/engine/deferred"
	"patchbay/engine/ref"
	"patchbay/models/text"
)

// backends returns the Ops that golden tests run on: all that this build has. With -short it returns only the fastest
// one, direct and deferred, and leaves the plain Go arithmetic to the other tests.
func backends(t testing.TB) map[string]engine.Ops {
	t.Helper()
	all := nativeBackends(t)
	fast, name := fastest(all)
	if testing.Short() {
		return map[string]engine.Ops{name: fast, "deferred": deferred.New(fast)}
	}
	all["ref"], all["deferred"] = ref.New(), deferred.New(fast) // deferred calls are the same on any Ops
	return all
}

// fastest returns the best native backend and its name, or the reference if there is none.
func fastest(all map[string]engine.Ops) (engine.Ops, string) {
	for _, name := range []string{"cpu/avx512", "cpu/avx2", "cpu/generic"} {
		if ops := all[name]; ops != nil {
			return ops, name
		}
	}
	return ref.New(), "ref"
}

// env returns an Env for ops. If ops defers calls, the arena poisons released memory.
func env(t testing.TB, ops engine.Ops) text.Env {
	t.Helper()
	late, ok := ops.(*deferred.Ops)
	if !ok {
		return text.Env{Ops: ops}
	}
	const bytes = 64 << 20
	buf, err := ops.Alloc(bytes)
	if err != nil {
		t.Fatal(err)
	}
	arena := engine.NewArena("test", buf, bytes)
	late.Watch(arena)
	return text.Env{Ops: ops, Arena: arena}
}
