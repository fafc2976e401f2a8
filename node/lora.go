package node

import (
	"fmt"
	"strings"

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

// loraClasses are the rows that add low-rank adapters to handles. Nothing is merged: handles with different adapters share the packed weights.
func loraClasses() []Class {
	strength := func(name, tip string) Input {
		return number(name, "FLOAT", tip, "default", 1.0, "min", -100.0, "max", 100.0, "step", 0.01)
	}
	return []Class{
		{
			Name: "LoraLoader", Display: "Load LoRA", Module: "nodes", Category: "loaders", Heavy: stageLoad,
			Description: "Adds the low-rank adapters of a LoRA file to the diffusion model and to the text encoders. Several can follow each other.",
			Inputs: []Input{
				linkIn("model", "MODEL", "the diffusion model that is adapted"), linkIn("clip", "CLIP", "the text encoders that are adapted"),
				fileIn("lora_name", files.KindLora).with(), strength("strength_model", "how much of it the diffusion model gets; may be negative"),
				strength("strength_clip", "how much of it the text encoders get; may be negative"),
			},
			Outputs: slots("MODEL", "CLIP"), Change: modelChange(files.KindLora, "lora_name"), Run: func(c *Call) ([]any, error) {
				m, clip, err := c.withLora(value[*Model](c, "model"), value[*Clip](c, "clip"), c.float("strength_model"), c.float("strength_clip"))
				return []any{m, clip}, err
			},
		},
		{
			Name: "LoraLoaderModelOnly", Module: "nodes", Category: "loaders", Heavy: stageLoad,
			Description: "Adds the low-rank adapters of a LoRA file to the diffusion model.",
			Inputs:      []Input{bareIn("model", "MODEL"), fileIn("lora_name", files.KindLora), strength("strength_model", "")},
			Outputs:     slots("MODEL"), Change: modelChange(files.KindLora, "lora_name"), Run: func(c *Call) ([]any, error) {
				m, _, err := c.withLora(value[*Model](c, "model"), nil, c.float("strength_model"), 0)
				return []any{m}, err
			},
		},
	}
}

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

// withLora returns copies of the handles with the adapters of the file that the input lora_name names. A strength of 0 leaves a handle as it is, both 0 do not
// even open the file (ComfyUI nodes.py, LoraLoader). clip may be nil.
func (c *Call) withLora(m *Model, clip *Clip, onModel, onClip float64) (*Model, *Clip, error) {
	if onModel == 0 && onClip == 0 {
		return m, clip, nil
	}
	keys, err := c.loraKeys(m, clip)
	if err != nil {
		return nil, nil, err
	}
	err = c.fromFile(files.KindLora, "lora_name", func(f files.Checkpoint, _ *weights.File, set *weights.Set) error {
		found, err := lora.Match(set, keys)
		if err != nil {
			return err
		}
		c.warnUnused(found.Unused, clip == nil)
		use := func(strength float64, has func(part string) bool) []loraUse {
			u := loraUse{name: c.str("lora_name"), file: f, strength: float32(strength)}
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
		if more := use(onModel, func(part string) bool { return part == "" }); more != nil {
			adapted := *m
			adapted.loras = append(append([]loraUse{}, m.loras...), more...)
			m = &adapted
		}
		if more := use(onClip, func(part string) bool { return part != "" }); more != nil {
			adapted := *clip
			adapted.loras = append(append([]loraUse{}, clip.loras...), more...)
			clip = &adapted
		}
		return nil
	})
	return m, clip, err
}

// loraKeys lists what files may call the weights of the handles.
func (c *Call) loraKeys(m *Model, clip *Clip) (*lora.Keys, error) {
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

// warnUnused tells of tensors that fit nothing. Those of text encoders are left out where the node adapts the model only.
func (c *Call) warnUnused(names []string, modelOnly bool) {
	var odd []string
	for _, n := range names {
		if !modelOnly || !strings.HasPrefix(n, "lora_te") && !strings.HasPrefix(n, "text_encoder") {
			odd = append(odd, n)
		}
	}
	if len(odd) > 0 {
		c.warn("node %s: %d tensors of %s fit nothing here and are not used: %s", c.ID, len(odd), c.str("lora_name"), fault.List(odd))
	}
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

// share makes req load its weights through those that the runner's handles share. Until the returned function is called, bases that are loaded stay loaded,
// though making room for the request may take their last handle away.
func (c *Call) share(req *parallel.Request, m *Model) func() { return c.run.share(&req.Model, m) }

func (r *Runner) share(req *parallel.Model, m *Model) func() {
	s, uses := r.shared, m.loras
	for i := range uses {
		req.WeightBytes += uses[i].file.Size
	}
	req.Key = m.Key + loraKey(uses)
	req.Load = func(ops engine.Ops, held dit.Held) (dit.Model, error) {
		base, release, err := take(s, fmt.Sprintf("%s %+v", m.Key, held), func() (dit.Model, error) { return m.load(ops, held) })
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
	return s.pin(m.Key + " ")
}

// adaptedEncoder is a text encoder in the runner's cache that shares its base with others.
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
func lentEncoder[T resident](c *Call, l *parallel.Local, clip *Clip, e *encoder, open func(engine.Ops, *weights.Set, []byte) (T, error), adapt func(T, engine.Ops, []weights.LowRank) (T, error)) (T, error) {
	key := e.kind + " " + e.file.Checkpoint.Key() + " " + e.prefix
	var uses []loraUse
	for _, u := range clip.loras {
		if len(additionsTo(u.additions, e.kind)) > 0 {
			uses = append(uses, u)
		}
	}
	kept, err := lent(c, key+loraKey(uses), func() (*adaptedEncoder[T], error) {
		base, release, err := take(c.run.shared, key, func() (T, error) { return loadEncoder(l, e, open) })
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
func (c *Call) clipNet(l *parallel.Local, clip *Clip, e *encoder) (*text.CLIP, error) {
	return lentEncoder(c, l, clip, e, text.OpenCLIP, (*text.CLIP).Adapt)
}

func (c *Call) t5Net(l *parallel.Local, clip *Clip, e *encoder) (*text.T5, error) {
	return lentEncoder(c, l, clip, e, text.OpenT5, (*text.T5).Adapt)
}

func (c *Call) bertNet(l *parallel.Local, clip *Clip, e *encoder) (*text.BERT, error) {
	return lentEncoder(c, l, clip, e, text.OpenBERT, (*text.BERT).Adapt)
}
