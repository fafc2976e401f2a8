package request

import (
	"math"
	"slices"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/models/sampling"
	"patchbay/parallel/plan"
)

// maxFrameRate bounds pictures a second.
const maxFrameRate = 1000

// maxSteps bounds the length of a sigma list.
const maxSteps = 10000

func finite(v float32) bool { return math.Abs(float64(v)) <= math.MaxFloat32 }

// Validate refuses requests that cannot run, with an error that names the field. It reads no weights.
func (r *Request) Validate() error {
	switch l := r.Latent; {
	case r.Model.Spec == nil || r.Model.Weights == nil || r.Model.Key == "":
		return fault.Bad("model", "no model given")
	case r.Sampling == nil:
		return fault.Bad("sampling", "no model sampling given")
	case l.B < 1 || l.Y < 1 || l.X < 1 || len(l.Data) != l.Len():
		return fault.Bad("latent", "want [B, C, Y, X] with B*C*Y*X values, got [%d, %d, %d, %d] with %d", l.B, l.C,
			l.Y, l.X, len(l.Data))
	case l.C != r.Model.Spec.Channels:
		return fault.Bad("latent", "has %d channels, the %s model takes %d", l.C, r.Model.Spec.Family,
			r.Model.Spec.Channels)
	case l.T < 0 || l.T > 0 && l.Y%l.T != 0 || l.T > 1 && !r.Model.Spec.Frames:
		return fault.Bad("latent", "has %d frames in %d rows, the %s model takes one", l.T, l.Y, r.Model.Spec.Family)
	case len(r.Noise.Data) > 0 && (r.Noise.B != l.B || r.Noise.C != l.C || r.Noise.Y != l.Y || r.Noise.X != l.X ||
		r.Noise.T != l.T || r.Noise.Sound != l.Sound || len(r.Noise.Data) != l.Len()):
		return fault.Bad("noise", "has shape %v and sound %v, the latent %v and %v", r.Noise.Shape(), r.Noise.Sound,
			l.Shape(), l.Sound)
	case r.Compute != engine.F32 && r.Compute != engine.BF16:
		return fault.Bad("compute", "is %s: want f32 or bf16", r.Compute)
	case len(r.Sigmas) > maxSteps+1:
		return fault.Bad("sigmas", "%d steps, at most %d are allowed", len(r.Sigmas)-1, maxSteps)
	}
	for i, s := range r.Sigmas {
		if !finite(s) || s < 0 {
			return fault.Bad("sigmas", "value %d is %v: want finite values >= 0", i, s)
		}
	}
	if _, err := sampling.FindSampler(r.Sampler); err != nil {
		return fault.Bad("sampler", "%v", err)
	}
	if err := r.validateSound(); err != nil {
		return err
	}
	if m := r.Mask; len(m.Data) > 0 {
		if len(m.Data) != m.Len() || m.Y != r.Latent.Y || m.X != r.Latent.X || (m.T > 1 && m.T != r.Latent.T) ||
			(m.C != 1 && m.C != r.Latent.C) || (m.B != 1 && m.B != r.Latent.B) || !m.Sound.covers(r.Latent.Sound) {
			return fault.Bad("mask", "has shape [%d, %d, %d, %d], want [1 or %d, 1 or %d, %d, %d]", m.B, m.C, m.Y, m.X,
				r.Latent.B, r.Latent.C, r.Latent.Y, r.Latent.X)
		}
	}
	if err := r.Cache.validate(); err != nil {
		return err
	}
	return r.validateGuidance()
}

