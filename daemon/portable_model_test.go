package daemon

import (
	"fmt"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"patchbay/models/source"
	"patchbay/node/files"
	"patchbay/parallel/process"
)

// TestOpenerForgets checks that what a host knows of weights that it does not hold is bounded, whatever leaders name.
func TestOpenerForgets(t *testing.T) {
	local, err := process.New(process.Config{NewOps: NewOps, Places: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	roots := files.Roots{Models: []string{"../examples/demo"}}
	path, err := roots.Resolve("diffusion_models", "model", "demo_flux.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	modelFile, file, err := source.Stat(path, false)
	if err != nil {
		t.Fatal(err)
	}
	_ = file.Close()
	named := &portableModel{Model: source.Model{File: modelFile, Encoder: &source.Encoder{Kind: "qwen3", Prefix: "a."}}}
	if err := named.names(&roots); err != nil {
		t.Fatal(err)
	}
	o := &opener{roots: roots, host: local, filesByKey: map[string]knownFiles{}}
	body, err := msgpack.Marshal(named)
	if err != nil {
		t.Fatal(err)
	}
	found, err := o.open("an encoder", body)
	if err != nil {
		t.Fatal(err)
	}
	want := source.Model{File: modelFile, Encoder: named.Model.Encoder}
	if w, ok := found.(source.Weights); !ok || w.Key() != want.Key() || w.File.Path != path {
		t.Errorf("a host finds %+v, want %+v", found, want)
	}
	for i := range 10 * recall {
		if _, err := o.open(fmt.Sprint("weights ", i), body); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(o.filesByKey); n > recall {
		t.Errorf("%d names are known after %d, want at most %d", n, 10*recall, recall)
	}
	if _, ok := o.filesByKey[fmt.Sprint("weights ", 10*recall-1)]; !ok {
		t.Error("the last one is not known")
	}
}
