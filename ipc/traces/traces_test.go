package traces

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"patchbay/ipc/client"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/serve"
	"patchbay/ipc/traces/tracestest"
	"patchbay/ipc/wire/wiretest"
	"patchbay/node/pyjson"
	"patchbay/tests/natsserver"
)

// start runs a Tracer on a table until the test ends. The SDK sends at once.
func start(t *testing.T, cfg Config, more ...func(message.Event)) (*Tracer, *ipctest.Rig) {
	t.Helper()
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
	cfg.Log = zerolog.Nop()
	c := newCollector(cfg)
	c.pause = time.Millisecond
	tracer, err := newTracer(t.Context(), cfg, c)
	if err != nil {
		t.Fatal(err)
	}
	r := ipctest.NewRig(t, jobs.Config{OnEvent: func(ev message.Event) {
		tracer.Event(ev)
		for _, f := range more {
			f(ev)
		}
	}}, jobs.OutputsConfig{})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { tracer.Run(ctx, r.Jobs); close(done) }()
	t.Cleanup(func() { stop(); <-done })
	return tracer, r
}

const (
	traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	spanID  = "00f067aa0ba902b7"
	parent  = "00-" + traceID + "-" + spanID + "-01"
)

// names lists the spans of a trace by their names and those of their parents, sorted.
func names(all []*tracestest.Span) string {
	byID := map[string]string{}
	for _, s := range all {
		byID[s.ID] = s.Name
	}
	var out []string
	for _, s := range all {
		out = append(out, byID[s.Parent]+"/"+s.Name)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestSent sends the traces of jobs that end in every way to a collector that first refuses them. The end of one
// is told twice, and makes the same spans.
func TestSent(t *testing.T) {
	c := tracestest.New(t, http.StatusServiceUnavailable, http.StatusTooManyRequests)
	tracer, r := start(t, Config{
		URL: c.URL + "/v1/traces", Headers: map[string]string{"api-key": "k"}, Version: "1.2.3", Daemon: "d1",
	})
	conn := ipctest.DialRig(t, r)
	ipctest.RunJob(t, conn, &message.RunRequest{ID: "done", Workflow: messagetest.Graph("Step 2", "Picture 10")})
	job, all := c.Job("done")
	want := "/job Step/step Step/step attempt/Picture attempt/Step attempt/saving job/attempt job/queued job/received"
	if got := names(all); got != want {
		t.Errorf("the spans are %s, want %s", got, want)
	}
	if job.Parent != "" || job.Resource["service.name"] != "patchbay" || job.Resource["service.version"] != "1.2.3" ||
		job.Resource["service.instance.id"] != "d1" || job.Header.Get("api-key") != "k" || job.Error != "" ||
		job.Attributes["patchbay.state"] != "done" {
		t.Errorf("the job's span is %+v", job)
	}
	for _, s := range all {
		if s.Start.Before(job.Start) || s.End.After(job.End) || s.End.Before(s.Start) {
			t.Errorf("%s is from %s to %s, the job from %s to %s", s.Name, s.Start, s.End, job.Start, job.End)
		}
	}
	tracer.Event(message.Event{Type: message.EventSuccess, Job: "done"})
	ipctest.RunJob(t, conn, &message.RunRequest{ID: "failed", Workflow: messagetest.Graph("Fail 1")})
	if job, all := c.Job("failed"); job.Error != "out_of_memory" ||
		names(all) != "/job attempt/Fail job/attempt job/queued job/received" {
		t.Errorf("the failed job's spans are %s, the first %+v", names(all), job)
	}
	_, twice := c.Job("done")
	if ids := idsOf(all); len(twice) != 2*len(all) || !slices.Equal(idsOf(twice), ids) {
		t.Errorf("an end that is told twice makes the spans %v, want those of the first time, %v", idsOf(twice), ids)
	}
	if _, err := client.Submit(t.Context(), conn, &message.RunRequest{
		ID:       "cancelled",
		Workflow: messagetest.Graph("Step 1", "Wait 600000"),
	}); err != nil {
		t.Fatal(err)
	}
	ipctest.CancelInAttempt(t, r.Jobs, conn, "cancelled", 1)
	if job, all := c.Job("cancelled"); job.Error != "" || job.Attributes["patchbay.state"] != "cancelled" {
		t.Errorf("the cancelled job's spans are %s, the first %+v", names(all), job)
	}
}

// idsOf lists the ids of spans, each once, sorted.
func idsOf(all []*tracestest.Span) (ids []string) {
	for _, s := range all {
		ids = append(ids, s.Trace+" "+s.ID)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// TestParent sends jobs with the context of their client, by header of NATS in both spellings, in the body, with a
// wrong header, and one of a client that does not want its trace recorded.
func TestParent(t *testing.T) {
	c := tracestest.New(t)
	e := natsserver.Start(t, natsserver.Inside(""))
	n, err := serve.ConnectNATS(serve.NATSConfig{URL: e.URL, Version: "0.1.0", Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	_, r := start(t, Config{URL: c.URL + "/v1/traces"}, n.Event)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Serve(ctx, ctx, r.Service) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-n.Ready():
	case <-wiretest.Context(t).Done():
		t.Fatal("the service is not there")
	}
	nc, err := nats.Connect(e.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	submit := func(id, header, value, field string) string {
		body := fmt.Sprintf(`{"id": %q, "workflow": {"1": {"class_type": "Step", "inputs": {"n": 1}}}%s}`, id, field)
		m := &nats.Msg{Subject: message.VerbSubject(message.VerbSubmit, ""), Data: []byte(body), Header: nats.Header{}}
		if header != "" {
			m.Header[header] = []string{value}
		}
		reply, err := nc.RequestMsgWithContext(wiretest.Context(t), m)
		if err != nil {
			t.Fatal(err)
		}
		return string(reply.Data)
	}
	unsampled := strings.TrimSuffix(parent, "1") + "0"
	submit("unsampled", "traceparent", unsampled, "")
	submit("lower", "traceparent", parent, "")
	submit("canonical", "Traceparent", parent, "")
	submit("field", "traceparent", unsampled, fmt.Sprintf(`, "traceparent": %q`, parent))
	submit("wrong", "traceparent", "00-"+strings.Repeat("0", 32)+"-"+spanID+"-01", "")
	submit("none", "", "", "")
	for _, id := range []string{"lower", "canonical", "field"} {
		if job, _ := c.Job(id); job.Trace != traceID || job.Parent != spanID {
			t.Errorf("job %s is in trace %s below span %s, want %s below %s", id, job.Trace, job.Parent, traceID, spanID)
		}
	}
	for _, id := range []string{"wrong", "none"} {
		if job, _ := c.Job(id); job.Trace == traceID || job.Parent != "" {
			t.Errorf("job %s is in trace %s below span %s, want one of its own", id, job.Trace, job.Parent)
		}
	}
	if got := c.Bodies.String(); strings.Contains(got, "unsampled") {
		t.Error("a job was traced whose client does not want that")
	}
	if reply := submit("bad", "", "", `, "traceparent": "00-x"`); !strings.Contains(reply, "bad_request") ||
		!strings.Contains(reply, "traceparent") {
		t.Errorf("a wrong traceparent in the body is answered with %s", reply)
	}
}

// TestNothingSecret sends a job that has secrets wherever a client can put them: no trace has any.
func TestNothingSecret(t *testing.T) {
	c := tracestest.New(t)
	_, r := start(t, Config{URL: c.URL + "/v1/traces", Headers: map[string]string{"authorization": "Bearer s3cret"}})
	graph := messagetest.Graph("Step 1", "Fail")
	node := graph.In("1")
	node.Set("_meta", pyjson.NewObject("title", "nats://alice:s3cret@example.org"))
	node.In("inputs").Set("text", "a s3cret prompt")
	node.In("inputs").Set("ckpt_name", "https://alice:s3cret@example.org/model.safetensors")
	conn := ipctest.DialRig(t, r)
	ipctest.RunJob(t, conn, &message.RunRequest{
		ID: "a", Workflow: graph, Client: map[string]any{"id": "s3cret"},
		ExtraPNG: pyjson.NewObject("token", "s3cret"), Inputs: map[string][]byte{"s3cret": []byte("s3cret")},
	})
	job, all := c.Job("a")
	if job.Attributes["patchbay.model"] != "https://example.org/model.safetensors" {
		t.Errorf("the model is %q", job.Attributes["patchbay.model"])
	}
	if !strings.Contains(names(all), "attempt/nats://example.org") {
		t.Errorf("the spans are %s", names(all))
	}
	if bytes.Contains([]byte(c.Bodies.String()), []byte("s3cret")) {
		t.Errorf("a secret was sent:\n%q", c.Bodies.String())
	}
}

// TestRefused has collectors that will take the spans later, which are asked again, some that never will, and one that
// sends them elsewhere: these are asked once.
func TestRefused(t *testing.T) {
	for _, status := range []int{429, 502, 503, 504} {
		sender := newCollector(Config{URL: tracestest.New(t, status, status).URL + "/v1/traces"})
		sender.pause = time.Microsecond
		if err := sender.UploadTraces(t.Context(), nil); err != nil {
			t.Errorf("status %d: %v", status, err)
		}
	}
	for _, status := range []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusTemporaryRedirect} {
		c := tracestest.New(t, status)
		sender := newCollector(Config{URL: c.URL + "/v1/traces"})
		if err := sender.UploadTraces(t.Context(), nil); err == nil || !strings.Contains(err.Error(), fmt.Sprint(status)) {
			t.Errorf("status %d: %v", status, err)
		}
		if err := sender.UploadTraces(t.Context(), nil); err != nil {
			t.Errorf("after status %d: %v", status, err)
		}
	}
}

// TestBehind tells a Tracer of more ends than it keeps while nobody sends: it neither blocks nor grows.
func TestBehind(t *testing.T) {
	var log bytes.Buffer
	tracer, err := New(t.Context(), Config{URL: "http://127.0.0.1:1/v1/traces", Log: zerolog.New(&log)})
	if err != nil {
		t.Fatal(err)
	}
	for i := range waiting + 3 {
		tracer.Event(message.Event{Type: message.EventSuccess, Job: fmt.Sprint("job", i)})
	}
	if got := strings.Count(log.String(), "no trace"); got != 3 {
		t.Errorf("%d jobs have no trace, want 3:\n%s", got, log.String())
	}
	if err := tracer.provider.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}
