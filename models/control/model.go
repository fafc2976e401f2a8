package control

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/layers"
	"patchbay/models/weights"
)

// extra holds the layers that a net has besides the first layers of a model. Sizes in the tags: E width, H channels of
// the hint, p patch size, M types of a union net.
type extra struct {
	Hint    *engine.Weight `weight:"hint" shape:"E,H*p*p"`
	Before  *output        `weight:"controlnet_before"` // after Hint; nil: most have none
	Outputs []output       `weight:"controlnet_blocks"`
	Singles []output       `weight:"controlnet_single_blocks"`
	Modes   engine.Tensor  `weight:"controlnet_mode_embedder.weight,optional" shape:"M,E"`
}

// output is the linear layer after a block.
type output struct {
	Linear *engine.Weight `weight:"linear" shape:"E,E"`
}

// newExtra returns the empty layers of a net. before: the hint goes through a second one.
func newExtra(n *Net, before bool) *extra {
	x := &extra{Before: family.NewIf[output](before)}
	for _, b := range n.Spec.Blocks {
		if b.Kind == dit.Single {
			x.Singles = append(x.Singles, output{})
		} else {
			x.Outputs = append(x.Outputs, output{})
		}
	}
	return x
}

// Model is a control net. It implements dit.Control; Head must not be called.
type Model struct {
	dit.Model // the first layers of a model of the family
	desc      *Net
	extra     *extra
	modes     []float32 // [types, E]
	mem       *weights.Loaded
}

func (m *Model) Feeds(base *dit.Spec) [][]int { return m.desc.Feeds(base) }

// Prepare embeds the hints, which do not depend on the timestep, besides what the family prepares. The type of a union
// net becomes a row before the text.
func (m *Model) Prepare(env dit.Env, entries []dit.Entry, grid dit.Grid) (*dit.Prepared, error) {
	n, li, e, wide := len(entries), grid.Tokens(), m.Spec().Width, m.extra.Hint.K()
	cols := m.desc.Hint * m.Spec().PatchSize * m.Spec().PatchSize
	adjusted, each := make([]dit.Entry, n), max(entries[0].Hint.Rows/li, 1) // hints of an entry
	for i, in := range entries {
		switch h := in.Hint; {
		case h.Rows != each*li || h.Cols != cols || len(h.Data) != each*li*cols:
			return nil, fmt.Errorf("control net for %s: entry %d: the hint is [%d, %d], want [%d, %d]", m.desc.Family, i, h.Rows,
				h.Cols, each*li, cols)
		case in.Mode < 0 || in.Mode > m.desc.Modes || (in.Mode > 0) != (entries[0].Mode > 0):
			return nil, fmt.Errorf("control net for %s: entry %d: type %d, want 0 to %d", m.desc.Family, i, in.Mode,
				m.desc.Modes)
		case in.Mode > 0:
			in.Context = dit.Array{
				Rows: in.Context.Rows + 1, Cols: in.Context.Cols,
				Data: append(make([]float32, in.Context.Cols), in.Context.Data...),
			}
		}
		if m.desc.kind.NoPooled {
			in.Pooled = nil
		}
		adjusted[i] = in
	}
	p, err := m.Model.Prepare(env, adjusted, grid)
	if err != nil {
		return nil, err
	}
	p.Hint = env.Arena.Alloc(env.DType, n*each, li, e)
	mark := env.Arena.Mark()
	x := env.Arena.Alloc(engine.F32, n*each, li, wide)
	for i, in := range adjusted {
		env.Ops.Upload(x.Slice(0, i*each, (i+1)*each), widened(in.Hint.Data, cols, wide))
		if in.Mode > 0 {
			env.Ops.Upload(p.Text.Slice(0, i, i+1).Slice(1, 0, 1), m.modes[(in.Mode-1)*e:in.Mode*e])
		}
	}
	layers.Project(env, p.Hint, x, m.extra.Hint)
	if m.extra.Before != nil {
		whole := env.Arena.Alloc(env.DType, n*each, li, e)
		env.Ops.Copy(whole, p.Hint)
		env.Ops.Linear(p.Hint, whole, m.extra.Before.Linear, engine.Epilogue{})
	}
	env.Arena.Release(mark)
	return p, nil
}

// widened pads rows of cols values with zeros to wide values.
func widened(v []float32, cols, wide int) []float32 {
	if cols == wide || v == nil {
		return v
	}
	out := make([]float32, len(v)/cols*wide)
	for i := range len(v) / cols {
		copy(out[i*wide:], v[i*cols:(i+1)*cols])
	}
	return out
}

// Embed adds the hint to the image rows: one hint for all items of an entry, or one for each item.
func (m *Model) Embed(env dit.Env, s *dit.State, x engine.Tensor) {
	m.Model.Embed(env, s, x)
	if r := s.Rows.Image; r.Len() > 0 {
		hint, rows, n := s.P.Hint.Slice(1, r.Start, r.End), s.ImageRows(), s.P.N
		for i, each := 0, hint.Dim(0)/n; i < n; i++ {
			items := rows.Slice(0, i*s.B/n, (i+1)*s.B/n)
			env.Ops.Add(items, items, hint.Slice(0, i*each, (i+1)*each))
		}
	}
}

func (m *Model) Output(env dit.Env, k int, s *dit.State, out, gate engine.Tensor) {
	list := m.extra.Outputs
	if k >= len(list) {
		k, list = k-len(list), m.extra.Singles
	}
	if out.Dim(1) > 0 {
		env.Ops.Linear(out, s.ImageRows(), list[k].Linear, engine.Epilogue{Act: m.desc.act, Gate: gate})
	}
}

// Close frees the memory of the weights.
func (m *Model) Close() {
	m.Model.Close()
	m.mem.Close()
}
