package serve_test

import (
	"errors"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/ipc/bulk"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
)

// TestClientTextIsBounded checks that a client's text about itself is short or refused: every revision of the record
// has it.
func TestClientTextIsBounded(t *testing.T) {
	_, clients := boundedRig(t)
	for name, c := range clients {
		ctx := wiretest.Context(t)
		for n, want := range map[int]string{4000: "", 4095: fault.TooLarge, 8000: fault.TooLarge} {
			_, err := client.Submit(ctx, c, &message.RunRequest{
				Workflow: messagetest.Graph("Wait 1"), Client: strings.Repeat("x", n),
			})
			var e *fault.Error
			if errors.As(err, &e) != (want != "") || e != nil && e.Public() != want {
				t.Errorf("%s: client of %d bytes: %v, want %q", name, n, err, want)
			}
		}
		if _, err := client.Submit(ctx, c, &message.RunRequest{
			Workflow: messagetest.Graph("Wait 1"), Client: map[string]string{"x": strings.Repeat("\x01", 1000)},
		}); err == nil {
			t.Errorf("%s: a client whose JSON is longer than its text was taken", name)
		}
	}
}

// TestLongMessagesGoShort checks that a record or an event that exceeds the message limit arrives without its lists,
// and not as an error.
func TestLongMessagesGoShort(t *testing.T) {
	refs := make([]message.OutputRef, 4096)
	rec := message.Record{Job: "j", State: message.Done, Outputs: refs}
	for what, v := range map[string]any{
		"record": message.RecordReply{Type: "record", Record: rec}, "jobs": message.JobsReply{Jobs: []message.Record{rec}},
		"event": &message.Event{
			Type: message.EventSuccess, Job: "j", Data: map[string]any{"prompt_id": "j", "outputs": refs},
		},
	} {
		var got []byte
		r := &serve.Reply{Enc: wire.JSON, Limit: 4096}
		r.Send = func(parts [][]byte, _ []int, failed *fault.Error, _ bool) error {
			if failed != nil {
				t.Errorf("%s: %v", what, failed)
			}
			for _, p := range parts {
				got = append(got, p...)
			}
			return nil
		}
		if err := r.Message(v); err != nil || len(got) > 4096 || !strings.Contains(string(got), `"j"`) {
			t.Errorf("%s: %d bytes, %v: %.200s", what, len(got), err, got)
		}
	}
}

// cargo counts what is put beside a message, and records whether it was told that the message was sent.
type cargo struct {
	put  int
	done []bool
}

func (c *cargo) Put(data []byte) (*wire.Ref, error) {
	c.put++
	return &wire.Ref{Kind: "stream", Bytes: len(data)}, nil
}
func (c *cargo) FDs() []int     { return make([]int, c.put) }
func (c *cargo) Done(sent bool) { c.done = append(c.done, sent) }

// TestNothingBesideWhatDidNotGo checks that what was put beside a message goes with it, and is given up where the
// message goes in its short form or as an error, which refer to nothing.
func TestNothingBesideWhatDidNotGo(t *testing.T) {
	large, small := make([]byte, wire.BulkBytes), make([]byte, 100<<10)
	list := make([]string, 200_000)
	for name, c := range map[string]struct {
		data  map[string]any
		short bool // the message has a short form
		tries int  // places made for what goes beside
		fds   int
		fault string
	}{
		"large":                {map[string]any{"a": large, "b": small}, true, 1, 1, ""},
		"small too":            {map[string]any{"a": large, "b": small, "c": small}, true, 2, 3, ""},
		"short":                {map[string]any{"a": large, "list": list}, true, 2, 0, ""},
		"too large":            {map[string]any{"a": large, "list": list}, false, 2, 0, fault.TooLarge},
		"what has no encoding": {map[string]any{"a": large, "b": make(chan int)}, false, 1, 0, fault.Internal},
	} {
		var places []*cargo
		r := &serve.Reply{
			Enc: wire.Msgpack, Limit: 150 << 10,
			Beside: func(*bulk.Hold) bulk.Cargo {
				places = append(places, &cargo{})
				return places[len(places)-1]
			},
			Send: func(_ [][]byte, fds []int, failure *fault.Error, _ bool) error {
				if len(fds) != c.fds || (failure != nil) != (c.fault != "") || failure != nil && failure.Public() != c.fault {
					t.Errorf("%s: went with %d descriptors and %v, want %d and %q", name, len(fds), failure, c.fds, c.fault)
				}
				return nil
			},
		}
		var v any = c.data
		if c.short {
			v = &message.Event{Type: message.EventSuccess, Job: "j", Data: c.data}
		}
		if err := r.Message(v); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(places) != c.tries {
			t.Errorf("%s: %d places beside the message were made, want %d", name, len(places), c.tries)
		}
		for i, p := range places {
			if want := c.fds > 0 && i == len(places)-1; len(p.done) != 1 || p.done[0] != want {
				t.Errorf("%s: place %d was told %v, want once %v", name, i, p.done, want)
			}
		}
	}
}
