package files

import (
	"fmt"
	"sync"

	"patchbay/models/source"
	"patchbay/models/weights"
	"patchbay/node/fault"
)

// Checkpoint is a file whose header has been read. It is opened again for its weights, so that no file stays mapped
// between jobs.
type Checkpoint struct{ source.File }

// Open maps the file or files; the caller closes them.
func (f Checkpoint) Open() (*weights.File, error) {
	file, err := f.File.Open()
	if err != nil {
		return nil, &fault.Failure{Code: fault.CodeBadCheckpoint, Message: err.Error(), Cause: err}
	}
	return file, nil
}

// ReadHeader opens a checkpoint of a kind, lets f look at it, and closes it again. Quantised weights will become f32 if
// asF32, else bf16. Upscale models alone may be of torch.save's form.
func ReadHeader(kind, path string, asF32 bool, f func(c Checkpoint, file *weights.File, set *weights.Set) error) error {
	open := func() (source.File, *weights.File, error) { return source.Stat(path, asF32) }
	if kind == KindUpscale {
		open = func() (source.File, *weights.File, error) { return source.StatTorch(path) }
	}
	c, file, err := open()
	if err != nil {
		return &fault.Failure{Code: fault.CodeBadCheckpoint, Message: err.Error(), Cause: err}
	}
	defer func() { _ = file.Close() }()
	return f(Checkpoint{c}, file, file.Set())
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

// Opener opens a checkpoint when its weights are asked for, once per set of ranks, and closes it with the model.
type Opener struct {
	Checkpoint Checkpoint
	mu         sync.Mutex
}

// With runs f with the open file.
func (l *Opener) With(f func(file *weights.File) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	file, err := l.Checkpoint.Open()
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if err := f(file); err != nil {
		return fmt.Errorf("load %s: %w", l.Checkpoint.Path, err)
	}
	return nil
}
