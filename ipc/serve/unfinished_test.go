package serve_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rs/zerolog"

	"patchbay/ipc/client"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/wire/wiretest"
	"patchbay/ipc/worker"
	"patchbay/tests/natsserver"
)

// TestOutputsBeforeAFailure checks that pictures finished before a job failed or was cancelled are reported, sent,
// named and recorded, and that the terminal event says where the job was and what it had executed, here and in a
// worker.
func TestOutputsBeforeAFailure(t *testing.T) {
	for _, place := range []string{"here", "worker"} {
		out := t.TempDir()
		oc := jobs.OutputsConfig{Stage: filepath.Join(out, "stage"), Output: out}
		var r *ipctest.Rig
		if place == "here" {
			r = ipctest.NewRig(t, jobs.Config{}, oc)
		} else {
			child := worker.NewChild(worker.ChildConfig{Name: "worker 0", Command: ipctest.WorkerCommand})
			ctx, stop := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() { _ = child.Supervise(ctx); close(done) }()
			t.Cleanup(func() { stop(); <-done })
			r = ipctest.NewRig(t, jobs.Config{}, oc, child)
		}
		c := ipctest.DialRig(t, r)
		for end, nodes := range map[string][]string{
			message.EventError: {"Picture 1000", "Fail"}, message.EventInterrupted: {"Picture 1000", "Wait 60000"},
		} {
			id := "j-" + end
			if end == message.EventInterrupted {
				go cancelAt(t, r, c, id, "2")
			}
			evs, col, last := ipctest.RunJob(t, c, &message.RunRequest{ID: id, Workflow: messagetest.Graph(nodes...)})
			types := ipctest.Types(evs)
			if n := len(evs); evs[n-2].Type != message.EventExecuting || evs[n-2].Data["node"] != nil ||
				count(types, end) != 1 || count(types, message.EventExecuting) != 3 {
				t.Errorf("%s: events %v, want executing without a node before the end, once", place, types)
			}
			if last.Type != end || !slices.Contains(types, message.EventExecuted) || len(col.Files) != 1 {
				t.Fatalf("%s: %s with %d files; events %v", place, last.Type, len(col.Files), types)
			}
			if last.Data["node_id"] != "2" || last.Data["executed"] == nil || len(last.Data["executed"].([]any)) != 1 {
				t.Errorf("%s: %s says %v", place, end, last.Data)
			}
			if _, ok := last.Data["current_inputs"]; ok != (end == message.EventError) {
				t.Errorf("%s: %s says %v", place, end, last.Data)
			}
			rec, err := r.Jobs.Get(id)
			if err != nil || len(rec.Outputs) != 1 || rec.Outputs[0].Filename == "" {
				t.Fatalf("%s: the record has %+v, %v", place, rec.Outputs, err)
			}
			data, err := os.ReadFile(filepath.Join(out, rec.Outputs[0].Filename))
			if err != nil || message.Checksum(data) != rec.Outputs[0].CRC32C {
				t.Errorf("%s: the file: %v", place, err)
			}
		}
	}
}

// TestFilesComeWithTheLastEnd checks that who reads all events of a job that was cancelled and retried gets its files
// once, with the end of the attempt that has made them.
func TestFilesComeWithTheLastEnd(t *testing.T) {
	ctx := wiretest.Context(t)
	store, err := jobs.OpenJetStream(ctx, jobs.JetStreamConfig{
		URL: natsserver.Start(t, natsserver.Inside(""), natsserver.JetStream(t)).URL, Owner: "a", Log: zerolog.Nop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	r := ipctest.NewRig(t, store.On(jobs.Config{}), jobs.OutputsConfig{})
	if err := r.Jobs.Open(ctx); err != nil {
		t.Fatal(err)
	}
	c := ipctest.DialRig(t, r)
	submit := func(id, node string) {
		if _, err := client.Submit(ctx, c, &message.RunRequest{ID: id, Workflow: messagetest.Graph(node)}); err != nil {
			t.Fatal(err)
		}
	}
	submit("first", "Wait 60000")
	ipctest.WaitState(t, r.Jobs, "first", message.Running)
	submit("again", "Picture 1000")
	if _, _, err := client.Cancel(ctx, c, "again"); err != nil {
		t.Fatal(err)
	}
	if err := client.Retry(ctx, c, "again"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := client.Cancel(ctx, c, "first"); err != nil {
		t.Fatal(err)
	}
	ipctest.WaitState(t, r.Jobs, "again", message.Done)
	var ends []string
	col := &client.Collector{Event: func(ev message.Event) {
		if message.Terminal(ev.Type) {
			ends = append(ends, ev.Type)
		}
	}}
	end, err := client.Follow(ctx, c, "again", 1, true, col)
	if err != nil || end == nil || end.Type != message.EventSuccess || len(col.Files) != 1 ||
		!slices.Equal(ends, []string{message.EventInterrupted, message.EventSuccess}) {
		t.Errorf("%+v, %v, ends %v, %d files, want one", end, err, ends, len(col.Files))
	}
}

// cancelAt cancels a job that is still to come, when it executes a node.
func cancelAt(t *testing.T, r *ipctest.Rig, c client.Client, id, node string) {
	ipctest.WaitState(t, r.Jobs, id, message.Running)
	ctx := wiretest.Context(t)
	cur, err := r.Jobs.Follow(ctx, id, 0, false)
	for err == nil {
		var it jobs.Item
		if it, err = cur.Next(ctx); err == nil && it.Event.Type == message.EventExecuting && it.Event.Data["node"] == node {
			_, _, err = client.Cancel(ctx, c, id)
			break
		}
	}
	if err != nil {
		t.Errorf("%s is not cancelled at node %s: %v", id, node, err)
	}
}

func count(list []string, s string) int {
	n := 0
	for _, v := range list {
		if v == s {
			n++
		}
	}
	return n
}
