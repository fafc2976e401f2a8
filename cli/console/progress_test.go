package console

import (
	"fmt"
	"strings"
	"testing"

	"github.com/vbauerster/mpb/v8"

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// TestTitlesOfAWatchedJob checks that a watcher without the workflow learns the titles from the first event, and is
// told where a job was resumed.
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
	step["value"], step["resumed"] = int64(5), true
	s.Event(message.Event{Type: message.EventProgress, Node: "4", Data: step})
	want := "node 3\nnode 3 (the sampler)\nnode 4 (VAEDecode) step 2/9\nnode 4 (VAEDecode) resumed at step 5/9\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

// TestNodesThatCannotRun checks that nodes that cannot run are printed in order.
func TestNodesThatCannotRun(t *testing.T) {
	var out, want strings.Builder
	faults := map[string]any{}
	for id := range 20 {
		faults[fmt.Sprintf("n%02d", id)] = "why"
		fmt.Fprintf(&want, "node n%02d cannot run: why\n", id)
	}
	NewProgress(&out, false).Accepted(message.Receipt{Job: "j", State: message.Running, NodeErrors: faults})
	if _, nodes, _ := strings.Cut(out.String(), "\n"); nodes != want.String() {
		t.Errorf("got\n%swant\n%s", nodes, want.String())
	}
}

// TestNotesAfterTheBars checks that notes are printed above the bars, and on the given writer once the bars are closed.
func TestNotesAfterTheBars(t *testing.T) {
	var bars, errs strings.Builder
	s := &Progress{bars: mpb.New(mpb.WithOutput(&bars), mpb.WithAutoRefresh())}
	note := s.Note(&errs)
	note("one")
	s.Close()
	note("two")
	if errs.String() != "patchbay: two\n" || !strings.Contains(bars.String(), "patchbay: one\n") {
		t.Errorf("got %q above the bars and %q after them", bars.String(), errs.String())
	}
}

// TestWorkOfEveryAxis checks that what ranks sent along each axis is printed, summed over the ranks.
func TestWorkOfEveryAxis(t *testing.T) {
	names := []string{"ulysses", "ring", "pipe", "tensor", "spread", "shard"}
	rank := map[string]any{"micro_steps": 3, "text_tokens": 4, "image_tokens": 5}
	want := "plan: p on 2 ranks, 7 evaluations, 6 micro-steps, 9 tokens through the busiest rank\n"
	for i, name := range names {
		rank[name] = map[string]any{"calls": i + 1, "bytes": (i + 1) * 1e6, "wait_seconds": 0.5}
		want += fmt.Sprintf("  %-8s %10.2f MB in %d exchanges\n", name, float64(2*(i+1)), 2*(i+1))
	}
	var stats RunStats
	stats.Take(message.Event{Type: message.EventMetrics, Data: map[string]any{
		"timings": map[string]any{}, "stats": []any{map[string]any{
			"plan": "p", "evaluations": 7, "ranks": []any{rank, rank},
		}},
	}})
	var out strings.Builder
	if stats.ShowWork(NewProgress(&out, false)); out.String() != want {
		t.Errorf("got %s, want %s", out.String(), want)
	}
}

// TestWarningsOfNodes checks that the warnings of a metrics event, as it comes off the wire, are printed once each.
func TestWarningsOfNodes(t *testing.T) {
	raw, err := wire.Encode(message.Event{
		Type: message.EventMetrics, Data: map[string]any{"warnings": []string{"node 2: 3 of 5 tensors fit", "another"}},
	}, wire.Msgpack)
	if err != nil {
		t.Fatal(err)
	}
	body, err := wire.Decode(raw, wire.Msgpack, wire.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	ev, err := message.EventOf(body)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	s := NewProgress(&out, false)
	s.Event(*ev)
	s.Event(*ev)
	if want := "warning: node 2: 3 of 5 tensors fit\nwarning: another\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
