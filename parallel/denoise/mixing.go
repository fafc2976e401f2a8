package denoise

import (
	"math"

	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/parallel/request"
)

// prediction is one conditioning entry as the mixer sees it: where it applies and with what weight.
type prediction struct {
	request.Entry
	branch int
	layout *layout
	weight []float32 // per vector element of one item, or of all items (masks per item); nil: 1 everywhere
	broken error     // why it cannot be evaluated
}

// active reports whether the entry takes part at sigma; both ends are included (ComfyUI get_area_and_mult).
func (p *prediction) active(sigma float32) bool {
	return !p.Ranged || (sigma <= p.SigmaStart && sigma >= p.SigmaEnd)
}

// newPredictions resolves areas, masks and strengths of all entries of a request. As in ComfyUI, an area outside the
// latent is an error only when its entry is evaluated.
func newPredictions(r *request.Request, whole *layout) (out []*prediction) {
	for bi, br := range withEqualAreas(r.Branches) {
		for i, e := range br {
			p := &prediction{Entry: e, branch: bi, layout: whole}
			out = append(out, p)
			area := clipArea(e.Rectangle(), r.Latent.Y, r.Latent.X)
			if area != (request.Area{}) && (area.H < 1 || area.W < 1) {
				p.broken = fault.Bad(r.Branches[bi].Name, "entry %d has area %+v outside the latent of %d x %d", i,
					e.Rectangle(), r.Latent.Y, r.Latent.X)
				continue
			}
			if area != (request.Area{}) {
				spec := r.Model.Spec
				p.Concat = cropped(e.Concat, area)
				p.layout = whole.area(area, r.Latent.C, spec.PatchSize, spec.Tokens(area.H, area.W))
			}
			p.weight = weightOf(e, area, r.Latent, whole)
		}
	}
	return out
}

// cropped cuts a latent of any number of channels to an area.
func cropped(l dit.Reference, a request.Area) dit.Reference {
	out := dit.Reference{Y: a.H, X: a.W}
	for row := 0; row*l.X < len(l.Data); row++ {
		if y := row % l.Y; y >= a.Y && y < a.Y+a.H {
			out.Data = append(out.Data, l.Data[row*l.X+a.X:][:a.W]...)
		}
	}
	return out
}

// clipArea clips an area to the latent, as ComfyUI's narrow does: the origin stays, the size shrinks.
func clipArea(a request.Area, y, x int) request.Area {
	if a == (request.Area{}) {
		return a
	}
	a.H, a.W = min(a.H, y-a.Y), min(a.W, x-a.X)
	return a
}

// weightOf returns mask * mask strength * strength, or the feathered area, per vector element; nil if it is 1
// everywhere.
func weightOf(e request.Entry, area request.Area, latent request.Latent, whole *layout) []float32 {
	if e.Mask.Len() == 0 && area == (request.Area{}) && e.Strength == 1 {
		return nil
	}
	items := 1
	if e.Mask.Len() > 0 && e.Mask.B > 1 {
		items = latent.B
	}
	y, x := latent.Y, latent.X
	plane := make([]float32, items*y*x)
	for i := range plane {
		yi, xi := i/x%y, i%x
		v := float32(1)
		if e.Mask.Len() > 0 {
			v = e.Mask.Data[(i/(y*x)%e.Mask.B)*y*x+i%(y*x)] * e.MaskStrength
		}
		v *= e.Strength
		if e.Mask.Len() == 0 && area != (request.Area{}) {
			v = feather(v, yi-area.Y, area.H, area.Y, y)
			v = feather(v, xi-area.X, area.W, area.X, x)
		}
		plane[i] = v
	}
	n := len(whole.order)
	out := make([]float32, items*n)
	for i := range out {
		out[i] = plane[(i/n)*y*x+int(whole.order[i%n])%(y*x)]
	}
	return out
}

// feather lowers a weight within min(8, size/4) of an inner edge. at is the position in a range of the given size that
// starts at origin of full.
func feather(v float32, at, size, origin, full int) float32 {
	r := min(8, size/4)
	if origin != 0 && at >= 0 && at < r {
		v *= float32(1 / float64(r) * float64(at+1))
	}
	if back := size - 1 - at; size+origin < full && back >= 0 && back < r {
		v *= float32(1 / float64(r) * float64(back+1))
	}
	return v
}

