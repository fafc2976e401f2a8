// Package vae turns latents into pictures and pictures into latents. It implements the convolutional autoencoder
// (AutoencoderKL, arXiv:2112.10752, sec. 3.1) that Stable Diffusion, SD3, FLUX, PixArt and HunyuanDiT share, that of
// Wan 2.1 and Qwen-Image, which has the same form for a single frame (wan.go), that of Qwen-Image-2.1 with shortcuts
// around levels (shortcuts.go), FLUX.2's with packed latents (packed.go), and LTX-2's, a chain of blocks (chain.go, and
// its walk in chain_walk.go).
//
// Read config.go (what a file holds, derived from names and shapes), layers.go (the network as structs whose tags are
// checkpoint names), decode.go and encode.go (the walks over the layers), walk.go (what every walk needs: large
// buffers, strips, halos), tiled.go (ComfyUI's tiling) and image.go (pixels). Everything is channels last,
// [B, Y, X, C], one item of a batch at a time.
//
// A walk computes a band of rows. On one rank the band is the whole picture. A caller that splits a picture gives every
// rank a band and an Exchange, which transfers halo rows, sums group-norm statistics and gathers keys and values, so
// that the parts equal the whole.
//
// Memory: a walk holds one activation in each of two buffers, or three if a block widens the channels, and works in
// strips on top of them, so the peak is about the input and output of the widest layer. A FLUX decode of 1024x1024 in
// f32 needs 1.6 GiB, half of that in bf16 (DecodeBytes computes it, and a test pins the number).
//
// Facts that have caused bugs elsewhere: downsampling pads on the right and at the bottom only; encoding returns the
// mode of the posterior, not a random draw; zero padding is applied after norm and activation; attention has a single
// head as wide as the channels.
package vae

import (
	"fmt"
	"slices"

	"patchbay/engine"
	"patchbay/models/weights"
)

// VAE is a loaded autoencoder. It holds weights only and may be shared by ranks that use the same kind of Ops.
type VAE struct {
	Config Config
	layers layers
	loaded *weights.Loaded
}

// Env is the environment of a walk. It belongs to one rank and one stream.
type Env struct {
	Ops engine.Ops
	// Arena holds the activations. nil: Decode and Encode allocate what they need from Ops and free it.
	Arena *engine.Arena
	DType engine.DType // of activations: F32 (the zero value) or BF16
	// Check is called before every layer with the number of layers done and the total of the call; an error stops the
	// walk and is returned as is. It may be nil.
	Check func(done, total int) error
	// StripBytes is the approximate memory for a convolution's normalized or upsampled input; 0: 32 MiB. It does not
	// affect the result.
	StripBytes int
	// Exchange connects the bands of a split picture; nil: this band is the whole picture.
	Exchange *Exchange
}

// Exchange connects the bands of a picture. Every band calls the same hooks in the same order with its own tensors.
type Exchange struct {
	// Halo fills above [1, 1, X, C] with the last row of the previous band and below with the first row of the next
	// one; x [1, Y, X, C] is this band. At an edge of the picture above or below is a zero Tensor.
	Halo func(x, above, below engine.Tensor)
	// Sum adds up stats [1, G, 2] f64 over all bands, in place.
	Sum func(stats engine.Tensor)
	// Gather fills full [1, Lt, 2, C] with the parts [1, L, 2, C] of all bands, in row order.
	Gather func(full, part engine.Tensor)
}

// Open loads an autoencoder from set, which may be a whole checkpoint: names may begin with "first_stage_model." or
// "vae.". config is the JSON of the file's metadata "config", empty if there is none. Missing names are
// reported all at once (*weights.MismatchError), unknown ones are left out (Unused). The caller must close the result.
// An autoencoder of videos is one of single pictures then.
func Open(ops engine.Ops, set *weights.Set, config []byte) (*VAE, error) {
	return open(ops, set, config, false)
}

// OpenVideo is Open with the layers over time, for clips of several frames. Of other autoencoders it is Open.
func OpenVideo(ops engine.Ops, set *weights.Set, config []byte) (*VAE, error) {
	return open(ops, set, config, true)
}

