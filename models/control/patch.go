package control

import (
	"fmt"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/layers"
	"patchbay/models/weights"
)

// layered holds the weights of layers behind every block (ComfyUI comfy_extras/nodes_model_patch.py,
// QwenImageBlockWiseControlNet). Sizes in the tags: E width, H channels of the hint, p patch size.
type layered struct {
	Hint   *engine.Weight `weight:"img_in" shape:"E,H*p*p"`
	Blocks []behind       `weight:"controlnet_blocks"`
}

// behind holds the layers behind one block.
type behind struct {
	Norm     engine.Tensor  `weight:"x_rms.weight" shape:"E"`
	HintNorm engine.Tensor  `weight:"y_rms.weight" shape:"E"`
	In       *engine.Weight `weight:"input_proj" shape:"E,E"`
	Out      *engine.Weight `weight:"output_proj" shape:"E,E"`
}

// patchEps is the epsilon of both norms.
const patchEps = 1e-6

// IsPatch reports whether a set is a model patch for one of the families.
func IsPatch(all []family.Family, set *weights.Set) bool { return patched(all, set) != nil }

func patched(all []family.Family, set *weights.Set) *family.Family {
	for i := range all {
		if p := all[i].Patch; p != nil && p.Form.Fits(set, "") {
			return &all[i]
		}
	}
	return nil
}

// OpenPatch describes the model patch in a set: a Net that loads as a dit.Patch, or as a dit.Follower.
func OpenPatch(all []family.Family, set *weights.Set) (*Net, error) {
	f := patched(all, set)
	if f == nil {
		known := []string{}
		for i := range all {
			if p := all[i].Patch; p != nil && p.Kinds != "" {
				known = append(known, fmt.Sprintf("%s (%s)", all[i].Name, p.Kinds))
			}
		}
		return nil, fmt.Errorf("not a model patch that is supported: the file looks like %s (supported: %s)",
			patchKind(all, set), strings.Join(known, ", "))
	}
	if f.Patch.Describe != nil {
		d, hint, err := f.Patch.Describe(set)
		if err != nil {
			return nil, err
		}
		return &Net{Family: f.Name, Format: f.Patch.Latent, Hint: hint, Patch: true, Spec: d.Spec, Load: d.Load}, nil
	}
	blocks, token := set.Count("controlnet_blocks"), f.Patch.PatchSize*f.Patch.PatchSize
	n := patchOf(f, set.Dim("img_in.weight", 0), set.Dim("img_in.weight", 1)/token, blocks)
	if n.Hint != n.Spec.Channels && n.Hint != n.Spec.Channels+1 {
		return nil, fmt.Errorf("a model patch for %s whose hint has %d channels: want %d, or %d with a mask", f.Name, n.Hint,
			n.Spec.Channels, n.Spec.Channels+1)
	}
	n.Load = func(ops engine.Ops, _ dit.Held) (dit.Model, error) { return n.loadPatch(ops, set) }
	return n, nil
}

// patchOf describes a patch with the given number of layers for models of a width, without its weights.
func patchOf(f *family.Family, width, hint, layers int) *Net {
	e, p := int64(width), f.Patch.PatchSize
	n := &Net{Family: f.Name, Format: f.Patch.Latent, Hint: hint, Patch: true, Spec: dit.Spec{
		Family: f.Name, Width: width, PatchSize: p, Channels: f.Patch.Latent.Channels, Params: e * int64(hint*p*p+1),
		Blocks: slices.Repeat([]dit.BlockSpec{{Kind: dit.Double, Skip: -1, Params: 2*e*(e+1) + 2*e}}, layers),
	}}
	for _, b := range n.Spec.Blocks {
		n.Spec.Params += b.Params
	}
	n.Spec.Outline = &dit.Outline{Part: func(dit.Held) (dit.Model, error) {
		declared, err := weights.Declare(&layered{Blocks: make([]behind, layers)}, n.patchOptions())
		if err != nil {
			return nil, err
		}
		return n.loadPatch(weights.Shapes(), weights.Undefined(declared))
	}}
	return n
}

