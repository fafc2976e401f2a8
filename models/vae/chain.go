package vae

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"patchbay/engine"
	"patchbay/models/weights"
)

// The autoencoder of LTX-2 (arXiv:2601.03233; its predecessor: arXiv:2501.00103) is a chain of residual blocks and of
// convolutions that move pixels into channels on the way down and back on the way up. Nothing in a file's names says
// which axes such a convolution moves: the metadata do ("vae" in their config), without which it is refused. Around a
// convolution may go a shortcut that only moves and averages channels, as a matrix that is made here. Norms divide the
// channels of a pixel by their root mean square and have no weights.

// Chain describes such an autoencoder.
type Chain struct {
	Square  int  // side of the squares of pixels that are one position of a picture, ordered (channel, column, row)
	Ahead   int  // how many frames a convolution of the decoder reads behind the present one: 1, or 0 for a causal one
	Reflect bool // convolutions of the decoder reflect the edges of a picture
	// ReflectDown means the same in the encoder.
	ReflectDown bool
	Down, Up    []Hop
}

// Hop is one member of a chain: residual blocks, or a convolution that moves pixels.
type Hop struct {
	In, Out  int
	Blocks   int  // residual blocks, In is Out; 0: a convolution
	Time     bool // it moves frames
	Space    bool // it moves rows and columns
	Shortcut bool
}

// moved returns how many positions become one, or come from one.
func (h Hop) moved() int {
	n := 1
	if h.Time {
		n *= 2
	}
	if h.Space {
		n *= square
	}
	return n
}

// chainAnchor is a name that only these autoencoders have.
const chainAnchor = "decoder.up_blocks.0.res_blocks.0.conv1.conv.weight"

// chainEps is added to the mean of squares by which a norm divides.
const chainEps = 1e-8

// chainFile is "vae" in the config of a file's metadata.
type chainFile struct {
	Square      int               `json:"patch_size"`
	Norm        string            `json:"norm_layer"`
	Causal      bool              `json:"causal_decoder"`
	Conditioned bool              `json:"timestep_conditioning"`
	Padding     string            `json:"spatial_padding_mode"`
	DownWidth   int               `json:"encoder_base_channels"`
	UpWidth     int               `json:"decoder_base_channels"`
	Down        []json.RawMessage `json:"encoder_blocks"`
	Up          []json.RawMessage `json:"decoder_blocks"`
}

// hopKinds are the blocks of a chain by their names in the metadata, without "_res": which axes they move.
var hopKinds = map[string]Hop{
	"res_x": {Blocks: 1}, "compress_time": {Time: true}, "compress_space": {Space: true},
	"compress_all": {Time: true, Space: true},
}

// readHop reads one block of the metadata, [name, count] or [name, settings], and the factor of its channels.
func readHop(text json.RawMessage, down bool) (h Hop, factor int, err error) {
	var pair []json.RawMessage
	var name string
	set := struct {
		Blocks   int  `json:"num_layers"`
		Factor   *int `json:"multiplier"`
		Residual bool `json:"residual"`
		Noise    bool `json:"inject_noise"`
	}{}
	if err = json.Unmarshal(text, &pair); err == nil && len(pair) == 2 {
		if err = json.Unmarshal(pair[0], &name); err == nil && json.Unmarshal(pair[1], &set.Blocks) != nil {
			err = json.Unmarshal(pair[1], &set)
		}
	}
	if err != nil || name == "" {
		return h, 0, fmt.Errorf("%s is no [name, settings]", text)
	}
	axes, shortcut := strings.CutSuffix(name, "_res")
	h, known := hopKinds[axes]
	if !known || (h.Blocks == 0) && shortcut != down || set.Noise {
		want := slices.Sorted(maps.Keys(hopKinds))
		return h, 0, fmt.Errorf("%s is not known: want one of %v without noise, in the encoder with _res behind compress",
			text, want)
	}
	factor = 1
	if down && h.Blocks == 0 {
		factor = 2
	}
	if set.Factor != nil && h.Blocks == 0 {
		factor = *set.Factor
	}
	h.Blocks, h.Shortcut = h.Blocks*set.Blocks, shortcut || set.Residual
	if factor < 1 || factor > 1<<10 || h.Blocks < 0 || h.Blocks > 1<<10 {
		return h, 0, fmt.Errorf("%s: num_layers and multiplier must be 1..1024", text)
	}
	return h, factor, nil
}

