package ipc

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"patchbay/node/graph"
	"patchbay/node/pyjson"
)

// boundedRig is a service with small bounds on NATS and on a socket.
func boundedRig(t *testing.T) (*rig, map[string]Client) {
	t.Helper()
	e, err := StartEmbedded(EmbeddedConfig{Listen: "127.0.0.1:0", Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	n, err := ConnectNATS(NATSConfig{URL: e.URL(), Version: "0.1.0", Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, JobsConfig{MaxQueued: 3, MaxPerClient: 2}, ShelfConfig{})
	r.svc.cfg.Bounds = Bounds{Message: 16384, Frame: 16384, Depth: 16, Values: 500, Nodes: graph.Bounds{Pixels: 1 << 16, Steps: 50}}.orPreset()
	serveNATS(t, n, r)
	nc, err := DialNATS(e.URL())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "s")
	serveSocket(t, path, r)
	sc, err := DialSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(nc.Close(), sc.Close()) })
	return r, map[string]Client{"nats": nc, "socket": sc}
}

// one is a workflow of one node with these inputs.
func one(inputs ...any) *pyjson.Object {
	return pyjson.NewObject("1", pyjson.NewObject("class_type", "Picture", "inputs", pyjson.NewObject(inputs...)))
}

func deep(n int) any {
	var v any = int64(1)
	for range n {
		v = []any{v}
	}
	return v
}

// TestBoundsOfMessages: what is too long, too deep, too large or too much is refused with the code that says so, on every carrier, and nothing is queued.
func TestBoundsOfMessages(t *testing.T) {
	r, clients := boundedRig(t)
	tensor := func(shape ...int) *Tensor {
		n := 4
		for _, s := range shape {
			n *= s
		}
		return &Tensor{DType: "f32", Shape: shape, Data: make([]byte, n)}
	}
	for name, c := range clients {
		for _, row := range []struct {
			what, verb string
			body       any
			status     int
			code, says string
		}{
			{"bytes", VerbSubmit, &RunRequest{Workflow: one("text", strings.Repeat("x", 20000))}, 413, ErrTooLarge, "the limit is 16384"},
			{"depth", VerbSubmit, &RunRequest{Workflow: one("list", deep(20))}, 400, ErrBadRequest, "deeper than 16 levels"},
			{"depth in text", VerbSubmit, &RunRequest{Workflow: `{"1":{"class_type":"Picture","inputs":{"a":` + strings.Repeat("[", 20) + strings.Repeat("]", 20) + `}}}`}, 422, ErrBadWorkflow, "deeper than 16 levels"},
			{"values", VerbSubmit, &RunRequest{Workflow: one("list", make([]any, 600))}, 400, ErrBadRequest, "more than 500 values"},
			{"pixels", VerbSubmit, &RunRequest{Workflow: one("width", int64(256), "height", int64(256), "batch_size", int64(2))}, 413, ErrTooLarge, "at most 65536"},
			{"pixels that overflow", VerbRun, &RunRequest{Workflow: one("width", uint64(1)<<63, "height", uint64(1)<<63)}, 413, ErrTooLarge, "at most 65536"},
			{"steps", VerbSubmit, &RunRequest{Workflow: one("steps", int64(51))}, 413, ErrTooLarge, "at most 50 are allowed"},
			{"steps of a host", VerbSample, &SampleRequest{
				Model: ModelRef{File: "m"}, Sampler: SamplerRef{Name: "euler"}, Sigmas: tensor(52), Latent: tensor(1, 1, 8, 8),
				Conds: CondsRef{Positive: []CondRef{}},
			}, 413, ErrTooLarge, "sigmas: 51 steps"},
			{"pixels of a host", VerbSample, &SampleRequest{
				Model: ModelRef{File: "m"}, Sampler: SamplerRef{Name: "euler"}, Sigmas: tensor(2), Latent: tensor(1, 1, 48, 48),
				Conds: CondsRef{Positive: []CondRef{}},
			}, 413, ErrTooLarge, "latent: 147456 pixels"},
		} {
			rs, err := c.Ask(within(t, 5*time.Second), row.verb, "", row.body)
			if err == nil {
				_, err = rs.One(within(t, 5*time.Second))
			}
			var e *Error
			if !errors.As(err, &e) || e.Status != row.status || e.Code != row.code || !strings.Contains(e.Error(), row.says) || e.Retryable {
				t.Errorf("%s, %s: got %v, want %d %s with %q", name, row.what, err, row.status, row.code, row.says)
			}
			if strings.HasPrefix(row.what, "pixels") && row.verb != VerbSample && e != nil && (e.Node != "1" || e.Input != "width") {
				t.Errorf("%s, %s: names node %q and input %q", name, row.what, e.Node, e.Input)
			}
		}
		if _, err := Submit(within(t, 5*time.Second), c, &RunRequest{ID: "fits-" + name, Workflow: one("width", int64(256), "height", int64(256), "steps", int64(50), "n", int64(9))}); err != nil {
			t.Errorf("%s: what is within all bounds: %v", name, err)
		}
		waitState(t, r.jobs, "fits-"+name, Done)
		b, err := BoundsOf(within(t, 5*time.Second), c)
		if want := (BoundsReply{16384, 16384, 16, 500, 3, 2, 1 << 16, 50}); err != nil || b != want {
			t.Errorf("%s: describe tells %+v (%v), want %+v", name, b, err, want)
		}
	}
	if list, _, _ := r.jobs.List(context.Background(), "", 100); len(list) != 2 {
		t.Errorf("%d jobs in the table, want the two that fit", len(list))
	}
}

