package classes

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/tests/scratch"
)

// demoFiles are the files of the demo model in its folder.
func demoFiles() []string {
	return []string{
		"diffusion_models/demo_flux", "text_encoders/demo_clip", "text_encoders/demo_t5", "vae/demo_ae",
	}
}

// changedDemo returns the roots of a copy of the demo model with one more tensor of one zero for each name, and without
// the tensor called gone, which gets another name.
func changedDemo(t *testing.T, gone string, names ...string) files.Roots {
	t.Helper()
	from, root := demoRoots().Models[0], t.TempDir()
	check(t, os.CopyFS(filepath.Join(root, "tokenizers"), os.DirFS(filepath.Join(from, "tokenizers"))))
	for _, name := range demoFiles() {
		name += ".safetensors"
		data, err := os.ReadFile(filepath.Join(from, name))
		check(t, err)
		end := 8 + binary.LittleEndian.Uint64(data)
		header := map[string]json.RawMessage{}
		check(t, json.Unmarshal(data[8:end], &header))
		if tensor, ok := header[gone]; ok {
			header["stranger"] = tensor
			delete(header, gone)
		}
		for _, name := range names {
			at := len(data) - int(end)
			header[name] = fmt.Appendf(nil, `{"dtype": "F32", "shape": [1], "data_offsets": [%d, %d]}`, at, at+4)
			data = append(data, 0, 0, 0, 0)
		}
		text, err := json.Marshal(header)
		check(t, err)
		text = append(text, bytes.Repeat([]byte(" "), (8-len(text)%8)%8)...)
		file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)
		scratch.Write(t, filepath.Join(root, name), append(file, data[end:]...))
	}
	return files.Roots{Models: []string{root}}
}

// TestUnknownTensorsAreWarnedOf draws the demo picture from files that each have two tensors that no model knows: it is
// the same picture, with one warning per file, and none when the handles come from the cache. A file without a tensor
// is still refused.
func TestUnknownTensorsAreWarnedOf(t *testing.T) {
	draw := func(runner *graph.Runner) *graph.Result {
		t.Helper()
		w := demoWorkflow(t)
		result, err := runner.Run(context.Background(), graph.Job{ID: "demo", Workflow: w}, nil)
		check(t, err)
		return result
	}
	runnerOf := func(roots files.Roots) *graph.Runner {
		runner, err := graph.NewRunner(graph.Config{Engine: engineOf(t, fastOps), Roots: roots, Catalogue: All()})
		check(t, err)
		t.Cleanup(runner.Close)
		return runner
	}
	want := draw(runnerOf(demoRoots()))
	runner := runnerOf(changedDemo(t, "", "last.norm.weight", "stranger"))
	got := draw(runner)
	if !bytes.Equal(got.Outputs[0].Data, want.Outputs[0].Data) || len(want.Warnings) > 0 {
		t.Errorf("unknown tensors change the picture, or known ones are warned of: %q", want.Warnings)
	}
	warnings := strings.Join(got.Warnings, "\n")
	for _, part := range []string{
		"2 tensors of demo_flux.safetensors are unknown and not used: last.norm.weight, stranger",
		"4 tensors of demo_clip.safetensors + demo_t5.safetensors are unknown and not used: last.norm.weight, stranger",
		"2 tensors of demo_ae.safetensors are unknown and not used: last.norm.weight, stranger",
	} {
		if strings.Count(warnings, part) != 1 {
			t.Errorf("warnings\n%s\nwant one with %q", warnings, part)
		}
	}
	if again := draw(runner); len(again.Warnings) > 0 || len(got.Warnings) != 3 {
		t.Errorf("%d warnings, and again %q", len(got.Warnings), again.Warnings)
	}
	const gone = "final_layer.linear.bias"
	runner = runnerOf(changedDemo(t, gone))
	_, err := runner.Run(context.Background(), graph.Job{ID: "demo", Workflow: demoWorkflow(t)}, nil)
	if err == nil || !strings.Contains(err.Error(), gone) {
		t.Errorf("a file without %s: got error %v", gone, err)
	}
}
