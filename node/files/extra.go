package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Extra lists folders of model files in addition to the models roots, by kind of folder as ComfyUI names it. Those in
// First are searched before the roots, those in Then after them.
type Extra struct {
	First map[string][]string `json:"first,omitempty"`
	Then  map[string][]string `json:"then,omitempty"`
}

// ExtraFile is the file in a ComfyUI tree that names more folders of models.
const ExtraFile = "extra_model_paths.yaml"

// ReadExtra reads ExtraFile of a ComfyUI tree as ComfyUI does (utils/extra_config.py): sections with base_path,
// is_default, and one folder per line for every kind. Without the file there are no folders. It returns an error with
// the line if the file has another form.
func ReadExtra(tree string) (Extra, error) {
	out := Extra{First: map[string][]string{}, Then: map[string][]string{}}
	path := filepath.Join(tree, ExtraFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return out, err
	}
	all, err := sections(text)
	if err != nil {
		return out, fmt.Errorf("%s: %w", path, err)
	}
	for _, s := range all {
		base, to, first := "", out.Then, false
		for _, e := range s {
			switch {
			case e.key == "is_default":
				if isTrue(e.value) {
					to, first = out.First, true
				}
			case e.value.ShortTag() != "!!str":
				return out, fmt.Errorf("%s: line %d: %s is no text: want a folder, or several below a |", path, e.value.Line,
					e.key)
			case e.key == "base_path":
				base = expanded(e.value.Value)
			}
		}
		if !filepath.IsAbs(base) {
			base = filepath.Join(tree, base)
		}
		for _, e := range s {
			if e.key == "base_path" || e.key == "is_default" {
				continue
			}
			kind := modernKind(e.key)
			for line := range strings.Lines(e.value.Value) {
				dir := strings.TrimSpace(line)
				if dir == "" {
					continue
				}
				if !filepath.IsAbs(dir) {
					dir = filepath.Join(base, dir)
				}
				dir = filepath.Clean(dir)
				if first { // each goes before those already listed
					to[kind] = append([]string{dir}, to[kind]...)
				} else {
					to[kind] = append(to[kind], dir)
				}
			}
		}
	}
	return out, nil
}

// modernKind maps ComfyUI's old names of folders to the current ones.
func modernKind(name string) string {
	switch name {
	case "unet":
		return KindDiffusion
	case "clip":
		return KindText
	}
	return name
}

// expanded replaces a leading ~ and environment variables.
func expanded(path string) string {
	if rest, ok := strings.CutPrefix(path, "~"); ok && (rest == "" || rest[0] == '/') {
		if home, err := os.UserHomeDir(); err == nil {
			path = home + rest
		}
	}
	return os.ExpandEnv(path)
}

// pair is a key of a mapping with its value.
type pair struct {
	key   string
	value *yaml.Node
}

// sections returns the mappings of the file in order: references to anchors are followed, of equal keys the last
// counts, and a merged mapping (<<) gives what a section does not have.
func sections(text []byte) ([][]pair, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil || len(doc.Content) == 0 {
		return nil, err
	}
	top, err := pairs(doc.Content[0], "the file", 0)
	var out [][]pair
	for _, e := range top {
		if isNull(e.value) {
			continue
		}
		section, fail := pairs(e.value, e.key, 0)
		out, err = append(out, section), errors.Join(err, fail)
	}
	return out, err
}

// maxMerges bounds mappings merged into mappings, which may form a circle.
const maxMerges = 8

func pairs(n *yaml.Node, name string, depth int) (out []pair, err error) {
	if n = target(n); n.Kind != yaml.MappingNode || depth > maxMerges {
		return nil, fmt.Errorf("line %d: %s is no section: want names with their folders below it", n.Line, name)
	}
	set := func(key string, value *yaml.Node) {
		if i := slices.IndexFunc(out, func(e pair) bool { return e.key == key }); i >= 0 {
			out[i].value = value
			return
		}
		out = append(out, pair{key, value})
	}
	isMerge := func(i int) bool { return n.Content[i].ShortTag() == "!!merge" }
	for i := 0; i < len(n.Content); i += 2 {
		if !isMerge(i) {
			continue
		}
		from := []*yaml.Node{n.Content[i+1]}
		if list := target(from[0]); list.Kind == yaml.SequenceNode {
			from = slices.Clone(list.Content)
			slices.Reverse(from) // the first wins
		}
		for _, other := range from {
			merged, err := pairs(other, "<<", depth+1)
			if err != nil {
				return nil, err
			}
			for _, e := range merged {
				set(e.key, e.value)
			}
		}
	}
	for i := 0; i < len(n.Content); i += 2 {
		if !isMerge(i) {
			set(n.Content[i].Value, target(n.Content[i+1]))
		}
	}
	return out, nil
}

// target returns the node that a reference to an anchor stands for.
func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.ShortTag() == "!!null" }

// isTrue reports whether Python takes a value for true.
func isTrue(n *yaml.Node) bool {
	if n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0 {
		return n.Value != ""
	}
	return !isNull(n) && !slices.Contains([]string{"false", "no", "off", "0"}, strings.ToLower(n.Value))
}