// TestBoundsOfTheQueue: a client with too many jobs, and everybody when too many wait, are told when to come back; when jobs have ended, they can.
func TestBoundsOfTheQueue(t *testing.T) {
	r, clients := boundedRig(t)
	refused := func(err error, says string) bool {
		var e *Error
		return errors.As(err, &e) && e.Status == 429 && e.Code == ErrQueueFull && e.RetryAfterMS > 0 && e.Retryable && strings.Contains(e.Message, says)
	}
	for name, c := range clients {
		ctx := within(t, 20*time.Second)
		send := func(id string, client any) error {
			_, err := Submit(ctx, c, &RunRequest{ID: id + name, Workflow: nodesOf("Wait 20000"), Client: client})
			return err
		}
		if err := errors.Join(send("a1", "ann"), send("a2", pyjson.NewObject("id", "ann"))); err != nil {
			t.Fatal(err)
		}
		waitState(t, r.jobs, "a1"+name, Running)
		if err := send("a3", "ann"); !refused(err, `client "ann" has 2 jobs`) {
			t.Errorf("%s: the third job of a client: %v", name, err)
		}
		if err := send("a2", "ann"); err != nil {
			t.Errorf("%s: the second job once more: %v", name, err)
		}
		if err := errors.Join(send("b1", "bob"), send("n1", nil)); err != nil { // three wait: a2, b1, n1
			t.Errorf("%s: others: %v", name, err)
		}
		if err := send("b2", "bob"); !refused(err, "the queue is full: 3 jobs") {
			t.Errorf("%s: a fourth waiting job: %v", name, err)
		}
		if _, _, err := Cancel(ctx, c, "a1"+name); err != nil {
			t.Fatal(err)
		}
		waitState(t, r.jobs, "a1"+name, Cancelled)
		waitState(t, r.jobs, "a2"+name, Running)
		if err := send("a3", "ann"); err != nil {
			t.Errorf("%s: after one has ended: %v", name, err)
		}
		for _, id := range []string{"a2", "a3", "b1", "n1"} {
			if _, _, err := Cancel(ctx, c, id+name); err != nil {
				t.Fatal(err)
			}
		}
		for _, id := range []string{"a2", "a3", "b1", "n1"} {
			waitState(t, r.jobs, id+name, Cancelled)
		}
	}
	if s := r.svc.cfg.Meter.Stats(); s.Refused[ErrQueueFull] != 4 {
		t.Errorf("%d refusals were counted, want 4", s.Refused[ErrQueueFull])
	}
}

// TestUsersCannotHideBehindNames: where the server says who somebody is, jobs count for that user, whatever the request calls itself; also while many are
// written down at once.
func TestUsersCannotHideBehindNames(t *testing.T) {
	g := newGuardedServer(t)
	g.jobs.cfg.MaxPerClient = 3
	alice := g.client(t, "alice")
	errs := make(chan error, 20)
	for i := range cap(errs) {
		go func() {
			_, err := Submit(within(t, 10*time.Second), alice, &RunRequest{Workflow: nodesOf("Wait 20000"), Client: fmt.Sprint("somebody-", i)})
			errs <- err
		}()
	}
	taken := 0
	for range cap(errs) {
		err := <-errs
		var e *Error
		switch {
		case err == nil:
			taken++
		case !errors.As(err, &e) || e.Status != 429 || !strings.Contains(e.Message, `client "alice"`):
			t.Errorf("got %v", err)
		}
	}
	if taken != 3 {
		t.Errorf("%d jobs of alice were taken, want 3", taken)
	}
	if _, err := Submit(within(t, 5*time.Second), g.client(t, "bob"), &RunRequest{Workflow: nodesOf("Picture 1"), Client: "alice"}); err != nil {
		t.Errorf("bob, who calls himself alice: %v", err)
	}
}

// TestRefusedFramesKeepTheirTag: a frame that is refused before it is decoded is answered under its own tag, if that stands in front.
func TestRefusedFramesKeepTheirTag(t *testing.T) {
	bomb := strings.Repeat("[", 100) + strings.Repeat("]", 100)
	for _, row := range []struct {
		body string
		want envelope
	}{
		{`{"op":"run","tag":7,"a":` + bomb + `}`, envelope{Op: "run", Tag: int64(7)}},
		{`{"tag":"x","op":"run","a":` + bomb + `}`, envelope{Op: "run", Tag: "x"}},
		{`{"a":` + bomb + `,"op":"run","tag":7}`, envelope{}},
		{`{"tag":{"a":` + bomb + `}}`, envelope{}},
		{`{"op":7,"tag":1.5}`, envelope{}},
		{`{"op":{"op":"run","tag":7},"a":` + bomb + `}`, envelope{}},
		{"\x83\xa2op\xa3run\xa3tag\x07\xa1a" + strings.Repeat("\x91", 100) + "\x01", envelope{Op: "run", Tag: int64(7)}},
		{"\x82\xa3tag" + strings.Repeat("\x91", 100) + "\x01\xa1a\x01", envelope{}},
		{"\x82\xa2op\xdb\xff\xff\xff\xff", envelope{}},
		{"\xdf\xff\xff\xff\xff", envelope{}},
	} {
		enc, ok := Sniff([]byte(row.body))
		if got := peek([]byte(row.body), enc); !ok || got.Op != row.want.Op || got.Tag != row.want.Tag {
			t.Errorf("%.60q: got %+v, want %+v", row.body, got, row.want)
		}
	}
}

// FuzzPeek looks at whatever comes: it must not fall over, and what it finds is what the whole body says.
func FuzzPeek(f *testing.F) { peekTarget(f).Fuzz(f) }
