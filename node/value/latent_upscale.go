package value

import (
	"errors"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models"
	"patchbay/models/upscale"
	"patchbay/models/vae"
	"patchbay/models/weights"
	"patchbay/node/files"
	"patchbay/parallel"
	"patchbay/parallel/request"
)

// LatentUpscaler is a LATENT_UPSCALE_MODEL: a network that enlarges the latent of a video, whose weights are read on
// demand.
type LatentUpscaler struct {
	lazy
	Config upscale.LatentConfig
}

// latentUpscalerConfig is the part of a file whose settings are read from its metadata.
const latentUpscalerConfig = "latent_upscale_model"

// OpenLatentUpscaler returns a handle after checking that the file holds a supported network.
func OpenLatentUpscaler(h files.Header) (*LatentUpscaler, error) {
	cfg, err := upscale.InferLatents(h.Weights.Set(), files.Config(h.Weights, latentUpscalerConfig))
	switch {
	case errors.Is(err, upscale.ErrUnknown):
		return nil, fault.New(fault.WrongFamily, "%s %v of latents: it looks like %s", h.Name, err,
			models.GuessKind(h.Weights.Set()))
	case err != nil:
		return nil, fault.New(fault.WrongFamily, "%s: %v", h.Name, err)
	}
	return &LatentUpscaler{lazy{h.Name, h.File}, cfg}, nil
}

// Upscale enlarges the latents of a batch of videos, which the statistics of ae's file normalise. done is called after
// every item.
func (z *LatentUpscaler) Upscale(u Use, l request.Latent, ae *VAE, done func(items int)) (request.Latent, error) {
	mean, std, err := ae.statistics()
	if err != nil {
		return l, err
	}
	c, t, y := z.Config.Channels, l.T, l.Y/max(1, l.T)
	out := l
	out.T, out.Y, out.X = z.Config.Size(t, y, l.X)
	out.Y *= out.T
	out.Data = make([]float32, l.B*c*out.Y*out.X)
	open := func(l *parallel.Workspace, ops engine.Ops, file *weights.File) (*upscale.Latents, error) {
		return upscale.OpenLatents(ops, file.Set(), files.Config(file, latentUpscalerConfig))
	}
	err = on(u, z.lazy, "upscale_model", open, func(w *parallel.Workspace, net *upscale.Latents) error {
		n, larger := l.Y*l.X, out.Y*out.X
		rows := make([]float32, n*c) // channels last
		for b := range l.B {
			item := l.Data[b*c*n : (b+1)*c*n]
			for k := range c {
				for i, v := range item[k*n : (k+1)*n] {
					rows[i*c+k] = v*std[k] + mean[k]
				}
			}
			got, err := net.Upscale(taskEnv(w), rows, t, y, l.X)
			if err != nil {
				return err
			}
			for k := range c {
				to := out.Data[(b*c+k)*larger:]
				for i := range larger {
					to[i] = (got[i*c+k] - mean[k]) / std[k]
				}
			}
			done(b + 1)
		}
		return nil
	})
	return out, err
}

// statistics returns the mean and the deviation of every channel of latents, by which the autoencoder normalises them.
func (v *VAE) statistics() (mean, std []float32, err error) {
	if v.Key == PixelSpace {
		return nil, nil, fault.Family("vae", "pixels have no statistics: load the autoencoder of LTX-2")
	}
	_, err = read(v.file, "vae", func(file *weights.File) (struct{}, error) {
		mean, std = vae.Statistics(file.Set())
		return struct{}{}, nil
	})
	if err == nil && (len(mean) == 0 || len(mean) != len(std)) {
		err = fault.Family("vae", "%s has no statistics of latents (per_channel_statistics): load the autoencoder of LTX-2",
			v.Name)
	}
	return mean, std, err
}
