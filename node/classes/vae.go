package classes

import (
	"math"
	"slices"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models/vae"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/picture/resample"
	"patchbay/node/value"
	"patchbay/parallel"
	"patchbay/parallel/plan"
	"patchbay/parallel/request"
)

// vaeClasses returns the classes that encode and decode, whole or in tiles, and those that attach masks to latents.
func vaeClasses() []graph.Class {
	tile := func(step int64) []graph.Input {
		return []graph.Input{
			graph.Int("tile_size", "in pixels", 512, 64, 4096, step).AsAdvanced(),
			graph.Int("overlap", "in pixels", 64, 0, 4096, 32).AsLater().AsAdvanced(),
			graph.Int("temporal_size", "for video autoencoders only", 64, 8, 4096, 4).AsLater().AsAdvanced(),
			graph.Int("temporal_overlap", "for video autoencoders only", 8, 4, 4096, 4).AsLater().AsAdvanced(),
		}
	}
	outputs := []graph.Slot{
		{Name: "positive", Type: "CONDITIONING"}, {Name: "negative", Type: "CONDITIONING"}, {Name: "latent", Type: "LATENT"},
	}
	return graph.Rows(graph.Class{Category: "model/latent"}, []graph.Class{
		{
			Name: "VAEDecode", Display: "VAE Decode", Aliases: "decode, decode latent, latent to image, render latent",
			Phase: graph.PhaseVAE, Description: "Decodes latents into pictures.",
			Inputs: []graph.Input{
				graph.Link("samples", "LATENT", "the latent to decode"), graph.Link("vae", "VAE", "the autoencoder"),
			},
			Outputs: graph.Slots("IMAGE"), Run: vaeDecode,
		},
		{
			Name: "VAEEncode", Display: "VAE Encode", Aliases: "encode, encode image, image to latent", Phase: graph.PhaseVAE,
			Inputs: []graph.Input{graph.Bare("pixels", "IMAGE"), graph.Bare("vae", "VAE")}, Outputs: graph.Slots("LATENT"),
			Run: vaeEncode,
		},
		{
			Name: "VAEDecodeTiled", Display: "VAE Decode (Tiled)", Phase: graph.PhaseVAE,
			Description: "Decodes in tiles: needs less memory, and differs a little from VAEDecode.",
			Inputs:      append([]graph.Input{graph.Bare("samples", "LATENT"), graph.Bare("vae", "VAE")}, tile(32)...),
			Outputs:     graph.Slots("IMAGE"), Run: vaeDecodeTiled,
		},
		{
			Name: "VAEEncodeTiled", Display: "VAE Encode (Tiled)", Phase: graph.PhaseVAE,
			Inputs:  append([]graph.Input{graph.Bare("pixels", "IMAGE"), graph.Bare("vae", "VAE")}, tile(64)...),
			Outputs: graph.Slots("LATENT"), Run: vaeEncodeTiled,
		},
		{
			Name: "SetLatentNoiseMask", Display: "Set Latent Noise Mask",
			Inputs: []graph.Input{graph.Bare("samples", "LATENT"), graph.Bare("mask", "MASK")}, Outputs: graph.Slots("LATENT"),
			Run: func(c *graph.Call) ([]any, error) {
				l := graph.Arg[*value.Latent](c, "samples")
				if err := l.Single("samples"); err != nil {
					return nil, err
				}
				out := l.With(l.Samples)
				out.NoiseMask = c.Mask("mask")
				return []any{out}, nil
			},
		},
		{
			Name: "VAEEncodeForInpaint", Display: "VAE Encode (for Inpainting)", Phase: graph.PhaseVAE,
			Description: "Encodes pictures with grey where the mask is, and keeps the mask, grown a little, with the latent.",
			Inputs: []graph.Input{
				graph.Bare("pixels", "IMAGE"), graph.Bare("vae", "VAE"), graph.Bare("mask", "MASK"),
				graph.Int("grow_mask_by", "in pixels", 6, 0, 64, 1).AsLater(),
			},
			Outputs: graph.Slots("LATENT"), Run: encodeForInpaint,
		},
		{
			Name: "InpaintModelConditioning", Category: "model/conditioning", Phase: graph.PhaseVAE,
			Inputs: []graph.Input{
				graph.Bare("positive", "CONDITIONING"), graph.Bare("negative", "CONDITIONING"), graph.Bare("vae", "VAE"),
				graph.Bare("pixels", "IMAGE"), graph.Bare("mask", "MASK"),
				graph.Bool("noise_mask", "only what is inside the mask changes", true).AsLater(),
			},
			Outputs: outputs, Run: inpaintConditioning,
		},
		{
			Name: "InstructPixToPixConditioning", Module: "comfy_extras.nodes_ip2p",
			Category: "model/conditioning/instructpix2pix", Phase: graph.PhaseVAE,
			Inputs: []graph.Input{
				graph.Link("positive", "CONDITIONING", ""), graph.Link("negative", "CONDITIONING", ""),
				graph.Link("vae", "VAE", ""), graph.Link("pixels", "IMAGE", ""),
			},
			Outputs: outputs, Run: pixToPix,
		},
	})
}

