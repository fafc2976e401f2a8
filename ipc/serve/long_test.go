package serve_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
)

// TestClientTextIsBounded: what a client says of itself is in every version of the record, so it is short or refused.
func TestClientTextIsBounded(t *testing.T) {
	_, clients := boundedRig(t)
	for name, c := range clients {
		ctx := wiretest.Within(t, 10*time.Second)
		for n, want := range map[int]string{4000: "", 4095: wire.ErrTooLarge, 8000: wire.ErrTooLarge} {
			_, err := client.Submit(ctx, c, &message.RunRequest{
				Workflow: messagetest.Graph("Wait 1"), Client: strings.Repeat("x", n),
			})
			var e *wire.Error
			if errors.As(err, &e) != (want != "") || e != nil && e.Code != want {
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

// TestLongMessagesGoShort: a record or an event that is longer than a message may be arrives without its lists, and not
// as an error.
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
		r := &serve.Reply{Enc: wire.JSON, Limit: 4096, Send: func(parts [][]byte, _ []int, fault *wire.Error, _ bool) error {
			if fault != nil {
				t.Errorf("%s: %v", what, fault)
			}
			for _, p := range parts {
				got = append(got, p...)
			}
			return nil
		}}
		if err := r.Message(v); err != nil || len(got) > 4096 || !strings.Contains(string(got), `"j"`) {
			t.Errorf("%s: %d bytes, %v: %.200s", what, len(got), err, got)
		}
	}
}
