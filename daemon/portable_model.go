package daemon

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"

	"github.com/vmihailenco/msgpack/v5"

	"patchbay/fault"
	"patchbay/models/source"
	"patchbay/node/files"
	"patchbay/parallel/process"
	"patchbay/parallel/remote"
)

// portableModel names a model's weights for other machines: paths are KIND/NAME in the models folders of the reader,
// and Samples tell files with the same header apart.
type portableModel struct {
	Model   source.Model
	Samples []string // of Model.File and the files of the adapters, in that order; "" for adapters without one
}

// names replaces the paths of files by KIND/NAME, which all machines understand, and fills in Samples.
func (m *portableModel) names(roots *files.Roots) error {
	m.Model.Adapters = append([]source.Adapter(nil), m.Model.Adapters...)
	for _, f := range m.all() {
		if f == nil {
			m.Samples = append(m.Samples, "")
			continue
		}
		sample, err := f.Sample()
		if err != nil {
			return err
		}
		kind, name, err := roots.Named(f.Path)
		if err != nil {
			return err
		}
		m.Samples = append(m.Samples, sample)
		f.Path, f.Changed = kind+"/"+name, 0
	}
	return nil
}

// all returns the files of a model, nil for adapters without one.
func (m *portableModel) all() []*source.File {
	out := []*source.File{&m.Model.File}
	for i := range m.Model.Adapters {
		if a := &m.Model.Adapters[i]; a.Brought() {
			out = append(out, nil)
		} else {
			out = append(out, &a.File)
		}
	}
	return out
}

// find replaces KIND/NAME by the files of this machine. It returns an error for a file that is missing or differs from
// the leader's.
func (m *portableModel) find(roots *files.Roots) error {
	all := m.all()
	if len(m.Samples) != len(all) {
		return fmt.Errorf("%d samples of %d files", len(m.Samples), len(all))
	}
	for i, f := range all {
		if f == nil {
			continue
		}
		kind, name, _ := strings.Cut(f.Path, "/")
		path, err := roots.Resolve(kind, "model", name)
		if err != nil {
			return fault.Wrap(fault.BadCheckpoint, "model",
				fmt.Errorf("model: %s is not in its models folders: copy it there: %w", f.Path, err))
		}
		local, file, err := source.Stat(path, f.Wide)
		if err != nil {
			return err
		}
		_ = file.Close()
		sample, err := local.Sample()
		if err != nil {
			return err
		}
		if local.Hash != f.Hash || sample != m.Samples[i] {
			return fault.Named(fault.BadCheckpoint, "model", "%s is another file than the leader's (header %.12s and weights "+
				"%.12s, there %.12s and %.12s): copy it", f.Path, local.Hash, sample, f.Hash, m.Samples[i])
		}
		*f = local
	}
	return nil
}

// remoteHost is a host on another machine.
type remoteHost struct {
	*remote.Process
	roots files.Roots
}

// portableWeights are weights of which a Client sends only the names.
type portableWeights struct {
	process.Weights
	named *portableModel
}

// MarshalBinary returns what a Client sends.
func (w portableWeights) MarshalBinary() ([]byte, error) { return msgpack.Marshal(w.named) }

// Acquire implements process.Process: files are named by their place in the models folders.
func (f remoteHost) Acquire(key string, w process.Weights, need []process.Need) (loaded bool, err error) {
	fileWeights, ok := w.(source.Weights)
	if !ok {
		return f.Process.Acquire(key, w, need)
	}
	named := &portableModel{Model: fileWeights.Model}
	if err := named.names(&f.roots); err != nil {
		return false, fault.Wrap(fault.BadCheckpoint, "model",
			fmt.Errorf("model: name the weights for other hosts: %w", err))
	}
	loaded, err = f.Process.Acquire(key, portableWeights{w, named}, need)
	var e *fault.Error
	if errors.As(err, &e) && e.Code != fault.HostLost { // HostLost names the host already
		failure := *e
		failure.Text = f.String() + ": " + e.Text
		err = &failure
	}
	return loaded, err
}

// opener finds weights that a leader names. It remembers which files each key of the leader stood for, and evicts the
// weights when those files change.
type opener struct {
	roots      files.Roots
	loader     source.Loader
	host       *process.Local
	mu         sync.Mutex
	filesByKey map[string]knownFiles // by the leader's key
	opens      int
}

// knownFiles are the files here that stand for a leader's weights.
type knownFiles struct {
	localKey string // their key
	seen     int    // number of the last open that asked for them
}

// recall is for how many opens files are remembered whose weights are not resident (or not yet).
const recall = 64

func (o *opener) open(key string, model []byte) (process.Weights, error) {
	var m portableModel
	if err := msgpack.Unmarshal(model, &m); err != nil {
		return nil, fmt.Errorf("the name of a model's weights: %w", err)
	}
	if err := m.find(&o.roots); err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	localKey := m.Model.Key()
	if was, ok := o.filesByKey[key]; ok && was.localKey != localKey {
		o.host.Evict(key)
	}
	o.opens++
	o.filesByKey[key] = knownFiles{localKey, o.opens}
	if len(o.filesByKey) > recall {
		resident := map[string]bool{}
		for _, r := range o.host.Resident() {
			resident[r.Key] = true
		}
		maps.DeleteFunc(o.filesByKey, func(key string, f knownFiles) bool {
			return !resident[key] && o.opens-f.seen >= recall
		})
	}
	return source.Weights{Model: m.Model, Loader: &o.loader}, nil
}
