package web

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/rs/zerolog"

	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/wire/wiretest"
	"patchbay/node/files"
	"patchbay/node/pyjson"
	"patchbay/tests/bubble"
)

// door is a carrier that serves a fake executor.
type door struct {
	*HTTP
	*ipctest.Rig
	port *bubble.Port
	t    *testing.T
	http *http.Client
}

// newDoor starts a carrier; the test is in a bubble. tune, if not nil, may change its configuration.
func newDoor(t *testing.T, tune func(*Config)) *door {
	t.Helper()
	return newDoorOn(t, tune, nil)
}

// newDoorOn is newDoor whose jobs are in a store; nil: in memory.
func newDoorOn(t *testing.T, tune func(*Config), store *jobs.JetStream) *door {
	t.Helper()
	top, port := t.TempDir(), bubble.NewPort()
	cfg := Config{
		Listener: port, Log: zerolog.Nop(),
		Stats:  func() message.Stats { return message.Stats{Devices: []string{"cpu"}} },
		Memory: func() (int64, int64) { return 2 << 30, 1 << 30 }, Keep: filepath.Join(top, "history"),
		Roots: files.Roots{
			Input: filepath.Join(top, "input"), Output: filepath.Join(top, "output"), Temp: filepath.Join(top, "temp"),
		},
	}
	if tune != nil {
		tune(&cfg)
	}
	h, err := Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	outputs := jobs.OutputsConfig{
		Stage: filepath.Join(top, "stage"), Output: cfg.Roots.Output, Temp: cfg.Roots.Temp, Log: zerolog.Nop(),
	}
	jc := jobs.Config{OnEvent: h.Event, OnForget: h.Forget}
	if store != nil {
		jc = store.On(jc)
	}
	rig := ipctest.NewRig(t, jc, outputs)
	if store != nil {
		if err := rig.Jobs.Open(wiretest.Context(t)); err != nil {
			t.Fatal(err)
		}
	}
	classes := ipctest.FakeService().Classes
	classes.Describe = describe
	h.On(rig.Jobs, classes)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Serve(ctx, ctx, rig.Service) }()
	d := &door{
		HTTP: h, Rig: rig, port: port, t: t, http: &http.Client{Transport: &http.Transport{DialContext: port.Dial}},
	}
	t.Cleanup(func() {
		d.http.CloseIdleConnections()
		stop()
		<-done
	})
	return d
}

// describe says that every class of the fake has the same inputs.
func describe(class string) map[string]any {
	number := []any{"INT", pyjson.NewObject("min", int64(0), "max", int64(1<<40))}
	side := []any{"INT", pyjson.NewObject("min", int64(16), "max", int64(4096))}
	file := []any{[]any{"a.png"}, pyjson.NewObject("image_upload", true)}
	out := map[string]any{}
	for _, name := range []string{"Wait", "Step", "Picture", "Fail"} {
		if class == "" || class == name {
			needed := pyjson.NewObject("n", number, "image", file)
			other := pyjson.NewObject("seed", number, "width", side, "height", side, "text", []any{"STRING"}, "mode",
				[]any{[]any{"fast", "good"}}, "mask", file)
			out[name] = pyjson.NewObject("input", pyjson.NewObject("required", needed, "optional", other))
		}
	}
	return out
}

// ask sends a request and returns status and body.
func (d *door) ask(method, path string, body any, header ...string) (int, []byte, http.Header) {
	d.t.Helper()
	var r io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		r = strings.NewReader(b)
	default:
		text, err := json.Marshal(b)
		if err != nil {
			d.t.Fatal(err)
		}
		r = bytes.NewReader(text)
	}
	q, err := http.NewRequestWithContext(wiretest.Context(d.t), method, d.Name()+path, r)
	if err != nil {
		d.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			q.Host = header[i+1]
			continue
		}
		q.Header.Set(header[i], header[i+1])
	}
	resp, err := d.http.Do(q)
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return resp.StatusCode, out, resp.Header
}

// get decodes the JSON answer to a GET.
func (d *door) get(path string) any {
	d.t.Helper()
	status, body, _ := d.ask("GET", path, nil)
	if status != http.StatusOK {
		d.t.Fatalf("GET %s: %d %s", path, status, body)
	}
	return decoded(d.t, body)
}

func decoded(t *testing.T, body []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return v
}

// post queues a workflow of the fake for a client and returns the job's id.
func (d *door) post(client, graph string, more ...string) string {
	d.t.Helper()
	body := fmt.Sprintf(`{"client_id": %q, "prompt": %s%s}`, client, graph, strings.Join(more, ""))
	status, b, _ := d.ask("POST", "/prompt", body, "Content-Type", "application/x-www-form-urlencoded")
	if status != http.StatusOK {
		d.t.Fatalf("POST /prompt: %d %s", status, b)
	}
	return decoded(d.t, b).(map[string]any)["prompt_id"].(string)
}

// ear is a websocket.
type ear struct {
	t    *testing.T
	conn *websocket.Conn
}

// said is one message: type and data, or a binary one.
type said struct {
	Type string         `json:"type"`
	Data map[string]any `json:"data"`
	raw  []byte
}

func (d *door) listen(client string) *ear {
	d.t.Helper()
	//nolint:bodyclose // Dial closes it
	conn, _, err := websocket.Dial(wiretest.Context(d.t), "ws://"+d.Address()+"/ws?clientId="+client,
		&websocket.DialOptions{HTTPClient: d.http})
	if err != nil {
		d.t.Fatal(err)
	}
	conn.SetReadLimit(64 << 20)
	d.t.Cleanup(func() { _ = conn.CloseNow() })
	return &ear{d.t, conn}
}

func (e *ear) next() said {
	e.t.Helper()
	ctx, stop := context.WithTimeout(wiretest.Context(e.t), time.Minute)
	defer stop()
	kind, b, err := e.conn.Read(ctx)
	if err != nil {
		e.t.Fatal(err)
	}
	if kind == websocket.MessageBinary {
		return said{raw: b}
	}
	m := said{raw: b}
	if err := json.Unmarshal(b, &m); err != nil {
		e.t.Fatal(err)
	}
	return m
}

// until reads up to the message that says that a job runs no more, and returns all.
func (e *ear) until(job string) (all []said) {
	e.t.Helper()
	for {
		m := e.next()
		all = append(all, m)
		if m.Type == "executing" && m.Data["node"] == nil && m.Data["prompt_id"] == job {
			return all
		}
	}
}

func types(all []said) (out []string) {
	for _, m := range all {
		if m.Type == "" {
			out = append(out, "binary")
			continue
		}
		out = append(out, m.Type)
	}
	return out
}

// until waits until something is so.
func (d *door) until(so func() bool) {
	d.t.Helper()
	for end := time.Now().Add(time.Minute); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			d.t.Fatal("it did not become so within a minute")
		}
	}
}

// cancelAll cancels the jobs that wait and run.
func (d *door) cancelAll() {
	list := d.Jobs.Select(open)
	slices.Reverse(list) // those that run last, so that none is taken meanwhile
	slices.SortStableFunc(list, func(a, b jobs.Listed) int { return strings.Compare(string(a.State), string(b.State)) })
	for _, j := range list {
		if _, _, err := d.Jobs.Cancel(wiretest.Context(d.t), j.Job); err != nil {
			d.t.Error(err)
		}
	}
	d.until(func() bool { return len(d.Jobs.Select(open)) == 0 })
}