// inferChain reads the configuration from the metadata and the channels of latents from set.
func inferChain(set *weights.Set, config []byte) (Config, error) {
	file := struct {
		VAE *chainFile `json:"vae"`
	}{}
	if len(config) > 0 {
		if err := json.Unmarshal(config, &file); err != nil {
			return Config{}, fmt.Errorf("load vae: config: %w", err)
		}
	}
	f := file.VAE
	switch {
	case f == nil:
		return Config{}, fmt.Errorf("load vae: the file's metadata have no config with a member vae, which says how the " +
			"blocks of this autoencoder are put together: take the file as it was published")
	case f.Norm != "pixel_norm":
		return Config{}, fmt.Errorf("load vae: norm_layer is %q in the metadata's config: want pixel_norm", f.Norm)
	case f.Conditioned:
		return Config{}, fmt.Errorf("load vae: timestep_conditioning is true in the metadata's config: such decoders add " +
			"noise without a seed and are not supported: want false")
	case f.Square < 1 || f.Square > 16:
		return Config{}, fmt.Errorf("load vae: patch_size is %d in the metadata's config: want 1..16", f.Square)
	}
	z, width := set.Dim(chainMean, 0), func(n int) int { return cmp.Or(n, chainWidth) }
	ch := &Chain{
		Square: f.Square, Ahead: 1, Reflect: f.Padding == "" || f.Padding == "reflect", ReflectDown: f.Padding == "reflect",
	}
	if f.Causal {
		ch.Ahead = 0
	}
	c := Config{
		Channels: width(f.DownWidth), Decoder: width(f.UpWidth), Z: z, Embed: z, In: 3, Out: 3,
		Quant: true, CanEncode: set.Has("encoder.conv_in.conv.weight"), Wan: true, Video: true, Chain: ch,
	}
	at := c.Channels
	for i, text := range f.Down {
		h, factor, err := readHop(text, true)
		if err != nil {
			return c, fmt.Errorf("load vae: encoder_blocks[%d] of the metadata's config: %w", i, err)
		}
		h.In, h.Out = at, at*factor
		at = h.Out
		if ch.Down = append(ch.Down, h); h.Blocks == 0 && (h.Out%h.moved() != 0 || h.In*h.moved()%h.Out != 0) {
			return c, fmt.Errorf("load vae: encoder_blocks[%d] of the metadata's config: %d positions of %d channels do not "+
				"make one of %d", i, h.moved(), h.In, h.Out)
		}
	}
	at = c.Decoder
	for i, text := range f.Up {
		h, factor, err := readHop(text, false)
		if err != nil {
			return c, fmt.Errorf("load vae: decoder_blocks[%d] of the metadata's config: %w", i, err)
		}
		h.In, h.Out = at*factor, at
		at = h.In
		if ch.Up = append(ch.Up, h); h.Shortcut && (h.In%h.moved() != 0 || h.Out*h.moved()%h.In != 0) {
			return c, fmt.Errorf("load vae: decoder_blocks[%d] of the metadata's config: one position of %d channels does not "+
				"make %d of %d", i, h.In, h.moved(), h.Out)
		}
	}
	slices.Reverse(ch.Up)
	for _, h := range ch.Up {
		if h.Time {
			c.Time = append(c.Time, true)
		}
	}
	if z < 1 || at < 1 || at > 1<<16 || ch.scale(ch.Up) > 1<<maxLevels {
		return c, fmt.Errorf("load vae: %d channels of latents, %d in the decoder's first block and %d pixels a side: want "+
			"at least 1, at most 65536 and %d", z, at, ch.scale(ch.Up), 1<<maxLevels)
	}
	if c.CanEncode && ch.scale(ch.Up) != ch.scale(ch.Down) {
		return c, fmt.Errorf("load vae: encoder_blocks of the metadata's config make a latent pixel of %d, decoder_blocks %d",
			ch.scale(ch.Down), ch.scale(ch.Up))
	}
	return c, nil
}

