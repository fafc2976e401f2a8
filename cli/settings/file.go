package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"patchbay/fault"
	"patchbay/ipc/wire"
	"patchbay/node/graph"
)

// File is a file of settings: YAML whose keys are the names of flags.
type File struct {
	path string
	open bool // to every user of the machine
	keys []string
	rows map[string]row
}

// row is one setting.
type row struct {
	line   int
	values []string // one, unless it is a list
	list   bool
}

// maxSettings bounds the bytes of a file of settings.
const maxSettings = 1 << 20

// flagsOnly are the flags of serve that are no settings.
func flagsOnly() []string { return []string{"config", "help", "print-permissions"} }

// settable lists the flags that a file may set, by name.
func settable(f *pflag.FlagSet) (names []string) {
	f.VisitAll(func(one *pflag.Flag) {
		if !one.Hidden && !slices.Contains(flagsOnly(), one.Name) {
			names = append(names, one.Name)
		}
	})
	return names
}

// ReadFile reads a file of settings. The error names the line of each mistake; the file beside it has the rest, if that
// makes sense.
func ReadFile(path string) (*File, error) {
	text, mode, err := readAll(path)
	if err != nil {
		return nil, err
	}
	file := &File{path: path, open: mode&0o007 != 0, rows: map[string]row{}}
	d := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	switch err := d.Decode(&doc); {
	case errors.Is(err, io.EOF): // it has comments only
		return file, nil
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: want one document, not several", path)
	}
	top := doc.Content[0]
	if top.Kind == yaml.ScalarNode && top.ShortTag() == "!!null" {
		return file, nil
	}
	if top.Kind != yaml.MappingNode {
		return nil, file.wrong(top.Line, "want KEY: VALUE, one setting a line")
	}
	var failed error
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, v := top.Content[i], top.Content[i+1]
		r, err := read(v)
		if err != nil {
			failed = errors.Join(failed, file.wrong(v.Line, "%s: %w", key.Value, err))
			continue
		}
		if was, twice := file.rows[key.Value]; twice {
			failed = errors.Join(failed, file.wrong(key.Line, "%s is there already, in line %d", key.Value, was.line))
			continue
		}
		r.line = key.Line
		file.keys, file.rows[key.Value] = append(file.keys, key.Value), r
	}
	return file, failed
}

func readAll(path string) (text []byte, mode fs.FileMode, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil {
		mode = info.Mode()
		text, err = io.ReadAll(io.LimitReader(f, maxSettings+1))
	}
	if err = errors.Join(err, f.Close()); err == nil && len(text) > maxSettings {
		err = fmt.Errorf("%s: it has more than %d KiB", path, maxSettings>>10)
	}
	return text, mode, err
}

// read reads the value of a setting. Scalars are taken as they are written: on is no true.
func read(v *yaml.Node) (r row, err error) {
	items := []*yaml.Node{v}
	if v.Kind == yaml.SequenceNode {
		items, r.list = v.Content, true
	}
	for _, item := range items {
		switch {
		case item.Kind != yaml.ScalarNode:
			return r, errors.New("want a value, or a list of values")
		case item.ShortTag() == "!!null":
			return r, errors.New("want a value; leave the line out for the default")
		}
		r.values = append(r.values, item.Value)
	}
	return r, nil
}

func (file *File) wrong(line int, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %w", file.path, line, fmt.Errorf(format, args...))
}

// Apply gives flags the values of the file, except those that the command line or the environment sets. It checks all
// values, and returns an error with the line of each that is wrong.
func (file *File) Apply(f *pflag.FlagSet) error {
	var failed error
	for _, key := range file.keys {
		r := file.rows[key]
		if names := settable(f); !slices.Contains(names, key) {
			failed = errors.Join(failed, file.wrong(r.line, "there is no setting %s%s", wire.Shown(key), hint(key, names)))
			continue
		}
		one := f.Lookup(key)
		_, several := one.Value.(pflag.SliceValue)
		if r.list && !several {
			failed = errors.Join(failed, file.wrong(r.line, "%s: want %s, not a list", key, wanted(one)))
			continue
		}
		for _, text := range r.values {
			if file.open && wire.Redact(text) != text {
				failed = errors.Join(failed, file.wrong(r.line, "%s: there is a login in it, and every user may read this file: "+
					"chmod o= %s", key, file.path))
			}
			if !fits(one, text) {
				failed = errors.Join(failed, file.wrong(r.line, "%s: %q: want %s", key, wire.Shown(text), wanted(one)))
			}
		}
	}
	if failed != nil {
		return failed
	}
	for _, key := range file.keys {
		if one := f.Lookup(key); !one.Changed && Variable(one) == "" {
			set(one, file.rows[key].values)
		}
	}
	// a folder of ComfyUI in the file replaces that of models in the environment no more than one of models does
	if models := f.Lookup("models"); Variable(models) != "" && !f.Changed("comfyui") {
		set(models, filepath.SplitList(os.Getenv(modelsVariable)))
	}
	return nil
}

