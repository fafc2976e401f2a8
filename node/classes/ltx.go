package classes

import (
	"math/big"
	"slices"
	"strconv"

	"patchbay/fault"
	"patchbay/models/sampling"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/media"
	"patchbay/node/picture"
	"patchbay/node/picture/resample"
	"patchbay/node/value"
	"patchbay/parallel/request"
)

// The latents of LTX-2's videos: channels, pixels and pictures.
const ltxChannels, ltxPixels, ltxPictures = 128, 32, 8

// ltxClasses returns the classes that make, join and mark the latents of videos with sound, and the schedules of LTX.
func ltxClasses() []graph.Class {
	const module = "comfy_extras.nodes_lt"
	size := []graph.Input{
		graph.Int("width", "in pixels", 768, 64, 16384, 32), graph.Int("height", "in pixels", 512, 64, 16384, 32),
	}
	batch := graph.Int("batch_size", "videos made at once", 1, 1, 4096, 0)
	shifts := []graph.Input{
		graph.Float("max_shift", "at 4096 tokens", 2.05, 0, 100, 0.01),
		graph.Float("base_shift", "at 1024 tokens", 0.95, 0, 100, 0.01),
	}
	latent := graph.Link("latent", "LATENT", "whose tokens are counted; none: 4096").AsOptional()
	sides := []graph.Input{graph.Link("positive", "CONDITIONING", ""), graph.Link("negative", "CONDITIONING", "")}
	both := []graph.Slot{{Name: "positive", Type: "CONDITIONING"}, {Name: "negative", Type: "CONDITIONING"}}
	video := func(low int64) []graph.Input {
		return append(slices.Clone(size), graph.Int("length", "in pictures; cut to 8k+1", 97, low, 16384, 8), batch)
	}
	strength := graph.Float("strength", "1 keeps the pictures as they are", 1, 0, 1, 0)
	return graph.Rows(graph.Class{Module: module, Category: "model/latent/ltxv"}, []graph.Class{
		{
			Name: "EmptyLTXVLatentVideo", Description: "Zeros for a video; its length is cut to 8k+1 pictures.",
			Inputs: video(1), Outputs: graph.Slots("LATENT"), Run: emptyLTX,
		},
		{
			Name: "LTXVConcatAVLatent", Display: "Concat AV Latent", Description: "Joins a video and its sound to one latent.",
			Inputs:  []graph.Input{graph.Link("video_latent", "LATENT", ""), graph.Link("audio_latent", "LATENT", "")},
			Outputs: []graph.Slot{{Name: "latent", Type: "LATENT"}}, Run: joinSound,
		},
		{
			Name: "LTXVSeparateAVLatent", Display: "Separate AV Latent",
			Description: "Separates a video and its sound.", Inputs: []graph.Input{graph.Link("av_latent", "LATENT", "")},
			Outputs: []graph.Slot{{Name: "video_latent", Type: "LATENT"}, {Name: "audio_latent", Type: "LATENT"}},
			Run:     separateSound,
		},
		{
			Name: "LTXVConditioning", Category: "model/conditioning/ltxv", Description: "Says how many pictures last a second.",
			Inputs: append(slices.Clone(sides), graph.Float("frame_rate", "", 25, 0, 1000, 0.01)), Outputs: both,
			Run: frameRate,
		},
		{
			Name: "LTXVImgToVideo", Category: "model/conditioning/ltxv", Phase: graph.PhaseVAE,
			Description: "Makes a latent whose first frames are those of pictures.",
			Inputs: slices.Concat(sides, []graph.Input{graph.Link("vae", "VAE", ""), graph.Link("image", "IMAGE", "")}, video(9),
				[]graph.Input{strength}),
			Outputs: append(slices.Clone(both), graph.Slot{Name: "latent", Type: "LATENT"}), Run: ltxFromImage,
		},
		{
			Name: "LTXVImgToVideoInplace", Category: "model/conditioning/ltxv", Phase: graph.PhaseVAE,
			Description: "Puts pictures in place of the first frames of a latent.",
			Inputs: []graph.Input{
				graph.Link("vae", "VAE", ""), graph.Link("image", "IMAGE", ""), graph.Link("latent", "LATENT", ""), strength,
				graph.Bool("bypass", "leave the latent as it is", false),
			},
			Outputs: []graph.Slot{{Name: "latent", Type: "LATENT"}}, Run: ltxImageInPlace,
		},
		{
			Name: "LTXVPreprocess", Display: "LTXV Preprocess", Category: "video/preprocessors",
			Description: "Compresses pictures as a video, so that they look like frames of one.",
			Inputs: []graph.Input{
				graph.Link("image", "IMAGE", ""),
				graph.Int("img_compression", "higher is more; 0: leave them as they are", 35, 0, 100, 0),
			},
			Outputs: []graph.Slot{{Name: "output_image", Type: "IMAGE"}}, Check: needsFFmpeg("image", nil), Run: ltxCompress,
		},
		{
			Name: "LTXVAddGuide", Category: "model/conditioning/ltxv", Phase: graph.PhaseVAE,
			Description: "Adds pictures that guide a video at some of its frames.",
			Inputs: slices.Concat(sides, []graph.Input{
				graph.Link("vae", "VAE", ""), graph.Link("latent", "LATENT", ""),
				graph.Link("image", "IMAGE", "a picture or a video, cut to 8k+1 pictures"),
				graph.Int("frame_idx", "where it begins; of videos 8k+1 or 0; below 0: from the end", 0, -9999, 9999, 0),
				graph.Float("strength", "above 1 for more attention to it", 1, 0, 10, 0.01),
				graph.Link("attention_mask", "MASK", "of the pictures, less where they get less attention").AsOptional(),
				graph.Link("iclora_parameters", "IC_LORA_PARAMETERS", "of Get IC-LoRA Parameters").AsOptional(),
			}),
			Outputs: append(slices.Clone(both), graph.Slot{Name: "latent", Type: "LATENT"}), Run: ltxAddGuide,
		},
		{
			Name: "GetICLoRAParameters", Display: "Get IC-LoRA Parameters", Category: "model/conditioning/ltxv",
			Description: "Reads what the last LoRA of a model says of pictures that guide a video.",
			Inputs:      []graph.Input{graph.Link("iclora_model", "MODEL", "of the node that loads the LoRA")},
			Outputs:     graph.Slots("IC_LORA_PARAMETERS"),
			Run: func(c *graph.Call) ([]any, error) {
				if says := c.Model("iclora_model").Guiding; says != nil {
					return []any{*says}, nil
				}
				return []any{value.Guiding{Downscale: 1}}, nil
			},
		},
		{
			Name: "LTXVReferenceAudio", Display: "LTXV Reference Audio (ID-LoRA)", Category: "model/conditioning/ltxv",
			Phase:       graph.PhaseVAE,
			Description: "Has the sound of a video continue another one, with the voice of that.",
			Inputs: slices.Concat([]graph.Input{graph.Link("model", "MODEL", "")}, sides, []graph.Input{
				graph.Link("reference_audio", "AUDIO", "with the voice; about 5 seconds"),
				graph.Link(ltxSoundVAE, "VAE", "the autoencoder of sound").With("display_name", "Audio VAE"),
				graph.Float("identity_guidance_scale", "how much of what the voice changes is added; 0: no extra evaluation", 3, 0,
					100, 0.01).With("round", 0.01),
				graph.Float("start_percent", "from where on", 0, 0, 1, 0.001).AsAdvanced(),
				graph.Float("end_percent", "until where", 1, 0, 1, 0.001).AsAdvanced(),
			}),
			Outputs: append([]graph.Slot{{Name: "MODEL", Type: "MODEL"}}, both...), Run: ltxReferenceSound,
		},
		{
			Name: "LTXVCropGuides", Category: "model/conditioning/ltxv",
			Description: "Takes the frames that guide a video off it.",
			Inputs:      append(slices.Clone(sides), graph.Link("latent", "LATENT", "")),
			Outputs:     append(slices.Clone(both), graph.Slot{Name: "latent", Type: "LATENT"}), Run: ltxCropGuides,
		},
		loader(graph.Class{
			Name: "LatentUpscaleModelLoader", Display: "Load Latent Upscale Model", Module: "comfy_extras.nodes_hunyuan",
			Category: "model/loaders", Outputs: graph.Slots("LATENT_UPSCALE_MODEL"),
		}, files.KindLatentUp, "model_name", value.OpenLatentUpscaler),
		{
			Name: "LTXVLatentUpsampler", Module: module + "_upsampler", Phase: graph.PhaseVAE, Experimental: true,
			Description: "Enlarges the latent of a video.",
			Inputs: []graph.Input{
				graph.Link("samples", "LATENT", ""), graph.Link("upscale_model", "LATENT_UPSCALE_MODEL", ""),
				graph.Link("vae", "VAE", ""),
			},
			Outputs: graph.Slots("LATENT"), Run: ltxUpscale,
		},
		{
			Name: "LTXVDualCFGGuider", Display: "LTXV Dual CFG Guider", Category: "model/sampling/guiders",
			Description: "Guides a video and its sound with scales of their own.",
			Inputs: slices.Concat([]graph.Input{graph.Link("model", "MODEL", "")}, sides, []graph.Input{
				graph.Float("video_cfg", "", 3, 0, 100, 0.1).With("round", 0.01),
				graph.Float("audio_cfg", "", 7, 0, 100, 0.1).With("round", 0.01),
			}),
			Outputs: graph.Slots("GUIDER"), Run: ltxGuider,
		},
		{
			Name: "ModelSamplingLTXV", Category: "model/patch/ltxv", Description: "Shifts the time line by the size of a video.",
			Inputs:  slices.Concat([]graph.Input{graph.Link("model", "MODEL", "")}, shifts, []graph.Input{latent}),
			Outputs: graph.Slots("MODEL"), Run: onModel(func(c *graph.Call, m *value.Model) (err error) {
				if m.Sampling, err = sampling.NewFlux(ltxShift(c)); err != nil {
					return fault.At(fault.BadInput, "max_shift", "max_shift, base_shift: %v", err)
				}
				return nil
			}),
		},
		{
			Name: "LTXVScheduler", Category: "model/sampling/schedulers",
			Inputs: slices.Concat([]graph.Input{graph.Int("steps", "", 20, 1, 10000, 0)}, shifts, []graph.Input{
				graph.Bool("stretch", "make the last sigma before 0 the terminal one", true).AsAdvanced(),
				graph.Float("terminal", "the last sigma before 0", 0.1, 0, 0.99, 0.01).AsAdvanced(), latent,
			}),
			Outputs: graph.Slots("SIGMAS"), Run: func(c *graph.Call) ([]any, error) {
				var terminal *float64
				if c.Flag("stretch") {
					terminal = new(float64)
					*terminal = c.Decimal("terminal")
				}
				return sigmasOf(sampling.LTXV(c.Whole("steps"), ltxShift(c), terminal))
			},
		},
	})
}

