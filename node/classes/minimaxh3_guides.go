package classes

import (
	"math"
	"slices"
	"strings"

	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/picture/resample"
	"patchbay/node/value"
	"patchbay/parallel/request"
)

// h3Lasts is how many pictures a latent frame of MiniMax-H3 has, by its number modulo their count.
var h3Lasts = [...]int{1, 4, 4, 4, 4}

// h3ImageToVideo encodes a prompt, and the first and the last picture, which the encoder sees too.
func h3ImageToVideo(c *graph.Call) ([]any, error) {
	l, n, err := emptyH3(c)
	if err != nil {
		return nil, err
	}
	var things []referenced
	var guides []value.Guide
	for _, f := range []struct {
		field, crop string
		frame       int
	}{{"first_frame", resample.CropDisabled, 0}, {"last_frame", resample.CropCenter, n - 1}} {
		if !c.Given(f.field) {
			continue
		}
		im := c.Image(f.field)
		im, err := h3Scaled(im.Items(0, 1), f.field, c.Whole("width"), c.Whole("height"), f.crop)
		if err != nil {
			return nil, err
		}
		g, err := h3Encoded(c, im)
		if err != nil {
			return nil, err
		}
		g.Frame = 1 + f.frame
		things, guides = append(things, referenced{"Picture", im}), append(guides, g)
	}
	cond, err := h3Text(c, things)
	return []any{h3Guided(cond, guides...), l}, err
}

// h3Text encodes the prompt of a node behind what it refers to.
func h3Text(c *graph.Call, things []referenced) (value.Conditioning, error) {
	clip := graph.Arg[*value.Clip](c, "clip")
	if len(things) > 0 {
		texts, seen := introduced(things)
		pictures, err := seenSizes(clip, seen)
		if err != nil {
			return nil, err
		}
		if clip, err = clip.After(texts, pictures); err != nil {
			return nil, err
		}
	}
	cond, err := encoded(c, clip, func(string) (string, bool) { return c.Str("prompt"), true })
	return value.Conditioning{cond}, err
}

// h3ReferenceToVideo encodes a prompt and what it refers to: pictures, videos, each behind its sound, and sounds.
func h3ReferenceToVideo(c *graph.Call) ([]any, error) {
	l, pictures, err := emptyH3(c)
	if err != nil {
		return nil, err
	}
	var things []referenced
	var guides []value.Guide
	sound := func(a any, field string, joined bool) error {
		s, err := encodeSound(c, "audio_vae", a.(*value.Audio).First(), field)
		things = append(things, referenced{"Audio", nil})
		guides = append(guides, value.Guide{Latent: s, Condition: dit.Condition{Sound: true, Joined: joined}})
		return err
	}
	video := func(im *picture.Image, field string, x, y int) (*picture.Image, error) {
		im, err := h3Scaled(im, field, x, y, resample.CropDisabled)
		if err != nil {
			return nil, err
		}
		g, err := h3Encoded(c, im)
		guides = append(guides, g)
		return im, err
	}
	names, images := c.Grown("ref_images")
	for i, v := range images {
		im := v.(*picture.Image).Items(0, 1)
		x, y := h3ReferenceSize(im, c.Str("ref_image_size") == "match", c.Whole("width"), c.Whole("height"))
		if im, err = video(im, "ref_images."+names[i], x, y); err != nil {
			return nil, err
		}
		things = append(things, referenced{"Picture", im})
	}
	names, videos := c.Grown("ref_videos")
	tracks, sounds := c.Grown("ref_video_audios")
	for i, v := range videos {
		im, field := v.(*picture.Image), "ref_videos."+names[i]
		n := min(im.B, pictures)
		if n < 5 {
			return nil, fault.Bad(field, "has %d pictures: want at least 5", n)
		}
		number := strings.TrimPrefix(names[i], "ref_video_")
		if at := slices.Index(tracks, "ref_video_audio_"+number); at >= 0 {
			if err := sound(sounds[at], "ref_video_audios."+tracks[at], true); err != nil {
				return nil, err
			}
		}
		x, y := h3Canvas(im.X, im.Y)
		if im, err = video(im.Items(0, 5+(n-5)/17*17), field, x, y); err != nil {
			return nil, err
		}
		var seen []float32 // two a second
		size := im.Y * im.X * im.C
		for at := 0; at < im.B; at += h3Rate / 2 {
			seen = append(seen, im.Data[at*size:(at+1)*size]...)
		}
		shown := &picture.Image{B: len(seen) / size, Y: im.Y, X: im.X, C: im.C, Data: seen}
		things = append(things, referenced{"Video", shown})
	}
	names, sounds = c.Grown("ref_audios")
	for i, a := range sounds {
		if err := sound(a, "ref_audios."+names[i], false); err != nil {
			return nil, err
		}
	}
	cond, err := h3Text(c, things)
	return []any{cond.Each(func(e *value.Cond) { e.Guides = append(e.Guides, guides...) }), l}, err
}

// h3Unit is what sides of references are multiples of.
const h3Unit = 32

