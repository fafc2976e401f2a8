package worker_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire/wiretest"
	"patchbay/ipc/worker"
	"patchbay/node/classes"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
)

// TestWorkflowIsValidatedOnce checks that a node's own check runs once for a job through a daemon, that the worker gets
// the workflow as it was validated ("7" of an INT is 7) with only the outputs that can run, also beside one that reads
// from a node that is not there, and that it validates by itself a job of a store that does not say so.
func TestWorkflowIsValidatedOnce(t *testing.T) {
	checks, got := 0, []any{}
	cat := classes.All(graph.Class{
		Name: "Take", Output: true, Inputs: []graph.Input{{Name: "n", Type: "INT"}},
		Check: func(*graph.Job, *files.Roots, *pyjson.Object) (string, string) {
			checks++
			return "", ""
		},
		Run: func(c *graph.Call) ([]any, error) {
			got = append(got, c.Raw("n"))
			return nil, nil
		},
	})
	runner, err := graph.NewRunner(graph.Config{Catalogue: cat})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(runner.Close)
	local := worker.NewLocal("local", runner, 0)
	known := worker.Classes(cat, files.Roots{}, files.NewIndex(files.Roots{}), nil)
	r := ipctest.NewTunedRig(t, func(sc *serve.ServiceConfig) { sc.Classes = known }, jobs.Config{}, jobs.OutputsConfig{},
		local)
	const workflow = `{"a": {"class_type": "Take", "inputs": {"n": "7"}}, "b": {"class_type": "Take", "inputs": {}},
		"c": {"class_type": "SaveImage", "inputs": {"images": ["d", 0], "filename_prefix": "c"}},
		"d": {"class_type": "ImageInvert", "inputs": {"image": ["gone", 0]}}}`
	_, _, end := ipctest.RunJob(t, ipctest.DialRig(t, r), &message.RunRequest{Workflow: workflow})
	if end.Type != message.EventSuccess || checks != 1 || !slices.Equal(got, []any{int64(7)}) {
		t.Errorf("ended with %s after %d checks, the node got %v, want 7 after one", end.Type, checks, got)
	}
	checks, got = 0, nil
	req := &message.RunRequest{ID: "old", Workflow: strings.Replace(workflow, "7", "8", 1)} // 7 is in the cache
	old := jobs.Task{Req: req, Attempt: 1}
	if _, err := local.Run(wiretest.Context(t), old, jobs.Sink{Event: func(message.Event) {}}); err != nil {
		t.Fatal(err)
	}
	if checks != 1 || !slices.Equal(got, []any{int64(8)}) {
		t.Errorf("of an older store: %d checks, the node got %v", checks, got)
	}
}

// TestWarningsOfAJobThatFails checks that the warnings of nodes that ran reach the client when a later one fails or
// the job is cancelled: they may be why. A job that fails without any has no metrics event.
func TestWarningsOfAJobThatFails(t *testing.T) {
	var failure error
	cat := classes.All(graph.Class{
		Name: "Try", Output: true, Inputs: []graph.Input{{Name: "warn", Type: "BOOLEAN"}},
		Run: func(c *graph.Call) ([]any, error) {
			if c.Raw("warn") == true {
				c.Warn("node %s: nothing fits", c.ID)
			}
			return nil, failure
		},
	})
	runner, err := graph.NewRunner(graph.Config{Catalogue: cat})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(runner.Close)
	known := worker.Classes(cat, files.Roots{}, nil, nil)
	r := ipctest.NewTunedRig(t, func(sc *serve.ServiceConfig) { sc.Classes = known }, jobs.Config{}, jobs.OutputsConfig{},
		worker.NewLocal("local", runner, 0))
	for _, c := range []struct {
		failure error
		warn    bool
		want    string
	}{
		{fault.New(fault.Internal, "broken"), true, message.EventError},
		{fault.New(fault.Cancelled, "enough"), true, message.EventInterrupted},
		{fault.New(fault.Internal, "broken"), false, message.EventError},
	} {
		failure = c.failure
		evs, _, end := ipctest.RunJob(t, ipctest.DialRig(t, r), &message.RunRequest{
			Workflow: fmt.Sprintf(`{"a": {"class_type": "Try", "inputs": {"warn": %t}}}`, c.warn),
		})
		var heard []any
		for _, ev := range evs {
			if ev.Type == message.EventMetrics {
				heard = append(heard, ev.Data["warnings"])
			}
		}
		want := "[]"
		if c.warn {
			want = "[[node a: nothing fits]]"
		}
		if end.Type != c.want || fmt.Sprint(heard) != want {
			t.Errorf("%v: ended with %s, want %s, after the warnings %v, want %s", c.failure, end.Type, c.want, heard, want)
		}
	}
}
