package value

import (
	"patchbay/fault"
	"patchbay/node/picture"
	"patchbay/parallel/request"
)

// Single returns an error if the latent has several layers; field is the input it came from.
func (l *Latent) Single(field string) error {
	if l.Samples.T <= 1 {
		return nil
	}
	return fault.Bad(field, "has %d layers, this node takes one: cut them apart with LatentCutToBatch (dim t) first",
		l.Samples.T)
}

// side returns the number of layers (t), rows (y) or columns (x) of a latent and the stride between neighbors in Data.
// A latent without a layer axis has one layer.
func side(s request.Latent, dim string) (n, stride int) {
	layers := max(1, s.T)
	switch dim {
	case "x":
		return s.X, 1
	case "y":
		return s.Y / layers, s.X
	}
	return layers, s.Y / layers * s.X
}

// Cut returns n layers, rows or columns of a latent starting at from, like torch's narrow. A negative from counts from
// the end. The range is clamped to the latent but always includes at least one (ComfyUI's LatentCut).
func Cut(s request.Latent, dim string, from, n int) request.Latent {
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

// SplitToBatch splits every item of s into batch items of n layers, rows or columns each and drops the remainder
// (ComfyUI's LatentCutToBatch).
func SplitToBatch(s request.Latent, dim string, n int) request.Latent {
	size, _ := side(s, dim)
	n = min(n, size)
	var out request.Latent
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

// layered returns an error if the latent has several layers and the model does not support that, or if there are masks.
func (m *Model) layered(l request.Latent, noise *picture.Mask, branches []GuiderBranch) error {
	if l.T <= 1 {
		return nil
	}
	const rule = "%s: has a mask, and the latent %d layers: want one of them"
	switch {
	case !m.Spec.Frames:
		return fault.Family("latent_image", "has %d layers, which %s models do not take", l.T, m.Spec.Family)
	case noise != nil && !m.Format.Frames:
		return fault.At(fault.BadInput, "latent_image", rule, "latent_image", l.T)
	}
	for _, b := range branches {
		for i := range b.Conditioning {
			if b.Conditioning[i].Mask != nil {
				return fault.At(fault.BadInput, b.Name, rule, b.Name, l.T)
			}
		}
	}
	return nil
}