// chainWidth is the width of a chain's wide end in files that do not say it.
const chainWidth = 128

// scale returns the pixels of a side of a latent pixel behind the hops.
func (c *Chain) scale(hops []Hop) int {
	n := c.Square
	for _, h := range hops {
		if h.Space && n <= 1<<maxLevels {
			n *= 2
		}
	}
	return n
}

// The statistics of the latents' channels.
const (
	chainMean = "per_channel_statistics.mean-of-means"
	chainStd  = "per_channel_statistics.std-of-means"
)

// Statistics returns the mean and the deviation of every channel of latents that an autoencoder in set, as Open takes
// it, keeps; nil if it keeps none.
func Statistics(set *weights.Set) (mean, std []float32) {
	for _, prefix := range prefixes() {
		m, has := set.Get(prefix + chainMean)
		s, both := set.Get(prefix + chainStd)
		if has && both {
			return m.F32(), s.F32()
		}
	}
	return nil, nil
}

// fromChain returns the tensors of such an autoencoder under the names used here: each tap of a convolution over time
// has one of its own, the convolution to the latent has the rows of the mean alone, shortcuts are matrices, and the
// statistics are the 1x1 convolutions next to the latent.
func fromChain(set *weights.Set, cfg Config) (*weights.Set, error) {
	out := map[string]weights.Stored{}
	for _, name := range set.Names() {
		t, _ := set.Get(name)
		if strings.HasPrefix(name, "per_channel_statistics.") {
			continue
		}
		var err error
		if strings.HasPrefix(name, "encoder.conv_out.conv.") {
			t, err = t.Rows(0, cfg.Z)
		}
		as := strings.Replace(strings.Replace(name, "encoder.down_blocks.", "encoder.blocks.", 1),
			"decoder.up_blocks.", "decoder.blocks.", 1)
		if err == nil {
			out[as], err = taps(out, as, t, true)
		}
		if err != nil {
			return nil, fmt.Errorf("load vae: %s: %w", name, err)
		}
	}
	for i, h := range cfg.Chain.Down {
		if h.Shortcut && cfg.CanEncode {
			out["encoder.blocks."+strconv.Itoa(i)+".shortcut.weight"] = h.average()
		}
	}
	for i, h := range cfg.Chain.Up {
		if h.Shortcut {
			out["decoder.blocks."+strconv.Itoa(i)+".shortcut.weight"] = h.repeat()
		}
	}
	if err := addStatistics(out, set, cfg); err != nil {
		return nil, err
	}
	return weights.FromMap(out), nil
}

// average returns the matrix from moved pixels, (channel, position), to the means of as many as make a channel.
func (h Hop) average() weights.Stored {
	rows, columns := h.Out, h.In*h.moved()
	m := make([]float32, rows*columns)
	for i := range columns {
		m[i/(columns/rows)*columns+i] = float32(rows) / float32(columns)
	}
	return weights.Floats(m, rows, columns)
}

// repeat returns the matrix from channels to moved pixels, (channel, position): all channels, again and again.
func (h Hop) repeat() weights.Stored {
	rows, columns := h.Out*h.moved(), h.In
	m := make([]float32, rows*columns)
	for i := range rows {
		m[i*columns+i%columns] = 1
	}
	return weights.Floats(m, rows, columns)
}