func open(ops engine.Ops, set *weights.Set, config []byte, video bool) (*VAE, error) {
	set, err := strip(set, video)
	if err == nil && set.Has(packedAnchor) {
		set, err = packed(set)
	}
	if err != nil {
		return nil, fmt.Errorf("load vae: %w", err)
	}
	cfg, err := Infer(set, config)
	if err == nil && cfg.Chain != nil {
		set, err = fromChain(set, cfg)
	}
	if err != nil {
		return nil, err
	}
	v := &VAE{Config: cfg, layers: newLayers(cfg)}
	if v.loaded, err = weights.Load(ops, set, &v.layers, cfg.options(set,
		weights.Options{Spare: true, Model: "vae", Ignore: []string{"loss.", "model_ema."}})); err != nil {
		return nil, err
	}
	if err := v.layers.check(cfg); err != nil {
		v.loaded.Close()
		return nil, err
	}
	return v, nil
}

// Unused names the tensors of the autoencoder in set that Open does not know. Nothing is loaded; if Open would fail,
// there are none.
func Unused(set *weights.Set, config []byte) []string {
	v, err := Open(weights.Shapes(), set, config)
	if err != nil {
		return nil
	}
	return v.loaded.Unused
}

// Latents returns the number of latent channels of the autoencoder in a set as accepted by Open. No weights are loaded.
func Latents(set *weights.Set) (int, error) {
	part, err := strip(set, false)
	if err != nil {
		return 0, err
	}
	if n := max(part.Dim(packedAnchor, 0), part.Dim(chainMean, 0)); n > 0 {
		return n, nil
	}
	if n := part.Dim("post_quant_conv.weight", 1); n > 0 {
		return n, nil
	}
	return part.Dim("decoder.conv_in.weight", 1), nil
}

// Frames reports whether the autoencoder in a set treats the pictures of a batch as frames of a video.
func Frames(set *weights.Set) bool {
	return slices.ContainsFunc(prefixes(), func(p string) bool {
		return set.Has(p+wanAnchor) && (!set.Has(p+nestedAnchor) || squares(set.Prefix(p))) || set.Has(p+tokenAnchor) ||
			set.Has(p+chainAnchor)
	})
}

// OnlyClips reports whether the autoencoder in a set takes everything as a clip, a picture as one of a single frame.
func OnlyClips(set *weights.Set) bool {
	return slices.ContainsFunc(prefixes(), func(p string) bool { return set.Has(p+tokenAnchor) || set.Has(p+chainAnchor) })
}

// OnlyTiles reports whether the autoencoder in a set works in tiles of its own, whatever it is asked for.
func OnlyTiles(set *weights.Set) bool {
	return slices.ContainsFunc(prefixes(), func(p string) bool { return set.Has(p + tokenAnchor) })
}

// prefixes lists the prefixes of an autoencoder's names in checkpoints.
func prefixes() []string { return []string{"", "first_stage_model.", "vae."} }

// Close frees the memory of the weights.
func (v *VAE) Close() { v.loaded.Close() }

// Bytes returns the memory of the weights if the backend reports it.
func (v *VAE) Bytes() int64 { return v.loaded.Bytes() }

// strip returns the autoencoder's part of a checkpoint, with its prefix removed and the names of the original.
func strip(set *weights.Set, video bool) (*weights.Set, error) {
	for _, prefix := range prefixes() {
		if set.Has(prefix + wanAnchor) {
			return fromWan(set.Prefix(prefix), video)
		}
		if set.Has(prefix + tokenAnchor) {
			return fromTokens(set.Prefix(prefix))
		}
		if set.Has(prefix + chainAnchor) {
			return set.Prefix(prefix), nil
		}
		if set.Has(prefix + "decoder.conv_in.weight") {
			part := set.Prefix(prefix)
			if part.Has("decoder.mid_block.resnets.0.norm1.weight") {
				levels := part.Count("decoder.up_blocks")
				part = part.Mapped(func(name string) string { return original(name, levels) })
			}
			return part, nil
		}
	}
	return nil, fmt.Errorf("no decoder.conv_in.weight, no %s and no %s, also not below the prefixes first_stage_model "+
		"and vae", wanAnchor, chainAnchor)
}

// arena returns env with an arena of the given size and a function that releases it. An arena that env already has is
// used as it is.
func (env Env) arena(bytes int) (Env, func(), error) {
	if env.Arena != nil {
		mark := env.Arena.Mark()
		return env, func() { env.Arena.Release(mark) }, nil
	}
	buf, err := env.Ops.Alloc(bytes)
	if err != nil {
		return env, nil, fmt.Errorf("vae: %d bytes for activations: %w", bytes, err)
	}
	env.Arena = engine.NewArena("vae", buf, bytes)
	return env, func() { env.Ops.Free(buf) }, nil
}
