package value

import (
	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models"
	"patchbay/models/audio"
	"patchbay/models/source"
	"patchbay/models/vae"
	"patchbay/models/weights"
	"patchbay/node/files"
	"patchbay/node/picture"
	"patchbay/parallel"
)

// VAE is a VAE handle: an autoencoder whose weights are read on demand.
type VAE struct {
	Name     string
	Key      string // file and header hash, or PixelSpace
	Channels int    // of the latents it takes
	Frames   bool   // a batch of pictures is a video, each picture a frame (Wan 2.1)
	Clips    bool   // a single picture is a clip too (vae.OnlyClips)
	Tiled    bool   // it always works in tiles of its own (vae.OnlyTiles)
	// Sound describes an autoencoder of sound, which is for WithSound alone; nil: it is one of pictures.
	Sound  *audio.Config
	file   source.File
	unused []string
}

// Unused names the tensors in the file that the autoencoder does not know.
func (v *VAE) Unused() []string { return v.unused }

// PixelSpace is ComfyUI's built-in autoencoder for models that work on pixels: values in -1..1, no compression.
const PixelSpace = "pixel_space"

// OpenVAE returns a handle after checking that the file holds an autoencoder. In a checkpoint that has one of videos
// and one of sound it is the former.
func OpenVAE(h files.Header) (*VAE, error) {
	set := h.Weights.Set()
	channels, err := vae.Latents(set)
	if err != nil && audio.Is(set) {
		return OpenSoundVAE(h)
	}
	if err != nil {
		return nil, fault.New(fault.WrongFamily, "%s holds no autoencoder (%v): it looks like %s", h.Name, err,
			models.GuessKind(set))
	}
	return &VAE{
		Name: h.Name, Key: h.Key(), Channels: channels, Frames: vae.Frames(set), file: h.File,
		Clips: vae.OnlyClips(set), Tiled: vae.OnlyTiles(set),
		unused: vae.Unused(set, files.Config(h.Weights, "vae")),
	}, nil
}

// OpenSoundVAE returns a handle after checking that the file holds an autoencoder of sound, alone or in a checkpoint.
func OpenSoundVAE(h files.Header) (*VAE, error) {
	set := h.Weights.Set()
	if !audio.Is(set) {
		return nil, fault.New(fault.WrongFamily, "%s holds no autoencoder of sound, it looks like %s: take a checkpoint of "+
			"LTX-2 or 2.3, or a file with audio_vae and vocoder", h.Name, models.GuessKind(set))
	}
	config := files.Config(h.Weights, soundPart)
	c, err := audio.Infer(set, config)
	if err != nil {
		return nil, fault.New(fault.BadCheckpoint, "%s: %v", h.Name, err)
	}
	return &VAE{
		Name: h.Name, Key: h.Key(), Channels: c.Channels, Sound: &c, file: h.File, unused: audio.Unused(set, config),
	}, nil
}

// soundPart names an autoencoder of sound in the metadata of a file.
const soundPart = "audio_vae"

// With runs f on the device with the loaded autoencoder and an arena of the size that need returns.
func (v *VAE) With(u Use, need func(vae.Config, engine.DType) (int, error), f func(*vae.VAE, vae.Env) error) error {
	return v.WithLoaded(u, func(l *parallel.Workspace, net *vae.VAE) error {
		bytes, err := need(net.Config, l.DType)
		if err != nil {
			return err
		}
		arena, err := l.Arena(bytes)
		if err != nil {
			return err
		}
		return f(net, vae.Env{
			Ops: l.Ops, Arena: arena, DType: l.DType, Check: func(int, int) error { return l.Check() },
		})
	})
}

// WithLoaded runs f on the device with the loaded autoencoder.
func (v *VAE) WithLoaded(u Use, f func(*parallel.Workspace, *vae.VAE) error) error {
	if err := v.sees(); err != nil {
		return err
	}
	open := func(l *parallel.Workspace, ops engine.Ops, file *weights.File) (*vae.VAE, error) {
		return vae.Open(ops, file.Set().For(l.DType), files.Config(file, "vae"))
	}
	return on(u, lazy{v.Name, v.file}, "vae", open, f)
}

