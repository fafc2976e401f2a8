package serve_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/serve"
	"patchbay/node/files"
	"patchbay/node/graph"
)

// TestReuse asks for the same picture again and again, and checks that with reuse it comes from the last job that made
// it, as long as everything that the job read and all files that it made are unchanged.
func TestReuse(t *testing.T) {
	for name, folders := range map[string]func(t *testing.T) jobs.OutputsConfig{
		"folders": func(t *testing.T) jobs.OutputsConfig {
			return jobs.OutputsConfig{Stage: t.TempDir(), Output: t.TempDir(), Temp: t.TempDir()}
		},
		"stage":  func(t *testing.T) jobs.OutputsConfig { return jobs.OutputsConfig{Stage: t.TempDir()} },
		"memory": func(*testing.T) jobs.OutputsConfig { return jobs.OutputsConfig{} },
	} {
		t.Run(name, func(t *testing.T) { testReuse(t, folders(t)) })
	}
}

func testReuse(t *testing.T, out jobs.OutputsConfig) {
	started := make(chan string, 100)
	model := "header one"
	r := ipctest.NewTunedRig(t, func(sc *serve.ServiceConfig) {
		sc.Needs = func(*message.RunRequest, *graph.Workflow) []files.NeededFile {
			return []files.NeededFile{{Kind: "vae", Name: "vae.safetensors", Bytes: 7, Hash: model}}
		}
	}, jobs.Config{}, out, &ipctest.Fake{Label: "fake", Started: started})
	c := ipctest.DialRig(t, r)
	want := messagetest.Picture("1", 1000)
	// ask runs a job and returns its record and the job that it reuses. Something runs exactly when none is reused.
	ask := func(change func(*message.RunRequest)) (message.Record, string) {
		t.Helper()
		req := &message.RunRequest{Workflow: messagetest.Graph("Picture 1000"), Reuse: true}
		change(req)
		evs, col, end := ipctest.RunJob(t, c, req)
		if end.Type != message.EventSuccess || len(col.Files) != 1 || !bytes.Equal(col.Files[0].Data, want.Data) {
			t.Fatalf("ended with %s and %d files, or another picture", end.Type, len(col.Files))
		}
		rec := ipctest.WaitState(t, r.Jobs, end.Job, message.Done)
		ran := len(started) > 0
		for len(started) > 0 {
			<-started
		}
		if ran == (rec.Reused != "") {
			t.Fatalf("ran: %v, and the record says it is from %q", ran, rec.Reused)
		}
		if v, _ := end.Data["reused"].(string); v != rec.Reused {
			t.Errorf("the end says it is from %q, the record from %q", v, rec.Reused)
		}
		if rec.Reused != "" {
			shows := "queued execution_start execution_cached executed executing execution_success"
			if got := strings.Join(ipctest.Types(evs), " "); got != shows {
				t.Errorf("got events %s, want %s", got, shows)
			}
		}
		return rec, rec.Reused
	}
	same := func(*message.RunRequest) {}
	first, from := ask(same)
	if from != "" {
		t.Fatalf("the first job is from %q", from)
	}
	second, from := ask(func(q *message.RunRequest) { q.Client, q.Priority, q.DeadlineMS = "somebody else", "low", 1e6 })
	if from != first.Job || second.Job == first.Job || second.Attempt != 0 || second.Hash != first.Hash {
		t.Errorf("from %q, want %s: %+v", from, first.Job, second)
	}
	if second.Outputs[0] != first.Outputs[0] {
		t.Errorf("file %+v, want that of the first: %+v", second.Outputs[0], first.Outputs[0])
	}
	if _, from := ask(same); from != first.Job {
		t.Errorf("a third job is from %q, want the one that ran, %s", from, first.Job)
	}
	r.Outputs.Forget(first.Job)
	if data, err := r.Outputs.Read(second.Job, 0); err != nil || !bytes.Equal(data, want.Data) {
		t.Errorf("with the first job forgotten the file of the second is %d bytes, %v", len(data), err)
	}
	for what, change := range map[string]func(*message.RunRequest){
		"reuse":       func(q *message.RunRequest) { q.Reuse = false },
		"plan":        func(q *message.RunRequest) { q.Plan = "ulysses=2" },
		"inputs":      func(q *message.RunRequest) { q.Inputs = map[string][]byte{"a.png": {1}} },
		"no_metadata": func(q *message.RunRequest) { q.NoMetadata = true },
	} {
		if _, from := ask(change); from != "" {
			t.Errorf("with another %s it is from %q", what, from)
		}
	}
	model = "header two"
	if _, from := ask(same); from != "" {
		t.Errorf("with another model file of the same name it is from %q", from)
	}
	last, from := ask(same)
	if from == "" {
		t.Error("with the new model file it ran twice")
	}
	model = ""
	for range 2 {
		if _, from := ask(same); from != "" {
			t.Errorf("with a model file that cannot be read it is from %q", from)
		}
	}
	model = "header two"
	if out.Output == "" {
		return
	}
	path := filepath.Join(out.Output, last.Outputs[0].Subfolder, last.Outputs[0].Filename)
	if err := os.WriteFile(path, []byte("painted over"), 0o600); err != nil {
		t.Fatal(err)
	}
	after, from := ask(same)
	if from != "" {
		t.Errorf("with a picture that was changed it is from %q", from)
	}
	if err := os.Remove(filepath.Join(out.Output, after.Outputs[0].Subfolder, after.Outputs[0].Filename)); err != nil {
		t.Fatal(err)
	}
	if _, from := ask(same); from != "" {
		t.Errorf("with a picture that is gone it is from %q", from)
	}
}
