package value

import (
	"fmt"
	"math"
	"slices"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models"
	"patchbay/models/control"
	"patchbay/models/dit"
	"patchbay/models/source"
	"patchbay/models/text"
	"patchbay/models/weights"
	"patchbay/node/files"
	"patchbay/node/picture"
	"patchbay/parallel"
	"patchbay/parallel/request"
)

// ControlNet is a CONTROL_NET: a net that has been described but not loaded, and the type selected for a union net.
type ControlNet struct {
	Name string // as given in the workflow
	*control.Net
	Type int // union type, counted from 1; 0: none
	file source.File
	// beginning is the file of the base model, for a net that borrows weights from it (see Beside).
	beginning source.File
}

// OpenControlNet describes the control net of a file from its header.
func OpenControlNet(h files.Header) (*ControlNet, error) {
	n, err := models.OpenControl(h.Weights.Set(), h.Weights.Metadata())
	if err != nil {
		return nil, err
	}
	return &ControlNet{Name: h.Name, Net: n, file: h.File}, nil
}

// Look returns the output of a picture-reading net's own layers for pictures [B, 8*Y, 8*X, 3]; it replaces their
// latent.
func (n *ControlNet) Look(u Use, im *picture.Image) (out request.Latent, err error) {
	open := func(l *parallel.Workspace, ops engine.Ops, file *weights.File) (*control.Picture, error) {
		return control.OpenPicture(ops, file.Set().For(l.DType))
	}
	out = request.Latent{B: im.B, C: n.Hint, Y: im.Y / 8, X: im.X / 8}
	err = on(u, lazy{n.Name, n.file}, "control_net", open, func(l *parallel.Workspace, p *control.Picture) error {
		rgb, size := im.First(3).Data, 3*im.Y*im.X
		out.Data = nil // of an attempt that ran out of memory
		for b := range im.B {
			seen, err := p.Read(taskEnv(l), rgb[b*size:(b+1)*size], im.Y, im.X)
			if err != nil {
				return err
			}
			out.Data = append(out.Data, seen...)
		}
		return nil
	})
	return out, err
}

// ModelPatch is a MODEL_PATCH: either layers for the blocks of a model, described but not loaded, or a feature
// projector that turns the states of a picture encoder into text rows. A projector has sizes and no Net.
type ModelPatch struct {
	ControlNet
	sizes *text.FeatureSizes
}

// OpenModelPatch describes the model patch of a file from its header.
func OpenModelPatch(h files.Header) (*ModelPatch, error) {
	p := &ModelPatch{ControlNet: ControlNet{Name: h.Name, file: h.File}}
	if s, ok := text.FeaturesIn(h.Weights.Set()); ok {
		p.sizes = &s
		return p, nil
	}
	var err error
	p.Net, err = models.OpenPatch(h.Weights.Set())
	return p, err
}

// Fits returns an error if the patch's layers do not suit the model, or if it has none (a feature projector).
func (p *ModelPatch) Fits(m *Model) error {
	if err := p.ControlNet.fits(m.Spec); err != nil {
		return fault.Family("model_patch", "%v", err)
	}
	return nil
}

// Control is a control net applied to a conditioning, or a patch applied to a model.
type Control struct {
	Net *ControlNet
	// Image is the hint. Several pictures go to those of a latent in turn. nil: gray, only for a patch that fills in.
	Image *picture.Image
	Fill  *picture.Image // the picture to be filled in, for nets that do that; nil: gray
	VAE   *VAE           // encodes the hint; nil: none was given
	// Mask has one channel, 1 where the hint (or Fill) is kept, and goes to pictures in turn as Image does. nil: all is
	// kept, but a net that fills in reads a mask of zeros, as in ComfyUI.
	Mask       *picture.Image
	Strength   float32
	Start, End float64 // active range of the run, 0..1 of the timesteps
}

// Bytes returns the memory of the pictures.
func (c *Control) Bytes() (n int64) {
	for _, im := range []*picture.Image{c.Image, c.Fill, c.Mask} {
		if im != nil {
			n += 4 * int64(len(im.Data))
		}
	}
	return n
}

// Hint is what a control net reads, in the VAE's space: the hint, for nets that fill in also the picture to be filled
// in, of the same size, and the masks [masks, y, x], nil if there are none.
type Hint struct {
	request.Latent
	Fill request.Latent
	Mask []float32
}

