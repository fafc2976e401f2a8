package classes

import (
	"slices"

	"patchbay/fault"
	"patchbay/models"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/picture/resample"
	"patchbay/node/value"
	"patchbay/parallel/request"
)

// wanClasses returns the classes that give a video model pictures to begin and to end with.
func wanClasses() []graph.Class {
	const module, category = "comfy_extras.nodes_wan", "model/conditioning/wan"
	size := func(width, height, step, length int64) []graph.Input {
		return []graph.Input{
			graph.Link("vae", "VAE", ""), graph.Int("width", "in pixels", width, step, 16384, step),
			graph.Int("height", "in pixels", height, step, 16384, step),
			graph.Int("length", "in pictures; cut to 4k+1", length, 1, 16384, 4),
			graph.Int("batch_size", "videos made at once", 1, 1, 4096, 0),
		}
	}
	optional := func(kind string, names ...string) (out []graph.Input) {
		for _, name := range names {
			out = append(out, graph.Link(name, kind, "").AsOptional())
		}
		return out
	}
	sides := []graph.Input{graph.Link("positive", "CONDITIONING", ""), graph.Link("negative", "CONDITIONING", "")}
	outputs := []graph.Slot{
		{Name: "positive", Type: "CONDITIONING"}, {Name: "negative", Type: "CONDITIONING"}, {Name: "latent", Type: "LATENT"},
	}
	return graph.Rows(graph.Class{Module: module, Category: category, Phase: graph.PhaseVAE}, []graph.Class{
		{
			Name: "WanImageToVideo", Outputs: outputs, Run: imageToVideo,
			Description: "Gives a model the first pictures of a video, and what a picture encoder sees in them.",
			Inputs: slices.Concat(sides, size(832, 480, 16, 81), optional("CLIP_VISION_OUTPUT", "clip_vision_output"),
				optional("IMAGE", "start_image")),
		},
		{
			Name: "WanFirstLastFrameToVideo", Outputs: outputs, Run: firstLastToVideo,
			Description: "Gives a model the first and the last pictures of a video.",
			Inputs: slices.Concat(sides, size(832, 480, 16, 81),
				optional("CLIP_VISION_OUTPUT", "clip_vision_start_image", "clip_vision_end_image"),
				optional("IMAGE", "start_image", "end_image")),
		},
		{
			Name: "Wan22ImageToVideoLatent", Outputs: graph.Slots("LATENT"), Run: imageToVideoLatent,
			Description: "Makes a latent for the 5B model, whose first frames are those of pictures.",
			Inputs:      append(size(1280, 704, 32, 49), optional("IMAGE", "start_image")...),
		},
	})
}

// latentFrames returns the latent frames of a video of so many pictures, which ComfyUI cuts to 4k+1.
func latentFrames(pictures int) int { return videoOf("wan").Latent(pictures) }

// videoOf says what latents the videos of a family have.
func videoOf(name string) family.Video {
	f, _ := models.Named(name)
	return f.Video
}

// clip is a video of grey pictures [length, height, width, 3] some of which are given.
type clip struct {
	*picture.Image
}

func newClip(c *graph.Call) (clip, error) {
	out := clip{&picture.Image{B: c.Whole("length"), Y: c.Whole("height"), X: c.Whole("width"), C: 3}}
	if err := checkSize("length", out.B, out.Y, out.X, out.C); err != nil {
		return out, err
	}
	out.Data = slices.Repeat([]float32{0.5}, out.B*out.Y*out.X*out.C)
	return out, nil
}

// put scales pictures to the size of the video and puts them at its beginning, or at its end. It returns how many.
func (v clip) put(field string, im *picture.Image, end bool) (int, error) {
	n := min(im.B, v.B)
	first := 0
	if end {
		first = im.B - n
	}
	scaled, err := resizedImage(im.Items(first, n), v.X, v.Y, resample.Bilinear, resample.CropCenter, field)
	if err != nil {
		return 0, err
	}
	at := 0
	if end {
		at = (v.B - n) * v.Y * v.X
	}
	for i := range n * v.Y * v.X {
		for k := range v.C {
			v.Data[(at+i)*v.C+k] = scaled.Data[i*scaled.C+min(k, scaled.C-1)]
		}
	}
	return n, nil
}

// emptyVideo returns zeros for the video that width, height and length describe, with so many channels and pixels.
func emptyVideo(c *graph.Call, channels, pixels, batch int) (*value.Latent, error) {
	t, y, x := latentFrames(c.Whole("length")), c.Whole("height")/pixels, c.Whole("width")/pixels
	if int64(batch)*int64(channels)*int64(t)*int64(y)*int64(x) > value.MaxValues {
		return nil, fault.Bad("length", "%d latent frames of %d x %d in %d videos are more than this program holds (%d "+
			"values)", t, x, y, batch, value.MaxValues)
	}
	l := request.NewLatent(batch, channels, t*y, x)
	l.T = t
	return &value.Latent{Samples: l}, nil
}

