package files

import (
	"errors"
	"fmt"

	"patchbay/engine/datafile"
	"patchbay/fault"
	"patchbay/models/source"
	"patchbay/models/weights"
)

// Header is a checkpoint whose header is being read. It is opened again for its weights, so that no file stays open
// between jobs.
type Header struct {
	source.File
	Name    string        // as the caller names it
	Weights *weights.File // open until the callback returns
}

// ReadHeader opens a checkpoint of a kind, calls f with it and closes it. Quantized weights will become f32 if asF32,
// else bf16. Only upscale models may be in the format of torch.save.
func ReadHeader(kind, path string, asF32 bool, f func(Header) error) error {
	open := func() (source.File, *weights.File, error) { return source.Stat(path, asF32) }
	if kind == KindUpscale {
		open = func() (source.File, *weights.File, error) { return source.StatTorch(path) }
	}
	c, file, err := open()
	if err != nil {
		return fault.Wrap(fault.BadCheckpoint, "", err)
	}
	defer func() { _ = file.Close() }()
	use := func() (err error) {
		defer datafile.Catch(&err)
		return f(Header{File: c, Name: path, Weights: file})
	}
	err = use()
	if fault.Is(err, fault.FileChanged) {
		return fault.From(err)
	}
	return err
}

// Header is ReadHeader for the file that a field names. Errors are *fault.Error and name the field.
func (r *Roots) Header(kind, field, name string, asF32 bool, f func(Header) error) error {
	path, err := r.Resolve(kind, field, name)
	if err != nil {
		return err
	}
	err = ReadHeader(kind, path, asF32, func(h Header) error {
		h.Name = name
		return f(h)
	})
	if err == nil {
		return nil
	}
	known, ok := errors.AsType[*fault.Error](err)
	if !ok {
		return fault.Family(field, "%s: %v", name, err)
	}
	if known.Field == "" {
		known.Field, known.Text = field, field+": "+known.Text
	}
	return known
}

// With opens a checkpoint for its weights and calls f with it.
func With(c source.File, f func(file *weights.File) error) error {
	used := false
	err := c.With(func(file *weights.File) error {
		used = true
		return f(file)
	})
	switch {
	case err != nil && used:
		return fmt.Errorf("load %s: %w", c.Path, err)
	case err != nil:
		return fault.Wrap(fault.BadCheckpoint, "", err)
	}
	return nil
}

// Config returns the JSON that a checkpoint carries about itself, nil if it has none. In a full checkpoint the parts
// have theirs under "<part>.config" ("vae.config", "clip_l.config"), which goes before "config".
func Config(file *weights.File, part string) []byte {
	for _, key := range []string{part + ".config", "config"} {
		if text, ok := file.Metadata()[key]; ok {
			return ownIDs(part, []byte(text))
		}
	}
	return nil
}
