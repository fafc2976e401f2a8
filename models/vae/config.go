package vae

import (
	"cmp"
	"encoding/json"
	"fmt"

	"patchbay/models/weights"
)

// Config describes an autoencoder. Infer derives it from names and shapes; a file's metadata may override what these
// cannot tell.
type Config struct {
	Channels int `json:"ch"` // 128: channels at full resolution
	// Decoder is that of the decoder; 0: as many.
	Decoder int `json:"decoder_ch"`
	// [1, 2, 4, 4]: channels of each level in units of Channels, full resolution first
	Mult      []int   `json:"ch_mult"`
	Blocks    int     `json:"num_res_blocks"`  // 2: residual blocks per level in the encoder, one more in the decoder
	Z         int     `json:"z_channels"`      // 16: channels between encoder and decoder
	Embed     int     `json:"embed_dim"`       // channels of the latent; equals Z unless quant convolutions change it
	In        int     `json:"in_channels"`     // 3
	Out       int     `json:"out_ch"`          // 3
	Groups    int     `json:"norm_num_groups"` // 32
	Eps       float32 `json:"norm_eps"`        // 1e-6
	Quant     bool    `json:"-"`               // quant_conv and post_quant_conv are in the file
	CanEncode bool    `json:"-"`               // the encoder is in the file
	// Wan means that norms divide the channels of a pixel by their root mean square, without groups and bias, and that
	// convolutions after upsampling halve the channels.
	Wan bool `json:"-"`
	// Shortcuts means that shortcuts go around the levels (shortcuts.go); convolutions after upsampling keep the channels.
	Shortcuts bool `json:"-"`
	// Video means that the layers over time are loaded too, so that the frames of a clip see those before them (clip.go).
	// Time says which levels of the encoder halve the number of frames; the decoder doubles them in the same places.
	Video bool   `json:"-"`
	Time  []bool `json:"-"`
	// Folded means that a position of a picture is a square of 2 x 2 pixels.
	Folded bool `json:"-"`
	// Packed means that a latent pixel is a square of 2 x 2 positions with Z channels each (packed.go).
	Packed bool `json:"-"`
	// Tokens means that a transformer decodes (tokens.go), in tiles and in chunks of frames (mosaic.go). The encoder has
	// no middle, convolutions reflect the edges of a picture, and those that halve it see the frames before too.
	Tokens *Tokens `json:"-"`
	// Chain means that encoder and decoder are chains of blocks (chain.go).
	Chain *Chain `json:"-"`
}

// maxLevels bounds what a file may claim. Published autoencoders have 4 levels, some 6.
const maxLevels = 12

// Scale returns the number of pixels per latent row and column: 2^(levels-1), twice that for packed latents and for
// squares of pixels.
func (c Config) Scale() int {
	if c.Chain != nil {
		return c.Chain.scale(c.Chain.Up)
	}
	if c.Packed || c.Folded {
		return 1 << len(c.Mult)
	}
	return 1 << c.halvings()
}

// halvings returns how many levels of the encoder halve a picture.
func (c Config) halvings() int {
	if c.Tokens != nil {
		return len(c.Time)
	}
	return len(c.Mult) - 1
}

// decoder returns the channels of the decoder at full resolution.
func (c Config) decoder() int { return cmp.Or(c.Decoder, c.Channels) }

// Least returns the least side of latents that are decoded, or that pictures are encoded to: where edges are reflected
// there must be something beyond them.
func (c Config) Least(encode bool) int {
	if c.Tokens != nil && encode || c.Chain != nil && (encode && c.Chain.ReflectDown || !encode && c.Chain.Reflect) {
		return 2
	}
	return 1
}

// positions returns how many positions between encoder and decoder make up a latent pixel.
func (c Config) positions() int {
	if c.Packed {
		return square
	}
	return 1
}

// pixels returns how many pixels make up a position of a picture.
func (c Config) pixels() int {
	if c.Folded {
		return square
	}
	return 1
}

// Step returns how many frames of a clip a latent frame stands for, but the first, which stands for one.
func (c Config) Step() int {
	n := 1
	for _, halves := range c.Time {
		if halves {
			n *= 2
		}
	}
	return n
}

