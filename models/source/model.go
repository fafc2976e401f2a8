package source

import (
	"fmt"

	"github.com/vmihailenco/msgpack/v5"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/models"
	"patchbay/models/control"
	"patchbay/models/dit"
	"patchbay/models/lora"
	"patchbay/models/weights"
)

// Model says where the weights of a diffusion model, control net, model patch or text encoder come from.
type Model struct {
	File     File
	Beside   File      // of the model that a control net borrows weights from; zero: none
	Adapters []Adapter // in the order in which they were added
	Encoder  *Encoder  // nil: not a text encoder
}

// Adapter is one LoRA on a model or a text encoder: a file that has been matched, or pairs of matrices that a host
// supplies itself.
type Adapter struct {
	Name      string // as users know it, for errors
	File      File
	Strength  float32
	Additions []lora.Addition // from the file, for all parts of a pipeline
	Changes   []lora.Change   // from the file, for the diffusion model

	Own        []weights.LowRank // instead of a file; valid while the request that supplied them runs
	OwnChanges []weights.Change  // beside Own
	ID         string            // identifies both: equal IDs mean equal adapters
}

// Brought reports whether a host supplied the adapter, so that it has no file.
func (a *Adapter) Brought() bool { return a.ID != "" }

// Key identifies the weights: equal keys mean equal weights.
func (m Model) Key() string {
	key := m.base() + Keys(m.Adapters)
	if m.Encoder != nil {
		key = m.Encoder.key() + key
	}
	return key
}

// base returns the key of the weights without adapters.
func (m Model) base() string {
	if m.Beside.Path == "" {
		return m.File.Key()
	}
	return m.File.Key() + " beside " + m.Beside.Key()
}

// Bytes returns the size of the model's files and its adapters'.
func (m Model) Bytes() int64 {
	n := m.File.Size
	for i := range m.Adapters {
		n += m.Adapters[i].File.Size
	}
	return n
}

// Keys returns what adapters add to the key of weights.
func Keys(list []Adapter) string {
	key := ""
	for i := range list {
		if list[i].Brought() {
			key += "+own " + list[i].ID
			continue
		}
		key += fmt.Sprintf("+lora %s*%v", list[i].File.Key(), list[i].Strength)
	}
	return key
}

// ForPart returns the adapters that change a part: "" for the diffusion model, else the kind of a text encoder.
func ForPart(part string, list []Adapter) []Adapter {
	var out []Adapter
	for _, a := range list {
		if a.Brought() || len(lora.ForPart(part, a.Additions)) > 0 {
			out = append(out, a)
		}
	}
	return out
}

// WithLowRank calls f with what the adapters add to one part. The data is valid until f returns.
func WithLowRank(part string, list []Adapter, f func([]weights.LowRank) error) error {
	return withLowRank(part, list, nil, f)
}

// withLowRank is WithLowRank with more additions in front. Each file stays open while those after it are read.
func withLowRank(part string, list []Adapter, all []weights.LowRank, f func([]weights.LowRank) error) error {
	if len(list) == 0 {
		return f(all)
	}
	a := &list[0]
	if a.Brought() {
		return withLowRank(part, list[1:], append(all, a.Own...), f)
	}
	return a.File.With(func(file *weights.File) error {
		more, err := lora.Gather(file.Set(), lora.ForPart(part, a.Additions), a.Strength)
		if err != nil {
			return fmt.Errorf("%s: %w", a.Name, err)
		}
		return withLowRank(part, list[1:], append(all, more...), f)
	})
}

// Changes returns what adapters change in the stored tensors of the diffusion model. key is what the key of its base
// needs to tell the changes apart; it is empty if nothing changes.
func Changes(list []Adapter) (all []weights.Change, key string, err error) {
	for i := range list {
		a := &list[i]
		if len(a.Changes)+len(a.OwnChanges) == 0 {
			continue
		}
		key += Keys(list[i : i+1])
		if a.Brought() {
			all = append(all, a.OwnChanges...)
			continue
		}
		err := a.File.With(func(file *weights.File) error {
			more, err := lora.GatherChanges(file.Set(), a.Changes, a.Strength)
			if err != nil {
				return fmt.Errorf("%s: %w", a.Name, err)
			}
			all = append(all, more...)
			return nil
		})
		if err != nil {
			return nil, "", err
		}
	}
	return all, key, nil
}

// Loader loads models in one process. The zero value is ready to use. Models that differ only in low-rank pairs share
// their base; changes of biases, norms and columns need another one. A Loader is safe for concurrent use.
type Loader struct{ Shared Shared }

