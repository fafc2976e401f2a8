package vae

import (
	"fmt"

	"patchbay/engine"
)

// layers mirrors the checkpoint: the tags are names in it.
type layers struct {
	Encoder   *encoder       `weight:"encoder"`
	Quant     *engine.Weight `weight:"quant_conv,optional"` // 1x1, on the moments
	PostQuant *engine.Weight `weight:"post_quant_conv,optional"`
	Decoder   *decoder       `weight:"decoder"`
	Tokens    *tokenDecoder  `weight:"decoder"` // instead of Decoder
	Descent   *chain         `weight:"encoder"` // instead of Encoder
	Ascent    *chain         `weight:"decoder"` // instead of Decoder
}

type encoder struct {
	ConvIn  *engine.Weight `weight:"conv_in,conv"`
	PastIn  *past          `weight:"conv_in.past"`
	Down    []*downLevel   `weight:"down"` // full resolution first
	Mid     *middle        `weight:"mid"`  // nil: there is none
	NormOut norm           `weight:"norm_out"`
	ConvOut *engine.Weight `weight:"conv_out,conv"` // mean and log variance
	PastOut *past          `weight:"conv_out.past"`
}

type decoder struct {
	ConvIn  *engine.Weight `weight:"conv_in,conv"`
	PastIn  *past          `weight:"conv_in.past"`
	Mid     middle         `weight:"mid"`
	Up      []*upLevel     `weight:"up"` // full resolution first; processed from the end
	NormOut norm           `weight:"norm_out"`
	ConvOut *engine.Weight `weight:"conv_out,conv"`
	PastOut *past          `weight:"conv_out.past"`
}

type downLevel struct {
	Around     *shortcut `weight:""`
	Block      []*resnet `weight:"block"`
	Downsample *sample   `weight:"downsample"` // nil at levels that do not halve the picture
}

type upLevel struct {
	Around   *shortcut `weight:""`
	Block    []*resnet `weight:"block"`
	Upsample *sample   `weight:"upsample"` // nil at full resolution
}

// sample is the convolution of a downsampling, or the one after an upsampling.
type sample struct {
	out    int            // channels
	halves bool           // the number of frames, with Past
	Conv   *engine.Weight `weight:"conv,conv"`
	Past   *past          `weight:"conv.past"`
	Time   *overTime      `weight:"time"` // nil: the number of frames stays
}

// past is what a convolution adds for the two frames before; nil: it sees one frame alone.
type past struct {
	One *engine.Weight `weight:"1,conv,nobias"`
	Two *engine.Weight `weight:"0,conv,nobias"`
}

// taps returns the weights for the frame before and for the one before that.
func (p *past) taps() []*engine.Weight { return []*engine.Weight{p.One, p.Two} }

// overTime is a convolution over a frame and the two before it, pixel by pixel. Upwards it makes two frames of each.
type overTime struct {
	Now *engine.Weight `weight:"2"`
	One *engine.Weight `weight:"1,nobias"`
	Two *engine.Weight `weight:"0,nobias"`
}

type middle struct {
	Block1 resnet    `weight:"block_1"`
	Attn   attention `weight:"attn_1"`
	Block2 resnet    `weight:"block_2"`
}

// resnet is y = shortcut(x) + conv2(silu(norm2(conv1(silu(norm1(x)))))).
type resnet struct {
	in, out  int            // channels
	Norm1    norm           `weight:"norm1"`
	Conv1    *engine.Weight `weight:"conv1,conv"`
	Past1    *past          `weight:"conv1.past"`
	Norm2    norm           `weight:"norm2"`
	Conv2    *engine.Weight `weight:"conv2,conv"`
	Past2    *past          `weight:"conv2.past"`
	Shortcut *engine.Weight `weight:"nin_shortcut,optional"` // 1x1, where in and out differ
}