// Latent returns the number of channels of a latent.
func (c Config) Latent() int { return c.Embed }

// Infer derives the configuration from the names and shapes of set (without prefix) and lets the metadata config, a
// JSON object that may be empty, override it.
func Infer(set *weights.Set, config []byte) (Config, error) {
	if set.Has(tokenAnchor) {
		return inferTokens(set)
	}
	if set.Has(chainAnchor) {
		return inferChain(set, config)
	}
	c := Config{
		Channels: set.Dim("decoder.norm_out.weight", 0), Blocks: set.Count("decoder.up.0.block") - 1,
		Z: set.Dim("decoder.conv_in.weight", 1), In: 3, Out: set.Dim("decoder.conv_out.weight", 0), Groups: 32, Eps: 1e-6,
		Quant: set.Has("post_quant_conv.weight"), CanEncode: set.Has("encoder.conv_in.weight"),
	}
	c.Wan = !set.Has("decoder.norm_out.bias")
	c.Shortcuts = set.Has("decoder.up.1.shortcut.weight")
	c.Embed = c.Z
	if c.Quant {
		c.Embed, c.Packed = set.Dim("post_quant_conv.weight", 1), set.Dim("post_quant_conv.weight", 0) == square*c.Z
	}
	if c.CanEncode {
		c.Channels, c.In = set.Dim("encoder.conv_in.weight", 0), set.Dim("encoder.conv_in.weight", 1)
		if n := set.Dim("decoder.norm_out.weight", 0); n != c.Channels && c.Shortcuts {
			c.Decoder = n
		}
	}
	if c.Folded = c.Wan && c.Out == 3*square; c.Folded {
		c.Out = 3
		if c.CanEncode {
			c.In /= square
		}
	}
	for i := range set.Count("decoder.up") {
		if i > 0 {
			c.Time = append(c.Time, set.Has(fmt.Sprintf("decoder.up.%d.upsample.time.2.weight", i)))
		}
		c.Mult = append(c.Mult, set.Dim(fmt.Sprintf("decoder.up.%d.block.0.conv1.weight", i), 0)/max(c.decoder(), 1))
	}
	if c.Video = c.Step() > 1; !c.Video {
		c.Time = nil
	}
	if len(config) > 0 {
		if err := json.Unmarshal(config, &c); err != nil {
			return Config{}, fmt.Errorf("load vae: config: %w", err)
		}
	}
	return c, c.validate()
}

// validate returns an error for values that no autoencoder can have, naming the field.
func (c Config) validate() error {
	bad := func(name string, v any, rule string) error {
		return fmt.Errorf("load vae: %s is %v, must be %s", name, v, rule)
	}
	if len(c.Mult) < 1 || len(c.Mult) > maxLevels {
		return bad("number of levels", len(c.Mult), fmt.Sprintf("1..%d", maxLevels))
	}
	names := []string{
		"ch", "num_res_blocks", "z_channels", "embed_dim", "in_channels", "out_ch", "norm_num_groups", "decoder_ch",
	}
	for i, n := range []int{c.Channels, c.Blocks, c.Z, c.Embed, c.In, c.Out, c.Groups, c.decoder()} {
		if n < 1 || n > 1<<16 {
			return bad(names[i], n, "1..65536")
		}
	}
	for i, m := range c.Mult {
		if m < 1 || m > 1<<10 {
			return bad(fmt.Sprintf("ch_mult[%d]", i), m, "1..1024")
		}
		if !c.Wan && c.Channels*m%c.Groups != 0 {
			return bad("norm_num_groups", c.Groups,
				fmt.Sprintf("a divisor of the %d channels of level %d (metadata config may say it)", c.Channels*m, i))
		}
	}
	if !(c.Eps > 0) || c.Eps > 1 {
		return bad("norm_eps", c.Eps, "above 0 and at most 1")
	}
	if !c.Quant && c.Embed != c.Z {
		return bad("embed_dim", c.Embed, fmt.Sprintf("z_channels (%d) without quant convolutions", c.Z))
	}
	return nil
}
