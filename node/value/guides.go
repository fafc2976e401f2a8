package value

import (
	"slices"

	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/parallel/request"
)

// heard refuses latents with and without sound, masks and guides for models that do not take them.
func (m *Model) heard(of *Latent, branches []GuiderBranch) error {
	takes, l := m.Spec.Sound, of.Samples
	switch s := l.Sound; {
	case m.Traits.NeedsSound && s.Len() == 0:
		return fault.Family("latent_image", "has no sound, the %s model makes a video with sound: use the empty latent of "+
			"that model, for both", m.Spec.Family)
	case m.Traits.NeedsSound && l.B != 1:
		return fault.Bad("latent_image", "has %d videos, the %s model takes one", l.B, m.Spec.Family)
	case m.Traits.Guides > 0 && of.NoiseMask != nil:
		return fault.Bad("latent_image", "has a noise mask, by which %s models give what is kept a time of its own: that is "+
			"not supported yet, use guides", m.Spec.Family)
	case s.Len() > 0 && takes.Channels == 0:
		return fault.Family("latent_image", "has a sound, which %s models do not take: give the video alone", m.Spec.Family)
	case s.Len() > 0 && s.C != takes.Channels:
		return fault.Family("latent_image", "has a sound of %d channels, the %s model takes %d", s.C, m.Spec.Family,
			takes.Channels)
	}
	for _, b := range branches {
		for i := range b.Conditioning {
			if len(b.Conditioning[i].Guides) > 0 && m.Traits.Guides == 0 {
				return fault.Family(b.Name, "has pictures, videos or sounds that guide a video, which %s models do not take",
					m.Spec.Family)
			}
		}
	}
	return nil
}

// guides converts what guides a video to model space. Those that are part of it have frames of its size.
func (m *Model) guides(c *Cond, branch string, l request.Latent, seed uint64) (out []dit.Reference, err error) {
	for _, g := range c.Guides {
		s, channels, name := g.Latent, m.Format.Channels, "picture or video"
		if g.Sound {
			channels, name = m.Spec.Sound.Channels, "sound"
		}
		if s.B != 1 || s.C != channels {
			return nil, fault.Family(branch, "a guiding %s is a latent of %d items of %d channels, the %s model takes one of %d",
				name, s.B, s.C, m.Spec.Family, channels)
		}
		t, frames := max(1, s.T), max(1, l.T)
		if g.Frame > 0 && !g.Sound && (s.Y/t != l.Y/frames || s.X != l.X) {
			return nil, fault.Bad(branch, "a picture at frame %d of the video is a latent of %d x %d, the frames of the video "+
				"are %d x %d", g.Frame-1, s.X, s.Y/t, l.X, l.Y/frames)
		}
		r := dit.Reference{Y: s.Y, X: s.X, Condition: g.Condition, Data: s.Data}
		if !g.Sound { // which gets no noise
			r.T, r.Clean, r.Seed, r.Data = s.T, m.Traits.Guides, seed, slices.Clone(s.Data)
			m.Format.ToModel(r.Data, s.Y*s.X)
		}
		out = append(out, r)
	}
	return out, nil
}
