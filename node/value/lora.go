package value

import (
	"patchbay/models"
	"patchbay/models/lora"
	"patchbay/models/source"
	"patchbay/models/text"
	"patchbay/models/weights"
	"patchbay/node/fault"
	"patchbay/node/files"
	"patchbay/parallel"
)

// use makes req load its weights by the store's loader, which shares bases. Until the returned function is called,
// bases that are loaded stay loaded, though making room for the request may take their last handle away.
func (s *Store) use(req *parallel.Model) func() {
	w, ok := req.Weights.(source.Weights)
	if !ok {
		return func() {}
	}
	w.Loader = s.loader
	req.Weights = w
	return s.loader.Pin(w.Model)
}

// adaptedEncoder is a text encoder in the store that shares its base with others.
type adaptedEncoder struct {
	net   text.Net
	bytes int64 // with the base: several that share one count it more than once
	free  func()
}

// Bytes returns the memory that would be needed for this one alone.
func (e *adaptedEncoder) Bytes() int64 { return e.bytes }

// Close gives back what the encoder alone has, and the base if nobody else uses it.
func (e *adaptedEncoder) Close() { e.free() }

// lentEncoder takes an encoder with the adapters of its clip from the cache, or loads what is missing of it.
func lentEncoder(u Use, l *parallel.Workspace, clip *Clip, e *encoder) (text.Net, error) {
	key := e.kind + " " + e.file.Checkpoint.Key() + " " + e.prefix
	uses := source.To(e.kind, clip.loras)
	kept, err := lent(u, key+source.Keys(uses), func() (*adaptedEncoder, error) {
		base, release, err := source.Take(&u.Store.loader.Shared, key, func() (text.Net, error) { return loadEncoder(l, e) })
		if err != nil {
			return nil, err
		}
		if len(uses) == 0 {
			return &adaptedEncoder{base, base.Bytes(), release}, nil
		}
		var net text.Net
		err = source.With(e.kind, uses, func(list []weights.LowRank) (err error) {
			net, err = base.Adapt(l.Ops, list)
			return err
		})
		if err != nil {
			release()
			return nil, fault.At(fault.CodeBadCheckpoint, "clip", "clip: %v", err)
		}
		return &adaptedEncoder{net, base.Bytes() + net.Bytes(), func() { net.Close(); release() }}, nil
	})
	if err != nil {
		return nil, err
	}
	return kept.net, nil
}

// LoraKeys lists what files may call the weights of the handles.
func LoraKeys(m *Model, clip *Clip) (*lora.Keys, error) {
	if m.declare == nil {
		return nil, fault.At(fault.CodeInternal, "model", "model: %s does not tell its weights", m.Name)
	}
	declared, err := m.declare()
	if err != nil {
		return nil, err
	}
	f, _ := models.Named(m.Spec.Family) // a row of the table described m
	keys := lora.Diffusion(f.Name, f.Names, declared)
	if clip == nil {
		return keys, nil
	}
	var encoders []lora.Encoder
	for i := range clip.parts {
		e := lora.Encoder{Kind: clip.parts[i].kind, Shapes: map[string][]int{}}
		if err := clip.parts[i].file.With(func(file *weights.File) error {
			set := file.Set().Prefix(clip.parts[i].prefix)
			for _, name := range set.Names() {
				e.Shapes[name] = set.Shape(name)
			}
			return nil
		}); err != nil {
			return nil, err
		}
		encoders = append(encoders, e)
	}
	return lora.Join(keys, lora.Text(encoders)), nil
}

// loraUses is the use of a file for the parts that has accepts; nil if it changes none of them.
func loraUses(name string, f files.Checkpoint, strength float64, found *lora.Matched,
	has func(part string) bool,
) []source.Adapter {
	u := source.Adapter{Name: name, File: f.File, Strength: float32(strength)}
	for _, a := range found.Additions {
		if has(a.Part) {
			u.Additions = append(u.Additions, a)
		}
	}
	if strength == 0 || len(u.Additions) == 0 {
		return nil
	}
	return []source.Adapter{u}
}

// Adapters names the adapters of the handle in the order in which they were added.
func (m *Model) Adapters() []string { return loraNames(m.loras) }

// Adapters names the adapters of the handle in the order in which they were added.
func (c *Clip) Adapters() []string { return loraNames(c.loras) }

func loraNames(uses []source.Adapter) []string {
	var out []string
	for i := range uses {
		out = append(out, uses[i].Name)
	}
	return out
}

// WithLora returns a copy of the handle with the adapters of a file, or m itself where they change nothing of it.
func (m *Model) WithLora(name string, f files.Checkpoint, strength float64, found *lora.Matched) *Model {
	more := loraUses(name, f, strength, found, func(part string) bool { return part == "" })
	if more == nil {
		return m
	}
	adapted := *m
	adapted.loras = append(append([]source.Adapter{}, m.loras...), more...)
	return &adapted
}

// WithLora returns a copy of the handle with the adapters of a file, or c itself where they change nothing of it.
func (c *Clip) WithLora(name string, f files.Checkpoint, strength float64, found *lora.Matched) *Clip {
	more := loraUses(name, f, strength, found, func(part string) bool { return part != "" })
	if c == nil || more == nil {
		return c
	}
	adapted := *c
	adapted.loras = append(append([]source.Adapter{}, c.loras...), more...)
	return &adapted
}
