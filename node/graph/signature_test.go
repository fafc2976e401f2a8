package graph

import (
	"testing"

	"patchbay/node/pyjson"
)

// TestLiteralsEqualInPythonLookEqual checks what ComfyUI's cache keys take for equal: Python says 1 == 1.0 == True and
// 0 == False, but 1 != "1".
func TestLiteralsEqualInPythonLookEqual(t *testing.T) {
	for _, c := range []struct {
		a, b  any
		equal bool
	}{
		{int64(1), true, true},
		{1.0, true, true},
		{int64(1), 1.0, true},
		{int64(0), false, true},
		{[]any{true}, []any{int64(1)}, true},
		{pyjson.NewObject("x", true), pyjson.NewObject("x", 1.0), true},
		{true, false, false},
		{int64(1), "1", false},
		{1.5, int64(1), false},
		{true, "true", false},
	} {
		if got := canonical(c.a) == canonical(c.b); got != c.equal {
			t.Errorf("%T %v and %T %v look equal: %v, want %v", c.a, c.a, c.b, c.b, got, c.equal)
		}
	}
}