// ltxGuider guides video and sound with scales of their own.
func ltxGuider(c *graph.Call) ([]any, error) {
	rule := request.Guider{Kind: request.GuideCFG, CFG: float32(c.Decimal("video_cfg"))}
	if sound := float32(c.Decimal("audio_cfg")); sound != rule.CFG {
		rule.SoundCFG = &sound
	}
	return []any{&value.Guider{Model: c.Model("model"), Rule: rule, Branches: branches(c, "positive", "negative")}}, nil
}

// ltxShift returns the shift for the tokens of a latent: its frames, rows and columns, without its sound.
func ltxShift(c *graph.Call) float64 {
	tokens := 4096
	if c.Given("latent") {
		l := c.WithSound("latent").Samples
		tokens = l.Y * l.X
	}
	return sampling.LTXVShift(c.Decimal("max_shift"), c.Decimal("base_shift"), tokens)
}

// ltxCompress encodes each picture as a video of its own, with sides that are cut to even numbers, and decodes it.
func ltxCompress(c *graph.Call) ([]any, error) {
	im, crf := c.Image("image"), c.Whole("img_compression")
	if crf == 0 {
		return []any{im}, nil
	}
	out := &picture.Image{B: im.B, Y: im.Y / 2 * 2, X: im.X / 2 * 2, C: im.C}
	if im.C != 3 || out.Y == 0 || out.X == 0 {
		return nil, fault.Bad("image", "%d channels of %d x %d pixels: want 3 (SplitImageWithAlpha takes alpha off) of at "+
			"least 2 x 2", im.C, im.Y, im.X)
	}
	row := 3 * out.X
	pictures := media.Pictures{N: im.B, Y: out.Y, X: out.X, Rate: big.NewRat(1, 1), Frame: func(i int) []byte {
		levels := make([]byte, 0, out.Y*row)
		for y := range out.Y {
			for _, v := range im.Data[(i*im.Y+y)*3*im.X:][:row] {
				levels = append(levels, byte(min(max(v, 0), 1)*255))
			}
		}
		return levels
	}}
	levels, err := pictures.Recoded(c.Context, "-c:v", "libx264", "-crf", strconv.Itoa(crf), "-preset", "veryfast",
		"-pix_fmt", "yuv420p", "-f", "mp4")
	if err != nil {
		return nil, err
	}
	out.Data = make([]float32, len(levels))
	for i, v := range levels {
		out.Data[i] = float32(v) / 255
	}
	return []any{out}, nil
}

