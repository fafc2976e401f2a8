// Package audio turns latents into sound and sound into latents. It implements the autoencoder of MiniMax-H3: an
// encoder of strided convolutions (the Descript Audio Codec, arXiv:2306.06546) with a head of causal attention, and the
// decoder BigVGAN (arXiv:2206.04658), both for one channel of a sound at a time; and that of LTX-2 (arXiv:2601.03233):
// convolutions over a spectrogram of all channels, and HiFi-GAN or two BigVGANs from there to samples.
//
// Read generator.go (columns to samples, in both), codec.go (what a file of MiniMax-H3 holds), codec_decode.go and
// codec_encode.go (the walks over its layers), mel.go, mel_walk.go and spectrum.go (the same of LTX-2), conv.go
// (convolutions over time as those of pictures one row high), snake.go (activations) and resample.go. Everything is
// channels last, [L, C], or [T, F, C] of a spectrogram.
//
// Convolutions and matrices run on the device, in float32. Activations of sines run on the host's processors:
// engine.Ops has none, and what they cost is small beside the convolutions.
package audio

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/weights"
)

// VAE is a loaded autoencoder. It holds weights only and may be shared by ranks that use the same kind of Ops.
type VAE struct {
	Config Config
	net    network
	loaded *weights.Loaded
}

// network is what a kind of autoencoder computes.
type network interface {
	// decode turns a latent [C, y, x] into a sound of the shape that Config.Sound gives.
	decode(env Env, latent []float32, y, x int) ([]float32, error)
	// encode turns a sound [channels, n] into a latent [C, y, x] of the shape that Config.Latent gives.
	encode(env Env, wave []float32, channels, n int) ([]float32, error)
}

// Config describes an autoencoder: Codec or Mel.
type Config struct {
	Channels int // of the latents
	Rate     int // samples a second of a sound that is encoded
	Out      int // samples a second of a decoded one
	Step     int // ComfyUI's nodes encode a multiple of so many samples
	Codec    *Codec
	Mel      *Mel
}

// Sound returns the channels and the samples of what a latent [Channels, y, x] is decoded to.
func (c Config) Sound(y, x int) (channels, n int, err error) {
	if c.Mel != nil {
		return c.Mel.sound(y, x)
	}
	if y < 1 || x < 1 {
		return 0, 0, fmt.Errorf("a latent of %d channels and %d columns: want 1 or more", y, x)
	}
	return y, x * c.Codec.Hop(), nil
}

// Latent returns the rows and columns of the latent of a sound of so many channels and samples.
func (c Config) Latent(channels, n int) (y, x int) {
	if c.Mel != nil {
		return c.Mel.latent(n)
	}
	return channels, c.Codec.Latents(n)
}

// Sounds returns how many channels a sound has that nodes encode.
func (c Config) Sounds() int {
	if c.Mel != nil {
		return c.Mel.Sounds
	}
	return 2
}

// Is reports whether a set holds an autoencoder of sound.
func Is(set *weights.Set) bool { return set.Has(codecAnchor) || isMel(set) }

// Infer derives the configuration from names and shapes, and that of LTX-2 from config, the JSON of the file's metadata
// "config".
func Infer(set *weights.Set, config []byte) (Config, error) {
	if set.Has(codecAnchor) {
		return inferCodec(set)
	}
	return inferMel(set, config)
}

// Open loads an autoencoder; config is as for Infer. Missing names are reported all at once (*weights.MismatchError),
// unknown ones are left out (Unused). The caller must close the result.
func Open(ops engine.Ops, set *weights.Set, config []byte) (*VAE, error) {
	c, err := Infer(set, config)
	if err != nil {
		return nil, err
	}
	v := &VAE{Config: c}
	if c.Mel != nil {
		v.net, v.loaded, err = openMel(ops, set, c)
	} else {
		v.net, v.loaded, err = openCodec(ops, set, c)
	}
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Unused names the tensors in set that Open does not know. Nothing is loaded; if Open would fail, there are none.
func Unused(set *weights.Set, config []byte) []string {
	v, err := Open(weights.Shapes(), set, config)
	if err != nil {
		return nil
	}
	return v.loaded.Unused
}

// Decode turns a latent [C, y, x] into a sound [channels, n] of the shape that Config.Sound gives, with values in
// -1..1. Errors are sizes that do not fit, and those of Check and the device.
func (v *VAE) Decode(env Env, latent []float32, y, x int) ([]float32, error) {
	_, _, err := v.Config.Sound(y, x)
	if err == nil && len(latent) != v.Config.Channels*y*x {
		err = fmt.Errorf("%d values for a latent [%d, %d, %d]", len(latent), v.Config.Channels, y, x)
	}
	if err != nil {
		return nil, fmt.Errorf("audio vae decode: %w", err)
	}
	return v.net.decode(env, latent, y, x)
}

// Encode turns a sound [channels, n] into a latent [C, y, x] of the shape that Config.Latent gives: the mean of the
// posterior. Errors are as for Decode.
func (v *VAE) Encode(env Env, wave []float32, channels, n int) ([]float32, error) {
	y, x := v.Config.Latent(channels, n)
	if channels < 1 || n < 1 || y < 1 || x < 1 || len(wave) != channels*n {
		return nil, fmt.Errorf("audio vae encode: %d values for a sound [%d, %d]", len(wave), channels, n)
	}
	return v.net.encode(env, wave, channels, n)
}

// Env is the environment of a walk. It belongs to one rank and one stream.
type Env struct {
	Ops engine.Ops
	// Take returns an arena of the given size; nil: memory is allocated from Ops and freed.
	Take func(bytes int) (*engine.Arena, error)
	// Check is called before every layer; its error stops the walk and is returned as is. It may be nil.
	Check func() error
}

func (env Env) check() error {
	if env.Check == nil {
		return nil
	}
	return env.Check()
}

// arena returns an arena of the given size, of which there is one at a time, and a function that releases it.
func (env Env) arena(bytes int) (*engine.Arena, func(), error) {
	if env.Take != nil {
		a, err := env.Take(bytes)
		return a, func() {}, err
	}
	buf, err := env.Ops.Alloc(bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("audio vae: %d bytes for activations: %w", bytes, err)
	}
	return engine.NewArena("audio", buf, bytes), func() { env.Ops.Free(buf) }, nil
}

// Close frees the memory of the weights.
func (v *VAE) Close() { v.loaded.Close() }

// Bytes returns the memory of the weights if the backend reports it.
func (v *VAE) Bytes() int64 { return v.loaded.Bytes() }