// attention is a single head over all pixels, as wide as the channels. The projections are 1x1 convolutions, which are
// linear layers on pixels.
type attention struct {
	Norm norm           `weight:"norm"`
	Q    *engine.Weight `weight:"q"`
	K    *engine.Weight `weight:"k"`
	V    *engine.Weight `weight:"v"`
	Out  *engine.Weight `weight:"proj_out"`
}

// norm is a group norm or, for Wan, an RMS norm over channels, which has no bias.
type norm struct {
	Weight engine.Tensor `weight:"weight"`
	Bias   engine.Tensor `weight:"bias,optional"`
}

// newLayers returns the structs for c, without weights.
func newLayers(c Config) layers {
	if c.Chain != nil {
		return newChains(c)
	}
	last := len(c.Mult) - 1
	before := func() *past {
		if c.Video {
			return &past{}
		}
		return nil
	}
	block := func(in, out int) resnet { return resnet{in: in, out: out, Past1: before(), Past2: before()} }
	mid := func(channels int) *middle {
		if c.Tokens != nil {
			return nil
		}
		deep := channels * c.Mult[last]
		return &middle{Block1: block(deep, deep), Block2: block(deep, deep)}
	}
	chain := func(in, out, n int) []*resnet { // the first changes the number of channels
		blocks := make([]*resnet, n)
		for i := range blocks {
			b := block(in, out)
			blocks[i], in = &b, out
		}
		return blocks
	}
	over := func(level int) *overTime {
		if c.Video && c.Time[level] {
			return &overTime{}
		}
		return nil
	}
	l := layers{Tokens: newTokenDecoder(c)}
	at := c.decoder() * c.Mult[last]
	if l.Tokens == nil {
		l.Decoder = &decoder{
			Mid: *mid(c.decoder()), Up: make([]*upLevel, len(c.Mult)), PastIn: before(), PastOut: before(),
		}
	}
	for i := last; i >= 0 && l.Decoder != nil; i-- {
		level := &upLevel{Block: chain(at, c.decoder()*c.Mult[i], c.Blocks+1)}
		at = c.decoder() * c.Mult[i]
		if i > 0 && c.Wan && !c.Shortcuts {
			at /= 2
		}
		if i > 0 {
			level.Upsample = &sample{out: at, Time: over(i - 1)}
		}
		if i > 0 && c.Shortcuts {
			level.Around = &shortcut{out: at, way: upwards, time: over(i-1) != nil}
		}
		l.Decoder.Up[i] = level
	}
	if !c.CanEncode {
		return l
	}
	l.Encoder = &encoder{Mid: mid(c.Channels), PastIn: before(), PastOut: before()}
	at = c.Channels
	for i := range c.Mult {
		level := &downLevel{Block: chain(at, c.Channels*c.Mult[i], c.Blocks)}
		if c.Shortcuts {
			level.Around = &shortcut{out: c.Channels * c.Mult[i]}
		}
		if i < c.halvings() && c.Tokens != nil {
			level.Downsample = &sample{Past: before(), halves: c.Time[i]}
		} else if i < c.halvings() {
			level.Downsample = &sample{Time: over(i)}
			if c.Shortcuts {
				level.Around.way, level.Around.time = downwards, over(i) != nil
			}
		}
		l.Encoder.Down, at = append(l.Encoder.Down, level), c.Channels*c.Mult[i]
	}
	return l
}

// check compares the shapes of loaded weights with c and returns an error for the first that differs.
func (l *layers) check(c Config) error {
	s := shapes{wan: c.Wan}
	if c.Chain != nil {
		s.chains(l, c)
		return s.err
	}
	if l.Decoder != nil {
		l.Decoder.check(c, &s)
	}
	if c.Quant {
		s.conv(l.PostQuant, c.positions()*c.Z, c.Embed)
	}
	if l.Encoder == nil {
		return s.err
	}
	deep := c.Channels * c.Mult[len(c.Mult)-1]
	s.conv(l.Encoder.ConvIn, c.Channels, 9*c.pixels()*c.In)
	for i, level := range l.Encoder.Down {
		s.blocks(level.Block)
		if level.Downsample != nil {
			s.conv(level.Downsample.Conv, c.Channels*c.Mult[i], 9*c.Channels*c.Mult[i])
			s.past(level.Downsample.Past, level.Downsample.Conv)
		}
	}
	if l.Encoder.Mid != nil {
		s.middle(l.Encoder.Mid, deep)
	}
	s.norm(l.Encoder.NormOut, deep, "encoder.norm_out")
	s.conv(l.Encoder.ConvOut, 2*c.Z, 9*deep)
	if c.Quant {
		s.conv(l.Quant, 2*c.Embed, c.positions()*2*c.Z)
	}
	return s.err
}

