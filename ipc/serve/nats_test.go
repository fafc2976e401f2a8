package serve_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/natsserver"
)

// natsRig is a rig served on a nats-server.
type natsRig struct {
	*ipctest.Rig
	url string
	nc  *nats.Conn
}

func newNATSRig(t *testing.T) *natsRig {
	t.Helper()
	e := natsserver.Start(t, natsserver.Inside(""))
	n, err := serve.ConnectNATS(serve.NATSConfig{URL: e.URL, Version: "0.1.0", Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	r := ipctest.NewRig(t, jobs.Config{OnEvent: n.Event, OnPreview: n.Preview}, jobs.OutputsConfig{})
	serveNATS(t, e.URL, n, r)
	nc, err := nats.Connect(e.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return &natsRig{Rig: r, url: e.URL, nc: nc}
}

// serveNATS serves a rig until the test ends. It returns when the service is there.
func serveNATS(t testing.TB, url string, n *serve.NATS, r *ipctest.Rig) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Serve(ctx, ctx, r.Service) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	probe, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer probe.Close()
	for range 200 {
		if _, err := probe.Request(message.VerbSubject(message.VerbModels, ""), nil, time.Second); err == nil {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatal("the service does not answer")
}

func (r *natsRig) client(t *testing.T) *client.NATSClient {
	t.Helper()
	c, err := client.DialNATS(r.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestRunOverNATS(t *testing.T) {
	r := newNATSRig(t)
	c := r.client(t)
	for _, size := range []int{100, 2 << 20} {
		evs, col, end := ipctest.RunJob(t, c, &message.RunRequest{Workflow: messagetest.Graph("Step 2",
			"Picture "+text(size))})
		want := "queued execution_start executing progress progress executing executed metrics executing execution_success"
		if got := strings.Join(ipctest.Types(evs), " "); got != want {
			t.Errorf("got events %s, want %s", got, want)
		}
		if end.Type != message.EventSuccess || len(col.Files) != 1 ||
			!bytes.Equal(col.Files[0].Data, messagetest.Picture("2", size).Data) {
			t.Errorf("ended with %+v, %d files", end, len(col.Files))
		}
	}
	ctx := wiretest.Context(t)
	rec, err := client.Submit(ctx, c, &message.RunRequest{ID: "s1", Workflow: messagetest.Graph("Picture 5")})
	if err != nil || rec.Job != "s1" {
		t.Fatal(err)
	}
	if end, err := client.Follow(ctx, c, "s1", 0, true, &client.Collector{}); err != nil || end == nil ||
		end.Type != message.EventSuccess {
		t.Errorf("follow: %+v, %v", end, err)
	}
	if files, err := client.Fetch(ctx, c, "s1"); err != nil || len(files) != 1 {
		t.Errorf("fetch: %d files, %v", len(files), err)
	}
	info, err := client.Describe(ctx, c, "Wait")
	if err != nil || info.Len() != 1 {
		t.Errorf("describe: %v", err)
	}
}

func text(n int) string {
	b, _ := json.Marshal(n)
	return string(b)
}

// request sends one raw message, as a person with a NATS tool does.
func (r *natsRig) request(t *testing.T, subject, body string, header nats.Header) *nats.Msg {
	t.Helper()
	m, err := r.nc.RequestMsg(&nats.Msg{Subject: subject, Data: []byte(body), Header: header}, time.Minute)
	if err != nil {
		t.Fatalf("%s %q: %v", subject, body, err)
	}
	return m
}

func TestNATSErrors(t *testing.T) {
	r := newNATSRig(t)
	for _, row := range []struct{ subject, body, status, code, says string }{
		{"patchbay.v1.submit", "", "400", fault.EmptyBody, "--force-stdin"},
		{"patchbay.v1.run", "", "400", fault.EmptyBody, "--force-stdin"},
		{"patchbay.v1.exec", "", "400", fault.EmptyBody, "--force-stdin"},
		{"patchbay.v1.submit", "hello", "415", fault.Unsupported, "JSON"},
		{"patchbay.v1.submit", "{", "400", fault.BadRequest, ""},
		{"patchbay.v1.submit", "\xdf\xff\xff\xff\xff", "400", fault.BadRequest, "declares"},
		{"patchbay.v1.submit", `{"a":` + strings.Repeat("[", 1e6), "400", fault.BadRequest, "nested"},
		{"patchbay.v1.submit", `{"1":{"class_type":"Nope"}}`, "422", fault.BadWorkflow, "Nope"},
		{"patchbay.v1.status.nojob", "", "404", fault.NoJob, "nojob"},
		{"patchbay.v1.cancel.nojob", "", "404", fault.NoJob, "nojob"},
		{"patchbay.v1.describe", `{"class":"Nope"}`, "404", fault.NoNodeType, "Nope"},
	} {
		m := r.request(t, row.subject, row.body, nil)
		enc, err := wire.EncodingOf(m.Header, m.Data)
		if err != nil {
			t.Fatal(err)
		}
		o, err := wire.Decode(m.Data, enc, wire.DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		var e *fault.Error
		if !errors.As(wire.ReplyError(o), &e) || e.Public() != row.code ||
			m.Header.Get(micro.ErrorCodeHeader) != row.status ||
			!strings.Contains(e.Text+m.Header.Get(micro.ErrorHeader), row.says) {
			t.Errorf("%s %.40q: got %v, header %v, want %s %s", row.subject, row.body, e, m.Header, row.status, row.code)
		}
	}
	// An empty body is fine where nothing needs one; the answer is JSON then.
	for _, s := range []string{"patchbay.v1.describe", "patchbay.v1.models", "patchbay.v1.jobs"} {
		m := r.request(t, s, "", nil)
		if !json.Valid(m.Data) || m.Header.Get(micro.ErrorCodeHeader) != "" {
			t.Errorf("%s: got %.80q %v", s, m.Data, m.Header)
		}
	}
}

func TestAnswerInTheEncodingOfTheQuestion(t *testing.T) {
	r := newNATSRig(t)
	body, err := wire.Encode(map[string]any{"class": "Wait"}, wire.Msgpack)
	if err != nil {
		t.Fatal(err)
	}
	if m := r.request(t, "patchbay.v1.describe", string(body),
		nil); m.Header.Get("Content-Type") != "application/msgpack" || json.Valid(m.Data) {
		t.Errorf("got %v %.60q", m.Header, m.Data)
	}
	if m := r.request(t, "patchbay.v1.describe", `{"class":"Wait"}`,
		nats.Header{"content-type": {"application/json; charset=utf-8"}}); m.Header.Get("Content-Type") !=
		"application/json" || !json.Valid(m.Data) {
		t.Errorf("got %v %.60q", m.Header, m.Data)
	}
}

func TestRunStreamEndsWithAnEmptyMessage(t *testing.T) {
	r := newNATSRig(t)
	for name, body := range map[string]string{
		"job":     `{"1":{"class_type":"Wait","inputs":{"n":120}}}`,
		"refused": `{"1":{"class_type":"Nope"}}`, "not decoded": "xx",
	} {
		inbox := r.nc.NewInbox()
		sub, err := r.nc.SubscribeSync(inbox)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.nc.PublishRequest("patchbay.v1.run", inbox, []byte(body)); err != nil {
			t.Fatal(err)
		}
		n, beats := 0, 0
		for {
			m, err := sub.NextMsg(time.Minute)
			if err != nil {
				t.Fatalf("%s: after %d messages: %v", name, n, err)
			}
			if len(m.Data) == 0 {
				break
			}
			if strings.Contains(string(m.Data), `"heartbeat"`) {
				beats++
			}
			n++
		}
		if n == 0 || name == "job" && beats == 0 {
			t.Errorf("%s: %d messages, %d heartbeats", name, n, beats)
		}
		_ = sub.Unsubscribe()
	}
}

func TestEventsAndPreviewsOnSubjects(t *testing.T) {
	r := newNATSRig(t)
	events, err := r.nc.SubscribeSync("patchbay.v1.events.j1.>")
	if err != nil {
		t.Fatal(err)
	}
	previews, err := r.nc.SubscribeSync("patchbay.v1.preview.j1")
	if err != nil {
		t.Fatal(err)
	}
	stray, err := r.nc.SubscribeSync("patchbay.v1.preview.other")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.nc.Publish("patchbay.v1.preview.j1.on", nil), r.nc.Flush()); err != nil {
		t.Fatal(err)
	}
	c := r.client(t)
	if _, err := client.Submit(wiretest.Context(t), c,
		&message.RunRequest{ID: "j1", Preview: true, Workflow: messagetest.Graph("Wait 20", "Step 1")}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for len(got) == 0 || !message.Terminal(got[len(got)-1]) {
		m, err := events.NextMsg(time.Minute)
		if err != nil {
			t.Fatalf("after %v: %v", got, err)
		}
		got = append(got, wire.LastToken(m.Subject))
		if !json.Valid(m.Data) {
			t.Errorf("event is not JSON: %q", m.Data)
		}
	}
	if want := "queued execution_start executing executing progress metrics executing execution_success"; strings.Join(got,
		" ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
	m, err := previews.NextMsg(time.Minute)
	if err != nil || string(m.Data) != "jpeg" || m.Header.Get("Patchbay-Job") != "j1" {
		t.Errorf("preview: %v", err)
	}
	if n, _, _ := stray.Pending(); n != 0 {
		t.Errorf("%d previews of another job", n)
	}
}

func TestTiedRunOnNATS(t *testing.T) {
	r := newNATSRig(t)
	for _, tied := range []bool{true, false} {
		c, err := client.DialNATS(r.url)
		if err != nil {
			t.Fatal(err)
		}
		id := map[bool]string{true: "tied", false: "free"}[tied]
		if _, err := c.Ask(wiretest.Context(t), message.VerbRun, "", &message.RunRequest{
			ID: id, Tied: tied, Workflow: messagetest.Graph(map[bool]string{true: "Wait 60000", false: "Wait 1200"}[tied]),
		}); err != nil {
			t.Fatal(err)
		}
		ipctest.WaitState(t, r.Jobs, id, message.Running)
		_ = c.Close()
		ipctest.WaitState(t, r.Jobs, id, map[bool]message.State{true: message.Cancelled, false: message.Done}[tied])
	}
}

func TestTwoDaemonsOnOneServer(t *testing.T) {
	r := newNATSRig(t)
	n, err := serve.ConnectNATS(serve.NATSConfig{URL: r.url, Version: "0.1.0", Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	other := ipctest.NewRig(t, jobs.Config{OnEvent: n.Event}, jobs.OutputsConfig{})
	serveNATS(t, r.url, n, other)
	c := r.client(t)
	ctx := wiretest.Context(t)
	owned := [2]int{}
	for i := range 20 {
		id := "t" + text(i)
		if _, err := client.Submit(ctx, c, &message.RunRequest{ID: id, Workflow: messagetest.Graph("Wait 1")}); err != nil {
			t.Fatal(err)
		}
		if r.Service.Owns(id) {
			owned[0]++
		}
		if other.Service.Owns(id) {
			owned[1]++
		}
		if rec, err := client.Status(ctx, c, id); err != nil || rec.Job != id {
			t.Errorf("status of %s: %+v, %v", id, rec, err)
		}
	}
	if owned[0]+owned[1] != 20 || owned[0] == 0 || owned[1] == 0 {
		t.Errorf("the daemons own %v jobs, want 20 in all and some each", owned)
	}
	var e *fault.Error
	if _, err := client.Status(ctx, c, "none"); !errors.As(err, &e) || e.Public() != fault.NoJob {
		t.Errorf("a job that nobody has: %v", err)
	}
}

func TestNoDaemon(t *testing.T) {
	e := natsserver.Start(t, natsserver.Inside(""))
	c, err := client.DialNATS(e.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Submit(wiretest.Context(t), c,
		&message.RunRequest{Workflow: messagetest.Graph("Wait 1")}); !errors.Is(err, client.ErrNoDaemon) {
		t.Errorf("no service: %v", err)
	}
	_ = c.Close()
	url := e.URL
	e.Close()
	if _, err := client.DialNATS(url); !errors.Is(err, client.ErrNoDaemon) {
		t.Errorf("no server: %v", err)
	}
}