// ltxUpscale enlarges videos; their masks, which are of another size then, are left out.
func ltxUpscale(c *graph.Call) ([]any, error) {
	l, ae, net := c.Layers("samples"), c.VAE("vae"), graph.Arg[*value.LatentUpscaler](c, "upscale_model")
	s := l.Samples
	if s.T == 0 {
		return nil, fault.Bad("samples", "%v is the latent of a picture: want one of a video", s.Shape())
	}
	if s.C != net.Config.Channels || s.C != ae.Channels {
		return nil, fault.Family("samples", "has %d channels, upscale_model reads %d and vae makes %d: load those of one "+
			"family", s.C, net.Config.Channels, ae.Channels)
	}
	t, y, x := net.Config.Size(s.T, s.Y/s.T, s.X)
	if err := checkSize("samples", s.B, s.C, t, y, x); err != nil {
		return nil, err
	}
	larger, err := net.Upscale(c.Use(), s, ae, func(items int) {
		c.Emit(graph.Event{Type: "progress", Data: map[string]any{"value": items, "max": s.B, "node": c.ID}})
	})
	if err != nil {
		return nil, err
	}
	out := l.With(larger)
	out.NoiseMask = nil
	return []any{out}, nil
}

func emptyLTX(c *graph.Call) ([]any, error) {
	out, err := emptyLatent(c, ltxChannels, ltxPixels, videoOf("ltx").Latent(c.Whole("length")))
	if err == nil {
		out[0].(*value.Latent).Scale = ltxPixels
	}
	return out, err
}