func (d *decoder) check(c Config, s *shapes) {
	deep := c.decoder() * c.Mult[len(c.Mult)-1]
	s.conv(d.ConvIn, deep, 9*c.Z)
	s.middle(&d.Mid, deep)
	for i, level := range d.Up {
		s.blocks(level.Block)
		if level.Upsample != nil {
			s.conv(level.Upsample.Conv, level.Upsample.out, 9*c.decoder()*c.Mult[i])
		}
	}
	s.norm(d.NormOut, c.decoder()*c.Mult[0], "decoder.norm_out")
	s.conv(d.ConvOut, c.pixels()*c.Out, 9*c.decoder()*c.Mult[0])
}

// shapes records the first weight whose shape is wrong.
type shapes struct {
	err error
	wan bool // norms have no bias
}

func (s *shapes) conv(w *engine.Weight, n, k int) {
	switch {
	case s.err != nil:
	case w == nil:
		s.err = fmt.Errorf("load vae: a convolution [%d, %d] is missing (nin_shortcut or a quant convolution)", n, k)
	case w.N() != n || w.K() != k || w.Bias.IsZero() || w.Bias.Len() != n:
		s.err = fmt.Errorf("load vae: %s is [%d, %d], expected [%d, %d] with a bias", w.Name, w.N(), w.K(), n, k)
	}
}

// past compares the taps for earlier frames with that for the present one.
func (s *shapes) past(p *past, now *engine.Weight) {
	if p == nil || s.err != nil {
		return
	}
	for _, w := range p.taps() {
		if w.N() != now.N() || w.K() != now.K() {
			s.err = fmt.Errorf("load vae: %s is [%d, %d], expected [%d, %d]", w.Name, w.N(), w.K(), now.N(), now.K())
		}
	}
}

func (s *shapes) norm(n norm, channels int, name string) {
	if s.err == nil && (n.Weight.Len() != channels || n.Bias.IsZero() != s.wan || !s.wan && n.Bias.Len() != channels) {
		s.err = fmt.Errorf("load vae: norm %s has %d channels, expected %d and a bias unless it is Wan's", name,
			n.Weight.Len(), channels)
	}
}

func (s *shapes) blocks(blocks []*resnet) {
	for _, r := range blocks {
		s.conv(r.Conv1, r.out, 9*r.in)
		s.conv(r.Conv2, r.out, 9*r.out)
		s.past(r.Past1, r.Conv1)
		s.past(r.Past2, r.Conv2)
		if s.err != nil {
			return
		}
		s.norm(r.Norm1, r.in, "before "+r.Conv1.Name)
		s.norm(r.Norm2, r.out, "before "+r.Conv2.Name)
		if r.in != r.out {
			s.conv(r.Shortcut, r.out, r.in)
		} else if r.Shortcut != nil && s.err == nil {
			s.err = fmt.Errorf("load vae: %s is not expected where channels do not change", r.Shortcut.Name)
		}
	}
}

func (s *shapes) middle(m *middle, channels int) {
	s.blocks([]*resnet{&m.Block1, &m.Block2})
	for _, w := range []*engine.Weight{m.Attn.Q, m.Attn.K, m.Attn.V, m.Attn.Out} {
		s.conv(w, channels, channels)
	}
	s.norm(m.Attn.Norm, channels, "mid.attn_1.norm")
}
