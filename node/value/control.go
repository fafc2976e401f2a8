package value

import (
	"fmt"
	"math"
	"slices"

	"patchbay/models"
	"patchbay/models/control"
	"patchbay/models/dit"
	"patchbay/models/source"
	"patchbay/models/text"
	"patchbay/models/weights"
	"patchbay/node/fault"
	"patchbay/node/files"
	"patchbay/node/picture"
	"patchbay/parallel"
)

// ControlNet is a CONTROL_NET: a net that has been described but not loaded, and the type that a union net is set to.
type ControlNet struct {
	Name string // as the workflow calls it
	*control.Net
	Type int // row of a union net from 1, 0: none
	file source.File
	// beginning is the file of the model that it runs beside, where it has weights of that.
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

// Look returns what a net that sees makes of pictures [B, 8*Y, 8*X, 3], in place of their latent.
func (n *ControlNet) Look(u Use, im *picture.Image) (out parallel.Latent, err error) {
	open := func(l *parallel.Workspace, file *weights.File) (*control.Picture, error) {
		return control.OpenPicture(l.Ops, file.Set().For(l.DType))
	}
	out = parallel.Latent{B: im.B, C: n.Hint, Y: im.Y / 8, X: im.X / 8}
	err = on(u, lazy{n.Name, n.file}, "control_net", open, func(l *parallel.Workspace, p *control.Picture) error {
		rgb, size := im.First(3).Data, 3*im.Y*im.X
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

// ModelPatch is a MODEL_PATCH: layers for the blocks of a model that have been described but not loaded, or a network
// that makes rows of a text of what a picture encoder sees, which has sizes and no Net.
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

// Fits refuses a patch that is not for a model.
func (p *ModelPatch) Fits(m *Model) error {
	if err := p.ControlNet.fits(m.Spec); err != nil {
		return fault.Family("model_patch", "%v", err)
	}
	return nil
}

// Control is a control net on a conditioning, or a patch on a model.
type Control struct {
	Net *ControlNet
	// Image is the hint; several go to the pictures of a latent in turn. nil: gray, of a patch that fills in.
	Image *picture.Image
	Fill  *picture.Image // what is to be filled in, of a patch that does; nil: gray
	VAE   *VAE           // that encodes it; nil: none was given
	// Mask is of one channel, 1 where the hint, or what is filled in, is kept, as Image for pictures; nil: everywhere.
	Mask       *picture.Image
	Strength   float32
	Start, End float64 // part of the run where it works, 0..1 of the timesteps
}

// Bytes is the memory of its pictures.
func (c *Control) Bytes() (n int64) {
	for _, im := range []*picture.Image{c.Image, c.Fill, c.Mask} {
		if im != nil {
			n += 4 * int64(len(im.Data))
		}
	}
	return n
}

// Hint is what a control net is shown, in the VAE's space: the hint, what is to be filled in, of the same size, where
// the net fills in, and the masks [masks, y, x], nil where it has none.
type Hint struct {
	parallel.Latent
	Fill parallel.Latent
	Mask []float32
}

// HintFunc encodes the first n pictures of the hint of a control net at the size of a latent.
type HintFunc func(c *Control, n, y, x int) (Hint, error)

// once has each hint encoded once, whatever entries have it; all of them are for one latent.
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
		hint.Data, hint.Fill.Data = slices.Clone(hint.Data), slices.Clone(hint.Fill.Data) // its callers change it
		return hint, nil
	}
}

// oneFrame is how many pictures a VAE whose pictures are frames makes one latent of: that of the first (Wan 2.1 takes
// four frames at a time behind the first, and leaves out what does not fill them).
const oneFrame = 4

// spread gives each of b pictures its hint, and hints their masks, those that there are in turn (ComfyUI
// comfy/controlnet.py, broadcast_image_to). One hint stays one.
func (n *ControlNet) spread(hint parallel.Latent, masks []float32, b int) parallel.Latent {
	plane := hint.Y * hint.X
	item, out := hint.C*plane, parallel.Latent{B: b, C: hint.C, Y: hint.Y, X: hint.X}
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

// controls brings the patches of a model and the control nets of a conditioning to a request for a latent.
func (m *Model) controls(c *Cond, branch string, l parallel.Latent, encode HintFunc) ([]parallel.Control, error) {
	var out []parallel.Control
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
			return nil, refused(fault.CodeWrongFamily, "it is for %s models of width %d, the model is %s of width %d", n.Family,
				n.Spec.Width, m.Spec.Family, m.Spec.Width)
		case n.Sees && (l.Y%n.Spec.PatchSize != 0 || l.X%n.Spec.PatchSize != 0):
			return nil, refused(fault.CodeBadInput, "it reads pictures of whole tokens: the latent is %d x %d, want sides that "+
				"are multiples of %d", l.X, l.Y, n.Spec.PatchSize)
		case n.Sees && encode != nil:
		case ctl.VAE == nil:
			return nil, refused(fault.CodeBadInput, "it needs a VAE: connect the input vae of the node that applies it")
		case ctl.Net.Patch && ctl.Image != nil && ctl.Image.B != 1:
			return nil, refused(fault.CodeBadInput, "the hint is %d pictures, one is taken", ctl.Image.B)
		case ctl.VAE.Frames && ctl.Image != nil && ctl.Image.B > oneFrame:
			return nil, refused(fault.CodeBadInput, "the hint is %d pictures, which its VAE reads as a video: give one",
				ctl.Image.B)
		case encode == nil:
			return nil, refused(fault.CodeBadInput, "hints are not for this sampling node")
		}
		with, err := n.Beside(m)
		if err != nil {
			return nil, refused(fault.CodeWrongFamily, "%v", err)
		}
		n = with
		pictures := 1
		if ctl.Image != nil && (n.Sees || !ctl.VAE.Frames) {
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
			return nil, refused(fault.CodeWrongFamily, "the VAE makes %d channels of %d x %d of the hint, the latent has %d of "+
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

// whole puts zeros beside a hint of odd sides.
func whole(h parallel.Latent, s dit.Spec) parallel.Latent {
	y, x := s.HintSize(h.Y, h.X)
	out := parallel.NewLatent(h.B, h.C, y, x)
	for i := range h.B * h.C * h.Y {
		copy(out.Data[(i/h.Y*y+i%h.Y)*x:], h.Data[i*h.X:(i+1)*h.X])
	}
	return out
}

// fits refuses a net that is not for a model.
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

// Beside describes a net that starts with weights of the model, with these, which it has in memory of its own. Other
// nets, and those for other families, stay as they are.
func (n *ControlNet) Beside(m *Model) (*ControlNet, error) {
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
	file, err := n.file.Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	base, err := m.file.Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = base.Close() }()
	set, err := models.ControlBeside(file.Set(), base.Set())
	if err != nil {
		return nil, err
	}
	out := *n
	out.beginning = m.file
	out.Net, err = models.OpenControl(set, file.Metadata())
	return &out, err
}

// control is the net on an entry of a request, with a hint in model space. It works always; what is no patch gets the
// sigmas between which it does.
func (n *ControlNet) control(hint parallel.Latent, strength float32) parallel.Control {
	w := source.Weights{Model: source.Model{File: n.file, Beside: n.beginning}, Loader: &source.Loader{}}
	if n.Root {
		strength = float32(math.Sqrt(math.Max(float64(strength), 0)))
	}
	made := parallel.Control{
		Net:   parallel.Model{Key: w.Key(), Spec: &n.Spec, Weights: w, WeightBytes: w.Bytes() + n.Borrowed},
		Patch: n.Patch && !n.Spec.Follows, Hint: hint, Mode: n.Type, Strength: strength,
		SigmaStart: math.MaxFloat32,
	}
	if !n.Patch {
		made.Feeds = n.Feeds
	}
	return made
}
