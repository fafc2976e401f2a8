package node

import (
	"patchbay/models/vae"
	"patchbay/models/weights"
	"patchbay/node/fault"
	"patchbay/node/files"
	"patchbay/node/picture"
	"patchbay/parallel"
)

// VAE is a VAE handle: an autoencoder whose weights are read when a node needs them.
type VAE struct {
	Name     string
	Key      string // file and header hash, or pixelSpace
	Channels int    // of the latents it takes
	file     *files.Opener
}

// pixelSpace is ComfyUI's built-in autoencoder of models that work on pixels: values -1..1, no compression.
const pixelSpace = "pixel_space"

// openVAE makes a handle after checking that the file holds an autoencoder.
func openVAE(name string, f files.Checkpoint, set *weights.Set) (*VAE, error) {
	for _, prefix := range []string{"", "first_stage_model.", "vae."} {
		if !set.Has(prefix + "decoder.conv_in.weight") {
			continue
		}
		v := &VAE{Name: name, Key: f.Key(), Channels: set.Dim(prefix+"decoder.conv_in.weight", 1), file: &files.Opener{Checkpoint: f}}
		if n := set.Dim(prefix+"post_quant_conv.weight", 1); n > 0 {
			v.Channels = n
		}
		return v, nil
	}
	family, instead, _ := weights.Looks(set)
	if instead == "" {
		instead = "a diffusion model (" + family + ")"
	}
	return nil, fault.New(fault.CodeWrongFamily, "%s holds no autoencoder (no decoder.conv_in.weight): it looks like %s", name, instead)
}

// vaeClasses are the rows that encode and decode.
func vaeClasses() []Class {
	return []Class{
		{
			Name: "VAEDecode", Display: "VAE Decode", Module: "nodes", Category: "latent", Heavy: stageVAE,
			Description: "Decodes latents into pictures.",
			Inputs:      []Input{linkIn("samples", "LATENT", "the latent to decode"), linkIn("vae", "VAE", "the autoencoder")},
			Outputs:     slots("IMAGE"), Run: vaeDecode,
		},
		{
			Name: "VAEEncode", Display: "VAE Encode", Module: "nodes", Category: "latent", Heavy: stageVAE,
			Inputs: []Input{bareIn("pixels", "IMAGE"), bareIn("vae", "VAE")}, Outputs: slots("LATENT"), Run: vaeEncode,
		},
	}
}

// withVAE runs f on the device with the loaded autoencoder and an arena of the size that need tells.
func (c *Call) withVAE(v *VAE, need func(vae.Config) (int, error), f func(*vae.VAE, vae.Env) error) error {
	return c.withLoadedVAE(v, func(l *parallel.Local, net *vae.VAE) error {
		bytes, err := need(net.Config)
		if err != nil {
			return err
		}
		arena, err := l.Arena(bytes)
		if err != nil {
			return err
		}
		return f(net, vae.Env{Ops: l.Ops, Arena: arena, Check: func(int, int) error { return l.Check() }})
	})
}

// withLoadedVAE runs f on the device with the loaded autoencoder.
func (c *Call) withLoadedVAE(v *VAE, f func(*parallel.Local, *vae.VAE) error) error {
	return c.do("vae "+v.Name, func(l *parallel.Local) error {
		net, err := lent(c, "vae "+v.Key, func() (net *vae.VAE, err error) {
			err = v.file.With(func(file *weights.File) error {
				net, err = vae.Open(l.Ops, file.Set(), files.Config(file, "vae"))
				return err
			})
			if err != nil {
				return nil, &fault.Failure{Code: fault.CodeBadCheckpoint, Message: err.Error(), Field: "vae", Cause: err}
			}
			return net, nil
		})
		if err != nil {
			return err
		}
		return f(l, net)
	})
}

