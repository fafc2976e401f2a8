package node

import (
	"fmt"
	"os"
	"sync"

	"patchbay/engine"
	"patchbay/models/weights"
	"patchbay/node/fault"
)

// checkpoint is a file whose header has been read. It is opened again for its weights, so that no file stays mapped between jobs.
type checkpoint struct {
	path    string
	hash    string // of the header
	size    int64
	changed int64 // modification times: equal headers may have other weights
	wide    bool  // quantised weights become f32, not bf16
}

// key identifies file and content.
func (f checkpoint) key() string { return fmt.Sprintf("%s#%s@%x", f.path, f.hash, f.changed) }

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

// open maps the file or files; the caller closes them.
func (f checkpoint) open() (*weights.File, error) {
	form := engine.BF16
	if f.wide {
		form = engine.F32
	}
	file, err := weights.Open(f.path, form)
	if err != nil {
		return nil, &fault.Failure{Code: fault.CodeBadCheckpoint, Message: err.Error(), Cause: err}
	}
	if f.hash != "" && (file.HeaderHash() != f.hash || modified(file.Paths()) != f.changed) {
		_ = file.Close()
		return nil, fault.New(fault.CodeBadCheckpoint, "%s has changed since the workflow began; run it again", f.path)
	}
	return file, nil
}

// readHeader opens a checkpoint, lets f look at it, and closes it again. Quantised weights will become f32 if wide, else bf16.
func readHeader(path string, wide bool, f func(c checkpoint, file *weights.File, set *weights.Set) error) error {
	c := checkpoint{path: path, wide: wide}
	file, err := c.open()
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	c.hash, c.size, c.changed = file.HeaderHash(), file.Size(), modified(file.Paths())
	return f(c, file, file.Set())
}

// config returns the JSON that a checkpoint carries about itself, nil if it has none. In a full checkpoint the parts have theirs under
// "<part>.config" ("vae.config", "clip_l.config"), which goes before "config".
func config(file *weights.File, part string) []byte {
	for _, key := range []string{part + ".config", "config"} {
		if text, ok := file.Metadata()[key]; ok {
			return ownIDs(part, []byte(text))
		}
	}
	return nil
}

// lazily opens a checkpoint when its weights are asked for, once per set of ranks, and closes it with the model.
type lazily struct {
	file checkpoint
	mu   sync.Mutex
}

// with runs f with the open file.
func (l *lazily) with(f func(file *weights.File) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	file, err := l.file.open()
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if err := f(file); err != nil {
		return fmt.Errorf("load %s: %w", l.file.path, err)
	}
	return nil
}