// withEqualAreas gives every entry that has an area a partner in the other branches (ComfyUI
// create_cond_with_same_area_if_none): a copy of the smallest entry that contains the area, evaluated on it. It returns
// the entries per branch.
func withEqualAreas(branches []request.Branch) [][]request.Entry {
	out := make([][]request.Entry, len(branches))
	for i, b := range branches {
		out[i] = append([]request.Entry(nil), b.Entries...)
	}
	for i := range branches {
		for _, e := range out[i] {
			for j := range branches {
				if j != i {
					out[j] = addPartner(out[j], e)
				}
			}
		}
	}
	return out
}

// addPartner adds the partner of e to the entries of another branch if it lacks one.
func addPartner(entries []request.Entry, e request.Entry) []request.Entry {
	area := e.Rectangle()
	if area == (request.Area{}) {
		return entries
	}
	best := -1
	for k, o := range entries {
		a := o.Rectangle()
		switch {
		case a != (request.Area{}) && !inside(area, a):
		case best < 0:
			best = k
		case a != (request.Area{}):
			if b := entries[best].Rectangle(); b == (request.Area{}) || b.H*b.W > a.H*a.W {
				best = k
			}
		}
	}
	if best < 0 || entries[best].Rectangle() == area {
		return entries
	}
	partner := e // range, mask and strength of e with the conditioning of the other entry
	partner.Entry = entries[best].Entry
	return append(entries, partner)
}

func inside(a, b request.Area) bool {
	return a.Y >= b.Y && a.X >= b.X && a.Y+a.H <= b.Y+b.H && a.X+a.W <= b.X+b.W
}

// isOne reports whether a scale counts as 1 (relative 1e-9, as Python's math.isclose).
func isOne(v float32) bool {
	return math.Abs(float64(v)-1) <= 1e-9*math.Max(math.Abs(float64(v)), 1)
}

// needed reports which branches must be evaluated, by index.
func needed(g request.Guider, branches int, needUncond bool) []bool {
	out := make([]bool, branches)
	out[0] = true
	full := needUncond || g.NoShortcut || g.SoundCFG != nil
	switch g.Kind {
	case request.GuideCFG:
		out[1] = full || !isOne(g.CFG)
	case request.GuideDual:
		out[1] = g.Nested || full || !isOne(g.CFG2) || !isOne(g.CFG)
		out[2] = g.Nested || full || !isOne(g.CFG2)
	}
	return out
}

// mix combines the branches' x0 (nil: not evaluated, counts as zeros) into the guided x0, and also returns the uncond
// x0 for cfg_pp samplers. CFG: u + (c - u)*cfg. Dual regular: (n + (m - n)*cfg2) + (c - m)*cfg; nested: n + cfg2*((m +
// (c - m)*cfg) - n) (ComfyUI Guider_DualCFG). guide returns the first sum of each: lerp, unless nodes change it.
func mix(g request.Guider, n int, x0 [][]float32, guide func(negative, positive []float32, cfg float32) []float32,
) (guided, uncond []float32) {
	at := func(i int) []float32 {
		if i < len(x0) && x0[i] != nil {
			return x0[i]
		}
		return make([]float32, n)
	}
	switch g.Kind {
	case request.GuideBasic:
		return guide(x0[0], x0[0], 1), make([]float32, n)
	case request.GuideCFG:
		c, u := at(0), at(1)
		if len(x0) < 2 || x0[1] == nil {
			return guide(c, c, 1), u
		}
		return guide(u, c, g.CFG), u
	}
	c, m, neg := at(0), at(1), at(2)
	out := make([]float32, n)
	if g.Nested {
		text := guide(m, c, g.CFG)
		for i := range out {
			out[i] = neg[i] + float32(g.CFG2*(text[i]-neg[i]))
		}
		return out, m
	}
	base := guide(neg, m, g.CFG2)
	for i := range out {
		out[i] = base[i] + float32((c[i]-m[i])*g.CFG)
	}
	return out, neg
}

func lerp(a, b []float32, s float32) []float32 {
	out := make([]float32, len(a))
	for i := range out {
		out[i] = a[i] + float32((b[i]-a[i])*s)
	}
	return out
}