func vaeDecode(c *graph.Call) ([]any, error) {
	l, v, err := decodable(c)
	if err != nil {
		return nil, err
	}
	if v.Key == value.PixelSpace {
		return decodePixels(l)
	}
	plan, err := plan.Parse(c.Job.Plan)
	if err != nil {
		return nil, err
	}
	var im *picture.Image
	if l.T > 1 || v.Clips {
		l.T = max(1, l.T)
		err = v.WithClips(c.Use(), func(d *parallel.Workspace, net *vae.VAE) error {
			if err := v.Takes(net.Config.Latent(), l.C); err != nil {
				return err
			}
			frame := l
			frame.B, frame.Y = l.B*net.Config.Pictures(l.T), l.Y/l.T
			s := net.Config.Scale()
			if least := net.Config.Least(false); min(frame.Y, frame.X) < least {
				return fault.Bad("samples", "a latent of %d x %d: %s takes sides of at least %d, %d pixels", frame.X, frame.Y,
					v.Name, least, s*least)
			}
			if err := checkSize("samples", frame.B, s*frame.Y, s*frame.X, net.Config.Out); err != nil {
				return err
			}
			out, err := d.DecodeClips(net, l.Data, l.B, l.T, frame.Y, l.X, plan.Bands())
			if err != nil {
				return err
			}
			im = pictures(frame, net.Config, out)
			return nil
		})
		return []any{im}, err
	}
	err = v.WithLoaded(c.Use(), func(d *parallel.Workspace, net *vae.VAE) error {
		if err := v.Takes(net.Config.Latent(), l.C); err != nil {
			return err
		}
		out, err := d.Decode(net, l.Data, l.B, l.Y, l.X, plan.Bands())
		if err != nil {
			return err
		}
		im = pictures(l, net.Config, out)
		return nil
	})
	return []any{im}, err
}

// decodable returns the latent of the input samples and the autoencoder. Several frames need one of videos.
func decodable(c *graph.Call) (request.Latent, *value.VAE, error) {
	l, v := c.WithSound("samples"), c.VAE("vae")
	video, _ := l.Samples.Parts()
	if v.Frames {
		return video, v, nil
	}
	return video, v, l.Single("samples")
}

func vaeEncode(c *graph.Call) ([]any, error) {
	samples, err := encodeImage(c, c.VAE("vae"), c.Image("pixels"))
	return []any{&value.Latent{Samples: samples}}, err
}

// encodeImage crops pictures to what the autoencoder takes and encodes them. Alpha is dropped if it takes none.
func encodeImage(c *graph.Call, v *value.VAE, im *picture.Image) (out request.Latent, err error) {
	if v.Key == value.PixelSpace {
		return encodePixels(im), nil
	}
	plan, err := plan.Parse(c.Job.Plan)
	if err != nil {
		return out, err
	}
	if v.IsClip(im.B) {
		err = v.WithClips(c.Use(), func(d *parallel.Workspace, net *vae.VAE) error {
			n, _ := net.Config.Frames(im.B)
			pixels, y, x, err := covered(v, net.Config, im.Items(0, n))
			if err != nil {
				return err
			}
			s := net.Config.Scale()
			if least := s * net.Config.Least(true); min(y, x) < least {
				return fault.Bad("pixels", "a picture of %d x %d: %s takes sides of at least %d pixels", im.X, im.Y, v.Name, least)
			}
			out = request.Latent{B: 1, C: net.Config.Latent(), X: x / s}
			out.Data, out.T, err = d.EncodeClip(net, pixels, n, y, x, plan.Bands())
			out.Y = out.T * y / s
			return err
		})
		return out, err
	}
	if im, err = v.Taken(im); err != nil {
		return out, err
	}
	err = v.WithLoaded(c.Use(), func(d *parallel.Workspace, net *vae.VAE) error {
		pixels, y, x, err := covered(v, net.Config, im)
		if err != nil {
			return err
		}
		s := net.Config.Scale()
		out = request.Latent{B: im.B, C: net.Config.Latent(), Y: y / s, X: x / s}
		out.Data, err = d.Encode(net, pixels, im.B, y, x, plan.Bands())
		return err
	})
	return out, err
}

