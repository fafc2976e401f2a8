package node

import (
	"fmt"
	"os"
	"sync"
	"time"

	"patchbay/engine"
	"patchbay/engine/safetensors"
	"patchbay/models/dit"
	"patchbay/models/latent"
	"patchbay/models/sampling"
	"patchbay/models/weights"
	"patchbay/parallel"
)

// Model is a MODEL: a diffusion model that has been described but not loaded. Copies with other adapters or model sampling share the weights.
type Model struct {
	Name     string // as the workflow calls it
	Key      string // file and header hash: equal keys share weights
	Variant  string // of package models: "flux", "pixart_sigma" ...
	Spec     *dit.Spec
	Format   latent.Format
	Sampling *sampling.ModelSampling
	// Differential is DifferentialDiffusion's strength; nil: ordinary masks.
	Differential *float32
	load         func(ops engine.Ops, held dit.Held) (dit.Model, error)
	bytes        int64
}

// request returns what parallel needs to know of the model.
func (m *Model) request() parallel.Model {
	return parallel.Model{Key: m.Key, Spec: m.Spec, Load: m.load, WeightBytes: m.bytes}
}

// withSampling returns a copy with another model sampling.
func (m *Model) withSampling(s *sampling.ModelSampling) *Model {
	c := *m
	c.Sampling = s
	return &c
}

// checkpoint is a file whose header has been read. It is opened again for its weights, so that no file stays mapped between jobs.
type checkpoint struct {
	path    string
	hash    string // of the header
	size    int64
	changed int64 // modification time: equal headers may have other weights
}

// key identifies file and content.
func (f checkpoint) key() string { return fmt.Sprintf("%s#%s@%x", f.path, f.hash, f.changed) }

// modified returns the modification time of a file in nanoseconds, 0 if it is gone.
func modified(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.ModTime().UnixNano()
}

// open maps the file; the caller closes it.
func (f checkpoint) open() (*safetensors.File, error) {
	file, err := safetensors.Open(f.path)
	if err != nil {
		return nil, &Failure{Code: CodeBadCheckpoint, Message: err.Error(), cause: err}
	}
	if f.hash != "" && (file.HeaderHash() != f.hash || modified(f.path) != f.changed) {
		file.Close()
		return nil, failf(CodeBadCheckpoint, "%s has changed since the workflow began; run it again", f.path)
	}
	return file, nil
}

// readHeader opens a file, lets f look at it, and closes it again.
func readHeader(path string, f func(c checkpoint, file *safetensors.File, set *weights.Set) error) error {
	c := checkpoint{path: path}
	file, err := c.open()
	if err != nil {
		return err
	}
	defer file.Close()
	c.hash, c.size, c.changed = file.HeaderHash(), file.Size(), modified(path)
	return f(c, file, weights.FromFile(file))
}

// config returns the JSON that a checkpoint carries about itself, nil if it has none. In a full checkpoint the parts have theirs under
// "<part>.config" ("vae.config", "clip_l.config"), which goes before "config".
func config(file *safetensors.File, part string) []byte {
	for _, key := range []string{part + ".config", "config"} {
		if text, ok := file.Metadata()[key]; ok {
			return []byte(text)
		}
	}
	return nil
}

// resident is something with weights that a Runner keeps between jobs.
type resident interface {
	Bytes() int64
	Close()
}

// lent takes weights from the runner's cache, or loads them and keeps them there. It must be called inside do: loading uses the device.
func lent[T resident](c *Call, key string, load func() (T, error)) (T, error) {
	if w, ok := c.run.weights.get(key); ok {
		if t, ok := w.(T); ok {
			return t, nil
		}
	}
	began := time.Now()
	t, err := load()
	c.spent.Load += seconds(began)
	if err != nil {
		return t, err
	}
	c.run.weights.put(key, t, t.Bytes())
	return t, nil
}

// lazily opens a checkpoint when its weights are asked for, once per set of ranks, and closes it with the model.
type lazily struct {
	file checkpoint
	mu   sync.Mutex
}

// with runs f with the open file.
func (l *lazily) with(f func(file *safetensors.File) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	file, err := l.file.open()
	if err != nil {
		return err
	}
	defer file.Close()
	if err := f(file); err != nil {
		return fmt.Errorf("load %s: %w", l.file.path, err)
	}
	return nil
}
