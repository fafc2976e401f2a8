package classes

import (
	"math"

	"patchbay/fault"
	"patchbay/models/audio"
	"patchbay/node/graph"
	"patchbay/node/media"
	"patchbay/node/value"
	"patchbay/parallel"
	"patchbay/parallel/request"
)

// vaeAudioClasses returns the classes that encode and decode sound.
func vaeAudioClasses() []graph.Class {
	return graph.Rows(graph.Class{
		Module: "comfy_extras.nodes_audio", Category: "model/latent", Phase: graph.PhaseVAE,
	}, []graph.Class{
		{
			Name: "VAEDecodeAudio", Display: "VAE Decode Audio", Aliases: "latent to audio",
			Description: "Decodes latents of sound, or the sound beside the latents of a video.",
			Inputs:      []graph.Input{graph.Link("samples", "LATENT", ""), graph.Link("vae", "VAE", "")},
			Outputs:     graph.Slots("AUDIO"), Run: vaeDecodeAudio,
		},
		{
			Name: "VAEEncodeAudio", Display: "VAE Encode Audio", Aliases: "audio to latent",
			Inputs:  []graph.Input{graph.Link("audio", "AUDIO", ""), graph.Link("vae", "VAE", "")},
			Outputs: graph.Slots("LATENT"), Run: vaeEncodeAudio,
		},
	})
}

// vaeDecodeAudio decodes sound, and makes that of a batch quieter whose samples would be large.
func vaeDecodeAudio(c *graph.Call) ([]any, error) {
	l, v := c.WithSound("samples").Samples, c.VAE("vae")
	if l.Sound.Len() > 0 {
		_, l = l.Parts()
	}
	out := &value.Audio{B: l.B, C: l.Y, Rate: audio.Rate}
	err := v.WithSound(c.Use(), func(_ *parallel.Workspace, env audio.Env, net *audio.VAE) error {
		if l.T > 0 {
			return fault.Bad("samples", "the latent is a video's and has no sound: want one of sound, or of a video with sound")
		}
		if err := v.Takes(net.Config.Channels, l.C); err != nil {
			return err
		}
		out.N = l.X * net.Config.Hop()
		if err := checkSize("samples", out.B, out.C, out.N, 1); err != nil {
			return err
		}
		for i := range l.B {
			one, err := net.Decode(env, l.Data[i*l.Item():][:l.Item()], l.Y, l.X)
			if err != nil {
				return err
			}
			out.Data = append(out.Data, one...)
			quieter(out.Data[len(out.Data)-len(one):])
		}
		return nil
	})
	return []any{out}, err
}

// quieter divides samples by five times their standard deviation where that is more than 1.
func quieter(samples []float32) {
	sum, squares := 0.0, 0.0
	for _, f := range samples {
		sum += float64(f)
	}
	mean := sum / float64(len(samples))
	for _, f := range samples {
		squares += (float64(f) - mean) * (float64(f) - mean)
	}
	by := float32(5 * math.Sqrt(squares/float64(len(samples)-1)))
	if by >= 1 {
		for i := range samples {
			samples[i] /= by
		}
	}
}

func vaeEncodeAudio(c *graph.Call) ([]any, error) {
	out, err := encodeSound(c, c.VAE("vae"), graph.Arg[*value.Audio](c, "audio"), "audio")
	return []any{&value.Latent{Samples: out}}, err
}

// encodeSound encodes a sound at the rate of the autoencoder, of which it takes as many samples from the middle as make
// whole latents. A single channel is both, and of more than two the others are left out. field is its input.
func encodeSound(c *graph.Call, v *value.VAE, a *value.Audio, field string) (out request.Latent, err error) {
	if err := a.Sounds(field); err != nil {
		return out, err
	}
	err = v.WithSound(c.Use(), func(_ *parallel.Workspace, env audio.Env, net *audio.VAE) error {
		const stereo = 2
		hop, a := net.Config.Hop(), media.Resampled(a, audio.Rate)
		t := a.N / hop
		if t < 1 {
			return fault.Bad(field, "%d samples, at %d a second, are less than the %d that one latent stands for", a.N,
				a.Rate, hop)
		}
		out = request.NewLatent(a.B, net.Config.Channels, stereo, t)
		for i := range a.B {
			var wave []float32
			for k := range stereo {
				wave = append(wave, a.Channel(i, min(k, a.C-1))[a.N%hop/2:][:t*hop]...)
			}
			one, err := net.Encode(env, wave, stereo, t*hop)
			if err != nil {
				return err
			}
			copy(out.Data[i*out.Item():], one)
		}
		return nil
	})
	return out, err
}