// WithClips is WithLoaded for clips of several frames: the autoencoder has its layers over time.
func (v *VAE) WithClips(u Use, f func(*parallel.Workspace, *vae.VAE) error) error {
	if err := v.sees(); err != nil {
		return err
	}
	return u.do("vae "+v.Name, func(l *parallel.Workspace) error {
		k := keeping{key: "vae of clips " + v.file.Key(), file: v.file, field: "vae"}
		net, err := cached(u, l, l.Ops, k, func(ops engine.Ops, file *weights.File) (*vae.VAE, error) {
			return vae.OpenVideo(ops, file.Set().For(l.DType), files.Config(file, "vae"))
		})
		if err != nil {
			return err
		}
		return f(l, net)
	})
}

// sees returns an error if the autoencoder is one of sound.
func (v *VAE) sees() error {
	if v.Sound == nil {
		return nil
	}
	return fault.Family("vae", "%s is an autoencoder of sound: load one of pictures or videos, or use VAEDecodeAudio and "+
		"VAEEncodeAudio", v.Name)
}

// WithSound runs f on the device with the loaded autoencoder of sound, which an input of that name gave.
func (v *VAE) WithSound(u Use, field string, f func(*parallel.Workspace, audio.Env, *audio.VAE) error) error {
	if err := v.Sounds(field); err != nil {
		return err
	}
	return u.do("vae "+v.Name, func(l *parallel.Workspace) error {
		// LTX-2's checkpoints hold one of videos too
		k := keeping{key: "vae of sound " + v.file.Key(), file: v.file, field: "vae"}
		net, err := cached(u, l, l.Ops, k, func(ops engine.Ops, file *weights.File) (*audio.VAE, error) {
			return audio.Open(ops, file.Set().For(engine.F32), files.Config(file, soundPart)) // as in ComfyUI
		})
		if err != nil {
			return err
		}
		return f(l, audio.Env{Ops: l.Ops, Take: l.Arena, Check: l.Check}, net)
	})
}

// Sounds returns an error that names an input unless the autoencoder is one of sound.
func (v *VAE) Sounds(field string) error {
	if v.Sound != nil {
		return nil
	}
	return fault.Family(field, "%s is no autoencoder of sound: load one, such as minimax_h3_audio_vae, or with "+
		"LTXVAudioVAELoader that of LTX-2", v.Name)
}

// IsClip reports whether a batch of so many pictures is encoded as a clip by this autoencoder.
func (v *VAE) IsClip(pictures int) bool { return v.Clips || v.Frames && pictures > oneFrame }

// oneFrame is the largest batch that a video VAE encodes to a single latent, that of the first picture: Wan 2.1 encodes
// the first frame alone and the rest in groups of four, and drops an incomplete group.
const oneFrame = 4

// Taken returns the pictures of a batch that become latents by themselves: all, or the first if the batch is a video of
// one latent frame. Longer videos are refused.
func (v *VAE) Taken(im *picture.Image) (*picture.Image, error) {
	switch {
	case !v.Frames || im.B == 1:
		return im, nil
	case im.B > oneFrame:
		return nil, fault.Bad("pixels", "a batch of %d, which %s reads as a video: encode the pictures one by one", im.B,
			v.Name)
	}
	return im.Items(0, 1), nil
}

// Takes returns an error if latents with got channels do not fit an autoencoder of the given channels.
func (v *VAE) Takes(channels, got int) error { return v.takes("vae", channels, got) }

// TakesSound is Takes for an autoencoder of sound that an input of that name gave.
func (v *VAE) TakesSound(field string, got int) error { return v.takes(field, v.Channels, got) }

func (v *VAE) takes(field string, channels, got int) error {
	if channels == got {
		return nil
	}
	return fault.Family(field, "%s takes latents of %d channels, got %d: use the VAE of the model's family", v.Name,
		channels, got)
}