// Load reads and packs the held part of m's weights with ops. It returns an error if a file is missing or has changed
// or does not hold the expected model, or if memory runs out.
func (l *Loader) Load(ops engine.Ops, m Model, held dit.Held) (dit.Model, error) {
	if m.Encoder != nil {
		return l.encoder(ops, m, held)
	}
	changes, key, err := Changes(m.Adapters)
	if err != nil {
		return nil, err
	}
	base, release, err := Take(&l.Shared, fmt.Sprintf("%s %s %+v%s", m.base(), location(ops), held, key),
		func() (dit.Model, error) { return load(ops, m, held, changes) })
	if err != nil {
		return nil, err
	}
	if len(m.Adapters) == 0 {
		return &dit.Shared{Model: base, Free: release}, nil
	}
	var with dit.Model
	err = WithLowRank("", m.Adapters, func(list []weights.LowRank) (err error) {
		if list, err = weights.WithExtraColumns(list, changes); err == nil {
			with, err = models.Adapt(ops, base, list)
		}
		return err
	})
	if err != nil {
		release()
		return nil, err
	}
	return &dit.Shared{Model: with, Free: func() { with.Close(); release() }}, nil
}

// location identifies the device, since each device has bases of its own.
func location(ops engine.Ops) string {
	if device, ok := ops.(engine.Located); ok {
		return device.Location()
	}
	return ""
}

// Decode is the inverse of Weights.MarshalBinary.
func (l *Loader) Decode(encoded []byte) (Weights, error) {
	w := Weights{Loader: l}
	if err := msgpack.Unmarshal(encoded, &w.Model); err != nil {
		return w, fmt.Errorf("the name of a model's weights: %w", err)
	}
	return w, nil
}

// Weights is a Model with the loader that reads it. It implements process.Weights.
type Weights struct {
	Model
	Loader *Loader
}

func (w Weights) Load(ops engine.Ops, held dit.Held) (dit.Model, error) {
	return w.Loader.Load(ops, w.Model, held)
}

// MarshalBinary encodes the Model, not its weights, for a process that sees the same files.
func (w Weights) MarshalBinary() ([]byte, error) { return msgpack.Marshal(w.Model) }

// Pin keeps the bases of m that are now loaded, whatever parts they are, until the returned function is called, even if
// their last user closes them. It does not find those of text encoders.
func (l *Loader) Pin(m Model) func() { return l.Shared.Pin(m.File.Key() + " ") }

func load(ops engine.Ops, m Model, held dit.Held, changes []weights.Change) (out dit.Model, err error) {
	if held.Stream > 0 {
		return stream(ops, m, held, changes)
	}
	net := func(n *control.Net, err error) error {
		if err == nil {
			out, err = n.Load(ops, held)
		}
		return err
	}
	err = m.File.With(func(file *weights.File) error {
		switch set := file.Set(); {
		case control.IsPatch(models.Families(), set):
			return net(models.OpenPatch(set))
		case control.Is(set) && m.Beside.Path != "":
			return m.Beside.With(func(base *weights.File) error {
				set, err := models.ControlBeside(set, base.Set())
				if err != nil {
					return err
				}
				return net(models.OpenControl(set, file.Metadata()))
			})
		case control.Is(set):
			return net(models.OpenControl(set, file.Metadata()))
		default:
			out, err = diffusion(ops, file, held, changes)
			return err
		}
	})
	return out, err
}

func diffusion(ops engine.Ops, file *weights.File, held dit.Held, changes []weights.Change) (dit.Model, error) {
	d, err := models.OpenDiffusion(file.Set(), file.Metadata(), changes...)
	if err != nil {
		return nil, err
	}
	return d.Load(ops, held)
}

// stream loads a diffusion model of which some blocks are read from its file before each use: the file stays open until
// the model is closed.
func stream(ops engine.Ops, m Model, held dit.Held, changes []weights.Change) (dit.Model, error) {
	file, err := m.File.Hold()
	if err != nil {
		return nil, err
	}
	var model dit.Model
	err = func() (err error) {
		defer datafile.Catch(&err)
		model, err = diffusion(ops, file, held, changes)
		return err
	}()
	if err != nil {
		_ = file.Close() // the first error is the one to report
		return nil, err
	}
	return &dit.Shared{Model: model, Free: func() {
		model.Close()
		_ = file.Close() // only read from
	}}, nil
}