// HintFunc encodes the first n pictures of a control net's hint at the size y, x of a latent.
type HintFunc func(c *Control, n, y, x int) (Hint, error)

// once wraps encode so that every hint is encoded only once, however many entries use it. All calls must be for one
// latent.
func once(encode HintFunc) HintFunc {
	if encode == nil {
		return nil
	}
	done := map[*Control]Hint{}
	return func(ctl *Control, n, y, x int) (hint Hint, err error) {
		hint, ok := done[ctl]
		if !ok {
			if hint, err = encode(ctl, n, y, x); err != nil {
				return hint, err
			}
			done[ctl] = hint
		}
		hint.Data, hint.Fill.Data = slices.Clone(hint.Data), slices.Clone(hint.Fill.Data) // callers modify it
		return hint, nil
	}
}

// spread assigns hints to b pictures, and masks to hints, cycling through those that exist (ComfyUI
// comfy/controlnet.py, broadcast_image_to). A single hint is not repeated.
func (n *ControlNet) spread(hint request.Latent, masks []float32, b int) request.Latent {
	plane := hint.Y * hint.X
	item, out := hint.C*plane, request.Latent{B: b, C: hint.C, Y: hint.Y, X: hint.X}
	if hint.B == 1 {
		out.B = 1
	}
	if n.Masked() {
		out.C = n.Hint
	}
	for i := range out.B {
		h := i % hint.B
		out.Data = append(out.Data, hint.Data[h*item:(h+1)*item]...)
		if n.Masked() {
			m := h * plane % len(masks)
			out.Data = append(out.Data, masks[m:m+plane]...)
		}
	}
	return out
}

// controls lowers the patches of a model and the control nets of a conditioning to a request for a latent.
func (m *Model) controls(c *Cond, branch string, l request.Latent, encode HintFunc) ([]request.Control, error) {
	var out []request.Control
	for _, ctl := range slices.Concat(m.Patches, c.Controls) {
		n := ctl.Net
		refused := func(code, format string, args ...any) error {
			what := ": control net "
			if n.Patch {
				what = ": model patch "
			}
			return fault.At(code, branch, branch+what+n.Name+": "+format, args...)
		}
		switch {
		case n.Family != m.Spec.Family || n.Spec.Width != m.Spec.Width:
			return nil, refused(fault.WrongFamily, "it is for %s models of width %d, the model is %s of width %d", n.Family,
				n.Spec.Width, m.Spec.Family, m.Spec.Width)
		case n.ReadsPicture && (l.Y%n.Spec.PatchSize != 0 || l.X%n.Spec.PatchSize != 0):
			return nil, refused(fault.BadInput, "it reads pictures of whole tokens: the latent is %d x %d, want sides that "+
				"are multiples of %d", l.X, l.Y, n.Spec.PatchSize)
		case n.ReadsPicture && encode != nil:
		case ctl.VAE == nil:
			return nil, refused(fault.BadInput, "it needs a VAE: connect the input vae of the node that applies it")
		case ctl.Net.Patch && ctl.Image != nil && ctl.Image.B != 1:
			return nil, refused(fault.BadInput, "the hint is %d pictures, one is taken", ctl.Image.B)
		case ctl.VAE.Frames && ctl.Image != nil && ctl.Image.B > oneFrame:
			return nil, refused(fault.BadInput, "the hint is %d pictures, which its VAE reads as a video: give one",
				ctl.Image.B)
		case encode == nil:
			return nil, refused(fault.BadInput, "hints are not for this sampling node")
		}
		with, err := n.WithBorrowed(m)
		if err != nil {
			return nil, refused(fault.WrongFamily, "%v", err)
		}
		n = with
		pictures := 1
		if ctl.Image != nil && (n.ReadsPicture || !ctl.VAE.Frames) {
			pictures = min(ctl.Image.B, l.B)
		}
		y, x := n.Spec.HintSize(l.Y, l.X)
		if n.Spec.WholeHint {
			y, x = l.Y, l.X
		}
		hint, err := encode(ctl, pictures, y, x)
		if err != nil {
			return nil, err
		}
		if hint.C != m.Format.Channels || hint.Y != y || hint.X != x {
			return nil, refused(fault.WrongFamily, "the VAE makes %d channels of %d x %d of the hint, the latent has %d of "+
				"%d x %d: load the VAE of the model", hint.C, hint.Y, hint.X, l.C, y, x)
		}
		n.Format.ToModel(hint.Data, y*x)
		if n.Masked() && hint.Mask == nil {
			hint.Mask = slices.Repeat([]float32{1}, y*x)
		}
		if pictures > 1 || n.Masked() {
			hint.Latent = n.spread(hint.Latent, hint.Mask, l.B)
		}
		if n.Fills() {
			n.Format.ToModel(hint.Fill.Data, y*x)
			hint.Data = append(hint.Data, hint.Fill.Data...)
		}
		if n.Spec.WholeHint {
			hint.Latent = whole(hint.Latent, n.Spec)
		}
		made := n.control(hint.Latent, ctl.Strength)
		made.SigmaStart = float32(m.Sampling.PercentToSigma(ctl.Start))
		made.SigmaEnd = float32(m.Sampling.PercentToSigma(ctl.End))
		out = append(out, made)
	}
	return out, nil
}

