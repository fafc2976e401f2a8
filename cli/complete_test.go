package cli

import (
	"slices"
	"strings"
	"testing"

	"patchbay/parallel/plan"
)

// TestPlansAreCompleted checks that every key of a plan is offered, once.
func TestPlansAreCompleted(t *testing.T) {
	_, err := plan.Parse("?=1")
	_, list, ok := strings.Cut(err.Error(), "want one of ")
	if !ok {
		t.Fatalf("got %v, want the keys of a plan", err)
	}
	offered := func(start string) (keys []string) {
		list, _ := plans(nil, nil, start)
		for _, text := range list {
			key, _, _ := strings.Cut(strings.TrimPrefix(text, "ring=2,"), "=")
			keys = append(keys, key)
		}
		slices.Sort(keys)
		return keys
	}
	want := slices.Sorted(strings.SplitSeq(list, ", "))
	if got := offered(""); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	want = slices.DeleteFunc(want, func(key string) bool { return key == "ring" })
	if got := offered("ring=2,"); !slices.Equal(got, want) {
		t.Errorf("after ring=2: got %q, want %q", got, want)
	}
}
