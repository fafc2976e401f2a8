package serve_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"patchbay/array"
	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/tests/natsserver"
)

// boundedRig starts a service with small limits, on NATS and on a socket.
func boundedRig(t *testing.T) (*ipctest.Rig, map[string]client.Client) {
	t.Helper()
	e := natsserver.Start(t, natsserver.Inside(""))
	n, err := serve.ConnectNATS(serve.NATSConfig{URL: e.URL, Version: "0.1.0", Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	r := ipctest.NewTunedRig(t, func(sc *serve.ServiceConfig) {
		sc.Limits = serve.Limits{
			Message: 16384, Frame: 16384, Depth: 16, Values: 500,
			Nodes: graph.Bounds{Pixels: 1 << 16, Steps: 50},
		}
	}, jobs.Config{MaxQueued: 3, MaxPerClient: 2}, jobs.OutputsConfig{})
	serveNATS(t, e.URL, n, r)
	nc, err := client.DialNATS(e.URL)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "s")
	serveSocket(t, path, r)
	sc, err := client.DialSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(nc.Close(), sc.Close()) })
	return r, map[string]client.Client{"nats": nc, "socket": sc}
}

// one returns a workflow of one node with these inputs.
func one(inputs ...any) *pyjson.Object {
	return pyjson.NewObject("1", pyjson.NewObject("class_type", "Picture", "inputs", pyjson.NewObject(inputs...)))
}

// TestBoundsOfMessages checks that what is too long, too deep, too large or too much is refused with its own code on
// every carrier, and that nothing is queued.
func TestBoundsOfMessages(t *testing.T) {
	r, clients := boundedRig(t)
	tensor := func(shape ...int) *wire.Tensor {
		n := 4
		for _, s := range shape {
			n *= s
		}
		return &wire.Tensor{Tensor: array.Tensor{DType: "f32", Shape: shape, Data: make([]byte, n)}}
	}
	for name, c := range clients {
		for _, row := range []struct {
			what, verb string
			body       any
			status     int
			code, says string
		}{
			{
				"bytes", message.VerbSubmit, &message.RunRequest{Workflow: one("text", strings.Repeat("x", 20000))}, 413,
				fault.TooLarge, "the limit is 16384",
			},
			{
				"depth", message.VerbSubmit, &message.RunRequest{Workflow: one("list", wiretest.Deep(20))}, 400, fault.BadRequest,
				"deeper than 16 levels",
			},
			{"depth in text", message.VerbSubmit, &message.RunRequest{Workflow: `{"1":{"class_type":"Picture","inputs":{"a":` +
				strings.Repeat("[", 20) + strings.Repeat("]", 20) + `}}}`}, 422, fault.BadWorkflow, "deeper than 16 levels"},
			{
				"values", message.VerbSubmit, &message.RunRequest{Workflow: one("list", make([]any, 600))}, 400, fault.BadRequest,
				"more than 500 values",
			},
			{"pixels", message.VerbSubmit, &message.RunRequest{Workflow: one("width", int64(256), "height", int64(256),
				"batch_size", int64(2))}, 413, fault.TooLarge, "at most 65536"},
			{
				"pixels that overflow", message.VerbRun,
				&message.RunRequest{Workflow: one("width", uint64(1)<<63, "height", uint64(1)<<63)}, 413,
				fault.TooLarge, "at most 65536",
			},
			{
				"steps", message.VerbSubmit, &message.RunRequest{Workflow: one("steps", int64(51))}, 413, fault.TooLarge,
				"at most 50 are allowed",
			},
			{"steps of a host", message.VerbSample, &message.SampleRequest{
				Model: message.ModelRef{File: "m"}, Sampler: message.SamplerRef{Name: "euler"}, Sigmas: tensor(52),
				Latent: tensor(1, 1, 8, 8),
				Conds:  message.CondsRef{Positive: []message.CondRef{}},
			}, 413, fault.TooLarge, "sigmas: 51 steps"},
			{"pixels of a host", message.VerbSample, &message.SampleRequest{
				Model: message.ModelRef{File: "m"}, Sampler: message.SamplerRef{Name: "euler"}, Sigmas: tensor(2),
				Latent: tensor(1, 1, 48, 48),
				Conds:  message.CondsRef{Positive: []message.CondRef{}},
			}, 413, fault.TooLarge, "latent: 147456 pixels"},
		} {
			rs, err := c.Ask(wiretest.Context(t), row.verb, "", row.body)
			if err == nil {
				_, err = rs.One(wiretest.Context(t))
			}
			var e *fault.Error
			if !errors.As(err, &e) || e.Status() != row.status || e.Public() != row.code ||
				!strings.Contains(e.Error(), row.says) || e.Retryable() {
				t.Errorf("%s, %s: got %v, want %d %s with %q", name, row.what, err, row.status, row.code, row.says)
			}
			if strings.HasPrefix(row.what, "pixels") && row.verb != message.VerbSample && e != nil &&
				(e.Node != "1" || e.Field != "width") {
				t.Errorf("%s, %s: names node %q and input %q", name, row.what, e.Node, e.Field)
			}
		}
		if _, err := client.Submit(wiretest.Context(t), c,
			&message.RunRequest{
				ID:       "fits-" + name,
				Workflow: one("width", int64(256), "height", int64(256), "steps", int64(50), "n", int64(9)),
			}); err != nil {
			t.Errorf("%s: what is within all bounds: %v", name, err)
		}
		ipctest.WaitState(t, r.Jobs, "fits-"+name, message.Done)
		b, err := client.LimitsOf(wiretest.Context(t), c)
		if want := (message.LimitsReply{
			MessageBytes: 16384, FrameBytes: 16384, Depth: 16, Values: 500, Queue: 3,
			ClientJobs: 2, Pixels: 1 << 16, Steps: 50,
		}); err != nil || b != want {
			t.Errorf("%s: describe tells %+v (%v), want %+v", name, b, err, want)
		}
	}
	if list, _ := r.Jobs.List("", 100); len(list) != 2 {
		t.Errorf("%d jobs in the table, want the two that fit", len(list))
	}
}

