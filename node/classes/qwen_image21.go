package classes

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/value"
	"patchbay/parallel/request"
)

// qwenImage21Classes returns the classes of Qwen-Image-2.1, which ComfyUI 0.33.0 does not have (comfy_extras/nodes_qwen
// of later versions).
func qwenImage21Classes() []graph.Class {
	var names []string
	for i := 1; i <= 16; i++ {
		names = append(names, fmt.Sprint("image_", i))
	}
	return graph.Rows(graph.Class{
		Module: "comfy_extras.nodes_qwen", Category: "model/conditioning/qwen image",
	}, []graph.Class{
		{
			Name: "TextEncodeQwenImage21", Display: "Text Encode Qwen Image 2.1", Phase: graph.PhaseText,
			Description: "Encodes prompts of Qwen-Image-2.1. With a VAE the pictures become references.",
			Inputs: []graph.Input{
				graph.Link("clip", "CLIP", ""), graph.Prompt("prompt", ""), graph.Prompt("negative_prompt", ""),
				graph.Link("vae", "VAE", "").AsOptional(),
				graph.Int("resolution", "pictures are scaled to about its square in pixels, with sides that are multiples of 32; "+
					"0 leaves each at its size, rounded to 32", 1024, 0, 4096, 32),
				graph.GrowNamed("images", names, 0, graph.Link("image", "IMAGE", "")),
			},
			Outputs: []graph.Slot{
				{Name: "positive", Type: "CONDITIONING"},
				{Name: "negative", Type: "CONDITIONING"},
				{Name: "latent", Type: "LATENT"},
			},
			Run: encodeQwenImage21,
		},
		{
			Name: "QwenImage21Cache", Display: "Qwen Image 2.1 Cache", Experimental: true,
			Description: "Changes nothing: the keys and values of text and references are always kept on the device, exact.",
			Inputs: []graph.Input{
				graph.Link("model", "MODEL", ""),
				graph.Combo("device", "without effect", "auto", "gpu", "cpu", "off").With("default", "auto"),
				graph.Combo("dtype", "without effect", "default", "int8", "int4").With("default", "default"),
			},
			Outputs: graph.Slots("MODEL"),
			Run:     onModel(func(*graph.Call, *value.Model) error { return nil }),
		},
	})
}

// encodeQwenImage21 encodes both prompts after the same pictures, in the sizes in which they become references: the
// encoder sees pictures with alpha over white.
func encodeQwenImage21(c *graph.Call) ([]any, error) {
	resolution := c.Whole("resolution")
	y, x := cmp.Or(resolution, 1024), cmp.Or(resolution, 1024) // of the latent
	names, images := c.Grown("images")
	var seen, references []*picture.Image
	words := ""
	for i, v := range images {
		im, err := inUnits(v.(*picture.Image).Items(0, 1), resolution, "images."+names[i])
		if err != nil {
			return nil, err
		}
		if i == 0 {
			y, x = im.Y, im.X
		} else {
			words += " "
		}
		words += fmt.Sprintf("<image%d>%s", i+1, pictureInText)
		seen, references = append(seen, overWhite(im)), append(references, im)
	}
	clip, latents := graph.Arg[*value.Clip](c, "clip"), []request.Latent(nil)
	if len(seen) > 0 {
		var err error
		if clip, err = seeing(c, strings.Replace(clip.Template(), "{}", words+"{}", 1), seen); err != nil {
			return nil, err
		}
		if latents, err = encodedReferences(c, references); err != nil {
			return nil, err
		}
	}
	if len(latents) > 0 {
		clip = clip.LeavingOut()
	}
	var out []any
	for _, name := range []string{"prompt", "negative_prompt"} {
		cond, err := encoded(c, clip, func(string) (string, bool) { return cmp.Or(c.Str(name), " "), true })
		if err != nil {
			return nil, err
		}
		cond.Latents = latents
		out = append(out, value.Conditioning{cond})
	}
	return append(out, &value.Latent{Samples: request.NewLatent(1, 64, y/16, x/16), Scale: 16}), nil
}

// inUnits scales a picture to sides that are multiples of 32, and to about resolution^2 pixels unless that is 0.
func inUnits(im *picture.Image, resolution int, field string) (*picture.Image, error) {
	const unit = 32
	high, wide := float64(im.Y), float64(im.X)
	if resolution > 0 {
		area, ratio := float64(resolution*resolution), wide/high
		high, wide = math.Sqrt(area/ratio), math.Sqrt(area*ratio)
	}
	side := func(v float64) int { return max(unit, rounded(v/unit)*unit) }
	if y, x := side(high), side(wide); y != im.Y || x != im.X {
		return resizedImage(im, x, y, "lanczos", "disabled", field)
	}
	return im, nil
}

// overWhite returns a picture without alpha, laid over white where it has one.
func overWhite(im *picture.Image) *picture.Image {
	if im.C < 4 {
		return im
	}
	out := im.First(3)
	data := make([]float32, len(out.Data))
	for i, v := range out.Data {
		alpha := im.Data[i/3*im.C+3]
		data[i] = v*alpha + (1 - alpha)
	}
	return &picture.Image{B: out.B, Y: out.Y, X: out.X, C: 3, Data: data}
}
