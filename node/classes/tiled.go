package classes

import (
	"patchbay/engine"
	"patchbay/models/vae"
	"patchbay/node/fault"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/value"
	"patchbay/parallel"
)

// tiledClasses are the rows that decode and encode in tiles.
func tiledClasses() []graph.Class {
	tile := func(step int64) []graph.Input {
		return []graph.Input{
			graph.Int("tile_size", "in pixels", 512, 64, 4096, step).AsAdvanced(),
			graph.Int("overlap", "in pixels", 64, 0, 4096, 32).AsLater().AsAdvanced(),
			graph.Int("temporal_size", "for video autoencoders only", 64, 8, 4096, 4).AsLater().AsAdvanced(),
			graph.Int("temporal_overlap", "for video autoencoders only", 8, 4, 4096, 4).AsLater().AsAdvanced(),
		}
	}
	return []graph.Class{
		{
			Name: "VAEDecodeTiled", Display: "VAE Decode (Tiled)", Module: "nodes", Category: "model/latent",
			Heavy:       graph.StageVAE,
			Description: "Decodes in tiles: needs less memory, and differs a little from VAEDecode.",
			Inputs:      append([]graph.Input{graph.Bare("samples", "LATENT"), graph.Bare("vae", "VAE")}, tile(32)...),
			Outputs:     graph.Slots("IMAGE"), Run: vaeDecodeTiled,
		},
		{
			Name: "VAEEncodeTiled", Display: "VAE Encode (Tiled)", Module: "nodes", Category: "model/latent",
			Heavy:   graph.StageVAE,
			Inputs:  append([]graph.Input{graph.Bare("pixels", "IMAGE"), graph.Bare("vae", "VAE")}, tile(64)...),
			Outputs: graph.Slots("LATENT"), Run: vaeEncodeTiled,
		},
	}
}

func vaeDecodeTiled(c *graph.Call) ([]any, error) {
	l, v := c.Latent("samples").Samples, graph.Arg[*value.VAE](c, "vae")
	size, overlap := c.Whole("tile_size"), c.Whole("overlap")
	if v.Key == value.PixelSpace {
		return decodePixels(l)
	}
	var im *picture.Image
	err := v.With(c.Use(), func(cfg vae.Config, dtype engine.DType) (int, error) {
		if err := v.Takes(cfg.Latent(), l.C); err != nil {
			return 0, err
		}
		s := cfg.Scale()
		if err := checkSize("samples", l.B, s*l.Y, s*l.X, cfg.Out); err != nil {
			return 0, err
		}
		return vae.DecodeTiledBytes(cfg, dtype, l.Y, l.X, vae.DecodeTiles(size, overlap, s)), nil
	}, func(net *vae.VAE, env vae.Env) error {
		s := net.Config.Scale()
		out, err := net.DecodeTiled(env, l.Data, l.B, l.Y, l.X, vae.DecodeTiles(size, overlap, s))
		if err != nil {
			return err
		}
		vae.ToImage(out)
		im = &picture.Image{B: l.B, Y: s * l.Y, X: s * l.X, C: net.Config.Out, Data: out}
		return nil
	})
	return []any{im}, err
}

func vaeEncodeTiled(c *graph.Call) ([]any, error) {
	im, v := graph.Arg[*picture.Image](c, "pixels"), graph.Arg[*value.VAE](c, "vae")
	t := vae.Tiles{Y: c.Whole("tile_size"), X: c.Whole("tile_size"), Overlap: c.Whole("overlap")}
	if v.Key == value.PixelSpace {
		return []any{&value.Latent{Samples: encodePixels(im)}}, nil
	}
	var out parallel.Latent
	var pixels []float32
	var y, x int
	err := v.With(c.Use(), func(cfg vae.Config, dtype engine.DType) (int, error) {
		s := cfg.Scale()
		switch {
		case !cfg.CanEncode:
			return 0, fault.Family("vae", "%s has no encoder", v.Name)
		case t.Y%(2*s) != 0 || t.Overlap%s != 0:
			return 0, fault.Bad("tile_size", "%d with overlap %d: want multiples of %d and of %d", t.Y, t.Overlap, 2*s, s)
		case t.Overlap >= t.Y/2:
			return 0, fault.Bad("overlap", "%d, want less than half of tile_size %d", t.Overlap, t.Y)
		}
		if pixels, y, x = cfg.CropToImage(im.Data, im.B, im.Y, im.X, im.C); y == 0 || x == 0 {
			return 0, fault.Bad("pixels", "a picture of %d x %d is smaller than the %d pixels that one latent value covers",
				im.X, im.Y, s)
		}
		n := 0
		for _, shape := range [][2]int{{t.Y, t.X}, {2 * t.Y, t.X / 2}, {t.Y / 2, 2 * t.X}} {
			n = max(n, vae.EncodeBytes(cfg, dtype, min(y, shape[0]), min(x, shape[1])))
		}
		return n, nil
	}, func(net *vae.VAE, env vae.Env) error {
		data, err := net.EncodeTiled(env, pixels, im.B, y, x, t)
		s := net.Config.Scale()
		out = parallel.Latent{B: im.B, C: net.Config.Latent(), Y: y / s, X: x / s, Data: data}
		return err
	})
	return []any{&value.Latent{Samples: out}}, err
}
