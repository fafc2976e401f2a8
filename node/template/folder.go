package template

import (
	"errors"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"patchbay/fault"
)

// Folder is a folder of templates, NAME.json each. They are read when they are asked for, so that one can be added or
// changed at any time.
type Folder struct {
	Dir      string // empty: there are no templates
	Describe Describe
}

// maxFile bounds the bytes of a template's file.
const maxFile = 16 << 20

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// List returns the names of the templates, sorted, those of files that cannot be used too.
func (f Folder) List() (names []string) {
	if f.Dir == "" {
		return nil
	}
	entries, _ := os.ReadDir(f.Dir) // a folder that cannot be read has none
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".json"); ok && !e.IsDir() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Open reads a template. The error is no_such_template, or says what is wrong with its file.
func (f Folder) Open(name string) (*Template, error) {
	data, err := f.read(name)
	switch {
	case errors.Is(err, os.ErrNotExist):
		e := fault.At(fault.NoTemplate, "template", "there is no template %q; there are %s", name, fault.List(f.List()))
		return nil, allowed(e, f.List())
	case err != nil:
		return nil, fault.New(fault.BadWorkflow, "template %s: %v", name, err)
	}
	return Parse(name, data, f.Describe)
}

func (f Folder) read(name string) ([]byte, error) {
	if f.Dir == "" || strings.ContainsAny(name, "/\\\x00") || name == "" {
		return nil, os.ErrNotExist
	}
	root, err := os.OpenRoot(f.Dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	info, err := root.Stat(name + ".json")
	switch {
	case err != nil:
		return nil, err
	case !validName.MatchString(name):
		return nil, errors.New("a name is 1 to 64 of A-Z a-z 0-9 _ . - and begins with a letter or digit")
	case !info.Mode().IsRegular():
		return nil, errors.New("it is no regular file")
	case info.Size() > maxFile:
		return nil, errors.New("it has more than 16 MiB")
	}
	file, err := root.Open(name + ".json")
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(file, maxFile))
	return data, errors.Join(err, file.Close())
}