// decodePixels is the identity with ComfyUI's clamping: [B, 3, Y, X] -> [B, Y, X, 3].
func decodePixels(l request.Latent) ([]any, error) {
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

// encodePixels is the inverse of decodePixels.
func encodePixels(im *picture.Image) request.Latent {
	out := request.NewLatent(im.B, 3, im.Y, im.X)
	n := im.Y * im.X
	for i := range im.B * n {
		for ch := range 3 {
			out.Data[(i/n*3+ch)*n+i%n] = 2*im.Data[i*im.C+ch] - 1
		}
	}
	return out
}

func vaeDecodeTiled(c *graph.Call) ([]any, error) {
	l, v, err := decodable(c)
	if err != nil {
		return nil, err
	}
	size, overlap := c.Whole("tile_size"), c.Whole("overlap")
	if v.Key == value.PixelSpace {
		return decodePixels(l)
	}
	switch {
	case v.Tiled:
		return vaeDecode(c)
	case l.T > 1 || v.Clips:
		l.T = max(1, l.T)
		return decodeClipTiled(c, v, l, size, overlap)
	}
	var im *picture.Image
	err = v.With(c.Use(), func(cfg vae.Config, dtype engine.DType) (int, error) {
		if err := v.Takes(cfg.Latent(), l.C); err != nil {
			return 0, err
		}
		s := cfg.Scale()
		if err := checkSize("samples", l.B, s*l.Y, s*l.X, cfg.Out); err != nil {
			return 0, err
		}
		return vae.DecodeTiledBytes(cfg, dtype, l.Y, l.X, vae.DecodeTiles(size, overlap, s)), nil
	}, func(net *vae.VAE, env vae.Env) error {
		out, err := net.DecodeTiled(env, l.Data, l.B, l.Y, l.X, vae.DecodeTiles(size, overlap, net.Config.Scale()))
		im = pictures(l, net.Config, out)
		return err
	})
	return []any{im}, err
}

// decodeClipTiled decodes clips in tiles of space and time.
func decodeClipTiled(c *graph.Call, v *value.VAE, l request.Latent, size, overlap int) ([]any, error) {
	var im *picture.Image
	err := v.WithClips(c.Use(), func(d *parallel.Workspace, net *vae.VAE) error {
		if err := v.Takes(net.Config.Latent(), l.C); err != nil {
			return err
		}
		frame := l
		frame.B, frame.Y = l.B*net.Config.Pictures(l.T), l.Y/l.T
		s := net.Config.Scale()
		if err := checkSize("samples", frame.B, s*frame.Y, s*frame.X, net.Config.Out); err != nil {
			return err
		}
		tiles := vae.DecodeClipTiles(size, overlap, c.Whole("temporal_size"), c.Whole("temporal_overlap"), net.Config)
		if least, side := net.Config.Least(false), tiles.Least(frame.Y, frame.X); side < least {
			return fault.Bad("tile_size", "%d with overlap %d leaves a tile of %d pixels, %s takes at least %d: choose another "+
				"size", size, overlap, s*side, v.Name, s*least)
		}
		rows := min(frame.Y, tiles.Y)
		arena, err := d.Arena(vae.DecodeClipBytes(net.Config, d.DType, vae.Band{End: rows, Total: rows}, min(l.X, tiles.X),
			min(l.T, tiles.T)))
		if err != nil {
			return err
		}
		env := vae.Env{Ops: d.Ops, Arena: arena, DType: d.DType, Check: func(int, int) error { return d.Check() }}
		var out []float32
		item := len(l.Data) / l.B
		for i := range l.B {
			one, err := net.DecodeClipTiled(env, l.Data[i*item:(i+1)*item], l.T, frame.Y, l.X, tiles)
			if err != nil {
				return err
			}
			out = append(out, one...)
		}
		im = pictures(frame, net.Config, out)
		return nil
	})
	return []any{im}, err
}

// pictures converts the raw output of an autoencoder for the latents l to pictures.
func pictures(l request.Latent, cfg vae.Config, out []float32) *picture.Image {
	vae.ToImage(out)
	return &picture.Image{B: l.B, Y: cfg.Scale() * l.Y, X: cfg.Scale() * l.X, C: cfg.Out, Data: out}
}

// encodeClipTiled encodes pictures as one clip in tiles of space and time.
func encodeClipTiled(c *graph.Call, v *value.VAE, im *picture.Image, t vae.Tiles) ([]any, error) {
	var out request.Latent
	err := v.WithClips(c.Use(), func(d *parallel.Workspace, net *vae.VAE) error {
		n, frames := net.Config.Frames(im.B)
		pixels, y, x, err := covered(v, net.Config, im.Items(0, n))
		if err != nil {
			return err
		}
		s := net.Config.Scale()
		tiles := vae.EncodeClipTiles(t.Y, t.Overlap, c.Whole("temporal_size"), c.Whole("temporal_overlap"), net.Config)
		switch {
		case t.Y%s != 0 || t.Overlap%s != 0:
			return fault.Bad("tile_size", "%d with overlap %d: want multiples of %d", t.Y, t.Overlap, s)
		case t.Overlap >= t.Y:
			return fault.Bad("overlap", "%d, want less than tile_size, %d", t.Overlap, t.Y)
		case tiles.Least(y, x) < s*net.Config.Least(true):
			return fault.Bad("tile_size", "%d with overlap %d leaves a tile of %d pixels, %s takes at least %d: choose another "+
				"size", t.Y, t.Overlap, tiles.Least(y, x), v.Name, s*net.Config.Least(true))
		}
		rows := min(y, tiles.Y) / s
		arena, err := d.Arena(vae.EncodeClipBytes(net.Config, d.DType, vae.Band{End: rows, Total: rows}, min(x, tiles.X),
			min(n, tiles.T)))
		if err != nil {
			return err
		}
		env := vae.Env{Ops: d.Ops, Arena: arena, DType: d.DType, Check: func(int, int) error { return d.Check() }}
		out = request.Latent{B: 1, C: net.Config.Latent(), T: frames, Y: frames * y / s, X: x / s}
		out.Data, err = net.EncodeClipTiled(env, pixels, n, y, x, tiles)
		return err
	})
	return []any{&value.Latent{Samples: out}}, err
}

func vaeEncodeTiled(c *graph.Call) ([]any, error) {
	im, v := c.Image("pixels"), c.VAE("vae")
	t := vae.Tiles{Y: c.Whole("tile_size"), X: c.Whole("tile_size"), Overlap: c.Whole("overlap")}
	if v.Key == value.PixelSpace {
		return []any{&value.Latent{Samples: encodePixels(im)}}, nil
	}
	if v.Tiled {
		return vaeEncode(c)
	}
	if v.IsClip(im.B) {
		return encodeClipTiled(c, v, im, t)
	}
	im, err := v.Taken(im)
	if err != nil {
		return nil, err
	}
	var out request.Latent
	var pixels []float32
	var y, x int
	err = v.With(c.Use(), func(cfg vae.Config, dtype engine.DType) (n int, err error) {
		if pixels, y, x, err = covered(v, cfg, im); err != nil {
			return 0, err
		}
		s, shapes := cfg.Scale(), t.Shapes(cfg)
		part := t.Y / shapes[0].X // of a tile's side is the shortest side
		switch {
		case t.Y%(part*s) != 0 || t.Overlap%s != 0:
			return 0, fault.Bad("tile_size", "%d with overlap %d: want multiples of %d and of %d", t.Y, t.Overlap, part*s, s)
		case t.Overlap >= t.Y/part:
			return 0, fault.Bad("overlap", "%d, want less than %d, the shortest side of a tile", t.Overlap, t.Y/part)
		}
		for _, shape := range shapes {
			n = max(n, vae.EncodeBytes(cfg, dtype, min(y, shape.Y), min(x, shape.X)))
		}
		return n, nil
	}, func(net *vae.VAE, env vae.Env) (err error) {
		s := net.Config.Scale()
		out = request.Latent{B: im.B, C: net.Config.Latent(), Y: y / s, X: x / s}
		out.Data, err = net.EncodeTiled(env, pixels, im.B, y, x, t)
		return err
	})
	return []any{&value.Latent{Samples: out}}, err
}

// covered returns the pixels of pictures cropped to whole latent pixels, in the form that Encode takes.
func covered(v *value.VAE, cfg vae.Config, im *picture.Image) (pixels []float32, y, x int, err error) {
	if !cfg.CanEncode {
		return nil, 0, 0, fault.Family("vae", "%s has no encoder", v.Name)
	}
	if pixels, y, x = cfg.CropToImage(im.Data, im.B, im.Y, im.X, im.C); y == 0 || x == 0 {
		err = fault.Bad("pixels", "a picture of %d x %d is smaller than the %d pixels that one latent value covers", im.X,
			im.Y, cfg.Scale())
	}
	return pixels, y, x, err
}

// encodeForInpaint encodes the picture with gray inside the mask and attaches the grown mask to the latent.
func encodeForInpaint(c *graph.Call) ([]any, error) {
	im, v, grow := c.Image("pixels"), c.VAE("vae"), c.Whole("grow_mask_by")
	mask, err := sizedMask(c.Mask("mask"), im.Y, im.X)
	if err != nil {
		return nil, err
	}
	scale, err := scaleOf(c, v)
	if err != nil {
		return nil, err
	}
	grey, noise, err := inpainted(im, mask, grow, scale)
	if err != nil {
		return nil, err
	}
	samples, err := encodeImage(c, v, grey)
	return []any{&value.Latent{Samples: samples, NoiseMask: noise}}, err
}

// inpainted returns the pictures with gray where the rounded mask is 1, and the rounded mask, cropped to whole latent
// pixels of scale pixels a side and grown by a box of grow pixels.
func inpainted(im *picture.Image, mask *picture.Mask, grow, scale int) (*picture.Image, *picture.Mask, error) {
	whole := mask.Like(make([]float32, len(mask.Data)))
	for i, f := range mask.Data {
		whole.Data[i] = float32(math.RoundToEven(float64(f)))
	}
	grey, err := greyed(im, whole)
	return grey, whole.Centred(scale).Dilated(grow), err
}

// inpaintConditioning encodes the picture, attaches the unrounded mask to the latent, and adds mask and masked picture
// to both conditionings, for networks that read them (FLUX Fill).
func inpaintConditioning(c *graph.Call) ([]any, error) {
	im, v := c.Image("pixels"), c.VAE("vae")
	mask, err := sizedMask(c.Mask("mask"), im.Y, im.X)
	if err != nil {
		return nil, err
	}
	grey, _, err := inpainted(im, mask, 0, 8)
	if err != nil {
		return nil, err
	}
	masked, err := encodeImage(c, v, grey)
	if err != nil {
		return nil, err
	}
	samples, err := encodeImage(c, v, im)
	if err != nil {
		return nil, err
	}
	out := &value.Latent{Samples: samples}
	mask = mask.Centred(8)
	if c.Flag("noise_mask") {
		out.NoiseMask = mask
	}
	return beside(c, masked, mask, out), nil
}

// pixToPix adds the encoded picture to both conditionings, for networks that read one beside the noise (FLUX Canny and
// Depth), and returns an empty latent of its size.
func pixToPix(c *graph.Call) ([]any, error) {
	l, err := encodeImage(c, c.VAE("vae"), c.Image("pixels"))
	return beside(c, l, nil, &value.Latent{Samples: request.NewLatent(l.B, l.C, l.Y, l.X)}), err
}

// beside returns both conditionings with a picture and a mask for the network to read, and then the latent.
func beside(c *graph.Call, l request.Latent, mask *picture.Mask, latent *value.Latent) (out []any) {
	for _, side := range []string{"positive", "negative"} {
		out = append(out, c.Conditioning(side).Each(func(e *value.Cond) {
			e.ConcatImage = l
			if mask != nil {
				e.ConcatMask = mask
			}
		}))
	}
	return append(out, latent)
}

// sizedMask returns a copy scaled to y rows and x columns (bilinear).
func sizedMask(m *picture.Mask, y, x int) (*picture.Mask, error) {
	im, err := resizedImage(m.Image(), x, y, resample.Bilinear, resample.CropDisabled, "mask")
	if err != nil {
		return nil, err
	}
	return &picture.Mask{B: m.B, Y: y, X: x, Data: im.Data}, nil
}

// greyed returns a copy with colors (v - 0.5)*(1 - mask) + 0.5. A single mask applies to all pictures.
func greyed(im *picture.Image, m *picture.Mask) (*picture.Image, error) {
	if m.B != 1 && m.B != im.B {
		return nil, fault.Bad("mask", "has a batch of %d, pixels one of %d: want 1 or %d", m.B, im.B, im.B)
	}
	out := *im
	out.Data = slices.Clone(im.Data)
	for i := range im.B * im.Y * im.X {
		keep := 1 - m.Data[i%len(m.Data)]
		for k := range 3 {
			v := &out.Data[i*im.C+k]
			*v = float32((*v-0.5)*keep) + 0.5
		}
	}
	return &out, nil
}

// scaleOf returns the number of pixels per side that one latent value covers.
func scaleOf(c *graph.Call, v *value.VAE) (scale int, err error) {
	if v.Key == value.PixelSpace {
		return 1, nil
	}
	err = v.With(c.Use(), func(cfg vae.Config, _ engine.DType) (int, error) { scale = cfg.Scale(); return 0, nil },
		func(*vae.VAE, vae.Env) error { return nil })
	return scale, err
}
