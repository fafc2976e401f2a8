package files

import (
	"fmt"
	"os"
	"sync"

	"patchbay/engine"
	"patchbay/models/weights"
	"patchbay/node/fault"
)

// Checkpoint is a file whose header has been read. It is opened again for its weights, so that no file stays mapped
// between jobs.
type Checkpoint struct {
	Path    string
	Hash    string // of the header
	Size    int64
	changed int64 // modification times: equal headers may have other weights
	wide    bool  // quantised weights become f32, not bf16
}

// Key identifies file and content.
func (f Checkpoint) Key() string { return fmt.Sprintf("%s#%s@%x", f.Path, f.Hash, f.changed) }

// modified mixes the modification times of files in nanoseconds; that of a file that is gone is 0.
func modified(paths []string) int64 {
	all := int64(0)
	for _, path := range paths {
		all *= 31
		if info, err := os.Stat(path); err == nil {
			all += info.ModTime().UnixNano()
		}
	}
	return all
}

// Open maps the file or files; the caller closes them.
func (f Checkpoint) Open() (*weights.File, error) {
	form := engine.BF16
	if f.wide {
		form = engine.F32
	}
	file, err := weights.Open(f.Path, form)
	if err != nil {
		return nil, &fault.Failure{Code: fault.CodeBadCheckpoint, Message: err.Error(), Cause: err}
	}
	if f.Hash != "" && (file.HeaderHash() != f.Hash || modified(file.Paths()) != f.changed) {
		_ = file.Close()
		return nil, fault.New(fault.CodeBadCheckpoint, "%s has changed since the workflow began; run it again", f.Path)
	}
	return file, nil
}

// ReadHeader opens a checkpoint, lets f look at it, and closes it again. Quantised weights will become f32 if wide,
// else bf16.
func ReadHeader(path string, wide bool, f func(c Checkpoint, file *weights.File, set *weights.Set) error) error {
	c := Checkpoint{Path: path, wide: wide}
	file, err := c.Open()
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	c.Hash, c.Size, c.changed = file.HeaderHash(), file.Size(), modified(file.Paths())
	return f(c, file, file.Set())
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