// validateGuidance checks guider, branches and entries.
func (r *Request) validateGuidance() error {
	want := map[GuiderKind]int{GuideBasic: 1, GuideCFG: 2, GuideDual: 3}[r.Guider.Kind]
	if want == 0 {
		return fault.Bad("guider", "unknown kind %d", r.Guider.Kind)
	}
	if len(r.Guider.Identity) > 0 {
		want++
		if r.Guider.Kind == GuideDual {
			return fault.Bad("guider", "DualCFGGuider takes no identity guidance (LTXVReferenceAudio): set "+
				"identity_guidance_scale to 0, or use CFGGuider")
		}
	}
	for _, i := range r.Guider.Identity {
		if !finite(i.Scale) {
			return fault.Bad("guider", "has identity guidance of scale %v: want a finite number", i.Scale)
		}
	}
	if len(r.Branches) != want {
		return fault.Bad("branches", "this guider takes %d, got %d", want, len(r.Branches))
	}
	for _, v := range []float32{r.Guider.CFG, r.Guider.CFG2} {
		if !finite(v) {
			return fault.Bad("cfg", "is %v: want a finite number", v)
		}
	}
	if s := r.Guider.SoundCFG; s != nil && (!finite(*s) || r.Guider.Kind != GuideCFG || r.Latent.Sound == (Sound{})) {
		return fault.Bad("cfg", "has %v for the sound: want a finite number, a guider with one scale and a latent with sound",
			*s)
	}
	if n := r.Guider.Norm; n != nil && !(*n >= 0 && finite(*n)) {
		return fault.Bad("guider", "CFGNorm has strength %v: want a finite number of at least 0", *n)
	}
	if m := r.Guider.Rescale; m != nil && !(*m >= 0 && *m <= 1) {
		return fault.Bad("guider", "RescaleCFG has multiplier %v: want a number from 0 to 1", *m)
	}
	for _, b := range r.Branches {
		for i, e := range b.Entries {
			if err := r.validateEntry(b.Name, i, e); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *Request) validateEntry(branch string, i int, e Entry) error {
	spec, c := r.Model.Spec, e.Context
	switch {
	case c.Rows < 1 || c.Cols != spec.TextColumns(&e.Entry) || len(c.Data) != c.Rows*c.Cols:
		return fault.Bad(branch, "entry %d has a context of [%d, %d], the %s model takes [tokens, %d]: was it made "+
			"by the text encoders of another family?",
			i, c.Rows, c.Cols, spec.Family, spec.TextColumns(&e.Entry))
	case e.Pooled != nil && len(e.Pooled) != spec.PooledDim:
		return fault.Bad(branch, "entry %d has %d pooled values, the %s model takes %d", i, len(e.Pooled),
			spec.Family, spec.PooledDim)
	case e.Prefix.Rows != r.Branches[0].Entries[0].Prefix.Rows, len(e.Prefix.Data) != e.Prefix.Rows*e.Prefix.Cols,
		e.Prefix.Rows > 0 && (!spec.Prefix || e.Prefix.Cols != spec.Width):
		return fault.Bad(branch, "entry %d has a prefix of [%d, %d]: want [%d, %d], as other entries have, and a model "+
			"that takes one", i, e.Prefix.Rows, e.Prefix.Cols, r.Branches[0].Entries[0].Prefix.Rows, spec.Width)
	case e.Vision.Rows > 0 && (e.Vision.Cols != spec.VisionDim || len(e.Vision.Data) != e.Vision.Rows*e.Vision.Cols):
		return fault.Bad(branch, "entry %d has a picture's states of [%d, %d], the %s model takes rows of %d", i,
			e.Vision.Rows, e.Vision.Cols, spec.Family, spec.VisionDim)
	case e.Frames != nil && len(e.Frames) != max(1, r.Latent.T):
		return fault.Bad(branch, "entry %d has timesteps of %d frames, the latent has %d", i, len(e.Frames),
			max(1, r.Latent.T))
	case e.SoundRows != nil && len(e.SoundRows) != r.Latent.Sound.Y:
		return fault.Bad(branch, "entry %d has timesteps of %d rows of sound, the latent has %d", i, len(e.SoundRows),
			r.Latent.Sound.Y)
	case e.SoundReference.Rows > 0 && (spec.Sound.Width == 0 || r.Latent.Sound == (Sound{})):
		return fault.Bad(branch, "entry %d has a reference sound (LTXVReferenceAudio), for which it takes an LTX-2 model "+
			"and a latent with sound (LTXVConcatAVLatent)", i)
	case e.SoundReference.Rows > 0 && e.SoundReference.Cols != spec.Sound.Channels*spec.Sound.Patch,
		len(e.SoundReference.Data) != e.SoundReference.Rows*e.SoundReference.Cols:
		return fault.Bad(branch, "entry %d has a reference sound of [%d, %d] with %d values, the %s model takes rows of %d",
			i, e.SoundReference.Rows, e.SoundReference.Cols, len(e.SoundReference.Data), spec.Family,
			spec.Sound.Channels*spec.Sound.Patch)
	case len(e.Keyframes) > 0 && !spec.Keyframes:
		return fault.Bad(branch, "entry %d has frames that guide a video, which %s models do not take", i, spec.Family)
	case len(e.Keyframes) > 0 && e.KeyframesOf() >= r.Latent.T:
		return fault.Bad(branch, "entry %d has %d frames that guide the video (LTXVAddGuide), the latent has %d: sample the "+
			"latent that the guides were added to", i, e.KeyframesOf(), r.Latent.T)
	case slices.ContainsFunc(e.Keyframes, func(k dit.Keyframes) bool { return !(k.Weight >= 0) || !finite(k.Weight) }):
		return fault.Bad(branch, "entry %d has frames that guide the video with weights that are no numbers from 0 on", i)
	case slices.ContainsFunc(e.Keyframes, func(k dit.Keyframes) bool {
		frame := r.Latent.Grid(spec).Frame()
		return k.Every > 1 && (frame.Y%k.Every != 0 || frame.X%k.Every != 0)
	}):
		return fault.Bad(branch, "entry %d has frames that guide the video with fewer tokens than fit the latent's frames "+
			"of %d x %d: sample the latent that the guides were added to", i, r.Latent.X, r.Latent.Y/max(1, r.Latent.T))
	case slices.ContainsFunc(e.Keyframes, func(k dit.Keyframes) bool {
		return k.Mask != nil && len(k.Mask) != k.Tokens(r.Latent.Grid(spec).Frame()) ||
			slices.ContainsFunc(k.Mask, func(v float32) bool { return !(v >= 0) || !finite(v) })
	}):
		return fault.Bad(branch, "entry %d has frames that guide the video with a mask that is not made of numbers from 0 "+
			"on, one for each pixel of the latent's frames of %d x %d", i, r.Latent.X, r.Latent.Y/max(1, r.Latent.T))
	case !e.SameKeyframes(&r.Branches[0].Entries[0].Entry):
		return fault.Bad(branch, "entry %d has other frames that guide the video (LTXVAddGuide) than the first one: want "+
			"the same for positive and negative", i)
	case e.FrameRate != 0 && spec.FrameRate == 0:
		return fault.Bad(branch, "entry %d has a frame rate, which %s models do not take", i, spec.Family)
	case !(e.FrameRate >= 0 && e.FrameRate <= maxFrameRate):
		return fault.Bad(branch, "entry %d has a frame rate of %v: want a number from 0 to %d", i, e.FrameRate, maxFrameRate)
	case !finite(e.Strength):
		return fault.Bad(branch, "entry %d has strength %v: want a finite number", i, e.Strength)
	}
	if c, l := e.Concat, r.Latent; (spec.Concat > 0 || c.Data != nil) && (c.Y != l.Y || c.X != l.X ||
		len(c.Data) != spec.Concat*c.Y*c.X) {
		return fault.Bad(branch, "entry %d has %d concatenated values of %d x %d, the %s model takes %d channels of "+
			"%d x %d", i, len(c.Data), c.Y, c.X, spec.Family, spec.Concat, l.Y, l.X)
	}
	if a := e.Area; a != (Area{}) && (a.Y < 0 || a.X < 0 || a.H < 1 || a.W < 1) {
		return fault.Bad(branch, "entry %d has area %+v: want an origin of at least 0, and sides of at least 1", i, a)
	}
	if r.Latent.T > 1 && (e.Rectangle() != (Area{}) || len(e.Control) > 0) {
		return fault.Bad(branch, "entry %d has an area, a control net or a model patch, and the latent %d layers: "+
			"want one of them", i, r.Latent.T)
	}
	if m := e.Mask; len(m.Data) > 0 && (len(m.Data) != m.Len() || m.C != 1 || m.Y != r.Latent.Y || m.X != r.Latent.X) {
		return fault.Bad(branch, "entry %d has a mask of [%d, %d, %d, %d], want [items, 1, %d, %d]", i, m.B, m.C, m.Y,
			m.X, r.Latent.Y, r.Latent.X)
	}
	if n := e.Context.Rows; !slices.IsSorted(e.Slots) ||
		len(e.Slots) > 0 && (e.Slots[0] < 0 || e.Slots[len(e.Slots)-1] > n) {
		return fault.Bad(branch, "entry %d has references behind %v rows of its text: want ascending numbers from 0 to %d",
			i, e.Slots, n)
	}
	at := 0
	for _, p := range e.Pictures {
		if p.Start < at || p.End <= p.Start || p.End > e.Context.Rows {
			return fault.Bad(branch, "entry %d has pictures in rows %v of its text: want ascending rows of %d", i, e.Pictures,
				e.Context.Rows)
		}
		at = p.End
	}
	if err := r.validateBiases(branch, i, e); err != nil {
		return err
	}
	return r.validateResiduals(branch, i, e)
}

// validateBiases checks the biases that an entry adds to attention scores.
func (r *Request) validateBiases(branch string, i int, e Entry) error {
	spec, at := r.Model.Spec, 0
	switch {
	case len(e.Biases) == 0:
		return nil
	case !spec.Biases:
		return fault.Bad(branch, "entry %d has a bias on attention (attn_bias of StyleModelApply), which %s models do "+
			"not take: use multiply", i, spec.Family)
	case len(e.References) > 0, e.Prefix.Rows > 0: // the shapes do not match in ComfyUI
		return fault.Bad(branch, "entry %d has a bias on attention (attn_bias of StyleModelApply) and reference "+
			"latents, or rows in front of its text (USOStyleReference): want one of them", i)
	}
	for k, b := range e.Biases {
		if b.Rows.Start < at || b.Rows.End <= b.Rows.Start || b.Rows.End > e.Context.Rows {
			return fault.Bad(branch, "entry %d has a bias %d on rows %d to %d of its text: want rows of %d, behind those "+
				"of the bias before", i, k, b.Rows.Start, b.Rows.End, e.Context.Rows)
		}
		if !finite(b.Value) {
			return fault.Bad(branch, "entry %d has a bias %d of %v: want a finite number", i, k, b.Value)
		}
		at = b.Rows.End
	}
	return nil
}

// covers reports whether the mask of a sound, if there is one, has a value for each element of it.
func (s Sound) covers(sound Sound) bool {
	return s == Sound{} || s.Y == sound.Y && s.X == sound.X && (s.C == 1 || s.C == sound.C)
}

// validateSound checks the sound beside the latent.
func (r *Request) validateSound() error {
	s, takes := r.Latent.Sound, r.Model.Spec.Sound
	switch {
	case s == Sound{}:
		return nil
	case takes == dit.Sound{}:
		return fault.Bad("latent", "has sound, which %s models do not take: give the video alone", r.Model.Spec.Family)
	case s.C != takes.Channels || s.Y < 1 || s.X < 1 || s.X%takes.Patch != 0:
		return fault.Bad("latent", "has sound of shape [%d, %d, %d], the %s model takes [%d, rows, a multiple of %d]", s.C,
			s.Y, s.X, r.Model.Spec.Family, takes.Channels, takes.Patch)
	}
	for _, b := range r.Branches {
		for i, e := range b.Entries {
			if e.Area != (Area{}) || len(e.Mask.Data) > 0 {
				return fault.Bad(b.Name, "entry %d is limited by an area or a mask, and the latent has sound: want one of them",
					i)
			}
		}
	}
	return nil
}

// validateResiduals checks the residuals, control nets and model patches of an entry.
func (r *Request) validateResiduals(branch string, i int, e Entry) error {
	spec, seen := r.Model.Spec, map[int]bool{}
	n := r.Latent.Grid(spec).Tokens()
	for k, c := range e.Residuals {
		if len(c.Rows) != n*spec.Width && len(c.Rows) != r.Latent.B*n*spec.Width {
			return fault.Bad(branch, "entry %d has a residual %d of %d values, the %s model takes [1 or %d, %d, %d]: is "+
				"the control net one of another family?", i, k, len(c.Rows), spec.Family, r.Latent.B, n, spec.Width)
		}
		for _, v := range c.Rows {
			if !finite(v) {
				return fault.Bad(branch, "entry %d has a residual %d that is not finite: what are strength and hint of the "+
					"control net?", i, k)
			}
		}
		for _, b := range c.Blocks {
			if b < 0 || b >= len(spec.Blocks) || seen[b] {
				return fault.Bad(branch, "entry %d has a residual %d for block %d: want blocks 0 to %d, each once", i, k, b,
					len(spec.Blocks)-1)
			}
			seen[b] = true
		}
	}
	for k, c := range e.Control {
		net := c.Net.Spec
		switch {
		case net == nil || net.Family != spec.Family || net.Width != spec.Width:
			return fault.Bad(branch, "entry %d has control net %d, which is not for a %s model of width %d", i, k,
				spec.Family, spec.Width)
		case c.Patch && len(net.Blocks) < len(spec.Blocks):
			return fault.Bad(branch, "entry %d has a model patch for %d blocks, the %s model has %d", i, len(net.Blocks),
				spec.Family, len(spec.Blocks))
		case !c.Patch && (net.ContextDim != spec.ContextDim && net.ContextDim != 0 || net.Heads != spec.Heads ||
			net.Channels != spec.Channels):
			return fault.Bad(branch, "entry %d has control net %d, for text states of %d columns, %d heads and %d "+
				"channels: the %s model has %d, %d and %d", i, k, net.ContextDim, net.Heads, net.Channels, spec.Family,
				spec.ContextDim, spec.Heads, spec.Channels)
		case !finite(c.Strength):
			return fault.Bad(branch, "entry %d has a control net of strength %v: want a finite number", i, c.Strength)
		}
		y, x := net.HintSize(r.Latent.Y, r.Latent.X)
		if c.Hint.B != 1 && (c.Patch || c.Hint.B != r.Latent.B) || c.Hint.Y != y || c.Hint.X != x ||
			len(c.Hint.Data) != c.Hint.Len() {
			return fault.Bad(branch, "entry %d has a control net with a hint of [%d, %d, %d, %d], want [1, channels, %d, "+
				"%d], or of a net [%d, ...]", i, c.Hint.B, c.Hint.C, c.Hint.Y, c.Hint.X, y, x, r.Latent.B)
		}
	}
	switch {
	case len(e.Residuals)+len(e.Control) == 0:
		return nil
	case e.Rectangle() != (Area{}):
		return fault.Bad(branch, "entry %d has a control net, or its model a patch, and an area: want one of them", i)
	case !spec.JointText() && len(e.Residuals) > 0:
		return fault.Bad(branch, "entry %d has residuals of a control net, which %s models do not take", i, spec.Family)
	}
	return nil
}

// Fits refuses a plan that cannot run the request.
func (r *Request) Fits(p plan.Plan) error {
	entries := 0
	for _, b := range r.Branches {
		entries += len(b.Entries)
		for _, e := range b.Entries {
			if len(e.Control) > 0 && p.Parts() > 1 {
				return plan.Refuse("shard", "is on, but an entry of %s has a control net or a model patch, whose weights are not "+
					"kept in parts: use shard=off", b.Name)
			}
			if p.Pipe > 1 && slices.ContainsFunc(e.Control, func(c Control) bool { return c.Net.Spec.Follows }) {
				return plan.Refuse("pipe", "is %d, but an entry of %s has a model patch that reads the model's first blocks on "+
					"the whole picture, which later stages do not have: use ulysses=%d", p.Pipe, b.Name, p.Pipe)
			}
			if p.Pipe > 1 && e.Rectangle() != (Area{}) {
				return plan.Refuse("pipe", "is %d, but an entry of %s is limited to an area: use ulysses=%d",
					p.Pipe, b.Name, p.Pipe)
			}
		}
	}
	g := r.Grid()
	return p.Check(r.Model.Spec, r.Latent.B, max(entries, 1), r.Model.Spec.Split(g)-g.Pad)
}
