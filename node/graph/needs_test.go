package graph_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/node/classes"
	"patchbay/node/files"
	"patchbay/node/graph"
)

// TestStockTellsFilesApart checks that Needs names the files of a workflow with size and header hash, and that Lacks
// finds them and reports a file that is gone or has changed.
func TestStockTellsFilesApart(t *testing.T) {
	root := t.TempDir()
	if err := os.CopyFS(root, os.DirFS(filepath.Join("..", "..", "examples", "demo"))); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "examples", "demo.json"))
	if err != nil {
		t.Fatal(err)
	}
	w, fail := graph.ParseWorkflowJSON(text)
	if fail != nil {
		t.Fatal(fail)
	}
	index := files.NewIndex(files.Roots{Models: []string{root}})
	needs := graph.Needs(classes.All(), index, graph.Job{Workflow: w, Outputs: []string{"9"}})
	var names []string
	for _, f := range needs {
		names = append(names, f.Name)
		if info, err := os.Stat(filepath.Join(root, f.Kind, f.Name)); err != nil || info.Size() != f.Bytes ||
			len(f.Hash) != 64 {
			t.Errorf("got %+v, want the size of the file and a hash (%v)", f, err)
		}
	}
	if got := strings.Join(names, " "); got != "demo_flux.safetensors demo_clip.safetensors demo_t5.safetensors "+
		"demo_ae.safetensors" {
		t.Errorf("got %s", got)
	}
	if err := index.Lacks(needs); err != nil {
		t.Errorf("all files are there: %v", err)
	}
	other := append([]files.NeededFile(nil), needs...)
	other[0].Hash = strings.Repeat("0", 64)
	if err := index.Lacks(other); err == nil || !strings.Contains(err.Error(), "another file") {
		t.Errorf("a file with another header: %v", err)
	}
	if err := os.Remove(filepath.Join(root, needs[3].Kind, needs[3].Name)); err != nil {
		t.Fatal(err)
	}
	if err := index.Lacks(needs); err == nil || !strings.Contains(err.Error(), "demo_ae.safetensors") ||
		!strings.Contains(err.Error(), "in models") || strings.Contains(err.Error(), root) {
		t.Errorf("a file is gone: %v; want its name and no path", err)
	}
}

// TestNeedsLeavesOut checks that Needs leaves out files of outputs that do not run, also of one whose source is not in
// the workflow, files that no output depends on, and files that come with the job.
func TestNeedsLeavesOut(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "here.png"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	w, fail := graph.ParseWorkflowJSON([]byte(`{
		"1":{"class_type":"LoadImage","inputs":{"image":"here.png"}},
			"2":{"class_type":"LoadImage","inputs":{"image":"sent.png"}},
		"3":{"class_type":"SaveImage","inputs":{"images":["1",0],"filename_prefix":"a"}},
			"4":{"class_type":"SaveImage","inputs":{"images":["2",0],"filename_prefix":"b"}},
		"5":{"class_type":"VAELoader","inputs":{"vae_name":"unused.safetensors"}},
		"6":{"class_type":"ImageInvert","inputs":{"image":["gone",0]}},
			"7":{"class_type":"SaveImage","inputs":{"images":["6",0],"filename_prefix":"c"}}}`))
	if fail != nil {
		t.Fatal(fail)
	}
	roots := files.Roots{Input: dir}
	index := files.NewIndex(roots)
	job := graph.Job{Workflow: w, Inputs: map[string][]byte{"sent.png": []byte("y")}}
	for _, c := range []struct {
		targets []string
		outputs string
		needs   int
	}{{nil, "3 4", 1}, {[]string{"4"}, "4", 0}} {
		job.Targets = c.targets
		job.Outputs, _ = graph.Validate(classes.All(), roots, job)
		if got := strings.Join(job.Outputs, " "); got != c.outputs {
			t.Fatalf("targets %v: outputs %s, want %s", c.targets, got, c.outputs)
		}
		got := graph.Needs(classes.All(), index, job)
		if len(got) != c.needs || index.Lacks(got) != nil {
			t.Errorf("outputs %s: got %+v, %v; want %d files", c.outputs, got, index.Lacks(got), c.needs)
		}
		for _, f := range got {
			if f.Name != "here.png" || f.Shared() || f.Bytes != 1 {
				t.Errorf("got %+v, want here.png of 1 byte", f)
			}
		}
	}
}
