package classes

import (
	"fmt"
	"math"
	"strings"

	"patchbay/models/text"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/value"
)

// The template of prompts about pictures, and the place of one.
const (
	editTemplate = "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, " +
		"objects, background), then explain how the user's text instruction should alter or modify the image. Generate a " +
		"new image that meets the user's requirements while maintaining consistency with the original input where " +
		"appropriate.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
	pictureInText = value.PictureInText
)

// editTextClasses are the rows that encode prompts about pictures.
func editTextClasses() []graph.Class {
	row := func(name, description string, run func(*graph.Call) ([]any, error), images ...string) graph.Class {
		in := []graph.Input{
			graph.Link("clip", "CLIP", ""), graph.Prompt("prompt", ""), graph.Link("vae", "VAE", "").AsOptional(),
		}
		for _, image := range images {
			in = append(in, graph.Link(image, "IMAGE", "").AsOptional())
		}
		return graph.Class{
			Name: name, Module: "comfy_extras.nodes_qwen", Category: "model/conditioning/qwen image", NewStyle: true,
			Heavy: graph.StageText, Description: description, Inputs: in, Outputs: graph.Slots("CONDITIONING"), Run: run,
		}
	}
	return []graph.Class{
		row("TextEncodeQwenImageEdit", "Encodes what is to be done with a picture.", encodeEdit, "image"),
		row("TextEncodeQwenImageEditPlus", "Encodes what is to be done with up to three pictures.", encodeEditPlus,
			"image1", "image2", "image3"),
	}
}

// encodeEdit shows the encoder the picture that becomes the reference: both of a megapixel.
func encodeEdit(c *graph.Call) ([]any, error) {
	if !c.Given("image") {
		return encodeAbout(c, "", c.Str("prompt"), nil, nil)
	}
	im, err := ofArea(graph.Arg[*picture.Image](c, "image"), 1024, 1, "image")
	if err != nil {
		return nil, err
	}
	one := []*picture.Image{im}
	return encodeAbout(c, strings.Replace(editTemplate, "{}", pictureInText+"{}", 1), c.Str("prompt"), one, one)
}

// encodeEditPlus shows the encoder smaller ones; sides of references are multiples of 8.
func encodeEditPlus(c *graph.Call) ([]any, error) {
	var seen, kept []*picture.Image
	words := ""
	for i := 1; i <= 3; i++ {
		name := fmt.Sprintf("image%d", i)
		if !c.Given(name) {
			continue
		}
		im := graph.Arg[*picture.Image](c, name)
		small, err := ofArea(im, 384, 1, name)
		if err != nil {
			return nil, err
		}
		large, err := ofArea(im, 1024, 8, name)
		if err != nil {
			return nil, err
		}
		seen, kept = append(seen, small), append(kept, large)
		words += fmt.Sprintf("Picture %d: %s", i, pictureInText)
	}
	return encodeAbout(c, editTemplate, words+c.Str("prompt"), seen, kept)
}

// encodeAbout encodes a prompt about the pictures that are seen; those kept are references where there is a VAE.
func encodeAbout(c *graph.Call, template, words string, seen, kept []*picture.Image) ([]any, error) {
	var pictures []text.Picture
	eyes := graph.Arg[*value.Clip](c, "clip")
	for _, im := range seen {
		y, x := visionSides(im.Y, im.X, eyes.Unit())
		im, err := resizedImage(im, x, y, "bilinear", "disabled", "prompt")
		if err != nil {
			return nil, err
		}
		pictures = append(pictures, text.Picture{Y: y, X: x, Data: im.Data})
	}
	clip, err := eyes.Seeing(template, pictures)
	if err != nil {
		return nil, err
	}
	cond, _, err := clip.Encode(c.Use(), func(string) (string, bool) { return words, true })
	if err != nil {
		return nil, err
	}
	for _, im := range kept {
		if !c.Given("vae") {
			break
		}
		l, err := encodeImage(c, graph.Arg[*value.VAE](c, "vae"), im)
		if err != nil {
			return nil, err
		}
		cond.Latents = append(cond.Latents, l)
	}
	return []any{value.Conditioning{cond}}, nil
}

// ofArea is the first picture of a batch without alpha, scaled to about side x side pixels, sides being multiples of
// unit.
func ofArea(im *picture.Image, side float64, unit int, field string) (*picture.Image, error) {
	one := &picture.Image{B: 1, Y: im.Y, X: im.X, C: 3, Data: make([]float32, 0, im.Y*im.X*3)}
	for i := range im.Y * im.X {
		one.Data = append(one.Data, im.Data[i*im.C:i*im.C+3]...)
	}
	by := math.Sqrt(side * side / float64(im.X*im.Y))
	scaled := func(n int) int { return rounded(float64(n)*by/float64(unit)) * unit }
	return resizedImage(one, scaled(im.X), scaled(im.Y), "area", "disabled", field)
}

// visionSides rounds the sides of a picture to what the encoder sees: multiples of unit, 3136 to 12845056 pixels.
func visionSides(y, x, unit int) (high, wide int) {
	const least, most = 3136, 12845056
	to := func(n int, by float64, round func(float64) float64) int {
		return int(round(float64(n)*by/float64(unit))) * unit
	}
	high, wide = to(y, 1, math.RoundToEven), to(x, 1, math.RoundToEven)
	switch area := float64(y) * float64(x); {
	case high*wide > most:
		by := math.Sqrt(most / area)
		high, wide = max(unit, to(y, by, math.Floor)), max(unit, to(x, by, math.Floor))
	case high*wide < least:
		by := math.Sqrt(least / area)
		high, wide = to(y, by, math.Ceil), to(x, by, math.Ceil)
	}
	return high, wide
}
