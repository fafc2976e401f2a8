package value

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/fault"
	"patchbay/models"
	"patchbay/models/lora"
	"patchbay/models/source"
	"patchbay/models/text"
	"patchbay/models/weights"
	"patchbay/node/files"
	"patchbay/parallel"
	"patchbay/parallel/request"
)

// use makes req load its weights through the store's loader, which shares base weights. Bases that are loaded stay
// loaded until the returned function is called, even if their last handle is evicted to make room for the request.
func (s *Store) use(req *request.Model) func() {
	w, ok := req.Weights.(source.Weights)
	if !ok {
		return func() {}
	}
	w.Loader = s.loader
	req.Weights = w
	return s.loader.Pin(w.Model)
}

// adaptedEncoder is a part of a text encoder that may share its base weights with others.
type adaptedEncoder struct {
	net   text.Net
	bytes int64 // includes the base, which is thus counted once per encoder sharing it
	free  func()
}

// Bytes returns the memory that this encoder would need on its own.
func (e *adaptedEncoder) Bytes() int64 { return e.bytes }

// Close frees what belongs to this encoder alone, and the base if no other encoder uses it.
func (e *adaptedEncoder) Close() { e.free() }

// cachedEncoder returns the parts of an encoder, at most one for each of ops, with the adapters of its clip. It loads
// what is not resident.
func cachedEncoder(u Use, l *parallel.Workspace, ops []engine.Ops, clip *Clip, e *encoder) (parts []text.Net,
	err error,
) {
	n := len(ops)
	if n > 1 {
		n, err = read(e.file, "clip", func(file *weights.File) (int, error) {
			return text.Parts(e.kind, e.set(file, l.DType), e.config, n)
		})
		if err != nil {
			return nil, err
		}
	}
	uses := source.ForPart(e.kind, clip.Loras)
	for r := range n {
		part, err := cachedPart(u, l, ops[r], e, uses, r, n)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	return parts, nil
}

// cachedPart returns part r of n of an encoder. Its base stays loaded meanwhile, even if its last user is dropped to
// make room.
func cachedPart(u Use, l *parallel.Workspace, ops engine.Ops, e *encoder, uses []source.Adapter, r, n int,
) (text.Net, error) {
	key := fmt.Sprintf("%s %s %s/%d of %d", e.kind, e.file.Key(), e.prefix, r, n)
	shared := &u.Store.loader.Shared
	defer shared.Pin(key)()
	open := func(ops engine.Ops, file *weights.File, room int64) (text.Net, error) {
		return text.OpenPart(ops, e.kind, e.set(file, l.DType), e.config, r, n, room)
	}
	k := keeping{key: key + source.Keys(uses), file: e.file, field: "clip", rank: r}
	adapted, err := keep(u, l, k, l.Room(), func() int64 {
		return sizeOf(k, func(ops engine.Ops, file *weights.File) (text.Net, error) { return open(ops, file, 0) })
	}, func(room int64) (*adaptedEncoder, error) {
		base, release, err := source.Take(shared, key, func() (*opened[text.Net], error) {
			return openNet(e.file, k.field, func(file *weights.File) (text.Net, error) { return open(ops, file, room) })
		})
		if err != nil {
			return nil, err
		}
		if len(uses) == 0 {
			return &adaptedEncoder{base.net, base.Bytes(), release}, nil
		}
		var net text.Net
		err = source.WithLowRank(e.kind, uses, func(list []weights.LowRank) (err error) {
			net, err = base.net.Adapt(ops, list)
			return err
		})
		if err != nil {
			release()
			return nil, fault.Wrap(fault.BadCheckpoint, k.field, fmt.Errorf("clip: %w", err))
		}
		return &adaptedEncoder{net, base.Bytes() + net.Bytes(), func() { net.Close(); release() }}, nil
	})
	if err != nil {
		return nil, err
	}
	return adapted.net, nil
}

// bringing is a network that may read layers from its file before each use.
type bringing interface {
	resident
	Brings() bool
}

// opened is a network and the file that it reads layers from before each use; nil: it keeps all.
type opened[T bringing] struct {
	net  T
	file *weights.File
}

// openNet opens a network of a file, which stays open if the network does not keep all layers. field is the input that
// the file came from.
func openNet[T bringing](f source.File, field string, open func(*weights.File) (T, error)) (*opened[T], error) {
	file, err := f.Hold()
	if err != nil {
		return nil, fault.Wrap(fault.BadCheckpoint, field, err)
	}
	out := &opened[T]{}
	err = func() (err error) {
		defer datafile.Catch(&err)
		out.net, err = open(file)
		return err
	}()
	if err != nil {
		_ = file.Close() // the first error is the one to report
		code := fault.BadCheckpoint
		if fault.Is(err, fault.OutOfMemory) {
			code = fault.OutOfMemory
		}
		return nil, fault.Wrap(code, field, fmt.Errorf("load %s: %w", f.Path, err))
	}
	if out.net.Brings() {
		out.file = file
		return out, nil
	}
	return out, file.Close()
}

func (o *opened[T]) Bytes() int64 { return o.net.Bytes() }

// Close frees the weights and closes the file.
func (o *opened[T]) Close() {
	o.net.Close()
	if o.file != nil {
		_ = o.file.Close() // only read from
	}
}

// LoraKeys returns the names that LoRA files may use for the weights of the handles. clip may be nil.
func LoraKeys(m *Model, clip *Clip) (*lora.Keys, error) {
	if m.declare == nil {
		return nil, fault.Named(fault.Internal, "model", "%s does not tell its weights", m.Name)
	}
	declared, err := m.declare()
	if err != nil {
		return nil, err
	}
	f, _ := models.Named(m.Spec.Family) // found: m was described by that table
	keys := lora.Diffusion(f.Name, f.Names, declared)
	if clip == nil {
		return keys, nil
	}
	var encoders []lora.Encoder
	for i := range clip.parts {
		e := lora.Encoder{Kind: clip.parts[i].kind, Shapes: map[string][]int{}}
		if err := files.With(clip.parts[i].file, func(file *weights.File) error {
			set := text.Plain(file.Set().Prefix(clip.parts[i].prefix))
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

// loraUses returns how a LoRA file applies to the model or, if model is false, to text encoders; nil if it changes
// nothing.
func loraUses(h files.Header, strength float64, found *lora.Matched, model bool) []source.Adapter {
	u := source.Adapter{Name: h.Name, File: h.File, Strength: float32(strength)}
	for _, a := range found.Additions {
		if (a.Part == "") == model {
			u.Additions = append(u.Additions, a)
		}
	}
	if model {
		u.Changes = found.Changes // norms and columns apply whatever the strength, as in ComfyUI
	}
	if (strength == 0 || len(u.Additions) == 0) && len(u.Changes) == 0 {
		return nil
	}
	return []source.Adapter{u}
}

// WithLora returns a copy of the handle with the adapters of a file, or m itself if they change nothing in it. It
// returns an error if they give a matrix a number of columns that no model of the family has.
func (m *Model) WithLora(h files.Header, strength float64, found *lora.Matched) (*Model, error) {
	out, err := m.changed(loraUses(h, strength, found, true)...)
	if says := h.Weights.Metadata(); err == nil && len(says) > 0 {
		adapted := *out
		adapted.Guiding = &Guiding{Downscale: downscale(says)}
		out = &adapted
	}
	return out, err
}

// Guiding is an IC_LORA_PARAMETERS: what an adapter wants of the pictures that guide a video.
type Guiding struct {
	Downscale int // a side of the video by that of the pictures, at least 1
}

// downscale returns the factor in an adapter's metadata, rounded to even as by ComfyUI; 1 if there is none or it is no
// number.
func downscale(says map[string]string) int {
	for _, key := range slices.Sorted(maps.Keys(says)) {
		if strings.HasSuffix(key, "reference_downscale_factor") {
			if v, err := strconv.ParseFloat(strings.TrimSpace(says[key]), 64); err == nil && v < 1<<20 {
				return max(1, int(math.RoundToEven(v)))
			}
			return 1
		}
	}
	return 1
}

// changed returns a copy of the handle with more adapters, described again if they widen a matrix.
func (m *Model) changed(more ...source.Adapter) (*Model, error) {
	if len(more) == 0 {
		return m, nil
	}
	adapted := *m
	adapted.Loras = slices.Concat(m.Loras, more)
	changes, _, err := source.Changes(adapted.Loras)
	if err != nil || !slices.ContainsFunc(changes, func(c weights.Change) bool { return c.Columns > 0 }) {
		return &adapted, err
	}
	err = m.file.With(func(file *weights.File) error {
		d, err := models.OpenDiffusion(file.Set(), file.Metadata(), changes...)
		if err == nil {
			adapted.Spec, adapted.declare = &d.Spec, d.Declare
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &adapted, nil
}

// WithLora returns a copy of the handle with the adapters of a file, or c itself if they change nothing in it.
func (c *Clip) WithLora(h files.Header, strength float64, found *lora.Matched) *Clip {
	more := loraUses(h, strength, found, false)
	if c == nil || more == nil {
		return c
	}
	adapted := *c
	adapted.Loras = slices.Concat(c.Loras, more)
	return &adapted
}
