package value

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"patchbay/models/latent"
	"patchbay/models/sampling"
	"patchbay/models/text"
	"patchbay/node/fault"
	"patchbay/node/files"
	"patchbay/parallel"
)

// ModelFile names a diffusion model in the models folders.
type ModelFile struct {
	Name        string // relative to diffusion_models, unet or checkpoints
	Fingerprint string // hash of its header (safetensors.File.HeaderHash); empty: any file of that name
	Patches     []Patch
	Nets        []NetFile // in the order in which they change what blocks say
}

// NetFile names a model patch in the models folders and gives it what it follows, in model space, or of a projector of
// style the states that it reads, [text.Deep, 1, L, E].
type NetFile struct {
	Name, Fingerprint string
	Hint              parallel.Latent
	Strength          float32
}

// TimeLine says what sigma means, as a host knows it of its model: the names of ComfyUI's classes, and their
// parameters. Nil parameters are the file's.
type TimeLine struct {
	Bases             []string
	Shift, Multiplier *float64
}

// HostRequest is a sampling run whose numbers come from a host. Of Request, Model, Sampling and Options are filled in
// here.
type HostRequest struct {
	Model    ModelFile
	TimeLine *TimeLine // nil: what the file says
	Options  map[string]any
	Request  parallel.Request
}

// HostProgress is a step of a HostRequest; Preview makes its picture.
type HostProgress struct {
	parallel.Progress
	Preview func() []byte // JPEG of the first item of X0; nil without X0 or for a model that has no preview
}

