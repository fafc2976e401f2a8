package meter

import (
	"testing"

	"patchbay/ipc/message"
)

// TestBytesWhileAJobRuns: bytes that ranks send are counted with every step, once, over several sampling runs of a job,
// and also of a job that fails before its metrics tell.
func TestBytesWhileAJobRuns(t *testing.T) {
	m := New()
	step := func(job string, sent map[string]any) {
		data := map[string]any{"value": 1, "max": 9, "sent": sent}
		m.Event(message.Event{Type: message.EventProgress, Job: job, Data: data})
	}
	want := func(when string, n uint64) {
		t.Helper()
		if got := m.Stats().Axes["ulysses"]; got != n {
			t.Errorf("%s: %d bytes, want %d", when, got, n)
		}
	}
	want("before", 0)
	step("a", map[string]any{"ulysses": int64(100)})
	want("after a step", 100)
	step("a", map[string]any{"ulysses": int64(250)})
	step("b", map[string]any{"ulysses": int64(1000), "made up": int64(5)})
	want("two jobs", 1250)
	step("a", map[string]any{"ulysses": int64(70)}) // its second sampling run
	want("a second run", 1320)
	run := func(n int) map[string]any {
		return map[string]any{"ranks": []any{map[string]any{"ulysses": map[string]any{"bytes": n}}}}
	}
	m.Event(message.Event{Type: message.EventMetrics, Job: "a", Data: map[string]any{"stats": []any{run(260), run(90)}}})
	want("after the metrics of a", 1350)
	m.Event(message.Event{Type: message.EventSuccess, Job: "a"})
	m.Event(message.Event{Type: message.EventError, Job: "b"})
	want("after both", 1350)
	step("c", map[string]any{"ulysses": uint64(30)}) // a sample: its metrics are those of its one run
	want("a step of a sample", 1380)
	done := run(40)
	done["step_seconds"] = []any{0.5}
	m.Sampled("c", done)
	want("a sample", 1390)
	m.Event(message.Event{Type: message.EventMetrics, Job: "c", Data: done})
	m.Event(message.Event{Type: message.EventSuccess, Job: "c"})
	want("after the sample", 1390)
	if s := m.Stats(); s.Steps != 5 || s.Samples != 1 {
		t.Errorf("%d steps and %d samples, want 5 and 1", s.Steps, s.Samples)
	}
	m.jobSeconds.DeleteLabelValues("", "")
	m.Event(message.Event{Type: message.EventMetrics, Job: "c", Data: done})
	if m.jobSeconds.DeleteLabelValues("", "") {
		t.Error("a sample was counted among the times of jobs")
	}
	if axes := m.Stats().Axes; axes["made up"] != 0 {
		t.Errorf("axes are %v", axes)
	}
}
