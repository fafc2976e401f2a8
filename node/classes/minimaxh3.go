package classes

import (
	"slices"

	"patchbay/fault"
	"patchbay/models/sampling"
	"patchbay/node/graph"
	"patchbay/node/value"
	"patchbay/parallel/request"
)

// h3Classes returns the classes of MiniMax-H3.
func h3Classes() []graph.Class {
	shift := func(name, tip string, preset float64) graph.Input {
		return graph.Float(name, tip, preset, 0.01, 100, 0.01)
	}
	const conditioning = "model/conditioning/minimax"
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
			Name: "MiniMaxH3ImageToVideo", Display: "MiniMax H3 Image to Video", Category: conditioning,
			Description: "Encodes a prompt, and pictures that a video begins and ends with.", Phase: graph.PhaseText,
			Inputs: slices.Concat([]graph.Input{
				graph.Link("clip", "CLIP", ""), graph.Link("vae", "VAE", "for pictures"), graph.Prompt("prompt", ""),
			}, h3Sizes(), []graph.Input{
				graph.Link("first_frame", "IMAGE", "stretched to the video").AsOptional(),
				graph.Link("last_frame", "IMAGE", "cut to the video's shape").AsOptional(),
			}),
			Outputs: []graph.Slot{{Name: "positive", Type: "CONDITIONING"}, {Name: "LATENT", Type: "LATENT"}},
			Run:     h3ImageToVideo,
		},
		{
			Name: "MiniMaxH3ReferenceToVideo", Display: "MiniMax H3 Reference to Video", Category: conditioning,
			Description: "Encodes a prompt that refers to pictures, videos and sounds as <Picture 1>, <Video 1> and " +
				"<Audio 1>, and these.",
			Phase: graph.PhaseText,
			Inputs: slices.Concat([]graph.Input{
				graph.Link("clip", "CLIP", ""), graph.Link("vae", "VAE", "for pictures and videos"),
				graph.Link("audio_vae", "VAE", "for sounds"), graph.Prompt("prompt", ""),
			}, h3Sizes(), []graph.Input{
				graph.Combo("ref_image_size", "match: at most the video's area; max: 2048 on the shorter side, several times "+
					"slower", "match", "max"),
				graph.GrowAny("ref_images", "ref_image_", 9, graph.Link("ref_image", "IMAGE", "made smaller, never larger")),
				graph.GrowAny("ref_videos", "ref_video_", 3, graph.Link("ref_video", "IMAGE", "24 pictures a second")),
				graph.GrowAny("ref_video_audios", "ref_video_audio_", 3,
					graph.Link("ref_video_audio", "AUDIO", "the sound of the video with its number")),
				graph.GrowAny("ref_audios", "ref_audio_", 3, graph.Link("ref_audio", "AUDIO", "")),
			}),
			Outputs: []graph.Slot{{Name: "positive", Type: "CONDITIONING"}, {Name: "LATENT", Type: "LATENT"}},
			Run:     h3ReferenceToVideo,
		},
		{
			Name: "MiniMaxH3AddGuide", Display: "Add Guide for MiniMax H3", Category: conditioning,
			Description: "Puts a picture, a short clip or a sound at a picture of a video.", Phase: graph.PhaseVAE,
			Inputs: []graph.Input{
				graph.Link("positive", "CONDITIONING", ""), graph.Link("vae", "VAE", "for image").AsOptional(),
				graph.Link("audio_vae", "VAE", "for audio").AsOptional(), graph.Link("latent", "LATENT", ""),
				graph.Link("image", "IMAGE", "fewer than 5 pictures count as the first, others are cut to 17k+5").AsOptional(),
				graph.Link("audio", "AUDIO", "cut to the end of the video").AsOptional(),
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
)

// h3Pictures rounds a number of pictures up to the next that MiniMax-H3 makes: 5, 22, 39 and so on.
func h3Pictures(n int) int { return 5 + (max(0, n-5)+16)/17*17 }

// emptyH3 returns zeros for the video that width, height and length describe, and its number of pictures.
func emptyH3(c *graph.Call) (*value.Latent, int, error) {
	n := h3Pictures(c.Whole("length"))
	video := videoOf("minimaxh3")
	t, y, x := video.Latent(n), c.Whole("height")/h3Scale, c.Whole("width")/h3Scale
	sound := request.Sound{C: h3Sound}
	sound.Y, sound.X = video.Sound(n)
	if int64(h3Channels)*int64(t)*int64(y)*int64(x) > value.MaxValues {
		return nil, n, fault.Bad("length", "%d latent frames of %d x %d are more than this program holds (%d values)", t, x,
			y, value.MaxValues)
	}
	l := request.Latent{B: 1, C: h3Channels, T: t, Y: t * y, X: x, Sound: sound}
	l.Data = make([]float32, l.Len())
	return &value.Latent{Samples: l}, n, nil
}