// set gives a flag values that fit, without making it one of the command line.
func set(one *pflag.Flag, values []string) {
	var err error
	if list, several := one.Value.(pflag.SliceValue); several {
		err = list.Replace(values)
	} else {
		err = one.Value.Set(values[0])
	}
	if err != nil {
		panic("settings: " + err.Error()) // fits has said otherwise
	}
}

// hint names the setting that a wrong name may stand for, or else where all are listed.
func hint(key string, names []string) string {
	switch near := graph.Nearest(strings.TrimLeft(strings.ReplaceAll(key, "_", "-"), "-"), names); {
	case slices.Contains(flagsOnly(), key):
		return ": it is for the command line only"
	case near != "":
		return ", did you mean " + near + "?"
	}
	return "; there are " + fault.List(names)
}

// fits reports whether a flag may have a value, as far as its type says.
func fits(one *pflag.Flag, text string) bool {
	var err error
	switch one.Value.Type() {
	case "int":
		_, err = strconv.ParseInt(text, 10, 0)
	case "bool":
		return text == "true" || text == "false"
	case "duration":
		_, err = time.ParseDuration(text)
	}
	return err == nil
}

// wanted says what the value of a flag must be, as far as its type says.
func wanted(one *pflag.Flag) string {
	switch one.Value.Type() {
	case "int":
		return "a whole number"
	case "bool":
		return "true or false"
	case "duration":
		return "a duration, as in 30s or 24h"
	case "stringArray":
		return "a list of texts"
	}
	return "a text"
}

// named matches the flags in the text of an error.
var named = regexp.MustCompile(`--[a-z][a-z-]*`)

// Located adds the line to an error about a setting that is from the file, which then is named as there.
func (file *File) Located(f *pflag.FlagSet, err error) error {
	input, ok := errors.AsType[*wire.InputError](err)
	if !ok || file == nil {
		return err
	}
	text, line := input.Err.Error(), 0
	text = named.ReplaceAllStringFunc(text, func(flag string) string {
		key := flag[2:]
		if !file.gives(f, key) {
			return flag
		}
		if line == 0 {
			line = file.rows[key].line
		}
		return key
	})
	if line == 0 {
		return err
	}
	return &wire.InputError{Err: file.wrong(line, "%s", text)}
}

// gives reports whether the value of a flag is from the file.
func (file *File) gives(f *pflag.FlagSet, key string) bool {
	if file == nil {
		return false
	}
	_, there := file.rows[key]
	one := f.Lookup(key)
	return there && one != nil && !one.Changed && Variable(one) == ""
}

// Rank says who gives a setting its value: 0 nobody, 1 the file, 2 the environment, 3 the command line.
func (file *File) Rank(f *pflag.FlagSet, key string) int {
	switch one := f.Lookup(key); {
	case one.Changed:
		return 3
	case Variable(one) != "":
		return 2
	case file.gives(f, key):
		return 1
	}
	return 0
}

// Origin says where the value of a flag is from.
func (file *File) Origin(f *pflag.FlagSet, key string) string {
	switch file.Rank(f, key) {
	case 3:
		return "command line"
	case 2:
		return "environment: " + Variable(f.Lookup(key))
	case 1:
		return fmt.Sprintf("%s:%d", file.path, file.rows[key].line)
	}
	return "default"
}

// Count returns how many settings the file has.
func (file *File) Count() int { return len(file.keys) }

// Listing returns all settings as a file of settings, each with where its value is from. Logins in URLs are left out.
func (file *File) Listing(f *pflag.FlagSet) (string, error) {
	var out strings.Builder
	for _, key := range settable(f) {
		one := f.Lookup(key)
		v := &yaml.Node{Kind: yaml.ScalarNode, Value: one.Value.String()}
		switch list, several := one.Value.(pflag.SliceValue); {
		case several:
			v = &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
			for _, item := range list.GetSlice() {
				v.Content = append(v.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: item})
			}
		case one.Value.Type() == "string":
			v.Tag, v.Value = "!!str", wire.Redact(v.Value)
		}
		line, err := yaml.Marshal(&yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{
			{Kind: yaml.ScalarNode, Value: key}, v,
		}})
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&out, "%-45s # %s\n", strings.TrimSpace(string(line)), file.Origin(f, key))
	}
	return out.String(), nil
}
