package classes

import (
	"patchbay/models/vae"
	"patchbay/node/fault"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/value"
	"patchbay/parallel"
	"patchbay/parallel/plan"
)

// vaeClasses are the rows that encode and decode.
func vaeClasses() []graph.Class {
	return []graph.Class{
		{
			Name: "VAEDecode", Display: "VAE Decode", Module: "nodes", Category: "model/latent",
			Aliases: "decode, decode latent, latent to image, render latent", Heavy: graph.StageVAE,
			Description: "Decodes latents into pictures.",
			Inputs: []graph.Input{
				graph.Link("samples", "LATENT", "the latent to decode"),
				graph.Link("vae", "VAE", "the autoencoder"),
			},
			Outputs: graph.Slots("IMAGE"), Run: vaeDecode,
		},
		{
			Name: "VAEEncode", Display: "VAE Encode", Module: "nodes", Category: "model/latent",
			Aliases: "encode, encode image, image to latent", Heavy: graph.StageVAE,
			Inputs:  []graph.Input{graph.Bare("pixels", "IMAGE"), graph.Bare("vae", "VAE")},
			Outputs: graph.Slots("LATENT"), Run: vaeEncode,
		},
	}
}

func vaeDecode(c *graph.Call) ([]any, error) {
	l, v := c.Latent("samples").Samples, graph.Arg[*value.VAE](c, "vae")
	if v.Key == value.PixelSpace {
		return decodePixels(l)
	}
	plan, err := plan.Parse(c.Job.Plan)
	if err != nil {
		return nil, err
	}
	var im *picture.Image
	err = v.WithLoaded(c.Use(), func(d *parallel.Workspace, net *vae.VAE) error {
		if err := v.Takes(net.Config.Latent(), l.C); err != nil {
			return err
		}
		out, err := d.Decode(net, l.Data, l.B, l.Y, l.X, plan.Bands())
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

func vaeEncode(c *graph.Call) ([]any, error) {
	samples, err := encodeImage(c, graph.Arg[*value.VAE](c, "vae"), graph.Arg[*picture.Image](c, "pixels"))
	return []any{&value.Latent{Samples: samples}}, err
}

// encodeImage crops pictures to what the autoencoder takes and encodes them; alpha is dropped where it takes none.
func encodeImage(c *graph.Call, v *value.VAE, im *picture.Image) (parallel.Latent, error) {
	if v.Key == value.PixelSpace {
		return encodePixels(im), nil
	}
	plan, err := plan.Parse(c.Job.Plan)
	if err != nil {
		return parallel.Latent{}, err
	}
	var out parallel.Latent
	err = v.WithLoaded(c.Use(), func(d *parallel.Workspace, net *vae.VAE) error {
		cfg := net.Config
		if !cfg.CanEncode {
			return fault.Family("vae", "%s has no encoder", v.Name)
		}
		s := cfg.Scale()
		pixels, y, x := cfg.CropToImage(im.Data, im.B, im.Y, im.X, im.C)
		if y == 0 || x == 0 {
			return fault.Bad("pixels", "a picture of %d x %d is smaller than the %d pixels that one latent value covers", im.X,
				im.Y, s)
		}
		data, err := d.Encode(net, pixels, im.B, y, x, plan.Bands())
		out = parallel.Latent{B: im.B, C: cfg.Latent(), Y: y / s, X: x / s, Data: data}
		return err
	})
	return out, err
}

// decodePixels is the identity with ComfyUI's clamp: [B, 3, Y, X] -> [B, Y, X, 3].
func decodePixels(l parallel.Latent) ([]any, error) {
	if l.C != 3 {
		return nil, fault.Family("vae", "%s takes latents of 3 channels, got %d", value.PixelSpace, l.C)
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
