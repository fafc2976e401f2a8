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
	out, err := decodeSound(c, "vae")
	if err == nil {
		for i := range out.B {
			quieter(out.Data[i*out.C*out.N:][:out.C*out.N])
		}
	}
	return []any{out}, err
}

// decodeSound decodes the samples of a call, or the sound beside them, with the autoencoder of an input of that name.
func decodeSound(c *graph.Call, field string) (*value.Audio, error) {
	l, v := c.WithSound("samples").Samples, c.VAE(field)
	if l.Sound.Len() > 0 {
		_, l = l.Parts()
	}
	out := &value.Audio{B: l.B}
	err := v.WithSound(c.Use(), field, func(_ *parallel.Workspace, env audio.Env, net *audio.VAE) error {
		if l.T > 0 {
			return fault.Bad("samples", "the latent is a video's and has no sound: want one of sound, or of a video with sound")
		}
		if err := v.TakesSound(field, l.C); err != nil {
			return err
		}
		var err error
		if out.C, out.N, err = net.Config.Sound(l.Y, l.X); err != nil {
			return fault.Bad("samples", "%v", err)
		}
		if err := checkSize("samples", out.B, out.C, out.N, 1); err != nil {
			return err
		}
		out.Rate = net.Config.Out
		for i := range l.B {
			one, err := net.Decode(env, l.Data[i*l.Item():][:l.Item()], l.Y, l.X)
			if err != nil {
				return err
			}
			out.Data = append(out.Data, one...)
		}
		return nil
	})
	return out, err
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
	out, err := encodeSound(c, "vae", graph.Arg[*value.Audio](c, "audio"), "audio")
	return []any{&value.Latent{Samples: out}}, err
}

// encodeSound encodes a sound, which an input named field gave, with the autoencoder of an input named by: at its rate
// and as many samples from the middle as it takes. A single channel is all of its channels, and of more than it has the
// others are left out.
func encodeSound(c *graph.Call, by string, a *value.Audio, field string) (out request.Latent, err error) {
	if err := a.Sounds(field); err != nil {
		return out, err
	}
	err = c.VAE(by).WithSound(c.Use(), by, func(_ *parallel.Workspace, env audio.Env, net *audio.VAE) error {
		k, a := net.Config, media.Resampled(a, net.Config.Rate)
		n, channels := a.N/k.Step*k.Step, k.Sounds()
		y, x := k.Latent(channels, n)
		if n < 1 || y < 1 {
			return fault.Bad(field, "%d samples, at %d a second, are less than the %d that are encoded at least", a.N, a.Rate,
				k.Step)
		}
		out = request.NewLatent(a.B, k.Channels, y, x)
		for i := range a.B {
			var wave []float32
			for channel := range channels {
				wave = append(wave, a.Channel(i, min(channel, a.C-1))[(a.N-n)/2:][:n]...)
			}
			one, err := net.Encode(env, wave, channels, n)
			if err != nil {
				return err
			}
			copy(out.Data[i*out.Item():], one)
		}
		return nil
	})
	return out, err
}