// joinSound puts a sound beside a video, in place of one that is there already: it is then cut to the length of that,
// or zeros follow it, which may change.
func joinSound(c *graph.Call) ([]any, error) {
	v, a := c.WithSound("video_latent"), c.Layers("audio_latent")
	video, sound := v.Samples, a.Samples
	out := *v
	out.SoundMask = a.NoiseMask
	if video.Sound.Len() > 0 {
		var old request.Latent
		video, old = video.Parts()
		if err := fitSound(&sound, &out.SoundMask, old); err != nil {
			return nil, err
		}
	}
	if video.B != sound.B {
		return nil, fault.Bad("audio_latent", "has %d sounds, video_latent %d videos", sound.B, video.B)
	}
	if out.SoundMask != nil && out.NoiseMask == nil {
		out.NoiseMask = &picture.Mask{B: 1, Y: 1, X: 1, Data: []float32{1}}
	}
	out.Samples = request.Join(video, sound)
	return []any{&out}, nil
}

// fitSound gives a sound and its mask the length of another one. Rows or columns may differ, not both.
func fitSound(l *request.Latent, mask **picture.Mask, as request.Latent) error {
	if l.B != as.B || l.C != as.C || l.Y != as.Y && l.X != as.X {
		return fault.Bad("audio_latent", "%v cannot be fitted to the sound %v of video_latent: want one other length",
			l.Shape(), as.Shape())
	}
	fitted := func(data []float32, n int, fill float32) []float32 {
		out := slices.Repeat([]float32{fill}, n*as.Y*as.X)
		for i := range n * min(l.Y, as.Y) {
			k, y := i/min(l.Y, as.Y), i%min(l.Y, as.Y)
			copy(out[(k*as.Y+y)*as.X:(k*as.Y+y+1)*as.X], data[(k*l.Y+y)*l.X:(k*l.Y+y+1)*l.X])
		}
		return out
	}
	if m := *mask; m != nil && (l.Y != as.Y || l.X != as.X) {
		wide := resample.Linear(resample.Image{Data: m.Data, B: m.B, C: 1, Y: m.Y, X: m.X}, l.X, l.Y)
		*mask = &picture.Mask{B: m.B, Y: as.Y, X: as.X, Data: fitted(wide.Data, m.B, 1)}
	}
	as.Data = fitted(l.Data, l.B*l.C, 0)
	*l = as
	return nil
}

