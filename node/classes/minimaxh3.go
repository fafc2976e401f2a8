package classes

import (
	"math"
	"slices"

	"patchbay/fault"
	"patchbay/models/sampling"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/picture/resample"
	"patchbay/node/value"
	"patchbay/parallel/request"
)

// h3Classes returns the classes of MiniMax-H3.
func h3Classes() []graph.Class {
	shift := func(name, tip string, preset float64) graph.Input {
		return graph.Float(name, tip, preset, 0.01, 100, 0.01)
	}
	return graph.Rows(graph.Class{Module: "comfy_extras.nodes_minimax_h3"}, []graph.Class{
		{
			Name: "EmptyMiniMaxH3LatentAV", Display: "Empty MiniMax H3 AV Latent", Category: "model/latent/minimax",
			Description: "Zeros for a video with sound; its length is rounded up to 17k+5 pictures, 24 a second.",
			Inputs:      h3Sizes(), Outputs: graph.Slots("LATENT"),
			Run: func(c *graph.Call) ([]any, error) {
				l, _, err := emptyH3(c)
				return []any{l}, err
			},
		},
		{
			Name: "MiniMaxH3AddGuide", Display: "Add Guide for MiniMax H3", Category: "model/conditioning/minimax",
			Description: "Puts a picture, a short clip or a sound at a picture of a video.", Phase: graph.PhaseVAE,
			Inputs: []graph.Input{
				graph.Link("positive", "CONDITIONING", ""), graph.Link("vae", "VAE", "for image").AsOptional(),
				graph.Link("audio_vae", "VAE", "for audio").AsOptional(), graph.Link("latent", "LATENT", ""),
				graph.Link("image", "IMAGE", "fewer than 5 pictures count as the first, others are cut to 17k+5").AsOptional(),
				graph.Link("audio", "AUDIO", "not supported yet").AsOptional(),
				graph.Int("frame_idx", "where it begins; below 0: counted from the end", 0, -9999, 9999, 0),
			},
			Outputs: []graph.Slot{{Name: "positive", Type: "CONDITIONING"}}, Run: addH3Guide,
		},
		{
			Name: "MiniMaxH3SigmaShift", Display: "ModelSamplingMiniMaxH3", Category: "model/patch/minimax",
			Aliases: "sigma shift, minimax shift", Description: "Sets the shifts of the two schedules, of video and sound.",
			Inputs: []graph.Input{
				graph.Link("model", "MODEL", ""), shift("shift_video", "", 12), shift("shift_audio", "", 3),
			},
			Outputs: graph.Slots("MODEL"), Run: onModel(func(c *graph.Call, m *value.Model) error {
				if m.Sampling.SoundShift() == 0 {
					return fault.Family("model", "%s models have no schedule of a sound: this node is for MiniMax-H3", m.Spec.Family)
				}
				line, err := sampling.NewFlow(c.Decimal("shift_video"), m.Sampling.Multiplier())
				if err != nil {
					return fault.Bad("shift_video", "%v", err)
				}
				if m.Sampling, err = line.WithSound(c.Decimal("shift_audio")); err != nil {
					return fault.Bad("shift_audio", "%v", err)
				}
				return nil
			}),
		},
	})
}

// h3Sizes returns the inputs that say how large and long a video is.
func h3Sizes() []graph.Input {
	return []graph.Input{
		graph.Int("width", "in pixels", 1344, 32, 16384, 32), graph.Int("height", "in pixels", 768, 32, 16384, 32),
		graph.Int("length", "in pictures, 24 a second; rounded up to 17k+5", 124, 5, 3600, 17),
	}
}

// What MiniMax-H3's latents are made of (ComfyUI comfy_extras/nodes_minimax_h3.py).
const (
	h3Scale    = 16 // pixels along the side of a latent pixel
	h3Channels = 24
	h3Sound    = 32
	h3Rate     = 24 // pictures a second
	h3Columns  = 40 // columns of a sound a second
)

// h3Pictures rounds a number of pictures up to the next that MiniMax-H3 makes: 5, 22, 39 and so on.
func h3Pictures(n int) int { return 5 + (max(0, n-5)+16)/17*17 }

// h3Frames returns the latent frames of so many pictures.
func h3Frames(pictures int) int { return (pictures-5)/17*5 + 2 }