// TestBoundsOfTheQueue checks that a client with too many jobs, and every client when too many wait, is told when to
// come back, and succeeds once jobs have ended.
func TestBoundsOfTheQueue(t *testing.T) {
	r, clients := boundedRig(t)
	refused := func(err error, says string) bool {
		var e *fault.Error
		return errors.As(err, &e) && e.Status() == 429 && e.Public() == fault.QueueFull && e.RetryAfterMS > 0 &&
			e.Retryable() && strings.Contains(e.Text, says)
	}
	for name, c := range clients {
		ctx := wiretest.Context(t)
		send := func(id string, conn any) error {
			_, err := client.Submit(ctx, c, &message.RunRequest{
				ID:       id + name,
				Workflow: messagetest.Graph("Wait 20000"), Client: conn,
			})
			return err
		}
		if err := errors.Join(send("a1", "ann"), send("a2", pyjson.NewObject("id", "ann"))); err != nil {
			t.Fatal(err)
		}
		ipctest.WaitState(t, r.Jobs, "a1"+name, message.Running)
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
		if _, _, err := client.Cancel(ctx, c, "a1"+name); err != nil {
			t.Fatal(err)
		}
		ipctest.WaitState(t, r.Jobs, "a1"+name, message.Cancelled)
		ipctest.WaitState(t, r.Jobs, "b1"+name, message.Running) // it is the turn of another client
		if err := send("a3", "ann"); err != nil {
			t.Errorf("%s: after one has ended: %v", name, err)
		}
		for _, id := range []string{"a2", "a3", "b1", "n1"} {
			if _, _, err := client.Cancel(ctx, c, id+name); err != nil {
				t.Fatal(err)
			}
		}
		for _, id := range []string{"a2", "a3", "b1", "n1"} {
			ipctest.WaitState(t, r.Jobs, id+name, message.Cancelled)
		}
	}
	if s := r.Meter.Stats(); s.Refused[fault.QueueFull] != 4 {
		t.Errorf("%d refusals were counted, want 4", s.Refused[fault.QueueFull])
	}
}

// TestUsersCannotHideBehindNames checks that where the server authenticates users, jobs count for the user, whatever
// name the request gives, also while many are stored at once.
func TestUsersCannotHideBehindNames(t *testing.T) {
	g := ipctest.NewGuardedServer(t, 3)
	alice := g.Client(t, "alice")
	errs := make(chan error, 20)
	for i := range cap(errs) {
		go func() {
			_, err := client.Submit(wiretest.Context(t), alice,
				&message.RunRequest{Workflow: messagetest.Graph("Wait 20000"), Client: fmt.Sprint("somebody-", i)})
			errs <- err
		}()
	}
	taken := 0
	for range cap(errs) {
		err := <-errs
		var e *fault.Error
		switch {
		case err == nil:
			taken++
		case !errors.As(err, &e) || e.Status() != 429 || !strings.Contains(e.Text, `client "alice"`):
			t.Errorf("got %v", err)
		}
	}
	if taken != 3 {
		t.Errorf("%d jobs of alice were taken, want 3", taken)
	}
	if _, err := client.Submit(wiretest.Context(t), g.Client(t, "bob"),
		&message.RunRequest{Workflow: messagetest.Graph("Picture 1"), Client: "alice"}); err != nil {
		t.Errorf("bob, who calls himself alice: %v", err)
	}
}