// imageToVideo puts the pictures in front of a grey video, which both sides get encoded, with a mask of 0 for the
// latent frames of the pictures.
func imageToVideo(c *graph.Call) ([]any, error) {
	l, err := emptyVideo(c, 16, 8, c.Whole("batch_size"))
	if err != nil {
		return nil, err
	}
	var given func(*value.Cond)
	if c.Given("start_image") {
		v, err := newClip(c)
		if err != nil {
			return nil, err
		}
		n, err := v.put("start_image", c.Image("start_image"), false)
		if err != nil {
			return nil, err
		}
		video, err := encodeImage(c, c.VAE("vae"), v.Image)
		if err != nil {
			return nil, err
		}
		mask := request.NewLatent(1, 1, l.Samples.T*(video.Y/max(1, video.T)), video.X)
		mask.T = l.Samples.T
		frame, first := len(mask.Data)/mask.T, latentFrames(n)
		for i := range mask.Data {
			if i/frame >= first {
				mask.Data[i] = 1
			}
		}
		given = besideOf(video, mask)
	}
	seen, err := seenBy(c, "clip_vision_output")
	if err != nil {
		return nil, err
	}
	return bothSides(c, l, given, seen), nil
}

// firstLastToVideo is imageToVideo with pictures at both ends, and a mask that has a value for each of the four
// pictures of a latent frame: the last picture alone marks one of them.
func firstLastToVideo(c *graph.Call) ([]any, error) {
	ae := c.VAE("vae")
	scale, err := scaleOf(c, ae)
	if err != nil {
		return nil, err
	}
	l, err := emptyVideo(c, ae.Channels, scale, c.Whole("batch_size"))
	if err != nil {
		return nil, err
	}
	v, err := newClip(c)
	if err != nil {
		return nil, err
	}
	const steps = 4 // of a latent frame
	t, y, x := l.Samples.T, l.Samples.Y/l.Samples.T, l.Samples.X
	missing := slices.Repeat([]float32{1}, t*steps)
	if c.Given("start_image") {
		n, err := v.put("start_image", c.Image("start_image"), false)
		if err != nil {
			return nil, err
		}
		clear(missing[:min(n+steps-1, len(missing))])
	}
	if c.Given("end_image") {
		n, err := v.put("end_image", c.Image("end_image"), true)
		if err != nil {
			return nil, err
		}
		clear(missing[max(0, len(missing)-n):])
	}
	video, err := encodeImage(c, ae, v.Image)
	if err != nil {
		return nil, err
	}
	mask := request.NewLatent(1, steps, t*y, x)
	mask.T = t
	for i := range mask.Data {
		frame, step := i/(y*x)%t, i/(y*x)/t
		mask.Data[i] = missing[frame*steps+step]
	}
	seen, err := seenBy(c, "clip_vision_start_image", "clip_vision_end_image")
	if err != nil {
		return nil, err
	}
	return bothSides(c, l, besideOf(video, mask), seen), nil
}

// besideOf returns what an entry reads beside the latent.
func besideOf(video, mask request.Latent) func(*value.Cond) {
	return func(e *value.Cond) { e.ConcatImage, e.ConcatGiven = video, mask }
}

// seenBy returns a change that gives an entry what a picture encoder has seen, one picture below the other; nil:
// nothing.
func seenBy(c *graph.Call, fields ...string) (func(*value.Cond), error) {
	var seen dit.Array
	for _, field := range fields {
		if !c.Given(field) {
			continue
		}
		one, err := graph.Arg[value.VisionOutput](c, field).Before(field, c.Whole("batch_size"))
		if err != nil {
			return nil, err
		}
		seen = dit.Array{Rows: seen.Rows + one.Rows, Cols: one.Cols, Data: slices.Concat(seen.Data, one.Data)}
	}
	if seen.Rows == 0 {
		return nil, nil
	}
	return func(e *value.Cond) { e.Vision = seen }, nil
}

// bothSides returns both conditionings with changes, nil ones left out, and the latent.
func bothSides(c *graph.Call, l *value.Latent, changes ...func(*value.Cond)) (out []any) {
	for _, side := range []string{"positive", "negative"} {
		out = append(out, c.Conditioning(side).Each(func(e *value.Cond) {
			for _, change := range changes {
				if change != nil {
					change(e)
				}
			}
		}))
	}
	return append(out, l)
}

// imageToVideoLatent encodes the pictures as the first frames of a latent and masks them. The others are what zeros of
// the model's space are in that of the autoencoder.
func imageToVideoLatent(c *graph.Call) ([]any, error) {
	format, batch := latent.Wan22(), c.Whole("batch_size")
	if !c.Given("start_image") {
		batch = 1 // as in ComfyUI
	}
	out, err := emptyVideo(c, format.Channels, format.Pixels(), batch)
	if err != nil || !c.Given("start_image") {
		return []any{out}, err
	}
	ae, im, l := c.VAE("vae"), c.Image("start_image"), &out.Samples
	if err := ae.Takes(format.Channels, ae.Channels); err != nil {
		return nil, fault.Family("vae", "%s makes latents of %d channels, the 5B model of Wan 2.2 takes %d: load "+
			"wan2.2_vae", ae.Name, ae.Channels, format.Channels)
	}
	n := min(im.B, c.Whole("length"))
	scaled, err := resizedImage(im.Items(0, n), c.Whole("width"), c.Whole("height"), resample.Bilinear,
		resample.CropCenter, "start_image")
	if err != nil {
		return nil, err
	}
	encoded, err := encodeImage(c, ae, scaled)
	if err != nil {
		return nil, err
	}
	format.FromModel(l.Data, l.Y*l.X)
	y := l.Y / l.T
	given := max(1, encoded.T)
	mask := &picture.Mask{B: l.T, Y: y, X: l.X, Data: slices.Repeat([]float32{1}, l.Y*l.X)}
	clear(mask.Data[:given*y*l.X])
	for i := range l.B * l.C {
		copy(l.Data[i*l.Y*l.X:], encoded.Data[i%l.C*given*y*l.X:][:given*y*l.X])
	}
	out.NoiseMask = mask
	return []any{out}, nil
}
