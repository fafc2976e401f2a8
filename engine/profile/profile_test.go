package profile_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"patchbay/engine"
	"patchbay/engine/deferred"
	"patchbay/engine/optest"
	"patchbay/engine/profile"
	"patchbay/engine/ref"
)

// TestProfiledOperationsAreTheSame checks that wrapping an Ops does not change its results.
func TestProfiledOperationsAreTheSame(t *testing.T) {
	optest.Run(t, profile.Wrap(ref.New(), 0, time.Now()), optest.Options{})
}

func TestTableAndTrace(t *testing.T) {
	o := profile.Wrap(ref.New(), 3, time.Now())
	o.Layer("qkv")
	x := engine.FromF32([]float32{1, 2, 3, 4}, 1, 2, 2)
	o.Activate(x, x, engine.SiLU)
	o.Activate(x, x, engine.SiLU)
	if before := o.Layer("mlp"); before != "qkv" {
		t.Errorf("Layer returned %q, want qkv", before)
	}
	o.Add(x, x, x)
	o.Remember("exchange", "AllToAll", time.Now().Add(-time.Millisecond), 640)
	rows := profile.Table(o.Spans())
	if len(rows) != 3 || rows[0].Layer != "qkv" || rows[0].Calls != 2 || rows[1].Layer != "exchange" ||
		rows[1].Bytes != 640 || rows[2].Layer != "mlp" {
		t.Fatalf("table %+v", rows)
	}
	if rows[1].Took < time.Millisecond {
		t.Errorf("exchange took %v, want at least the millisecond that it was given", rows[1].Took)
	}
	var text, trace bytes.Buffer
	if err := profile.Write(&text, rows); err != nil || !strings.Contains(text.String(), "exchange") {
		t.Errorf("table text %q, %v", text.String(), err)
	}
	if err := profile.Trace(&trace, o.Spans()); err != nil {
		t.Fatal(err)
	}
	var parsed struct {
		TraceEvents []map[string]any `json:"traceEvents"`
	}
	if err := json.Unmarshal(trace.Bytes(), &parsed); err != nil || len(parsed.TraceEvents) != 4 {
		t.Fatalf("trace: %v, %d events", err, len(parsed.TraceEvents))
	}
	for _, e := range parsed.TraceEvents {
		if e["ph"] != "X" || e["pid"] != 3.0 {
			t.Errorf("event %v", e)
		}
	}
}

// slow is an Ops whose activations take a while.
type slow struct{ engine.Ops }

func (s slow) Activate(y, x engine.Tensor, act engine.Act) {
	time.Sleep(3 * time.Millisecond)
	s.Ops.Activate(y, x, act)
}

// TestSpansOfADeviceHaveItsTimes checks that, where calls run later than they are issued, a span covers the time on the
// device, not the time of issuing the call.
func TestSpansOfADeviceHaveItsTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zero := time.Now()
		o := profile.Wrap(deferred.New(slow{ref.New()}), 0, zero)
		x := engine.FromF32([]float32{1, 2, 3, 4}, 1, 2, 2)
		o.Activate(x, x, engine.SiLU)
		o.Activate(x, x, engine.SiLU)
		time.Sleep(time.Millisecond) // of the bubble: what is issued late begins late
		issued := time.Since(zero)
		if err := o.Sync(); err != nil {
			t.Fatal(err)
		}
		spans := o.Spans()
		if len(spans) != 2 {
			t.Fatalf("%d spans, want 2", len(spans))
		}
		for i, s := range spans {
			if s.Took != 3*time.Millisecond || s.Start < issued {
				t.Errorf("span %d began at %v and took %v: want 3 ms, after the calls were issued at %v", i, s.Start, s.Took,
					issued)
			}
		}
		if spans[1].Start < spans[0].Start+spans[0].Took {
			t.Errorf("spans %+v overlap", spans)
		}
	})
}
