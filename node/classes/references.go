package classes

import (
	"fmt"
	"math"
	"slices"

	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/picture/resample"
	"patchbay/node/value"
	"patchbay/parallel/request"
)

// referenceClasses returns the class that makes references of several pictures.
func referenceClasses() []graph.Class {
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprint("image", i))
	}
	return []graph.Class{{
		Name: "ReferenceMultiLatent", Display: "Set Reference Multi Latent", Module: "comfy_extras.nodes_edit_model",
		Category: "model/conditioning", Phase: graph.PhaseVAE,
		Description: "Gives the network latents of pictures that its picture refers to, after those that it has.",
		Inputs: []graph.Input{
			graph.Link("positive", "CONDITIONING", ""),
			graph.Link("negative", "CONDITIONING", "none: that of positive, with its references").AsOptional(),
			graph.Link("vae", "VAE", "none: the pictures are ignored").AsOptional(),
			graph.Branch("resolution", "of the pictures", graph.Alternative{Key: "keep resolution"},
				graph.Alternative{Key: "resize", Inputs: []graph.Input{
					graph.Float("megapixels", "of 1024 x 1024", 1, 0.01, 16, 0.01),
				}}),
			graph.GrowNamed("images", names, 0, graph.Link("image", "IMAGE", "")).AsOptional(),
		},
		Outputs: []graph.Slot{
			{Name: "positive", Type: "CONDITIONING"},
			{Name: "negative", Type: "CONDITIONING"},
			{Name: "empty_latent", Type: "LATENT"},
		},
		Run: referenceMultiLatent,
	}}
}

func referenceMultiLatent(c *graph.Call) ([]any, error) {
	megapixels := 1.
	resize := c.Chosen("resolution") == "resize"
	if resize {
		megapixels = c.Decimal("resolution.megapixels")
	}
	var latents []request.Latent
	names, pictures := c.Grown("images")
	for i, p := range pictures {
		if !c.Given("vae") {
			break
		}
		im := p.(*picture.Image)
		if resize {
			var err error
			if im, err = ofMegapixels(im, megapixels, "images."+names[i]); err != nil {
				return nil, err
			}
		}
		l, err := encodeImage(c, c.VAE("vae"), im)
		if err != nil {
			return nil, err
		}
		latents = append(latents, l)
	}
	with := func(list value.Conditioning) value.Conditioning {
		return list.Each(func(e *value.Cond) { e.Latents = append(slices.Clip(e.Latents), latents...) })
	}
	positive := with(c.Conditioning("positive"))
	negative := positive
	if c.Given("negative") {
		negative = with(c.Conditioning("negative"))
	}
	if len(latents) == 0 {
		side := rounded(math.Sqrt(megapixels)*1024/16) * 16 // whole tokens of every family
		empty := &value.Latent{Samples: request.NewLatent(1, 4, side/8, side/8), Scale: 8}
		return []any{positive, negative, empty}, nil
	}
	first := latents[0]
	return []any{positive, negative, &value.Latent{Samples: request.NewLatent(first.B, first.C, first.Y, first.X)}}, nil
}

// ofMegapixels scales pictures to so many times 1024 x 1024 pixels. ComfyUI's method is inferred.
func ofMegapixels(im *picture.Image, megapixels float64, field string) (*picture.Image, error) {
	by := math.Sqrt(megapixels * 1024 * 1024 / float64(im.X*im.Y))
	return resizedImage(im, rounded(float64(im.X)*by), rounded(float64(im.Y)*by), "lanczos", resample.CropDisabled, field)
}
