package qwenimage

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/layers"
)

// The ways to place references; every other name is an offset.
const (
	byIndex  = "index"
	negative = "negative_index"
	atZero   = "index_timestep_zero" // byIndex, modulated as at timestep 0
)

// method is where the references of an entry sit.
func (m *Model) method(e *dit.Entry) string {
	if e.Method != "" {
		return e.Method
	}
	return m.cfg.Method
}

// zero reports whether the references of an entry are modulated as at timestep 0.
func (m *Model) zero(e *dit.Entry) bool { return len(e.References) > 0 && m.method(e) == atZero }

// origin is where the middle token of a reference sits.
type origin struct {
	grid dit.Grid
	at   [3]int
}

// origins places the references of an entry: one after the other on the first axis, or all at 1, each right of those
// before or below them, where less is lost (ComfyUI comfy/ldm/qwen_image/model.py).
func (m *Model) origins(e *dit.Entry) (out []origin) {
	high, wide, way := 0, 0, m.method(e)
	for i, r := range e.References {
		o := origin{grid: m.Spec().Tokens(r.Y, r.X), at: [3]int{i + 1}}
		switch way {
		case byIndex, atZero:
		case negative:
			o.at[0] = -i - 1
		default:
			down, right := high, 0
			if r.Y+high > r.X+wide {
				down, right = 0, wide
			}
			high, wide = max(high, r.Y+down), max(wide, r.X+right)
			o.at = [3]int{1, (down + 1) / patch, (right + 1) / patch}
		}
		out = append(out, o)
	}
	return out
}

// positions lists where every token of an entry sits: own of text, those of the references, those of the picture.
func (m *Model) positions(e *dit.Entry, g dit.Grid) (out [][3]int) {
	for k := range e.Context.Rows {
		at := max(g.Y/2, g.X/2) + k
		out = append(out, [3]int{at, at, at})
	}
	for _, o := range append(m.origins(e), origin{grid: g}) {
		for i := range o.grid.Tokens() {
			out = append(out, [3]int{
				o.at[0], o.at[1] + i/o.grid.X - o.grid.Y/2, o.at[2] + i%o.grid.X - o.grid.X/2,
			})
		}
	}
	return out
}

// references embeds the references of all entries behind their text: rows [n, Lr, E].
func (m *Model) references(env dit.Env, entries []dit.Entry, rows engine.Tensor) {
	x := layers.References(env, m.Spec(), entries, rows.Dim(1))
	layers.Project(env, rows, x, m.Net.ImgIn)
}
