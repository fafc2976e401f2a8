package weights

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestParseIndexRefusesWithReasons(t *testing.T) {
	for _, c := range [][2]string{
		{"", "EOF"},
		{"[]", "not an object"},
		{"{}", "missing or empty"},
		{`{"weight_map": {}}`, "missing or empty"},
		{`{"weight_map": []}`, "not an object"},
		{`{"weight_map": null}`, "not an object"},
		{`{"weight_map": {"a": 1}}`, `"a" must have the name`},
		{`{"weight_map": {"a": null}}`, `"a" must have the name`},
		{`{"weight_map": {"a": "x.safetensors"}`, "EOF"},
		{`{"weight_map": {"a": "x.safetensors"}} {}`, "follows the closing brace"},
		{`{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}`, `"a" twice`},
		{`{"weight_map": {"a": "x.safetensors"}, "weight_map": {"b": "x.safetensors"}}`, "occurs twice"},
		{`{"weight_map": {"a": "/x.safetensors"}}`, "without a path"},
		{`{"weight_map": {"a": "../x.safetensors"}}`, "without a path"},
		{`{"weight_map": {"a": "s\\x.safetensors"}}`, "without a path"},
		{`{"weight_map": {"a": "c:x.safetensors"}}`, "without a path"},
		{`{"weight_map": {"a": ".safetensors"}}`, "without a path"},
		{`{"weight_map": {"a": "x.bin"}}`, "without a path"},
		{strings.Repeat(" ", maxIndex+1), "at most"},
	} {
		if _, err := ParseIndex([]byte(c[0])); err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%.80q: got error %v, want one with %q", c[0], err, c[1])
		}
	}
	index, err := ParseIndex([]byte(`{"metadata": {"total_size": 5}, "weight_map": {"b": "y.safetensors", "a": ` +
		`"x.safetensors", "c": "x.safetensors"}, "more": [1, {"weight_map": 3}]}`))
	if err != nil || len(index) != 3 || index["b"] != "y.safetensors" ||
		strings.Join(index.Files(), " ") != "x.safetensors y.safetensors" {
		t.Errorf("got %v, files %v, error %v", index, index.Files(), err)
	}
}

// FuzzParseIndex checks that an accepted index names only files in its own folder.
func FuzzParseIndex(f *testing.F) {
	for _, seed := range []string{
		indexJSON("a", one, "b", two), "{}", `{"weight_map": {"a": "../x.safetensors"}}`,
		`{"weight_map": {"": "x.safetensors"}, "x": [[[[]]]]}`, `{"weight_map": {"a": "x\u0000.safetensors"}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		index, err := ParseIndex(data)
		if err != nil {
			return
		}
		if len(index) == 0 {
			t.Fatal("an empty index was accepted")
		}
		for name, file := range index {
			if filepath.Base(file) != file || !filepath.IsLocal(file) || !strings.HasSuffix(file, ".safetensors") {
				t.Fatalf("tensor %q lies in %q", name, file)
			}
		}
	})
}
