package value

import (
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

// Control is a control net on a conditioning.
type Control struct {
	Net        *ControlNet
	Image      *picture.Image // the hint
	VAE        *VAE           // that encodes it; nil: none was given
	Strength   float32
	Start, End float64 // part of the run where it works, 0..1 of the timesteps
}

// HintFunc encodes the hint of a control net at the size of a latent, in the VAE's space.
type HintFunc func(c *Control, y, x int) (parallel.Latent, error)

// controls brings the control nets of a conditioning to a request for a latent.
func (m *Model) controls(c *Cond, branch string, l parallel.Latent, encode HintFunc) ([]parallel.Control, error) {
	var out []parallel.Control
	for _, ctl := range c.Controls {
		n := ctl.Net
		refused := func(code, format string, args ...any) error {
			return fault.At(code, branch, branch+": control net "+n.Name+": "+format, args...)
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
			return nil, refused(fault.CodeBadInput, "control nets are not for this sampling node")
		}
		hint, err := encode(ctl, l.Y, l.X)
		if err != nil {
			return nil, err
		}
		if hint.C != m.Format.Channels || hint.Y != l.Y || hint.X != l.X {
			return nil, refused(fault.CodeWrongFamily, "the VAE makes %d channels of %d x %d of the hint, the latent has %d of "+
				"%d x %d: load the VAE of the model", hint.C, hint.Y, hint.X, l.C, l.Y, l.X)
		}
		n.Format.ToModel(hint.Data, hint.Y*hint.X)
		for ; hint.C < n.Hint; hint.C++ { // a mask of ones: everything is to be filled in
			for range hint.Y * hint.X {
				hint.Data = append(hint.Data, 1)
			}
		}
		w := source.Weights{Model: source.Model{File: n.file}, Loader: &source.Loader{}}
		out = append(out, parallel.Control{
			Net:  parallel.Model{Key: w.Key(), Spec: &n.Spec, Weights: w, WeightBytes: w.Bytes()},
			Hint: hint, Mode: n.Type, Strength: ctl.Strength,
			SigmaStart: float32(m.Sampling.PercentToSigma(ctl.Start)), SigmaEnd: float32(m.Sampling.PercentToSigma(ctl.End)),
		})
	}
	return out, nil
}
