package value

import (
	"slices"

	"patchbay/models"
	"patchbay/models/control"
	"patchbay/models/source"
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
}

// OpenControlNet describes the control net of a file from its header.
func OpenControlNet(name string, f files.Checkpoint, open *weights.File, set *weights.Set) (*ControlNet, error) {
	n, err := models.OpenControl(set, open.Metadata())
	if err != nil {
		return nil, err
	}
	return &ControlNet{Name: name, Net: n, file: f.File}, nil
}

// ModelPatch is a MODEL_PATCH: layers behind the blocks of a model that have been described but not loaded.
type ModelPatch struct{ ControlNet }

// OpenModelPatch describes the model patch of a file from its header.
func OpenModelPatch(name string, f files.Checkpoint, set *weights.Set) (*ModelPatch, error) {
	n, err := models.OpenPatch(set)
	if err != nil {
		return nil, err
	}
	return &ModelPatch{ControlNet{Name: name, Net: n, file: f.File}}, nil
}

// Fits refuses a patch that is not for a model.
func (p *ModelPatch) Fits(m *Model) error {
	switch {
	case p.Family != m.Spec.Family || p.Spec.Width != m.Spec.Width:
		return fault.At(fault.CodeWrongFamily, "model_patch", "model_patch: %s is for %s models of width %d, the model is "+
			"%s of width %d", p.Name, p.Family, p.Spec.Width, m.Spec.Family, m.Spec.Width)
	case len(p.Spec.Blocks) < len(m.Spec.Blocks):
		return fault.At(fault.CodeWrongFamily, "model_patch", "model_patch: %s is for %d blocks, the model has %d", p.Name,
			len(p.Spec.Blocks), len(m.Spec.Blocks))
	}
	return nil
}

// Control is a control net on a conditioning, or a patch on a model.
type Control struct {
	Net        *ControlNet
	Image      *picture.Image // the hint
	VAE        *VAE           // that encodes it; nil: none was given
	Mask       *picture.Image // of one channel, 1 where the hint is kept; nil: everywhere
	Strength   float32
	Start, End float64 // part of the run where it works, 0..1 of the timesteps
}

// HintFunc encodes the hint of a control net at the size of a latent, in the VAE's space, and brings its mask to that
// size, [y, x]; nil where it has none.
type HintFunc func(c *Control, y, x int) (hint parallel.Latent, mask []float32, err error)

// once has each hint encoded once, whatever entries have it; all of them are for one latent.
func once(encode HintFunc) HintFunc {
	if encode == nil {
		return nil
	}
	type encoded struct {
		hint parallel.Latent
		mask []float32
	}
	done := map[*Control]encoded{}
	return func(ctl *Control, y, x int) (hint parallel.Latent, mask []float32, err error) {
		e, ok := done[ctl]
		if !ok {
			if e.hint, e.mask, err = encode(ctl, y, x); err != nil {
				return hint, nil, err
			}
			done[ctl] = e
		}
		hint = e.hint
		hint.Data = slices.Clone(hint.Data) // its callers change it
		return hint, e.mask, nil
	}
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
		case ctl.VAE == nil:
			return nil, refused(fault.CodeBadInput, "it needs a VAE: connect the input vae of the node that applies it")
		case ctl.Image.B != 1:
			return nil, refused(fault.CodeBadInput, "the hint is %d pictures, one is taken", ctl.Image.B)
		case encode == nil:
			return nil, refused(fault.CodeBadInput, "hints are not for this sampling node")
		}
		hint, mask, err := encode(ctl, l.Y, l.X)
		if err != nil {
			return nil, err
		}
		if hint.C != m.Format.Channels || hint.Y != l.Y || hint.X != l.X {
			return nil, refused(fault.CodeWrongFamily, "the VAE makes %d channels of %d x %d of the hint, the latent has %d of "+
				"%d x %d: load the VAE of the model", hint.C, hint.Y, hint.X, l.C, l.Y, l.X)
		}
		n.Format.ToModel(hint.Data, hint.Y*hint.X)
		if n.Masked() {
			if mask == nil {
				mask = slices.Repeat([]float32{1}, hint.Y*hint.X)
			}
			hint.C, hint.Data = n.Hint, append(hint.Data, mask...)
		}
		w := source.Weights{Model: source.Model{File: n.file}, Loader: &source.Loader{}}
		out = append(out, parallel.Control{
			Net:   parallel.Model{Key: w.Key(), Spec: &n.Spec, Weights: w, WeightBytes: w.Bytes()},
			Patch: n.Patch && !n.Spec.Follows, Hint: hint, Mode: n.Type, Strength: ctl.Strength,
			SigmaStart: float32(m.Sampling.PercentToSigma(ctl.Start)), SigmaEnd: float32(m.Sampling.PercentToSigma(ctl.End)),
		})
	}
	return out, nil
}