// h3SoundColumns returns the columns of the sound beside so many pictures.
func h3SoundColumns(pictures int) int {
	return int(math.RoundToEven(float64(pictures) / h3Rate * h3Columns))
}

// emptyH3 returns zeros for the video that width, height and length describe, and its number of pictures.
func emptyH3(c *graph.Call) (*value.Latent, int, error) {
	n := h3Pictures(c.Whole("length"))
	t, y, x := h3Frames(n), c.Whole("height")/h3Scale, c.Whole("width")/h3Scale
	sound := request.Sound{C: h3Sound, Y: 2, X: h3SoundColumns(n)}
	if int64(h3Channels)*int64(t)*int64(y)*int64(x) > value.MaxValues {
		return nil, n, fault.Bad("length", "%d latent frames of %d x %d are more than this program holds (%d values)", t, x, y,
			value.MaxValues)
	}
	l := request.Latent{B: 1, C: h3Channels, T: t, Y: t * y, X: x, Sound: sound}
	l.Data = make([]float32, l.Len())
	return &value.Latent{Samples: l}, n, nil
}

// h3Lasts is how many pictures a latent frame of MiniMax-H3 has, by its number modulo their count.
var h3Lasts = [...]int{1, 4, 4, 4, 4}

// addH3Guide encodes pictures and makes them part of a video.
func addH3Guide(c *graph.Call) ([]any, error) {
	l := c.WithSound("latent").Samples
	if l.C != h3Channels || l.Sound.C != h3Sound {
		return nil, fault.Family("latent", "is %v with sound %v: want a latent of MiniMax-H3 [1, %d, T, Y, X] with its sound",
			l.Shape(), l.Sound, h3Channels)
	}
	switch {
	case c.Given("audio"):
		return nil, fault.Bad("audio", "sounds as guides are not supported yet: give an image")
	case !c.Given("image"):
		return nil, fault.Bad("image", "neither image nor audio is connected: connect one")
	case !c.Given("vae"):
		return nil, fault.Bad("vae", "is not connected, and the image needs it: connect the video VAE")
	}
	frames, pictures := max(1, l.T), 0
	for i := range frames {
		pictures += h3Lasts[i%len(h3Lasts)]
	}
	im := c.Image("image")
	n, at := 1, c.Whole("frame_idx")
	if im.B >= 5 {
		n = h3Pictures(im.B - 16) // rounded down
	}
	if at < 0 {
		at += pictures
	}
	if at < 0 || at+n > pictures {
		return nil, fault.Bad("frame_idx", "%d pictures at %d do not fit into the %d of the video", n, c.Whole("frame_idx"),
			pictures)
	}
	guide, err := h3Encoded(c, im.Items(0, n), "image", l.X*h3Scale, l.Y/frames*h3Scale, resample.CropCenter)
	if err != nil {
		return nil, err
	}
	guide.Frame = 1 + at
	return []any{h3Guided(c.Conditioning("positive"), guide)}, nil
}

// h3Encoded scales pictures to a size and encodes them with the vae input.
func h3Encoded(c *graph.Call, im *picture.Image, field string, x, y int, crop string) (g value.Guide, err error) {
	ae := c.VAE("vae")
	if err := ae.Takes(h3Channels, ae.Channels); err != nil {
		return g, fault.Family("vae", "%s makes latents of %d channels, MiniMax-H3 takes %d: load its video VAE", ae.Name,
			ae.Channels, h3Channels)
	}
	scaled, err := resizedImage(im.First(min(im.C, 3)), x, y, "lanczos", crop, field)
	if err == nil {
		g.Latent, err = encodeImage(c, ae, scaled)
		g.T = g.Latent.T
	}
	return g, err
}

// h3Guided returns a conditioning whose entries have these guides, behind those that the first entry has of its video.
func h3Guided(of value.Conditioning, guides ...value.Guide) value.Conditioning {
	var before []value.Guide
	for i := 0; len(of) > 0 && i < len(of[0].Guides); i++ {
		if g := of[0].Guides[i]; g.Frame > 0 {
			before = append(before, g)
		}
	}
	return of.Each(func(e *value.Cond) {
		all := append(slices.Clone(before), guides...)
		for _, g := range e.Guides {
			if g.Frame == 0 {
				all = append(all, g)
			}
		}
		e.Guides = all
	})
}
