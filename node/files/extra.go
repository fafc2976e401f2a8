package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Extra lists folders of model files in addition to the models roots, by kind of folder as ComfyUI names it. Those in
// First are searched before the roots, those in Then after them.
type Extra struct {
	First map[string][]string `json:"first,omitempty"`
	Then  map[string][]string `json:"then,omitempty"`
}

// ExtraFile is the file in a ComfyUI tree that names more folders of models.
const ExtraFile = "extra_model_paths.yaml"

// ReadExtra reads ExtraFile of a ComfyUI tree as ComfyUI 0.8.0 does (utils/extra_config.py): sections with base_path,
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
	sections, err := parseExtra(string(text))
	if err != nil {
		return out, fmt.Errorf("%s: %w", path, err)
	}
	for _, s := range sections {
		base, to, first := "", out.Then, false
		for _, e := range s {
			switch e.key {
			case "base_path":
				base = expanded(e.value)
			case "is_default":
				if v := strings.ToLower(e.value); v == "true" || v == "yes" || v == "on" {
					to, first = out.First, true
				}
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
			for line := range strings.Lines(e.value) {
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

// extraEntry is a key of a section with its value, which may have several lines.
type extraEntry struct{ key, value string }

// parseExtra reads the part of YAML that the file uses: sections, keys below them with plain, quoted or block (| and
// >) values, comments. Anything else is an error.
func parseExtra(text string) ([][]extraEntry, error) {
	var out [][]extraEntry
	block := -1 // indent of the key whose block value is being read; -1: none
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimRight(strings.ReplaceAll(line, "\t", "    "), " \r")
		bare := strings.TrimLeft(line, " ")
		indent := len(line) - len(bare)
		if block >= 0 && (bare == "" || indent > block) {
			last := &out[len(out)-1][len(out[len(out)-1])-1]
			last.value += bare + "\n"
			continue
		}
		block = -1
		if bare == "" || bare[0] == '#' || bare == "---" {
			continue
		}
		key, value, ok := strings.Cut(bare, ":")
		value = uncommented(strings.TrimSpace(value))
		switch {
		case !ok || strings.ContainsAny(key[:min(1, len(key))], "-[{&*!"):
			return nil, fmt.Errorf("line %d: want \"name:\" or \"name: value\", not %.60q", i+1, bare)
		case indent == 0 && value != "":
			return nil, fmt.Errorf("line %d: %s is no section: its folders stand below it, indented", i+1, key)
		case indent == 0:
			out = append(out, nil)
			continue
		case len(out) == 0:
			return nil, fmt.Errorf("line %d: %s stands in no section", i+1, key)
		case value != "" && strings.Contains("| > |- >- |+ >+", value):
			block, value = indent, ""
		}
		out[len(out)-1] = append(out[len(out)-1], extraEntry{unquoted(strings.TrimSpace(key)), unquoted(value)})
	}
	return out, nil
}

// uncommented strips a trailing comment from a plain or quoted value.
func uncommented(value string) string {
	if value != "" && (value[0] == '"' || value[0] == '\'') {
		if end := strings.IndexByte(value[1:], value[0]); end >= 0 {
			return value[:end+2]
		}
	}
	if strings.HasPrefix(value, "#") {
		return ""
	}
	value, _, _ = strings.Cut(value, " #")
	return strings.TrimSpace(value)
}

func unquoted(value string) string {
	if n := len(value); n >= 2 && value[0] == value[n-1] && (value[0] == '"' || value[0] == '\'') {
		return value[1 : n-1]
	}
	return value
}
