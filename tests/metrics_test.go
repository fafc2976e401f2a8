package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
	"patchbay/tests/harness"
	"patchbay/tests/natsserver"
)

// measured sums what the metrics events of jobs report.
type measured struct {
	nodes, cached float64
	steps         float64
	bytes         map[string]float64 // by axis
}

func (m *measured) add(t *testing.T, ev message.Event) {
	t.Helper()
	if ev.Type != message.EventMetrics {
		return
	}
	b, err := wire.Encode(ev.Data, wire.JSON)
	if err != nil {
		t.Fatal(err)
	}
	var data struct {
		Executed, Cached []string
		Stats            []struct {
			Steps []float64 `json:"step_seconds"`
			Ranks []map[string]any
		}
	}
	if err := json.Unmarshal(b, &data); err != nil {
		t.Fatal(err)
	}
	m.nodes, m.cached = m.nodes+float64(len(data.Executed)), m.cached+float64(len(data.Cached))
	for _, s := range data.Stats {
		m.steps += float64(len(s.Steps))
		for _, r := range s.Ranks {
			for axis, v := range r {
				if sent, ok := v.(map[string]any); ok {
					n, _ := sent["bytes"].(float64)
					m.bytes[axis] += n
				}
			}
		}
	}
}

// TestMetrics runs jobs in the real program and compares its metrics with what happened.
func TestMetrics(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Build(t), "", "--metrics", "127.0.0.1:0")
	c := s.Client()
	m := measured{bytes: map[string]float64{}}
	const jobs, steps = 3, 4
	for i := range jobs {
		flow := strings.Replace(harness.DemoFlow(t, steps), `"seed": 1`, fmt.Sprintf(`"seed": %d`, i+1), 1)
		end, err := client.Run(context.Background(), c,
			&message.RunRequest{ID: fmt.Sprint("m", i), Workflow: flow, Plan: "ulysses=2"}, &client.Collector{
				Event: func(ev message.Event) { m.add(t, ev) },
			})
		if err != nil || end == nil || end.Type != message.EventSuccess {
			t.Fatalf("job %d: %+v, %v", i, end, err)
		}
	}
	if _, err := client.Submit(context.Background(), c,
		&message.RunRequest{Workflow: pyjson.NewObject("1", pyjson.NewObject("class_type", "Nope"))}); err == nil {
		t.Fatal("a workflow with an unknown class was taken")
	}
	harness.Submit(t, c, "long", harness.DemoFlow(t, 5000))
	s.WaitState(c, "long", message.Running)
	harness.Submit(t, c, "next", harness.Quick)
	got := s.Scrape()
	of := `{model="demo_flux.safetensors",plan="ulysses=2"}`
	for name, want := range map[string]float64{
		"patchbay_job_seconds_count" + of:                               jobs,
		"patchbay_step_seconds_count" + of:                              jobs * steps,
		`patchbay_jobs_ended_total{state="done"}`:                       jobs,
		`patchbay_jobs_ended_total{state="failed"}`:                     0,
		`patchbay_jobs{state="done"}`:                                   jobs,
		`patchbay_jobs{state="running"}`:                                1,
		`patchbay_jobs{state="queued"}`:                                 1,
		`patchbay_axis_bytes_total{axis="ulysses"}`:                     m.bytes["ulysses"],
		`patchbay_axis_bytes_total{axis="ring"}`:                        0,
		`patchbay_cache_nodes_total{result="hit"}`:                      m.cached,
		`patchbay_cache_nodes_total{result="miss"}`:                     m.nodes,
		`patchbay_events_total{type="execution_success"}`:               jobs,
		`patchbay_events_total{type="queued"}`:                          jobs + 2,
		`patchbay_requests_refused_total{code="bad_workflow"}`:          1,
		`patchbay_requests_total{verb="run"}`:                           jobs,
		`patchbay_requests_total{verb="submit"}`:                        3,
		`patchbay_worker_up{worker="worker-0"}`:                         1,
		`patchbay_worker_restarts_total{worker="worker-0"}`:             0,
		"patchbay_step_seconds_bucket" + of[:len(of)-1] + `,le="+Inf"}`: jobs * steps,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v (there: %v), want %v", name, v, ok, want)
		}
	}
	if m.steps != jobs*steps || m.bytes["ulysses"] == 0 || m.cached == 0 || got["patchbay_job_seconds_sum"+of] <= 0 {
		t.Errorf("the workers measured %+v, %v s in all", m, got["patchbay_job_seconds_sum"+of])
	}
	s.Until("steps a second are known", func() bool {
		_, out := harness.Try(t, s.Line[0], nil, "top", "--once", "--nats", s.URL)
		return regexp.MustCompile(`long +[0-9]+/5000 +[0-9]`).MatchString(out)
	})
	s.Logged("job started", `"job":"m0"`)
	s.Logged("node begins", `"job":"m0"`, `"node":"`)
	s.Logged("step done", `"job":"m2"`, `"node":"`, `"step":4`)
	s.Logged("rank done", `"job":"m1"`, `"rank":1`, `"ulysses_bytes":`)
	// The same numbers over both carriers, and live ones of the job that runs.
	for _, args := range [][]string{{"--nats", s.URL}, {"--socket", s.Socket}} {
		code, out := harness.Try(t, s.Line[0], nil, append([]string{"top", "--once", "--json"}, args...)...)
		var st struct {
			Daemons []message.Stats
			Jobs    []message.Record
		}
		if err := json.Unmarshal([]byte(out), &st); code != 0 || err != nil || len(st.Daemons) != 1 {
			t.Fatalf("top %v: %d, %v\n%s", args, code, err, out)
		}
		d := st.Daemons[0]
		if d.Queued != 1 || d.Running != 1 || d.Ended[message.Done] != jobs ||
			float64(d.Axes["ulysses"]) != m.bytes["ulysses"] || len(st.Jobs) != jobs+2 {
			t.Errorf("top %v: %+v", args, d)
		}
		if w := d.Workers[0]; w.Job != "long" || w.PID == 0 || w.Steps != 5000 {
			t.Errorf("top %v: worker %+v", args, w)
		}
	}
	if code, body := s.Look("/healthz"); code != 200 || body != "ok\n" {
		t.Errorf("/healthz: %d %q", code, body)
	}
	if err := syscall.Kill(s.WorkerPIDs()[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.Until("/healthz tells that the worker is gone", func() bool {
		code, body := s.Look("/healthz")
		return code == 503 && body == "workers: none of 1 is up\n"
	})
	s.Until("/healthz tells that it is back", func() bool { code, _ := s.Look("/healthz"); return code == 200 })
	if got := s.Scrape(); got[`patchbay_worker_restarts_total{worker="worker-0"}`] != 1 {
		t.Errorf("%v restarts, want 1", got[`patchbay_worker_restarts_total{worker="worker-0"}`])
	}
	harness.Cancel(t, c, "long")
	s.WaitState(c, "long", message.Cancelled)
}

// TestHealthNamesTheServer checks that /healthz names an external NATS server that is away.
func TestHealthNamesTheServer(t *testing.T) {
	t.Parallel()
	n := natsserver.Start(t, natsserver.JetStream(t))
	s := harness.Start(t, harness.Build(t), "", "--metrics", "127.0.0.1:0", "--nats", n.URL)
	s.Until("/healthz is well", func() bool { code, _ := s.Look("/healthz"); return code == 200 })
	n.Kill()
	s.Until("/healthz names the server", func() bool {
		code, body := s.Look("/healthz")
		return code == 503 && body == "nats: not connected to "+n.URL+"\n"
	})
	n.Start()
	began := time.Now()
	s.Until("/healthz is well again", func() bool { code, _ := s.Look("/healthz"); return code == 200 })
	t.Logf("well %s after the server", time.Since(began))
}