// whole pads a hint of odd size with zeros to whole tokens.
func whole(h request.Latent, s dit.Spec) request.Latent {
	y, x := s.HintSize(h.Y, h.X)
	out := request.NewLatent(h.B, h.C, y, x)
	for i := range h.B * h.C * h.Y {
		copy(out.Data[(i/h.Y*y+i%h.Y)*x:], h.Data[i*h.X:(i+1)*h.X])
	}
	return out
}

// fits returns an error if the net is not made for the base model.
func (n *ControlNet) fits(base *dit.Spec) error {
	switch {
	case n.Net == nil:
		return fmt.Errorf("%s reads what a picture encoder sees: connect it to USOStyleReference", n.Name)
	case n.Family != base.Family || n.Spec.Width != base.Width:
		return fmt.Errorf("%s is for %s models of width %d, the model is %s of width %d", n.Name, n.Family, n.Spec.Width,
			base.Family, base.Width)
	case n.Patch && !n.Spec.Follows && len(n.Spec.Blocks) < len(base.Blocks):
		return fmt.Errorf("%s is for %d blocks, the model has %d", n.Name, len(n.Spec.Blocks), len(base.Blocks))
	}
	return nil
}

// WithBorrowed returns the net described together with the weights it borrows from the model, of which it keeps its
// own copy in memory. Nets that borrow nothing, or belong to another family, are returned as they are.
func (n *ControlNet) WithBorrowed(m *Model) (*ControlNet, error) {
	if n.Net == nil || !n.Borrows || n.Family != m.Spec.Family {
		return n, nil
	}
	if m.Weights != nil {
		return nil, fmt.Errorf("it starts with weights of the model, which must be those of a file")
	}
	for _, a := range m.Loras {
		for _, add := range a.Additions {
			if add.Part == "" && n.Takes(add.Name) {
				return nil, fmt.Errorf("it starts with weights of the model, of which the LoRA %s changes %s: use the model "+
					"without it", a.Name, add.Name)
			}
		}
	}
	out := *n
	out.beginning = m.file
	err := n.file.With(func(file *weights.File) error {
		return m.file.With(func(base *weights.File) error {
			set, err := models.ControlBeside(file.Set(), base.Set())
			if err == nil {
				out.Net, err = models.OpenControl(set, file.Metadata())
			}
			return err
		})
	})
	return &out, err
}

// control returns the net for an entry of a request, with a hint in model space, active during the whole run; callers
// narrow SigmaStart and SigmaEnd.
func (n *ControlNet) control(hint request.Latent, strength float32) request.Control {
	w := source.Weights{Model: source.Model{File: n.file, Beside: n.beginning}, Loader: &source.Loader{}}
	if n.Root {
		strength = float32(math.Sqrt(math.Max(float64(strength), 0)))
	}
	made := request.Control{
		Net:   request.Model{Key: w.Key(), Spec: &n.Spec, Weights: w, WeightBytes: w.Bytes() + n.Borrowed},
		Patch: n.Patch && !n.Spec.Follows, Hint: hint, Mode: n.Type, Strength: strength,
		SigmaStart: math.MaxFloat32,
	}
	if !n.Patch {
		made.Feeds = n.Feeds
	}
	return made
}
