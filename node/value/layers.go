package value

import (
	"patchbay/node/fault"
	"patchbay/node/picture"
	"patchbay/parallel"
)

// Single refuses a latent of several layers; field is the input that has it.
func (l *Latent) Single(field string) error {
	if l.Samples.T <= 1 {
		return nil
	}
	return fault.Bad(field, "has %d layers, this node takes one: cut them apart with LatentCutToBatch (dim t) first",
		l.Samples.T)
}

// side is how many layers (t), rows (y) or columns (x) a latent has, and how many values lie between neighbours. One
// without an axis of layers is one layer.
func side(s parallel.Latent, dim string) (n, stride int) {
	layers := max(1, s.T)
	switch dim {
	case "x":
		return s.X, 1
	case "y":
		return s.Y / layers, s.X
	}
	return layers, s.Y / layers * s.X
}

// Cut is n of the layers, rows or columns of a latent from one on: torch's narrow. A negative from counts from the end.
// What lies outside is left out, but for one that is there always (ComfyUI's LatentCut).
func Cut(s parallel.Latent, dim string, from, n int) parallel.Latent {
	size, stride := side(s, dim)
	if from >= 0 {
		from = min(from, size-1)
	} else {
		from = size + max(from, -size)
	}
	n = min(n, size-from)
	out := s
	out.Data = make([]float32, 0, len(s.Data)/size*n)
	for at := from * stride; at < len(s.Data); at += size * stride {
		out.Data = append(out.Data, s.Data[at:at+n*stride]...)
	}
	switch dim {
	case "x":
		out.X = n
	case "y":
		out.Y = s.Y / size * n
	default:
		out.Y, out.T = s.Y/size*n, min(s.T, n)
	}
	return out
}

// Apart makes items of a batch of every n layers, rows or columns of the items of s; what is left over is dropped
// (ComfyUI's LatentCutToBatch).
func Apart(s parallel.Latent, dim string, n int) parallel.Latent {
	size, _ := side(s, dim)
	n = min(n, size)
	var out parallel.Latent
	for b := range s.B {
		item := s
		item.B, item.Data = 1, s.Data[b*len(s.Data)/s.B:(b+1)*len(s.Data)/s.B]
		for k := range size / n {
			part := Cut(item, dim, k*n, n)
			part.B, part.Data = out.B+1, append(out.Data, part.Data...)
			out = part
		}
	}
	return out
}

// layered refuses what has no meaning for a latent of several layers, or a model that takes none.
func (m *Model) layered(l parallel.Latent, noise *picture.Mask, branches []GuiderBranch) error {
	if l.T <= 1 {
		return nil
	}
	const rule = "%s: has a mask, and the latent %d layers: want one of them"
	switch {
	case !m.Spec.Frames:
		return fault.Family("latent_image", "has %d layers, which %s models do not take", l.T, m.Spec.Family)
	case noise != nil:
		return fault.At(fault.CodeBadInput, "latent_image", rule, "latent_image", l.T)
	}
	for _, b := range branches {
		for i := range b.Conditioning {
			if b.Conditioning[i].Mask != nil {
				return fault.At(fault.CodeBadInput, b.Name, rule, b.Name, l.T)
			}
		}
	}
	return nil
}
