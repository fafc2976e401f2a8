package serve_test

import (
	"path/filepath"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire/wiretest"
	"patchbay/ipc/worker"
	"patchbay/node/classes"
	"patchbay/node/files"
	"patchbay/node/pyjson"
	"patchbay/tests/scratch"
)

// TestEditorGraphsTakeTheFirstFile submits a graph of the editor whose loader was saved without a file: the daemon
// chooses the first of its own, which the record names; without any it refuses the graph and says why.
func TestEditorGraphsTakeTheFirstFile(t *testing.T) {
	const graph = `{"nodes": [{"id": 1, "type": "UNETLoader"}, {"id": 2, "type": "PreviewAny",
		"inputs": [{"name": "source", "type": "*", "link": 1}]}], "links": [[1, 1, 0, 2, 0, "MODEL"]]}`
	roots := files.Roots{Models: []string{t.TempDir()}}
	r := ipctest.NewTunedRig(t, func(sc *serve.ServiceConfig) {
		sc.Classes = worker.Classes(classes.All(), roots, nil, nil)
	}, jobs.Config{}, jobs.OutputsConfig{}, &ipctest.Fake{Label: "fake"})
	c, ctx := ipctest.DialRig(t, r), wiretest.Context(t)
	_, err := client.Submit(ctx, c, &message.RunRequest{ID: "none", Workflow: graph})
	if f := fault.From(err); f == nil || !strings.Contains(string(pyjson.Dump(f.NodeErrors["1"])),
		"unet_name: '<first file>' not in []: the graph was saved without a file") {
		t.Errorf("a graph without a file: %v, want an error that says so", err)
	}
	for _, name := range []string{"b.safetensors", "a.safetensors"} {
		scratch.Touch(t, filepath.Join(roots.Models[0], files.KindDiffusion, name))
	}
	if _, err := client.Submit(ctx, c, &message.RunRequest{ID: "first", Workflow: graph}); err != nil {
		t.Fatal(err)
	}
	if rec, err := r.Jobs.Get("first"); err != nil || rec.Model != "a.safetensors" {
		t.Errorf("the record names %q, %v; want a.safetensors", rec.Model, err)
	}
}
