package text_test

import (
	"testing"

	"patchbay/engine"
	"patchbay/engine/deferred"
	"patchbay/engine/ref"
	"patchbay/models/text"
)

// backends returns the Ops that golden tests run on: all that this build has.
func backends(t testing.TB) map[string]engine.Ops {
	t.Helper()
	all := nativeBackends(t)
	all["ref"], all["deferred"] = ref.New(), deferred.New(ref.New())
	if testing.Short() {
		delete(all, "cpu/generic")
	}
	return all
}

// env is an Env; where ops runs late its arena is poisoned when memory is taken back.
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