// fitsHost refuses values that the model would pass over, and pooled values where it has none: ignoring them would give
// a plausible wrong picture.
func (m *Model) fitsHost(req *parallel.Request) error {
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
				e.Size = m.sizeCond([2]int{}, l)
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

// OpenFile describes the diffusion model of a file: of the folder for those alone, else of a full checkpoint. Only the
// header is read. Errors are *Failure.
func OpenFile(roots files.Roots, f ModelFile) (m *Model, err error) {
	kind := eitherKind(roots, f.Name, files.KindDiffusion, files.KindCheckpoint)
	err = roots.Header(kind, "model.file", f.Name, false, func(h files.Header) (err error) {
		if err := meant("model", f.Fingerprint, h); err != nil {
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

// eitherKind is the first kind of file, or the second where that alone has one of a name.
func eitherKind(roots files.Roots, name, first, second string) string {
	if _, err := roots.Resolve(first, "", name); err != nil {
		if _, err := roots.Resolve(second, "", name); err == nil {
			return second
		}
	}
	return first
}

// meant refuses a file that is not the one whose header a request knows.
func meant(part, fingerprint string, h files.Header) error {
	if fingerprint == "" || strings.EqualFold(fingerprint, h.Hash) {
		return nil
	}
	return fault.Named(fault.CodeFileMissing, part+".fingerprint", "%s has the header hash %s, the request means %s: the "+
		"file of that name is another one", h.Name, h.Hash, fingerprint)
}

// openNets describes the model patches of a host for its model, and where they are allowed control nets, which have no
// patch of their name beside them. Only headers are read. Errors are *Failure.
func (m *Model) openNets(roots files.Roots, list []NetFile, controls bool) ([]*ModelPatch, error) {
	var out []*ModelPatch
	for i, f := range list {
		part, kind := fmt.Sprintf("model.nets[%d]", i), files.KindModelPatch
		if controls {
			kind = eitherKind(roots, f.Name, kind, files.KindControl)
		}
		err := roots.Header(kind, part+".file", f.Name, false, func(h files.Header) error {
			if err := meant(part, f.Fingerprint, h); err != nil {
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

// OpenNet describes what works beside a model: a model patch, or a control net in the form of one, which may start with
// weights of base; nil: it is not known.
func OpenNet(kind string, h files.Header, base *Model) (*ModelPatch, error) {
	if kind != files.KindControl {
		return OpenModelPatch(h)
	}
	n, err := OpenControlNet(h)
	if err == nil && base != nil {
		n, err = n.Beside(base)
	}
	if err != nil {
		return nil, err
	}
	return &ModelPatch{ControlNet: *n}, nil
}

// nets puts the model patches of a host on all entries of a request.
func (m *Model) nets(u Use, req *parallel.Request, list []NetFile) error {
	opened, err := m.openNets(u.Store.roots, list, false)
	var out []parallel.Control
	for i, p := range opened {
		h, part := list[i].Hint, fmt.Sprintf("model.nets[%d].", i)
		if p.sizes != nil {
			if err := m.shown(u, p, list[i], part); err != nil {
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

// shown puts what a projector makes of the states of a picture in front of the text of a host's model.
func (m *Model) shown(u Use, p *ModelPatch, f NetFile, part string) error {
	deep, h := len(text.Deep()), f.Hint
	if h.B != deep || h.C != 1 || h.Y != p.sizes.Tokens || h.X != p.sizes.Width {
		return fault.Bad(part+"hint", "%v, %s reads states [%d, %d, %d] of a picture encoder, those behind its layers %v",
			h.Shape(), p.Name, deep, p.sizes.Tokens, p.sizes.Width, text.Deep())
	}
	if f.Strength != 1 {
		return fault.Bad(part+"strength", "%v, what %s makes of a picture has none: leave it out, or 1", f.Strength, p.Name)
	}
	return p.Show(u, m, Seen{Rows: h.Y, Cols: h.X, Deep: h.Data})
}

// build makes the time line of a host's model. Classes that are not known here are refused.
func (t *TimeLine) build(own *sampling.ModelSampling) (*sampling.ModelSampling, error) {
	shift, multiplier := own.Shift(), own.Multiplier()
	if t.Shift != nil {
		shift = *t.Shift
	}
	if t.Multiplier != nil {
		multiplier = *t.Multiplier
	}
	known := []string{
		"ModelSamplingFlux", "ModelSamplingDiscreteFlow", "ModelSamplingDiscrete", "CONST",
		"EPS", "V_PREDICTION",
	}
	for _, b := range t.Bases {
		if !slices.Contains(known, b) {
			return nil, fault.Bad("sampling.bases", "%q is not known; the classes are %s", b, strings.Join(known, ", "))
		}
	}
	has := func(name string) bool { return slices.Contains(t.Bases, name) }
	if has("CONST") != own.IsFlow() && (has("CONST") || has("EPS") || has("V_PREDICTION")) {
		return nil, fault.Bad("sampling.bases", "the model of the file predicts %s", own.Prediction())
	}
	var out *sampling.ModelSampling
	var err error
	switch {
	case has("ModelSamplingFlux"):
		out, err = sampling.NewFlux(shift)
	case has("ModelSamplingDiscreteFlow"):
		out, err = sampling.NewFlow(shift, multiplier)
	case own.IsFlow() && (t.Shift != nil || t.Multiplier != nil || has("ModelSamplingDiscrete")):
		return nil, fault.Bad("sampling.bases", "a shift belongs to ModelSamplingFlux or ModelSamplingDiscreteFlow: name "+
			"one of them")
	case has("V_PREDICTION"):
		return own.Predicting(sampling.V), nil
	case has("EPS"):
		return own.Predicting(sampling.Eps), nil
	default:
		return own, nil
	}
	if err != nil {
		return nil, fault.Bad("sampling.shift", "%v", err)
	}
	if !own.IsFlow() {
		return nil, fault.Bad("sampling.bases", "the model of the file is no flow model, it predicts %s", own.Prediction())
	}
	return out, nil
}

func (s *Store) evict(match func(key string) bool) int64 {
	if s.engine == nil {
		return 0
	}
	var n int64
	for _, m := range s.engine.Resident() {
		if key, _, _ := strings.Cut(m.Key, "#tensor"); match(key) {
			n += m.Bytes
			s.engine.Evict(key)
		}
	}
	return n
}

// Sample runs a request of a host. The latent of the result stays in model space. Errors are *Failure; Field names the
// part of the message.
func (s *Store) Sample(ctx context.Context, q *HostRequest,
	observe func(HostProgress) error,
) (*parallel.Result, error) {
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
	if c := req.Cache; c != nil && c.Rule == parallel.CacheEasy && m.Traits.NoStepCache {
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
		return nil, fault.Of(ctx, err)
	}
	out, err := u.Sample(&req, m, func(p parallel.Progress) error {
		if observe == nil {
			return ctx.Err()
		}
		h := HostProgress{Progress: p}
		if p.X0.Len() > 0 {
			h.Preview = func() []byte { return m.Preview(p.X0) }
		}
		return observe(h)
	})
	if err != nil {
		return nil, fault.Of(ctx, err)
	}
	if err := Finite(out.Latent.Data); err != nil {
		return nil, fault.New(fault.CodeBadInput, "the %s sampler gave no usable latent (%v)", req.Sampler, err)
	}
	out.Stats.Model = m.Name
	return out, nil
}

// Loaded is what a host is told of a model that is resident now.
type Loaded struct {
	parallel.Loaded
	// Latent is the space of the model's latents: that of its family, with scale and shift of the file where it has them.
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
		return out, fault.Of(ctx, err)
	}
	return out, nil
}

// FreeModel drops the resident weights of a model file and returns their bytes, 0 if there were none. It waits for a
// running request.
func (s *Store) FreeModel(name string) (int64, error) {
	m, err := OpenFile(s.roots, ModelFile{Name: name})
	if err != nil {
		return 0, err
	}
	return s.evict(func(key string) bool { return key == m.Key || strings.HasPrefix(key, m.Key+"+") }), nil
}

// FreeModels drops the resident weights of all diffusion models and returns their bytes.
func (s *Store) FreeModels() int64 { return s.evict(func(string) bool { return true }) }
