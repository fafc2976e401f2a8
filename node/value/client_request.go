package value

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"patchbay/fault"
	"patchbay/models/latent"
	"patchbay/models/sampling"
	"patchbay/models/text"
	"patchbay/node/files"
	"patchbay/parallel"
	"patchbay/parallel/request"
)

// ModelFile names a diffusion model in the models folders.
type ModelFile struct {
	Name        string // relative to diffusion_models, unet or checkpoints
	Fingerprint string // hash of its header (safetensors.File.HeaderHash); empty: any content
	Patches     []Patch
	Nets        []NetFile // in the order in which they modify block outputs
}

// NetFile names a model patch in the models folders. Hint is what it follows, in model space, or for a feature
// projector the picture encoder's states that it reads, [len(text.Deep()), 1, L, E].
type NetFile struct {
	Name, Fingerprint string
	Hint              request.Latent
	Strength          float32
}

// TimeLine is a host's view of what sigma means to its model: the names of ComfyUI's model sampling classes and their
// parameters. For nil parameters the file's are used.
type TimeLine struct {
	Bases             []string
	Shift, Multiplier *float64
}

// ClientRequest is a sampling run whose tensors come from a host. Store.Sample fills in Model, Sampling and Options of
// Request.
type ClientRequest struct {
	Model    ModelFile
	TimeLine *TimeLine // nil: as the file says
	Options  map[string]any
	Request  request.Request
}

// ClientProgress is the progress of a ClientRequest after a step; Preview renders its picture.
type ClientProgress struct {
	request.Progress
	Preview func() []byte // JPEG of the first item of X0; nil without X0 or if the model has no previews
}

// fitsHost rejects inputs that the model would ignore or that have the wrong size: ignoring them would give a plausible
// but wrong picture. It fills in sizes and text padding that the host left out.
func (m *Model) fitsHost(req *request.Request) error {
	for _, b := range req.Branches {
		for i := range b.Entries {
			e, l := &b.Entries[i], req.Latent
			e.Context = m.filled(e.Context)
			if !m.Spec.TakesGuidance {
				e.Guidance = nil // ComfyUI sends it to every FLUX; those without the input drop it
			}
			for _, input := range []struct {
				key          string
				given, taken bool
			}{
				{"attention_mask", e.ContextLen > 0 && e.ContextLen < e.Context.Rows, m.Spec.Context2Dim > 0 || m.Traits.TextMask},
				{"references", e.References != nil, m.Spec.References},
				{"references_slots", e.Slots != nil, m.Spec.Preface},
				{"biases", e.Biases != nil, m.Spec.Biases},
				{"encoder_hidden_states_t5", e.Context2.Rows > 0, m.Spec.Context2Dim > 0},
				{"size", e.Size != nil, m.Traits.SizeCond != nil},
				{"c_concat", e.Concat.Data != nil, m.Spec.Concat > 0},
			} {
				if input.given && !input.taken {
					return fault.Bad("conds."+b.Name+"."+input.key, "the %s model takes no %s (entry %d)", m.Spec.Family, input.key, i)
				}
			}
			if e.Size == nil {
				e.Size = m.sizeCond(&Cond{}, b.Name, l)
			}
			if c := e.Concat; m.Spec.Concat > 0 && (c.Y != l.Y || c.X != l.X || len(c.Data) != m.Spec.Concat*l.Y*l.X) {
				return fault.Bad("conds."+b.Name+".c_concat", "%d numbers for %d x %d: the %s model reads %d channels of the "+
					"latent's %d x %d (entry %d)", len(c.Data), c.Y, c.X, m.Spec.Family, m.Spec.Concat, l.Y, l.X, i)
			}
			for _, r := range e.References {
				if want := m.Format.Channels; len(r.Data) != want*r.Y*r.X {
					return fault.Bad("conds."+b.Name+".references", "a latent of %d numbers for %d x %d: the %s model has %d channels",
						len(r.Data), r.Y, r.X, m.Spec.Family, want)
				}
			}
		}
	}
	return nil
}

// OpenFile describes the diffusion model of a file, which is looked up among diffusion models first and then among full
// checkpoints. Only the header is read. Errors are *Failure.
func OpenFile(roots files.Roots, f ModelFile) (m *Model, err error) {
	kind := eitherKind(roots, f.Name, files.KindDiffusion, files.KindCheckpoint)
	err = roots.Header(kind, "model.file", f.Name, false, func(h files.Header) (err error) {
		if err := checkFingerprint("model", f.Fingerprint, h); err != nil {
			return err
		}
		m, err = OpenModel(h)
		return err
	})
	if err != nil {
		return nil, err
	}
	return m.patched(f.Patches)
}

// eitherKind returns first, or second if only that kind has a file of the given name.
func eitherKind(roots files.Roots, name, first, second string) string {
	if _, err := roots.Resolve(first, "", name); err != nil {
		if _, err := roots.Resolve(second, "", name); err == nil {
			return second
		}
	}
	return first
}

