package value

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models"
	"patchbay/models/dit"
	"patchbay/models/lora"
	"patchbay/models/text"
	"patchbay/models/weights"
	"patchbay/node/fault"
	"patchbay/node/files"
	"patchbay/parallel"
)

// loraUse is one LoRA file on a handle, as it was matched when the node ran. The data is read when the weights are.
type loraUse struct {
	name      string // as the workflow calls it
	file      files.Checkpoint
	strength  float32
	additions []lora.Addition

	own []weights.LowRank // of a host, in place of a file; valid while its request runs
	id  string            // names own
}

// loraKey makes the adapters part of the key of weights.
func loraKey(uses []loraUse) string {
	key := ""
	for i := range uses {
		if uses[i].own != nil {
			key += "+own " + uses[i].id
			continue
		}
		key += fmt.Sprintf("+lora %s*%v", uses[i].file.Key(), uses[i].strength)
	}
	return key
}

// withAdditions runs f with the additions of all uses to one part; their data is valid until f returns.
func withAdditions(uses []loraUse, part string, f func([]weights.LowRank) error) error {
	var all []weights.LowRank
	for _, u := range uses {
		if u.own != nil {
			all = append(all, u.own...)
			continue
		}
		file, err := u.file.Open()
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		list, err := lora.Gather(file.Set(), additionsTo(u.additions, part), u.strength)
		if err != nil {
			return fmt.Errorf("%s: %w", u.name, err)
		}
		all = append(all, list...)
	}
	return f(all)
}

func additionsTo(list []lora.Addition, part string) []lora.Addition {
	return (&lora.Matched{Additions: list}).Part(part)
}

// adaptedModel is a model on ranks that shares its base with others.
type adaptedModel struct {
	dit.Model
	free func()
}

// Close gives back what the model alone has, and the base if nobody else uses it.
func (m *adaptedModel) Close() { m.free() }

// share makes req load its weights through those that handles share. Until the returned function is called, bases that
// are loaded stay loaded, though making room for the request may take their last handle away.
func (s *Store) share(req *parallel.Model, m *Model) func() {
	uses := m.loras
	for i := range uses {
		req.WeightBytes += uses[i].file.Size
	}
	req.Key = m.Key + loraKey(uses)
	req.Load = func(ops engine.Ops, held dit.Held) (dit.Model, error) {
		where := "" // every device has a base of its own
		if device, ok := ops.(engine.Located); ok {
			where = device.Location()
		}
		base, release, err := take(s.shared, fmt.Sprintf("%s %s %+v", m.Key, where, held),
			func() (dit.Model, error) { return m.Load(ops, held) })
		if err != nil {
			return nil, err
		}
		if len(uses) == 0 {
			return &adaptedModel{base, release}, nil
		}
		var adapted dit.Model
		err = withAdditions(uses, "", func(list []weights.LowRank) (err error) {
			adapted, err = models.Adapt(ops, base, list)
			return err
		})
		if err != nil {
			release()
			return nil, err
		}
		return &adaptedModel{adapted, func() { adapted.Close(); release() }}, nil
	}
	return s.shared.pin(m.Key + " ")
}

// adaptedEncoder is a text encoder in the store that shares its base with others.
type adaptedEncoder[T resident] struct {
	net   T
	bytes int64 // with the base: several that share one count it more than once
	free  func()
}

// Bytes returns the memory that would be needed for this one alone.
func (e *adaptedEncoder[T]) Bytes() int64 { return e.bytes }

// Close gives back what the encoder alone has, and the base if nobody else uses it.
func (e *adaptedEncoder[T]) Close() { e.free() }

// lentEncoder takes an encoder with the adapters of its clip from the cache, or loads what is missing of it.
func lentEncoder[T resident](u Use, l *parallel.Local, clip *Clip, e *encoder,
	open func(engine.Ops, *weights.Set, []byte) (T, error),
	adapt func(T, engine.Ops, []weights.LowRank) (T, error),
) (T, error) {
	key := e.kind + " " + e.file.Checkpoint.Key() + " " + e.prefix
	var uses []loraUse
	for _, u := range clip.loras {
		if len(additionsTo(u.additions, e.kind)) > 0 {
			uses = append(uses, u)
		}
	}
	kept, err := lent(u, key+loraKey(uses), func() (*adaptedEncoder[T], error) {
		base, release, err := take(u.Store.shared, key, func() (T, error) { return loadEncoder(l, e, open) })
		if err != nil {
			return nil, err
		}
		if len(uses) == 0 {
			return &adaptedEncoder[T]{base, base.Bytes(), release}, nil
		}
		var net T
		err = withAdditions(uses, e.kind, func(list []weights.LowRank) (err error) {
			net, err = adapt(base, l.Ops, list)
			return err
		})
		if err != nil {
			release()
			return nil, fault.At(fault.CodeBadCheckpoint, "clip", "clip: %v", err)
		}
		return &adaptedEncoder[T]{net, base.Bytes() + net.Bytes(), func() { net.Close(); release() }}, nil
	})
	if err != nil {
		var none T
		return none, err
	}
	return kept.net, nil
}

// clipNet, t5Net and bertNet are lentEncoder for the three networks.
func (c *Clip) clipNet(u Use, l *parallel.Local, e *encoder) (*text.CLIP, error) {
	return lentEncoder(u, l, c, e, text.OpenCLIP, (*text.CLIP).Adapt)
}

func (c *Clip) t5Net(u Use, l *parallel.Local, e *encoder) (*text.T5, error) {
	return lentEncoder(u, l, c, e, text.OpenT5, (*text.T5).Adapt)
}

func (c *Clip) bertNet(u Use, l *parallel.Local, e *encoder) (*text.BERT, error) {
	return lentEncoder(u, l, c, e, text.OpenBERT, (*text.BERT).Adapt)
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
	keys, err := lora.Diffusion(m.Spec.Family, declared)
	if err != nil {
		return nil, fault.At(fault.CodeWrongFamily, "model", "model: %v", err)
	}
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
) []loraUse {
	u := loraUse{name: name, file: f, strength: float32(strength)}
	for _, a := range found.Additions {
		if has(a.Part) {
			u.additions = append(u.additions, a)
		}
	}
	if strength == 0 || len(u.additions) == 0 {
		return nil
	}
	return []loraUse{u}
}

// Adapters names the adapters of the handle in the order in which they were added.
func (m *Model) Adapters() []string { return loraNames(m.loras) }

// Adapters names the adapters of the handle in the order in which they were added.
func (c *Clip) Adapters() []string { return loraNames(c.loras) }

func loraNames(uses []loraUse) []string {
	var out []string
	for i := range uses {
		out = append(out, uses[i].name)
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
	adapted.loras = append(append([]loraUse{}, m.loras...), more...)
	return &adapted
}

// WithLora returns a copy of the handle with the adapters of a file, or c itself where they change nothing of it.
func (c *Clip) WithLora(name string, f files.Checkpoint, strength float64, found *lora.Matched) *Clip {
	more := loraUses(name, f, strength, found, func(part string) bool { return part != "" })
	if c == nil || more == nil {
		return c
	}
	adapted := *c
	adapted.loras = append(append([]loraUse{}, c.loras...), more...)
	return &adapted
}
