package weights

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/gguf"
	"patchbay/engine/gguf/ggufwrite"
	"patchbay/engine/safetensors"
)

// save writes named tensors of shape [1, 2] to a safetensors file.
func save(t *testing.T, path string, names ...string) {
	t.Helper()
	var entries []safetensors.Tensor
	for i, name := range names {
		s := f32(float32(i), 1, 2)
		entries = append(entries, safetensors.Tensor{
			Name: name, DType: engine.F32, FileType: "F32",
			Shape: s.Shape, Data: datafile.Of(s.Data),
		})
	}
	var b bytes.Buffer
	if err := safetensors.Write(&b, map[string]string{"format": "pt"}, entries); err != nil {
		t.Fatal(err)
	}
	text(t, path, b.String())
}

func text(t *testing.T, path, s string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(s), 0o644); err != nil {
		t.Fatal(err)
	}
}

// indexJSON returns the JSON of an index from pairs of tensor and file names.
func indexJSON(pairs ...string) string {
	var parts []string
	for i := 0; i < len(pairs); i += 2 {
		parts = append(parts, fmt.Sprintf("%q: %q", pairs[i], pairs[i+1]))
	}
	return `{"metadata": {"total_size": 1}, "weight_map": {` + strings.Join(parts, ", ") + `}}`
}

const one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"

func TestOpenForms(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	save(t, path("plain.safetensors"), "a", "b", "c")
	save(t, path("sharded/"+one), "a", "c")
	save(t, path("sharded/"+two), "b")
	text(t, path("sharded/model.safetensors.index.json"), indexJSON("a", one, "b", two, "c", one))
	text(t, path("sharded/config.json"), `{"x": 1}`)
	save(t, path("folder/diffusion_pytorch_model.safetensors"), "a", "b", "c")
	save(t, path("folder/diffusion_pytorch_model.fp16.safetensors"), "a", "b", "c")
	text(t, path("folder/config.json"), `{"x": 2}`)
	save(t, path("only/other.safetensors"), "a", "b", "c")
	quantised := ggufwrite.File(map[string]any{"config": "{}", "n": uint32(1)}, []ggufwrite.Tensor{
		{Name: "a", Type: gguf.Q8v0, Shape: []int{1, 32}, Data: make([]byte, 34)},
		{Name: "b", Type: gguf.F32, Shape: []int{1}, Data: make([]byte, 4)},
		{Name: "c", Type: gguf.F32, Shape: []int{1}, Data: make([]byte, 4)},
	})
	text(t, path("quantised.safetensors"), string(quantised)) // the content decides, not the name
	for _, c := range []struct {
		path, config string
		files        []string
	}{
		{"plain.safetensors", "", []string{"plain.safetensors"}},
		{"sharded", `{"x": 1}`, []string{
			"sharded/model.safetensors.index.json", "sharded/config.json", "sharded/" + one,
			"sharded/" + two,
		}},
		{
			"sharded/model.safetensors.index.json", `{"x": 1}`,
			[]string{"sharded/model.safetensors.index.json", "sharded/config.json", "sharded/" + one, "sharded/" + two},
		},
		{"folder", `{"x": 2}`, []string{"folder/diffusion_pytorch_model.safetensors", "folder/config.json"}},
		{"only", "", []string{"only/other.safetensors"}},
		{"quantised.safetensors", "{}", []string{"quantised.safetensors"}},
	} {
		f, err := Open(path(c.path), engine.BF16)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Set().Names(); !slices.Equal(got, []string{"a", "b", "c"}) || f.Metadata()["config"] != c.config ||
			f.Size() < 4 || f.HeaderHash() == "" {
			t.Errorf("%s: tensors %v, config %q, %d bytes, hash %q", c.path, got, f.Metadata()["config"],
				f.Size(), f.HeaderHash())
		}
		var files []string
		for _, p := range f.Paths() {
			rel, _ := filepath.Rel(dir, p)
			files = append(files, filepath.ToSlash(rel))
		}
		if early, err := Paths(path(c.path)); err != nil || !slices.Equal(early, f.Paths()) || !slices.Equal(files, c.files) {
			t.Errorf("%s: files %v, before opening %v, want %v; error %v", c.path, files, early, c.files, err)
		}
		if err := f.Close(); err != nil || f.Close() != nil {
			t.Errorf("%s: close: %v", c.path, err)
		}
	}
	narrow, err := Open(path("quantised.safetensors"), engine.BF16)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = narrow.Close() }()
	wide, err := Open(path("quantised.safetensors"), engine.F32)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = wide.Close() }()
	if narrow.HeaderHash() == wide.HeaderHash() || narrow.Size() != 34+8 || wide.Size() != 32*4+8 ||
		narrow.Words()["n"] != uint32(1) {
		t.Errorf("in blocks: %d bytes, widened to f32: %d bytes, words %v; want 42, 136, n = 1, and hashes that differ",
			narrow.Size(), wide.Size(), narrow.Words())
	}
}