// checkFingerprint returns an error if the file's header hash is not the one the request asks for.
func checkFingerprint(part, fingerprint string, h files.Header) error {
	if fingerprint == "" || strings.EqualFold(fingerprint, h.Hash) {
		return nil
	}
	return fault.Named(fault.FileMissing, part+".fingerprint", "%s has the header hash %s, the request means %s: the "+
		"file of that name is another one", h.Name, h.Hash, fingerprint)
}

// openNets describes the model patches that a host names for its model. With controls, names without a model patch are
// looked up among control nets too. Only headers are read. Errors are *Failure.
func (m *Model) openNets(roots files.Roots, list []NetFile, controls bool) ([]*ModelPatch, error) {
	var out []*ModelPatch
	for i, f := range list {
		part, kind := fmt.Sprintf("model.nets[%d]", i), files.KindModelPatch
		if controls {
			kind = eitherKind(roots, f.Name, kind, files.KindControl)
		}
		err := roots.Header(kind, part+".file", f.Name, false, func(h files.Header) error {
			if err := checkFingerprint(part, f.Fingerprint, h); err != nil {
				return err
			}
			p, err := OpenNet(kind, h, m)
			if err == nil {
				err = p.fits(m.Spec)
			}
			if err != nil {
				return fault.Family(part+".file", "%v", err)
			}
			out = append(out, p)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// OpenNet describes a net that runs beside a model: a model patch, or a control net wrapped as one. A control net may
// borrow weights from base; nil: the base model is not known.
func OpenNet(kind string, h files.Header, base *Model) (*ModelPatch, error) {
	if kind != files.KindControl {
		return OpenModelPatch(h)
	}
	n, err := OpenControlNet(h)
	if err == nil && base != nil {
		n, err = n.WithBorrowed(base)
	}
	if err != nil {
		return nil, err
	}
	return &ModelPatch{ControlNet: *n}, nil
}

// nets attaches the model patches of a host to all entries of a request.
func (m *Model) nets(u Use, req *request.Request, list []NetFile) error {
	opened, err := m.openNets(u.Store.roots, list, false)
	var out []request.Control
	for i, p := range opened {
		h, part := list[i].Hint, fmt.Sprintf("model.nets[%d].", i)
		if p.sizes != nil {
			if err := m.applyProjector(u, p, list[i], part); err != nil {
				return err
			}
			continue
		}
		y, x := p.Spec.HintSize(req.Latent.Y, req.Latent.X)
		if h.B != 1 || h.C != p.Hint || h.Y != y || h.X != x {
			return fault.Bad(part+"hint", "[%d, %d, %d, %d], %s reads [1, %d, %d, %d] for this latent", h.B, h.C, h.Y, h.X,
				p.Name, p.Hint, y, x)
		}
		out = append(out, p.control(h, list[i].Strength))
	}
	for _, b := range req.Branches {
		for i := range b.Entries {
			b.Entries[i].Control, b.Entries[i].Prefix = out, m.Prefix
		}
	}
	return err
}

// applyProjector runs a feature projector on a host's picture encoder states and puts the rows in front of the model's
// text.
func (m *Model) applyProjector(u Use, p *ModelPatch, f NetFile, part string) error {
	deep, h := len(text.Deep()), f.Hint
	if h.B != deep || h.C != 1 || h.Y != p.sizes.Tokens || h.X != p.sizes.Width {
		return fault.Bad(part+"hint", "%v, %s reads states [%d, %d, %d] of a picture encoder, those behind its layers %v",
			h.Shape(), p.Name, deep, p.sizes.Tokens, p.sizes.Width, text.Deep())
	}
	if f.Strength != 1 {
		return fault.Bad(part+"strength", "%v, what %s makes of a picture has none: leave it out, or 1", f.Strength, p.Name)
	}
	return p.Show(u, m, VisionOutput{Rows: h.Y, Cols: h.X, Deep: h.Data})
}

const discrete = "ModelSamplingDiscrete"

// build returns the model sampling that a host asks for, based on that of the file. Unknown classes are errors.
func (t *TimeLine) build(ofFile *sampling.ModelSampling) (*sampling.ModelSampling, error) {
	shift, multiplier := ofFile.Shift(), ofFile.Multiplier()
	if t.Shift != nil {
		shift = *t.Shift
	}
	if t.Multiplier != nil {
		multiplier = *t.Multiplier
	}
	if own, _, _ := ofFile.Classes(); slices.Equal(own, t.Bases) && !ofFile.IsFlow() {
		return ofFile, nil
	} else if own[0] != discrete && !ofFile.IsFlow() {
		return nil, fault.Bad("sampling.bases", "the model of the file is sampled with %s only", strings.Join(own, " and "))
	}
	known := []string{
		"ModelSamplingFlux", "ModelSamplingDiscreteFlow", discrete, "CONST",
		"EPS", "V_PREDICTION",
	}
	for _, b := range t.Bases {
		if !slices.Contains(known, b) {
			return nil, fault.Bad("sampling.bases", "%q is not known; the classes are %s", b, strings.Join(known, ", "))
		}
	}
	has := func(name string) bool { return slices.Contains(t.Bases, name) }
	if has("CONST") != ofFile.IsFlow() && (has("CONST") || has("EPS") || has("V_PREDICTION")) {
		return nil, fault.Bad("sampling.bases", "the model of the file predicts %s", ofFile.Prediction())
	}
	var out *sampling.ModelSampling
	var err error
	switch {
	case has("ModelSamplingFlux"):
		out, err = sampling.NewFlux(shift)
	case has("ModelSamplingDiscreteFlow"):
		out, err = sampling.NewFlow(shift, multiplier)
	case ofFile.IsFlow() && (t.Shift != nil || t.Multiplier != nil || has(discrete)):
		return nil, fault.Bad("sampling.bases", "a shift belongs to ModelSamplingFlux or ModelSamplingDiscreteFlow: name "+
			"one of them")
	case has("V_PREDICTION"):
		return ofFile.Predicting(sampling.V), nil
	case has("EPS"):
		return ofFile.Predicting(sampling.Eps), nil
	default:
		return ofFile, nil
	}
	if err != nil {
		return nil, fault.Bad("sampling.shift", "%v", err)
	}
	if !ofFile.IsFlow() {
		return nil, fault.Bad("sampling.bases", "the model of the file is no flow model, it predicts %s", ofFile.Prediction())
	}
	return out, nil
}

func (s *Store) evict(match func(key string) bool) int64 {
	if s.engine == nil {
		return 0
	}
	var n int64
	for _, m := range s.engine.Resident() {
		if m.Beside {
			continue
		}
		if key, _, _ := strings.Cut(m.Key, "#tensor"); match(key) {
			n += m.Bytes
			s.engine.Evict(key)
		}
	}
	return n
}

// Sample runs a host's request. The resulting latent stays in model space. Errors are *Failure; Field names the part of
// the message at fault.
func (s *Store) Sample(ctx context.Context, q *ClientRequest,
	observe func(ClientProgress) error,
) (*request.Result, error) {
	if s.engine == nil {
		return nil, noDevice("sampling")
	}
	m, err := OpenFile(s.roots, q.Model)
	if err != nil {
		return nil, err
	}
	req := q.Request
	req.Model, req.Sampling = m.Request(), m.Sampling
	if q.TimeLine != nil {
		if req.Sampling, err = q.TimeLine.build(m.Sampling); err != nil {
			return nil, err
		}
	}
	if c := req.Cache; c != nil && c.Rule == request.CacheEasy && m.Traits.NoStepCache {
		req.Cache = nil // as in ComfyUI
	}
	sampler, err := sampling.FindSampler(req.Sampler)
	if err != nil {
		return nil, fault.Bad("sampler.name", "%v", err)
	}
	if req.Options, err = sampler.NewOptions(q.Options); err != nil {
		return nil, fault.Bad("sampler.options", "%v", err)
	}
	if err := m.fitsHost(&req); err != nil {
		return nil, err
	}
	u := Use{Context: ctx, Store: s, Loading: new(float64)}
	if err := m.nets(u, &req, q.Model.Nets); err != nil {
		return nil, fault.From(err)
	}
	out, err := u.Sample(&req, m, func(p request.Progress) error {
		if observe == nil {
			return ctx.Err()
		}
		h := ClientProgress{Progress: p}
		if p.X0.Len() > 0 {
			h.Preview = func() []byte { return m.Preview(p.X0) }
		}
		return observe(h)
	})
	if err != nil {
		return nil, fault.From(err)
	}
	if err := Finite(out.Latent.Data); err != nil {
		return nil, fault.New(fault.BadInput, "the %s sampler gave no usable latent (%v)", req.Sampler, err)
	}
	out.Stats.Model = m.Name
	return out, nil
}

// Loaded describes a resident model to a host.
type Loaded struct {
	parallel.Loaded
	// Latent is the model's latent format: the family's, with the file's scale and shift if it has them.
	Latent latent.Format
}

// Load makes the weights of a model file resident for a plan.
func (s *Store) Load(ctx context.Context, f ModelFile, plan string) (out Loaded, err error) {
	if s.engine == nil {
		return out, noDevice("loading")
	}
	m, err := OpenFile(s.roots, f)
	if err != nil {
		return out, err
	}
	what := m.Request()
	defer s.use(&what)()
	out.Latent = m.Format
	if out.Loaded, err = s.engine.Load(ctx, what, plan); err != nil {
		return out, fault.From(err)
	}
	return out, nil
}

// FreeModel evicts the weights of a model file and returns the bytes freed, 0 if it was not resident. It waits for a
// running request.
func (s *Store) FreeModel(name string) (int64, error) {
	m, err := OpenFile(s.roots, ModelFile{Name: name})
	if err != nil {
		return 0, err
	}
	return s.evict(func(key string) bool { return key == m.Key || strings.HasPrefix(key, m.Key+"+") }), nil
}

// FreeModels evicts the weights of all diffusion models and returns the bytes freed.
func (s *Store) FreeModels() int64 { return s.evict(func(string) bool { return true }) }
