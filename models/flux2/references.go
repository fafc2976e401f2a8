package flux2

import (
	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/layers"
)

// The ways to place references; every other name is an offset.
const (
	byIndex = "index" // the model's own
	atZero  = "index_timestep_zero"
	uxo     = "uxo"
	step    = 10 // from one reference to the next on the first axis
)

// method is where the references of an entry sit.
func method(e *dit.Entry) string {
	if e.Method != "" {
		return e.Method
	}
	return byIndex
}

// zero reports whether the references of an entry are modulated as at timestep 0.
func zero(e *dit.Entry) bool { return len(e.References) > 0 && method(e) == atZero }

// positions lists where every token of an entry sits: own of text, those of the references, those of the picture
// (ComfyUI comfy/ldm/flux/model.py). References are one after the other on the first axis, or below and right of the
// picture and of each other (uxo), or all at 1, each right of those before or below them, where less is lost.
func (m *Model) positions(e *dit.Entry, g dit.Grid) (out [][4]int) {
	for k := range e.Context.Rows {
		out = append(out, [4]int{0, 0, 0, k})
	}
	add := func(g dit.Grid, at, down, right int) {
		for i := range g.Tokens() {
			out = append(out, [4]int{at, down + i/g.X, right + i%g.X})
		}
	}
	high, wide := 0, 0
	for i, r := range e.References {
		at, down, right := (i+1)*step, 0, 0
		switch method(e) {
		case byIndex, atZero:
		case uxo:
			at, down, right = 0, g.Y+high, g.X+wide
			high, wide = high+r.Y, wide+r.X
		default:
			at, down = 1, high
			if r.Y+high > r.X+wide {
				down, right = 0, wide
			}
			high, wide = max(high, r.Y+down), max(wide, r.X+right)
		}
		add(m.Spec().Tokens(r.Y, r.X), at, down, right)
	}
	add(g, 0, 0, 0)
	return out
}

// references embeds the references of all entries behind their text: rows [n, Lr, E].
func (m *Model) references(env dit.Env, entries []dit.Entry, rows engine.Tensor) {
	x := layers.References(env, m.Spec(), entries, rows.Dim(1))
	layers.Project(env, rows, x, m.Net.ImgIn)
}