func h3Side(v float64) int { return max(h3Unit, int(math.RoundToEven(v/h3Unit))*h3Unit) }

// h3ReferenceSize returns the size of a reference picture: that of the picture, made smaller where it has a larger area
// than the video, or a shorter side of more than 2048 pixels.
func h3ReferenceSize(im *picture.Image, match bool, width, height int) (x, y int) {
	scale := 2048 / float64(min(im.X, im.Y))
	if match {
		scale = math.Sqrt(float64(width*height) / float64(im.X*im.Y))
	}
	scale = min(1, scale)
	return h3Side(float64(im.X) * scale), h3Side(float64(im.Y) * scale)
}

// h3Canvas returns the size of a reference video: 768 pixels on the shorter side and at most 768 x 1344 in all, or its
// own size where that is less.
func h3Canvas(x, y int) (int, int) {
	const short, most = 768, 768 * 1344
	wide, high := float64(short), float64(short)
	if ratio := float64(x) / float64(y); ratio >= 1 {
		wide = short * ratio
	} else {
		high = short / ratio
	}
	if wide*high > most {
		s := math.Sqrt(most / (wide * high))
		wide, high = wide*s, high*s
	}
	if cx, cy := h3Side(wide), h3Side(high); x*y >= cx*cy {
		return cx, cy
	}
	return h3Side(float64(x)), h3Side(float64(y))
}

// addH3Guide encodes pictures and a sound and makes them part of a video.
func addH3Guide(c *graph.Call) ([]any, error) {
	l := c.WithSound("latent").Samples
	if l.C != h3Channels || l.Sound.C != h3Sound {
		return nil, fault.Family("latent", "is %v with sound %v: want a latent of MiniMax-H3 [1, %d, T, Y, X] with its sound",
			l.Shape(), l.Sound, h3Channels)
	}
	switch {
	case !c.Given("image") && !c.Given("audio"):
		return nil, fault.Bad("image", "neither image nor audio is connected: connect one")
	case c.Given("image") && !c.Given("vae"):
		return nil, fault.Bad("vae", "is not connected, and the image needs it: connect the video VAE")
	case c.Given("audio") && !c.Given("audio_vae"):
		return nil, fault.Bad("audio_vae", "is not connected, and the audio needs it: connect the audio VAE")
	}
	frames, pictures := max(1, l.T), 0
	for i := range frames {
		pictures += h3Lasts[i%len(h3Lasts)]
	}
	n, at := 1, c.Whole("frame_idx")
	if c.Given("image") && c.Image("image").B >= 5 {
		n = 5 + (c.Image("image").B-5)/17*17
	}
	if at < 0 {
		at += pictures
	}
	if at < 0 || at+n > pictures {
		return nil, fault.Bad("frame_idx", "%d pictures at %d do not fit into the %d of the video", n, c.Whole("frame_idx"),
			pictures)
	}
	var guides []value.Guide
	if c.Given("image") {
		im, err := h3Scaled(c.Image("image").Items(0, n), "image", l.X*h3Scale, l.Y/frames*h3Scale, resample.CropCenter)
		if err != nil {
			return nil, err
		}
		g, err := h3Encoded(c, im)
		if err != nil {
			return nil, err
		}
		guides = append(guides, g)
	}
	if c.Given("audio") {
		room := int(math.Floor(float64(l.Sound.X) - 5./3*float64(at)))
		if room < 1 {
			return nil, fault.Bad("frame_idx", "%d is behind the end of the sound, which has %d columns", c.Whole("frame_idx"),
				l.Sound.X)
		}
		s, err := encodeSound(c, "audio_vae", graph.Arg[*value.Audio](c, "audio").First(), "audio")
		if err != nil {
			return nil, err
		}
		guides = append(guides, value.Guide{Latent: begun(s, room), Condition: dit.Condition{Sound: true}})
	}
	for i := range guides {
		guides[i].Frame = 1 + at
	}
	return []any{h3Guided(c.Conditioning("positive"), guides...)}, nil
}

// begun returns the first n columns of a latent, or all.
func begun(l request.Latent, n int) request.Latent {
	if l.X <= n {
		return l
	}
	out := request.NewLatent(l.B, l.C, l.Y, n)
	for row := range l.B * l.C * l.Y {
		copy(out.Data[row*n:(row+1)*n], l.Data[row*l.X:])
	}
	return out
}

// h3Scaled scales pictures without alpha to a size.
func h3Scaled(im *picture.Image, field string, x, y int, crop string) (*picture.Image, error) {
	return resizedImage(im.First(min(im.C, 3)), x, y, "lanczos", crop, field)
}

// h3Encoded encodes pictures with the vae input.
func h3Encoded(c *graph.Call, im *picture.Image) (g value.Guide, err error) {
	ae := c.VAE("vae")
	if ae.Channels != h3Channels {
		return g, fault.Family("vae", "%s makes latents of %d channels, MiniMax-H3 takes %d: load its video VAE", ae.Name,
			ae.Channels, h3Channels)
	}
	g.Latent, err = encodeImage(c, ae, im)
	g.T = g.Latent.T
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
