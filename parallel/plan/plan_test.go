package plan

import (
	"errors"
	"strings"
	"testing"

	"patchbay/fault"
)

// TestShardRefusals checks that an error names the rule or a plan that works.
func TestShardRefusals(t *testing.T) {
	for text, want := range map[string]string{
		"shard=on": "ulysses=2", "tensor=2,shard=on": "ulysses=2", "pipe=2,ulysses=2,shard=on,sync=spread": "use sync=stages",
		"shard=yes": "off or on",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want a refusal that names %s", text, err, want)
		}
	}
}

// TestFormIsRefusedAlone checks that form needs a tensor group.
func TestFormIsRefusedAlone(t *testing.T) {
	for text, want := range map[string]string{
		"form=scatter": "tensor=2", "ulysses=2,form=scatter": "tensor=2",
		"tensor=2,form=none": "reduce or scatter",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want a refusal that names %s", text, err, want)
		}
	}
	p, err := Parse("form=scatter,tensor=2")
	if err != nil || p.String() != "tensor=2,form=scatter" {
		t.Errorf("got %s, %v: want tensor=2,form=scatter", p, err)
	}
}

// TestEightBitsAreRefusedAlone checks that kv=fp8 needs stages.
func TestEightBitsAreRefusedAlone(t *testing.T) {
	if _, err := Parse("ulysses=2,kv=fp8"); err == nil || !strings.Contains(err.Error(), "plan.kv") ||
		!strings.Contains(err.Error(), "pipe=2") {
		t.Errorf("kv=fp8 without stages: got %v, want a refusal of plan.kv that names pipe=2", err)
	}
	if _, err := Parse("pipe=2,kv=int8"); err == nil || !strings.Contains(err.Error(), "full or fp8") {
		t.Errorf("kv=int8: got %v, want the values", err)
	}
}

// TestDeterministicIsRefused checks that deterministic=on is refused with sums over a tensor group or stale values.
func TestDeterministicIsRefused(t *testing.T) {
	for text, want := range map[string][2]string{
		"tensor=2,deterministic=on":         {"plan.tensor", "ulysses=2"},
		"pipe=2,warmup=3,deterministic=on":  {"plan.warmup", "patches=1"},
		"ranks=2,stale=on,deterministic=on": {"plan.stale", "leave out"},
		"deterministic=yes":                 {"plan.deterministic", "off or on"},
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want[0]) ||
			!strings.Contains(err.Error(), want[1]) {
			t.Errorf("%s: got %v, want %s and %q", text, err, want[0], want[1])
		}
	}
	p, err := Parse("pipe=2,deterministic=on")
	if err != nil || p.Warmup != throughout || p.Bands() != 1 {
		t.Errorf("pipe=2,deterministic=on: got %+v, %v: want warm-up throughout and an autoencoder on one rank", p, err)
	}
}

// TestRemovedKeysAreRefused checks that keys of earlier versions are refused by name, whatever their value, and that
// errors say what to do instead.
func TestRemovedKeysAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"pipe=2,resync=20":       "plan.resync: was removed: it hardly moved the picture; use warmup=2 (or more) instead",
		"ulysses=2,heads=halves": "plan.heads: was removed: no measurement showed a gain from heads=halves; leave heads out",
		"ulysses=2,heads=whole":  "plan.heads: was removed: no measurement showed a gain from heads=halves; leave heads out",
		"pipe=2,shard=on,cut=weights": "plan.cut: was removed: stages are cut by time alone; leave cut out, and where " +
			"they do not fit use more stages or tensor=2 (or more)",
		"pipe=2,cut=time": "plan.cut: was removed: stages are cut by time alone; leave cut out, and where they do not fit " +
			"use more stages or tensor=2 (or more)",
	} {
		var refused *fault.Error
		if _, err := Parse(text); !errors.As(err, &refused) || refused.Code != fault.PlanRefused || err.Error() != want {
			t.Errorf("%s: got %v, want %s: %s", text, err, fault.PlanRefused, want)
		}
	}
}

// TestStringIsParsedBack checks that a plan's String parses to the same plan, with one patch or without warm-up too.
func TestStringIsParsedBack(t *testing.T) {
	for _, text := range []string{
		"ulysses=2", "pipe=2", "pipe=2,patches=1", "pipe=4,patches=1,warmup=0", "pipe=2,patches=2,warmup=0,sync=spread",
		"data=2,pipe=2,patches=1,sync=spread", "pipe=3,patches=5,warmup=2,overlap=off", "ranks=4,stale=on",
		"cfg=2,pipe=2,tensor=2,form=scatter,shard=on,kv=fp8", "deterministic=on", "ranks=4,deterministic=on",
		"pipe=2,patches=3,deterministic=on", "pipe=2,patches=1,warmup=1,ring=2,deterministic=on",
		"gather=2", "gather=3,ulysses=2,overlap=off",
	} {
		want, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Parse(want.String()); err != nil || got != want {
			t.Errorf("%s is printed as %s, which is %+v (%v), want %+v", text, want, got, err, want)
		}
	}
}