func vaeDecode(c *Call) ([]any, error) {
	l, v := value[*Latent](c, "samples").Samples, value[*VAE](c, "vae")
	if v.Key == pixelSpace {
		return decodePixels(l)
	}
	if l.B < 1 || l.Y < 1 || l.X < 1 {
		return nil, fault.At(fault.CodeBadInput, "samples", "samples: latent [%d, %d, %d, %d] is empty", l.B, l.C, l.Y, l.X)
	}
	plan, err := parallel.ParsePlan(c.Job.Plan)
	if err != nil {
		return nil, err
	}
	var im *picture.Image
	err = c.withLoadedVAE(v, func(d *parallel.Local, net *vae.VAE) error {
		if err := v.takes(net.Config.Latent(), l.C); err != nil {
			return err
		}
		out, err := d.Decode(net, l.Data, l.B, l.Y, l.X, plan.Ranks())
		if err != nil {
			return err
		}
		vae.ToImage(out)
		s := net.Config.Scale()
		im = &picture.Image{B: l.B, Y: s * l.Y, X: s * l.X, C: net.Config.Out, Data: out}
		return nil
	})
	return []any{im}, err
}

// takes refuses latents of another number of channels than the autoencoder's.
func (v *VAE) takes(channels, got int) error {
	if channels == got {
		return nil
	}
	return fault.At(fault.CodeWrongFamily, "vae", "vae: %s takes latents of %d channels, got %d: use the VAE of the model's family", v.Name, channels, got)
}

func vaeEncode(c *Call) ([]any, error) {
	im, v := value[*picture.Image](c, "pixels"), value[*VAE](c, "vae")
	samples, err := c.encodeImage(v, im)
	if err != nil {
		return nil, err
	}
	return []any{&Latent{Samples: samples}}, nil
}

// encodeImage crops pictures to what the autoencoder takes and encodes them; alpha is dropped.
func (c *Call) encodeImage(v *VAE, im *picture.Image) (parallel.Latent, error) {
	if v.Key == pixelSpace {
		return encodePixels(im), nil
	}
	plan, err := parallel.ParsePlan(c.Job.Plan)
	if err != nil {
		return parallel.Latent{}, err
	}
	var out parallel.Latent
	err = c.withLoadedVAE(v, func(d *parallel.Local, net *vae.VAE) error {
		cfg := net.Config
		if !cfg.CanEncode {
			return fault.At(fault.CodeWrongFamily, "vae", "vae: %s has no encoder", v.Name)
		}
		s := cfg.Scale()
		pixels, y, x := vae.CropToImage(im.Data, im.B, im.Y, im.X, im.C, s)
		if y == 0 || x == 0 {
			return fault.At(fault.CodeBadInput, "pixels", "pixels: a picture of %d x %d is smaller than the %d pixels that one latent value covers", im.X, im.Y, s)
		}
		data, err := d.Encode(net, pixels, im.B, y, x, plan.Ranks())
		out = parallel.Latent{B: im.B, C: cfg.Latent(), Y: y / s, X: x / s, Data: data}
		return err
	})
	return out, err
}

// decodePixels is the identity with ComfyUI's clamp: [B, 3, Y, X] -> [B, Y, X, 3].
func decodePixels(l parallel.Latent) ([]any, error) {
	if l.C != 3 {
		return nil, fault.At(fault.CodeWrongFamily, "vae", "vae: %s takes latents of 3 channels, got %d", pixelSpace, l.C)
	}
	out := make([]float32, l.Len())
	n := l.Y * l.X
	for i, v := range l.Data {
		b, ch, p := i/(3*n), i/n%3, i%n
		out[(b*n+p)*3+ch] = v
	}
	vae.ToImage(out)
	return []any{&picture.Image{B: l.B, Y: l.Y, X: l.X, C: 3, Data: out}}, nil
}

// encodePixels is its inverse.
func encodePixels(im *picture.Image) parallel.Latent {
	out := parallel.NewLatent(im.B, 3, im.Y, im.X)
	n := im.Y * im.X
	for i := range im.B * n {
		for ch := range 3 {
			out.Data[(i/n*3+ch)*n+i%n] = 2*im.Data[i*im.C+ch] - 1
		}
	}
	return out
}