func (n *Net) patchOptions() weights.Options {
	return weights.Options{Model: "model patch", Dims: map[string]int{
		"E": n.Spec.Width, "H": n.Hint, "p": n.Spec.PatchSize,
	}}
}

func (n *Net) loadPatch(ops engine.Ops, set *weights.Set) (dit.Model, error) {
	m := &Patch{spec: &n.Spec, net: &layered{Blocks: make([]behind, len(n.Spec.Blocks))}}
	var err error
	m.mem, err = weights.Load(ops, set, m.net, n.patchOptions())
	return m, err
}

// HypotheticalPatch describes the usual model patch for a model of a family without a file, so that it cannot be
// loaded.
func HypotheticalPatch(f *family.Family, base *dit.Spec) (*Net, error) {
	if f.Patch == nil || f.Patch.Kinds == "" {
		return nil, fmt.Errorf("no model patches run here for %s models", f.Name)
	}
	return patchOf(f, base.Width, f.Patch.Latent.Channels, len(base.Blocks)), nil
}

// patchKind guesses the kind of a file that is not a supported patch, for error messages.
func patchKind(all []family.Family, set *weights.Set) string {
	for i := range all {
		if p := all[i].Patch; p != nil {
			for name, kind := range p.Refused {
				if set.Has(name) {
					return kind
				}
			}
		}
	}
	if Is(set) {
		return "a control net: load it with ControlNetLoader"
	}
	return family.GuessKind(all, set)
}

// Patch is a set of layers behind the blocks of a base model. It implements dit.Patch, with only the methods of
// dit.Model that dit.Patch names.
type Patch struct {
	dit.Model // nil
	spec      *dit.Spec
	net       *layered
	mem       *weights.Loaded
}

// Spec describes the patch. Its blocks are those of the base model that it has layers for.
func (m *Patch) Spec() *dit.Spec { return m.spec }

// Shards implements dit.Model: no weight is sharded.
func (m *Patch) Shards() *dit.Shards { return nil }

// Close frees the memory of the weights.
func (m *Patch) Close() { m.mem.Close() }

// Prepare embeds the hints of all entries, [n, Li, E]. It returns an error for hints of another size than the grid's.
func (m *Patch) Prepare(env dit.Env, entries []dit.Entry, grid dit.Grid) (*dit.Prepared, error) {
	n, li, cols := len(entries), grid.Y*grid.X, m.net.Hint.K()
	p := &dit.Prepared{N: n, Grid: grid, Hint: env.Arena.Alloc(env.DType, n, li, m.spec.Width)}
	mark := env.Arena.Mark()
	x, err := layers.Hints(env, "model patch for "+m.spec.Family, entries, li, cols)
	if err != nil {
		return nil, err
	}
	layers.Project(env, p.Hint, x, m.net.Hint)
	env.Arena.Release(mark)
	return p, nil
}

// Apply implements dit.Patch: x += gate * out(gelu(in(norm(x) + norm(hint)))).
func (m *Patch) Apply(env dit.Env, k int, s *dit.State, hint, gate engine.Tensor) {
	x, w := s.ImageRows(), &m.net.Blocks[k]
	if x.Dim(1) == 0 {
		return
	}
	mark := env.Arena.Mark()
	h := layers.Scratch(env, x, x.Dim(0), x.Dim(1), x.Dim(2))
	inner := layers.Scratch(env, x, x.Dim(0), x.Dim(1), x.Dim(2))
	env.Ops.RMSNorm(h, x, w.Norm, patchEps)
	normed := inner.Slice(0, 0, 1)
	env.Ops.RMSNorm(normed, hint, w.HintNorm, patchEps)
	env.Ops.Add(h, h, normed)
	env.Ops.Linear(inner, h, w.In, engine.Epilogue{Act: engine.GELUErf})
	env.Ops.Linear(x, inner, w.Out, engine.Epilogue{Residual: x, Gate: gate})
	env.Arena.Release(mark)
}