func TestShardsEqualOneFile(t *testing.T) {
	dir := t.TempDir()
	save(t, filepath.Join(dir, "whole.safetensors"), "a", "b", "c")
	save(t, filepath.Join(dir, one), "a", "b")
	b := f32(2, 1, 2)
	var third bytes.Buffer
	if err := safetensors.Write(&third, nil,
		[]safetensors.Tensor{{Name: "c", DType: engine.F32, FileType: "F32", Shape: b.Shape, Data: datafile.Of(b.Data)}},
	); err != nil {
		t.Fatal(err)
	}
	text(t, filepath.Join(dir, two), third.String())
	text(t, filepath.Join(dir, "model.safetensors.index.json"), indexJSON("a", one, "b", one, "c", two))
	whole, err := Open(filepath.Join(dir, "whole.safetensors"), engine.BF16)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = whole.Close() }()
	shards, err := Open(filepath.Join(dir, "model.safetensors.index.json"), engine.BF16)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = shards.Close() }()
	for _, name := range whole.Set().Names() {
		x, _ := whole.Set().Get(name)
		y, ok := shards.Set().Get(name)
		if !ok || !slices.Equal(x.Shape, y.Shape) || !slices.Equal(x.F32(), y.F32()) {
			t.Errorf("%s: in shards %v %v, in one file %v %v", name, y.Shape, y.F32(), x.Shape, x.F32())
		}
	}
}

func TestOpenRefusesWithReasons(t *testing.T) {
	const index = "model.safetensors.index.json"
	for _, c := range []struct {
		name, open, want string
		make             func(t *testing.T, dir string)
	}{
		{"nothing", "none.safetensors", "no such file", func(*testing.T, string) {}},
		{"empty folder", "", "holds no *.safetensors", func(*testing.T, string) {}},
		{"several", "", "several checkpoints", func(t *testing.T, dir string) {
			save(t, filepath.Join(dir, "a.safetensors"), "a")
			save(t, filepath.Join(dir, "b.safetensors"), "a")
		}},
		{
			"a shard", one, "name their index " + index,
			func(t *testing.T, dir string) { save(t, filepath.Join(dir, one), "a") },
		},
		{"missing shard", index, "1 of its 2 files are missing: " + two, func(t *testing.T, dir string) {
			save(t, filepath.Join(dir, one), "a")
			text(t, filepath.Join(dir, index), indexJSON("a", one, "b", two))
		}},
		{"tensor not there", index, `"b" is listed for ` + two, func(t *testing.T, dir string) {
			save(t, filepath.Join(dir, one), "a")
			save(t, filepath.Join(dir, two), "c")
			text(t, filepath.Join(dir, index), indexJSON("a", one, "b", two, "c", two))
		}},
		{"tensor elsewhere", index, `holds tensor "b", which the index lists for ` + two, func(t *testing.T, dir string) {
			save(t, filepath.Join(dir, one), "a", "b")
			save(t, filepath.Join(dir, two), "c")
			text(t, filepath.Join(dir, index), indexJSON("a", one, "b", two, "c", two))
		}},
		{"tensor in both", index, `holds tensor "a", which the index lists for ` + one, func(t *testing.T, dir string) {
			save(t, filepath.Join(dir, one), "a")
			save(t, filepath.Join(dir, two), "a", "b")
			text(t, filepath.Join(dir, index), indexJSON("a", one, "b", two))
		}},
		{"unlisted", index, "does not list", func(t *testing.T, dir string) {
			save(t, filepath.Join(dir, one), "a", "z")
			text(t, filepath.Join(dir, index), indexJSON("a", one))
		}},
		{"outside", index, "without a path", func(t *testing.T, dir string) {
			text(t, filepath.Join(dir, index), indexJSON("a", "../"+one))
		}},
		{"cut", index, "model-00001", func(t *testing.T, dir string) {
			text(t, filepath.Join(dir, one), "\x10\x00")
			text(t, filepath.Join(dir, index), indexJSON("a", one))
		}},
		{"config too long", "", "config.json", func(t *testing.T, dir string) {
			save(t, filepath.Join(dir, "a.safetensors"), "a")
			text(t, filepath.Join(dir, "config.json"), strings.Repeat(" ", maxConfig+1))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			c.make(t, dir)
			if f, err := Open(filepath.Join(dir, c.open), engine.BF16); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, error %v; want one with %q", f, err, c.want)
			}
		})
	}
}

func TestShardNames(t *testing.T) {
	for name, want := range map[string]string{
		"model-00001-of-00003.safetensors": "model.safetensors.index.json",
		"a/b-00002-of-00002.safetensors":   "b.safetensors.index.json",
		"model-00001-of-00001.safetensors": "", "model.safetensors": "", "model-0001-of-0003.safetensors": "",
		"model-00001-of-00003.gguf": "", "-00001_of-00003.safetensors": "",
	} {
		index, ok := Shard(name)
		if ok != (want != "") || ok && index != want {
			t.Errorf("%s: got %q %v, want %q", name, index, ok, want)
		}
	}
}