func separateSound(c *graph.Call) ([]any, error) {
	l := c.WithSound("av_latent")
	video, sound := l.Samples.Parts()
	if sound.B == 0 {
		return nil, fault.Bad("av_latent", "is a latent without sound: it needs no separating")
	}
	v, a := *l, *l
	v.Samples, v.SoundMask = video, nil
	a.Samples, a.NoiseMask, a.SoundMask, a.Scale = sound, l.SoundMask, nil, 0
	return []any{&v, &a}, nil
}

// frameRate tells both sides how many pictures last a second.
func frameRate(c *graph.Call) ([]any, error) {
	rate := c.Decimal("frame_rate")
	if rate == 0 {
		return nil, fault.Bad("frame_rate", "is 0: want more")
	}
	var out []any
	for _, side := range []string{"positive", "negative"} {
		out = append(out, c.Conditioning(side).Each(func(e *value.Cond) { e.FrameRate = rate }))
	}
	return out, nil
}

func ltxFromImage(c *graph.Call) ([]any, error) {
	l, err := emptyLTX(c)
	if err != nil {
		return nil, err
	}
	out := l[0].(*value.Latent)
	out.Scale = 0
	if err := givenFrames(c, out); err != nil {
		return nil, err
	}
	return []any{c.Conditioning("positive"), c.Conditioning("negative"), out}, nil
}

func ltxImageInPlace(c *graph.Call) ([]any, error) {
	l := c.Layers("latent")
	if c.Flag("bypass") {
		return []any{l}, nil
	}
	out := l.With(l.Samples)
	out.Samples.Data = slices.Clone(l.Samples.Data)
	return []any{out}, givenFrames(c, out)
}

// givenFrames puts the encoded pictures of a call in place of the first frames of all items of a latent, and gives
// these frames the mask 1 - strength. The others keep theirs, or get 1.
func givenFrames(c *graph.Call, l *value.Latent) error {
	ae, s, t := c.VAE("vae"), &l.Samples, max(1, l.Samples.T)
	if err := ae.Takes(s.C, ae.Channels); err != nil {
		return fault.Family("vae", "%s makes latents of %d channels, latent has %d: load the autoencoder of its family",
			ae.Name, ae.Channels, s.C)
	}
	y, x, im := s.Y/t, s.X, c.Image("image")
	encoded, err := encodedTo(c, ae, im, y, x)
	if err != nil {
		return err
	}
	given := max(1, encoded.T)
	if given > t {
		return fault.Bad("image", "%d pictures become %d latent frames, the latent has %d", im.B, given, t)
	}
	for i := range s.B * s.C {
		copy(s.Data[i*s.Y*x:], encoded.Data[i%s.C*given*y*x:][:given*y*x])
	}
	if l.NoiseMask, err = frameMask(l); err != nil {
		return err
	}
	part := 1 - float32(c.Decimal("strength"))
	for i := range given * l.NoiseMask.Y * l.NoiseMask.X {
		l.NoiseMask.Data[i] = part
	}
	return nil
}
