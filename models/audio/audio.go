// Package audio turns latents into sound and sound into latents. It implements the autoencoder of MiniMax-H3: an
// encoder of strided convolutions (the Descript Audio Codec, arXiv:2306.06546) with a head of causal attention, and the
// decoder BigVGAN (arXiv:2206.04658). The channels of a sound are coded one by one.
//
// Read names.go (what a file holds), audio.go, decode.go and encode.go (the walks over the layers), conv.go
// (convolutions over time as those of pictures one row high) and snake.go (activations). Everything is channels last,
// [L, C].
//
// Convolutions and matrices run on the device, in float32. Activations run on the host's processors: engine.Ops has no
// sines, and what they cost is small beside the convolutions.
package audio

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/weights"
)

// VAE is a loaded autoencoder. It holds weights only and may be shared by ranks that use the same kind of Ops.
type VAE struct {
	Config Config
	nets   nets
	alphas map[string][]float32 // of activations, by name; as exponents in the decoder, where betas are here too
	mean   []float32            // of the latents' channels, which are normalized outside of the networks
	std    []float32
	upTaps []int // of the decoder's transposed convolutions
	loaded *weights.Loaded
}

// Config describes an autoencoder. It follows from shapes.
type Config struct {
	Channels int   // of the latents
	Width    int   // channels between latents and networks
	Strides  []int // of the encoder's levels
	Encoder  int   // its channels at the full rate; they double at each level
	Decoder  int   // channels after the decoder's first convolution; they halve at each level
}

// Rate is how many samples of a sound there are in a second.
const Rate = 32000

// Hop returns how many samples a latent stands for.
func (c Config) Hop() int {
	n := 1
	for _, s := range c.Strides {
		n *= s
	}
	return n
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

// arena returns an arena of the given size and a function that releases it.
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
