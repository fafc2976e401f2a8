package meter

import (
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"patchbay/ipc/message"
)

// TestBytesWhileAJobRuns checks that bytes that ranks send are counted with every step, once, over several sampling
// runs of a job, and also for a job that fails before its metrics event.
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
	m.seconds.UnregisterMetric(series("patchbay_job_seconds", "model", "", "plan", ""))
	m.Event(message.Event{Type: message.EventMetrics, Job: "c", Data: done})
	m.Event(message.Event{Type: message.EventMetrics, Job: "d", Data: map[string]any{"warnings": []string{"it failed"}}})
	if names := m.seconds.ListMetricNames(); strings.Contains(strings.Join(names, " "), "job_seconds") {
		t.Errorf("a sample or a job that failed was counted among the times of jobs: %v", names)
	}
	if axes := m.Stats().Axes; axes["made up"] != 0 {
		t.Errorf("axes are %v", axes)
	}
}

// TestStepsOfConcurrentJobs checks that the steps and the rate of a worker are those of all its jobs together.
func TestStepsOfConcurrentJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New()
		m.Watch(func() message.Stats {
			return message.Stats{Workers: []message.WorkerStats{{Job: "a, b, c"}, {Job: "d"}}}
		})
		for i := range 2 {
			time.Sleep(500 * time.Millisecond)
			for job, steps := range map[string]int{"a": 20, "b": 30, "d": 9} {
				m.Event(message.Event{
					Type: message.EventProgress, Job: job, Data: map[string]any{"value": i + 3, "max": steps},
				})
			}
		}
		s := m.Stats()
		if w := s.Workers[0]; w.Step != 8 || w.Steps != 50 || w.Rate != 4 {
			t.Errorf("two jobs are at %d of %d with %g steps a second, want 8 of 50 with 4", w.Step, w.Steps, w.Rate)
		}
		if w := s.Workers[1]; w.Step != 4 || w.Steps != 9 || w.Rate != 2 || s.Rate != 6 {
			t.Errorf("one job is at %d of %d with %g of %g steps a second, want 4 of 9 with 2 of 6", w.Step, w.Steps,
				w.Rate, s.Rate)
		}
	})
}

// TestMetricsAreText checks that /metrics answers in Prometheus' text format: a family has one HELP and one TYPE,
// before its lines and contiguous, a series occurs once, and labels are escaped whatever a model is called.
func TestMetricsAreText(t *testing.T) {
	m := New()
	m.Watch(func() message.Stats {
		return message.Stats{
			Workers: []message.WorkerStats{{Name: "worker-0", PID: 7}, {Name: "worker-1"}}, Store: &message.StoreStats{},
		}
	})
	m.Event(message.Event{Type: message.EventSuccess, Job: "a"})
	run := map[string]any{"model": "a\"b\\c\nd}\xff{é", "plan": "ulysses=2", "step_seconds": []any{0.03, 0.2}}
	m.Event(message.Event{Type: message.EventMetrics, Job: "a", Data: map[string]any{"stats": []any{run}}})
	var out strings.Builder
	m.write(&out)
	text, label := out.String(), `[a-zA-Z_]+="([^"\\]|\\["\\n])*"`
	line := regexp.MustCompile(`^([a-zA-Z_][a-zA-Z0-9_]*)(\{` + label + `(, ?` + label + `)*\})? [-+0-9.e]+$`)
	family, seen := "", map[string]bool{}
	once := func(what string) {
		if seen[what] {
			t.Errorf("%s comes twice", what)
		}
		seen[what] = true
	}
	for _, l := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if head := strings.Fields(l); head[0] == "#" {
			family = head[2]
			once(head[1] + " " + family)
			continue
		}
		name := line.FindStringSubmatch(l)
		if name == nil {
			t.Errorf("%q is no line of the format", l)
			continue
		}
		once(name[1] + name[2])
		switch of, _ := strings.CutPrefix(name[1], family); of {
		case "", "_bucket", "_sum", "_count":
		default:
			t.Errorf("%q follows %s", l, family)
		}
		if !seen["HELP "+family] || !seen["TYPE "+family] {
			t.Errorf("%q has no HELP or TYPE before it", l)
		}
	}
	of := `{model="a\"b\\c\nd}�{é",plan="ulysses=2"`
	for _, want := range []string{
		`patchbay_step_seconds_bucket` + of + `,le="0.05"} 1`, `patchbay_step_seconds_bucket` + of + `,le="+Inf"} 2`,
		`patchbay_step_seconds_count` + of + `} 2`, `patchbay_job_seconds_count` + of + `} 1`,
		`patchbay_worker_up{worker="worker-0"} 1`, `patchbay_worker_up{worker="worker-1"} 0`,
		`patchbay_jobs_ended_total{state="done"} 1`, `# TYPE patchbay_step_seconds histogram`, `# TYPE go_goroutines gauge`,
		`# TYPE process_open_fds gauge`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("%s is missing", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}
