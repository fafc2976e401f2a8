package console

import (
	"strings"
	"testing"

	"patchbay/ipc/message"
	"patchbay/node/pyjson"
)

// TestTitlesOfAWatchedJob: who has not got the workflow learns the titles from the first event.
func TestTitlesOfAWatchedJob(t *testing.T) {
	var out strings.Builder
	s := NewProgress(&out, false)
	executing := message.Event{Type: message.EventExecuting, Data: map[string]any{"node": "3"}}
	s.Event(executing)
	s.Event(message.Event{Type: message.EventQueued, Data: map[string]any{
		"titles": pyjson.NewObject("3", "the sampler", "4", "VAEDecode"),
	}})
	s.Event(executing)
	step := map[string]any{"value": int64(2), "max": int64(9)}
	s.Event(message.Event{Type: message.EventProgress, Node: "4", Data: step})
	if want := "node 3\nnode 3 (the sampler)\nnode 4 (VAEDecode) step 2/9\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
