package tests

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
	"patchbay/tests/natsserver"
)

// scrape reads /metrics as Prometheus does: one number for every name with its labels.
func (s *server) scrape() map[string]float64 {
	s.t.Helper()
	code, body := s.look("/metrics")
	if code != http.StatusOK {
		s.t.Fatalf("/metrics: %d\n%s", code, body)
	}
	out := map[string]float64{}
	lines := bufio.NewScanner(strings.NewReader(body))
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), "} ")
		if !ok {
			name, value, ok = strings.Cut(lines.Text(), " ")
		} else {
			name += "}"
		}
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			s.t.Fatalf("line %q: %v", lines.Text(), err)
		}
		out[name] = v
	}
	return out
}

// look requests a path from the daemon's metrics server and returns the status and the body.
func (s *server) look(path string) (int, string) {
	s.t.Helper()
	var file struct{ Metrics string }
	b, err := os.ReadFile(filepath.Join(s.store, "daemon.json"))
	if err == nil {
		err = json.Unmarshal(b, &file)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	r, err := http.Get("http://" + file.Metrics + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return r.StatusCode, string(text)
}

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
	s := startServer(t, buildProgram(t), "", "--metrics", "127.0.0.1:0")
	c := s.client()
	m := measured{bytes: map[string]float64{}}
	const jobs, steps = 3, 4
	for i := range jobs {
		flow := strings.Replace(demoFlow(t, steps), `"seed": 1`, fmt.Sprintf(`"seed": %d`, i+1), 1)
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
	submit(t, c, "long", demoFlow(t, 5000))
	s.waitState(c, "long", message.Running)
	submit(t, c, "next", quick)
	got := s.scrape()
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
	s.until("steps a second are known", func() bool {
		_, out := try(t, s.line[0], nil, "top", "--once", "--nats", s.url)
		return regexp.MustCompile(`long +[0-9]+/5000 +[0-9]`).MatchString(out)
	})
	s.logged("job started", `"job":"m0"`)
	s.logged("node begins", `"job":"m0"`, `"node":"`)
	s.logged("step done", `"job":"m2"`, `"node":"`, `"step":4`)
	s.logged("rank done", `"job":"m1"`, `"rank":1`, `"ulysses_bytes":`)
	// The same numbers over both carriers, and live ones of the job that runs.
	for _, args := range [][]string{{"--nats", s.url}, {"--socket", s.socket}} {
		code, out := try(t, s.line[0], nil, append([]string{"top", "--once", "--json"}, args...)...)
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
	if code, body := s.look("/healthz"); code != 200 || body != "ok\n" {
		t.Errorf("/healthz: %d %q", code, body)
	}
	if err := syscall.Kill(s.workerPIDs()[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.until("/healthz tells that the worker is gone", func() bool {
		code, body := s.look("/healthz")
		return code == 503 && body == "workers: none of 1 is up\n"
	})
	s.until("/healthz tells that it is back", func() bool { code, _ := s.look("/healthz"); return code == 200 })
	if got := s.scrape(); got[`patchbay_worker_restarts_total{worker="worker-0"}`] != 1 {
		t.Errorf("%v restarts, want 1", got[`patchbay_worker_restarts_total{worker="worker-0"}`])
	}
	cancel(t, c, "long")
	s.waitState(c, "long", message.Cancelled)
}

// TestHealthNamesTheServer checks that /healthz names an external NATS server that is away.
func TestHealthNamesTheServer(t *testing.T) {
	t.Parallel()
	n := natsserver.Start(t, natsserver.JetStream(t))
	s := startServer(t, buildProgram(t), "", "--metrics", "127.0.0.1:0", "--nats", n.URL)
	s.until("/healthz is well", func() bool { code, _ := s.look("/healthz"); return code == 200 })
	n.Kill()
	s.until("/healthz names the server", func() bool {
		code, body := s.look("/healthz")
		return code == 503 && body == "nats: not connected to "+n.URL+"\n"
	})
	n.Start()
	began := time.Now()
	s.until("/healthz is well again", func() bool { code, _ := s.look("/healthz"); return code == 200 })
	t.Logf("well %s after the server", time.Since(began))
}

// logged waits for a line of the log that holds all of these.
func (s *server) logged(message string, parts ...string) {
	s.t.Helper()
	s.until(fmt.Sprintf("the log has %q with %q", message, parts), func() bool {
		for line := range strings.Lines(s.log.String()) {
			all := strings.Contains(line, `"message":"`+message+`"`)
			for _, p := range parts {
				all = all && strings.Contains(line, p)
			}
			if all {
				return true
			}
		}
		return false
	})
}