// addStatistics adds the 1x1 convolutions that undo and apply the normalization of latents. That of the encoder also
// returns zeros in place of variances.
func addStatistics(out map[string]weights.Stored, set *weights.Set, cfg Config) error {
	z := cfg.Z
	var v [2][]float32
	for i, name := range []string{chainMean, chainStd} {
		t, ok := set.Get(name)
		if !ok || t.Len() != z {
			return fmt.Errorf("load vae: %s has %d values, want %d", name, t.Len(), z)
		}
		v[i] = t.F32()
	}
	undo, apply, bias := make([]float32, z*z), make([]float32, 2*z*z), make([]float32, 2*z)
	for i := range z {
		undo[i*z+i], apply[i*z+i], bias[i] = v[1][i], 1/v[1][i], -v[0][i]/v[1][i]
	}
	out["post_quant_conv.weight"], out["post_quant_conv.bias"] = weights.Floats(undo, z, z), weights.Floats(v[0], z)
	if cfg.CanEncode {
		out["quant_conv.weight"], out["quant_conv.bias"] = weights.Floats(apply, 2*z, z), weights.Floats(bias, 2*z)
	}
	return nil
}

// chain is the layers of an encoder or a decoder, in the order of their walk.
type chain struct {
	up     bool       // it is the decoder
	In     overFrames `weight:"conv_in"`
	Blocks []chainHop `weight:"blocks"`
	Out    overFrames `weight:"conv_out"`
}

// chainHop is one member. Of Blocks and Conv one is empty.
type chainHop struct {
	hop    Hop
	Blocks []chainBlock   `weight:"res_blocks"`
	Conv   *overFrames    `weight:"conv"`
	Around *engine.Weight `weight:"shortcut,optional,nobias"`
}

// chainBlock is y = x + conv2(silu(norm(conv1(silu(norm(x)))))).
type chainBlock struct {
	Conv1 overFrames `weight:"conv1"`
	Conv2 overFrames `weight:"conv2"`
}

// overFrames is a convolution over three frames.
type overFrames struct {
	in, out int            // channels
	Now     *engine.Weight `weight:"conv,conv"`
	Past    past           `weight:"conv.past"`
}

// newChain returns the structs for hops between convolutions from in channels and to out channels, of which those next
// to the hops are width if there are none.
func newChain(hops []Hop, up bool, in, width, out int) *chain {
	c := &chain{up: up, In: overFrames{in: in, out: width}}
	if len(hops) > 0 {
		c.In.out, width = hops[0].In, hops[len(hops)-1].Out
	}
	c.Out = overFrames{in: width, out: out}
	for _, h := range hops {
		l := chainHop{hop: h}
		for range h.Blocks {
			l.Blocks = append(l.Blocks, chainBlock{overFrames{in: h.In, out: h.In}, overFrames{in: h.In, out: h.In}})
		}
		switch {
		case h.Blocks > 0:
		case up:
			l.Conv = &overFrames{in: h.In, out: h.Out * h.moved()}
		default:
			l.Conv = &overFrames{in: h.In, out: h.Out / h.moved()}
		}
		c.Blocks = append(c.Blocks, l)
	}
	return c
}

// newChains returns the structs of both sides, without weights.
func newChains(c Config) layers {
	pixels := c.Chain.Square * c.Chain.Square
	l := layers{Ascent: newChain(c.Chain.Up, true, c.Z, c.decoder(), pixels*c.Out)}
	if c.CanEncode {
		l.Descent = newChain(c.Chain.Down, false, pixels*c.In, c.Channels, c.Z)
	}
	return l
}

// chains compares the shapes of the weights with what hops say.
func (s *shapes) chains(l *layers, c Config) {
	s.conv(l.PostQuant, c.Z, c.Z)
	s.chain(l.Ascent)
	if l.Descent != nil {
		s.conv(l.Quant, 2*c.Z, c.Z)
		s.chain(l.Descent)
	}
}

func (s *shapes) chain(c *chain) {
	all := []*overFrames{&c.In, &c.Out}
	for i := range c.Blocks {
		for k := range c.Blocks[i].Blocks {
			all = append(all, &c.Blocks[i].Blocks[k].Conv1, &c.Blocks[i].Blocks[k].Conv2)
		}
		if conv := c.Blocks[i].Conv; conv != nil {
			all = append(all, conv)
		}
	}
	for _, o := range all {
		s.conv(o.Now, o.out, 9*o.in)
		s.past(&o.Past, o.Now)
	}
}
