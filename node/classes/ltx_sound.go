package classes

import (
	"math"
	"slices"

	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/value"
	"patchbay/parallel/request"
)

// ltxSoundClasses returns the classes of the sounds of LTX-2's videos: the autoencoder of a checkpoint, and latents.
func ltxSoundClasses() []graph.Class {
	vae := func(tip string) graph.Input {
		return graph.Link(ltxSoundVAE, "VAE", tip).With("display_name", "Audio VAE")
	}
	return append(graph.Rows(graph.Class{Module: ltxSoundModule, Category: "model/latent/ltxv"}, []graph.Class{
		{
			Name: "LTXVAudioVAEEncode", Display: "LTXV Audio VAE Encode", Phase: graph.PhaseVAE,
			Description: "Encodes a sound, of which it takes as much from the middle as makes whole steps of 4096 samples.",
			Inputs:      []graph.Input{graph.Link("audio", "AUDIO", "the sound"), vae("the autoencoder of sound")},
			Outputs:     []graph.Slot{{Name: "Audio Latent", Type: "LATENT"}}, Run: func(c *graph.Call) ([]any, error) {
				out, err := encodeSound(c, ltxSoundVAE, graph.Arg[*value.Audio](c, "audio"), "audio")
				return []any{&value.Latent{Samples: out}}, err
			},
		},
		{
			Name: "LTXVAudioVAEDecode", Display: "LTXV Audio VAE Decode", Phase: graph.PhaseVAE,
			Description: "Decodes latents of sound, or the sound beside the latents of a video.",
			Inputs:      []graph.Input{graph.Link("samples", "LATENT", "the latent"), vae("the autoencoder of sound")},
			Outputs:     []graph.Slot{{Name: "Audio", Type: "AUDIO"}}, Run: func(c *graph.Call) ([]any, error) {
				out, err := decodeSound(c, ltxSoundVAE)
				return []any{out}, err
			},
		},
		{
			Name: "LTXVEmptyLatentAudio", Display: "LTXV Empty Latent Audio", Description: "Zeros for the sound of a video.",
			Inputs: []graph.Input{
				graph.Int("frames_number", "pictures of the video", 97, 1, 1000, 1).With("display", "number"),
				graph.Number("frame_rate", "FLOAT,INT", "pictures a second", "default", 25.0, "widgetType", "FLOAT",
					"min", 1.0, "max", 1000.0, "step", 0.01,
					"display", "number"),
				graph.Int("batch_size", "sounds made at once", 1, 1, 4096, 0).With("display", "number"),
				vae("says how large they are"),
			},
			Outputs: []graph.Slot{{Name: "Latent", Type: "LATENT"}}, Run: emptyLTXSound,
		},
	}), loader(graph.Class{
		Name: "LTXVAudioVAELoader", Display: "Load LTXV Audio VAE", Module: ltxSoundModule,
		Description: "Loads the autoencoder of sound and its vocoder from a checkpoint of LTX-2.",
		Outputs:     []graph.Slot{{Name: "Audio VAE", Type: "VAE"}},
	}, files.KindCheckpoint, "ckpt_name", value.OpenSoundVAE))
}

const ltxSoundVAE, ltxSoundModule = "audio_vae", "comfy_extras.nodes_lt_audio"

// emptyLTXSound makes as many rows as last as long as the video, half to even as Python rounds.
func emptyLTXSound(c *graph.Call) ([]any, error) {
	v := c.VAE(ltxSoundVAE)
	if err := v.Sounds(ltxSoundVAE); err != nil {
		return nil, err
	}
	if v.Sound.Mel == nil {
		return nil, fault.Family(ltxSoundVAE, "%s is not LTX-2's, whose latents have rows of a spectrogram: load it with "+
			"LTXVAudioVAELoader", v.Name)
	}
	n := float64(c.Whole("frames_number")) / c.Decimal("frame_rate")
	rows := int(math.RoundToEven(n * v.Sound.Mel.RowsPerSecond()))
	if rows < 1 {
		return nil, fault.Bad("frames_number", "%d pictures at frame_rate %v are shorter than a row of sound",
			c.Whole("frames_number"), c.Decimal("frame_rate"))
	}
	l := request.NewLatent(c.Whole("batch_size"), v.Channels, rows, v.Sound.Mel.Columns())
	return []any{&value.Latent{Samples: l}}, nil
}

// ltxReferenceSound encodes a sound, of which each row becomes a token in front of the sound that is made, and adds
// guidance that moves a video away from what it would be without.
func ltxReferenceSound(c *graph.Call) ([]any, error) {
	a := graph.Arg[*value.Audio](c, "reference_audio")
	l, err := encodeSound(c, ltxSoundVAE, a, "reference_audio")
	if err != nil {
		return nil, err
	}
	if l.B != 1 {
		return nil, fault.Bad("reference_audio", "has %d sounds: want one", l.B)
	}
	rows := dit.Array{Rows: l.Y, Cols: l.C * l.X, Data: make([]float32, 0, len(l.Data))}
	for y := range l.Y {
		for channel := range l.C {
			rows.Data = append(rows.Data, l.Data[(channel*l.Y+y)*l.X:][:l.X]...)
		}
	}
	m := *c.Model("model")
	if scale := c.Float("identity_guidance_scale"); scale != 0 {
		m.Identity = append(slices.Clone(m.Identity), request.Identity{
			Scale: float32(scale), Start: m.Sampling.PercentToSigma(c.Decimal("start_percent")),
			End: m.Sampling.PercentToSigma(c.Decimal("end_percent")),
		})
	}
	add := func(e *value.Cond) { e.SoundReference = rows }
	return []any{&m, c.Conditioning("positive").Each(add), c.Conditioning("negative").Each(add)}, nil
}
