package audio

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/models/weights"
)

// Mel describes an autoencoder of LTX-2's kind: a causal convolutional one between latents [C, T, F] and logarithms of
// mel spectrograms [Sounds, 4T-3, 4F], and one network from there to samples, or two, of which the second adds the
// upper part of the band. It follows from the metadata of a file.
type Mel struct {
	Sounds  int // channels of a sound, 1 or 2
	Bands   int // of a spectrogram
	Rate    int // samples a second of the sounds that spectrograms are made of
	Hop     int // samples between their rows
	Window  int // samples of a row
	Width   int // channels at the full size
	Widths  []int
	Blocks  int // residual blocks of the encoder's levels; the decoder's have one more
	Vocoder Generator
	Tanh    bool // bounds its samples, which are cut off otherwise
	Raw     bool // neither
	Wider   *Wider
}

// Wider describes the second network, of the spectrogram of what the first one made.
type Wider struct {
	Generator
	Hop, Window int // of the spectrogram, which ends with its last sample
	Ratio       int // samples that one of the first network becomes
}

// melFactor is by how much a latent is shorter and narrower than a spectrogram: there are three levels.
const (
	melLevels = 3
	melFactor = 1 << (melLevels - 1)
)

// mostWindow bounds the samples of a row of a spectrogram, whose waves are a matrix of as many rows and columns.
const mostWindow = 1 << 12

// RowsPerSecond returns how many rows of a latent last a second.
func (m Mel) RowsPerSecond() float64 { return float64(m.Rate) / float64(m.Hop) / melFactor }

// Columns returns the columns of a latent.
func (m Mel) Columns() int { return m.Bands / melFactor }

// rows returns how many rows of a spectrogram a latent of t rows becomes.
func (m Mel) rows(t int) int { return melFactor*t - (melFactor - 1) }

// sound is Config.Sound.
func (m Mel) sound(y, x int) (channels, n int, err error) {
	if y < 1 || x != m.Columns() {
		return 0, 0, fmt.Errorf("a latent of %d rows of %d columns: want 1 or more of %d", y, x, m.Columns())
	}
	n = m.rows(y) * m.Vocoder.Rate()
	if m.Wider != nil {
		n *= m.Wider.Ratio
	}
	return m.Sounds, n, nil
}

// latent is Config.Latent. A sound that is too short to be continued at its edges has no row.
func (m Mel) latent(n int) (y, x int) {
	samples := (n*m.Rate + melRate - 1) / melRate
	if samples <= m.Window/2 {
		return 0, m.Columns()
	}
	y = samples/m.Hop + 1
	for range melLevels - 1 {
		y = (y-1)/2 + 1
	}
	return y, m.Columns()
}

// melRate and melStep are what ComfyUI's nodes encode for any such autoencoder: sounds of the first rate, cut to whole
// steps, which become sounds of the autoencoder's rate afterwards.
const melRate, melStep = 44100, 4096

// The names of a file begin with what they belong to. Alone, files may have another name for the autoencoder.
const (
	melPart      = "audio_vae."
	melPartAlone = "autoencoder."
	melAnchor    = "per_channel_statistics.mean-of-means"
	vocoderPart  = "vocoder."
	nestedPart   = "vocoder." // below it, where there are two networks
	widerPart    = "bwe_generator."
	stftPart     = "mel_stft."
)

// isMel reports whether a set holds an autoencoder of LTX-2's kind.
func isMel(set *weights.Set) bool {
	const first = "resblocks.0.convs1.0.weight"
	return (set.Has(melPart+melAnchor) || set.Has(melPartAlone+melAnchor)) &&
		(set.Has(vocoderPart+first) || set.Has(vocoderPart+nestedPart+first))
}

// melFile is the part of a file's metadata "config" that is read. A member that is missing has ComfyUI's default.
type melFile struct {
	Autoencoder *struct {
		Rate  *int `json:"sampling_rate"`
		Model struct {
			Params struct {
				Rate    *int      `json:"sampling_rate"`
				Both    *melSides `json:"ddconfig"`
				Encoder *melSides `json:"encoder"`
				Decoder *melSides `json:"decoder"`
			} `json:"params"`
		} `json:"model"`
		Preprocessing struct {
			STFT struct {
				Window *int `json:"filter_length"`
				Hop    *int `json:"hop_length"`
			} `json:"stft"`
		} `json:"preprocessing"`
	} `json:"audio_vae"`
	Vocoder *struct {
		vocoderFile
		First *vocoderFile `json:"vocoder"`
		Wider *wideFile    `json:"bwe"`
	} `json:"vocoder"`
}

// melSides are the settings of the encoder or the decoder.
type melSides struct {
	Double    *bool  `json:"double_z"`
	Bands     *int   `json:"mel_bins"`
	Z         int    `json:"z_channels"`
	In        int    `json:"in_channels"`
	Out       int    `json:"out_ch"`
	Width     int    `json:"ch"`
	Widths    []int  `json:"ch_mult"`
	Blocks    int    `json:"num_res_blocks"`
	Attention []int  `json:"attn_resolutions"`
	Middle    *bool  `json:"mid_block_add_attention"`
	Norm      string `json:"norm_type"`
	Causal    string `json:"causality_axis"`
	Tanh      bool   `json:"tanh_out"`
	PreEnd    bool   `json:"give_pre_end"`
	Resample  *bool  `json:"resamp_with_conv"`
}

type vocoderFile struct {
	Kernels    []int   `json:"resblock_kernel_sizes"`
	Rates      []int   `json:"upsample_rates"`
	Taps       []int   `json:"upsample_kernel_sizes"`
	Dilations  [][]int `json:"resblock_dilation_sizes"`
	Width      *int    `json:"upsample_initial_channel"`
	Stereo     *bool   `json:"stereo"`
	Kind       string  `json:"resblock"`
	Activation string  `json:"activation"`
	Tanh       *bool   `json:"use_tanh_at_final"`
	Bounds     *bool   `json:"apply_final_activation"`
	Out        *int    `json:"output_sample_rate"`
}

type wideFile struct {
	vocoderFile
	From   int `json:"input_sampling_rate"`
	To     int `json:"output_sampling_rate"`
	Hop    int `json:"hop_length"`
	Window int `json:"n_fft"`
	Bands  int `json:"num_mels"`
}

// or returns what p points to, v if it is nil.
func or[T any](p *T, v T) T {
	if p == nil {
		return v
	}
	return *p
}

// generator returns the described network from spectrograms of bands of all channels of a sound.
func (f vocoderFile) generator(sounds, bands int) (g Generator, err error) {
	if channels := map[bool]int{true: 2, false: 1}[or(f.Stereo, true)]; channels != sounds {
		return g, fmt.Errorf("stereo is %v for spectrograms of %d channels", channels == 2, sounds)
	}
	def := func(v []int, d ...int) []int {
		if v == nil {
			return d
		}
		return v
	}
	g = Generator{
		In: sounds * bands, Out: sounds, Width: or(f.Width, 1024), Rates: def(f.Rates, 5, 4, 2, 2, 2),
		Taps: def(f.Taps, 16, 16, 8, 4, 4), Kernels: def(f.Kernels, 3, 7, 11), Betas: f.Activation == "snakebeta",
	}
	switch f.Kind {
	case "1", "":
		g.Leaky = true
	case "AMP1":
	default:
		return g, fmt.Errorf("resblock is %q: want 1 or AMP1", f.Kind)
	}
	if f.Dilations == nil {
		f.Dilations = [][]int{{1, 3, 5}, {1, 3, 5}, {1, 3, 5}}
	}
	for i, d := range f.Dilations {
		if len(d) != blockLayers {
			return g, fmt.Errorf("resblock_dilation_sizes[%d] is %v: want %d numbers", i, d, blockLayers)
		}
		g.Dilations = append(g.Dilations, [blockLayers]int(d))
	}
	return g, g.check()
}

// inferMel reads the configuration from the metadata.
func inferMel(set *weights.Set, config []byte) (Config, error) {
	var f melFile
	if len(config) > 0 {
		if err := json.Unmarshal(config, &f); err != nil {
			return Config{}, fmt.Errorf("load audio vae: config: %w", err)
		}
	}
	if !isMel(set) {
		return Config{}, fmt.Errorf("load audio vae: no %s%s and vocoder, and no %s", melPart, melAnchor, codecAnchor)
	}
	if f.Autoencoder == nil || f.Vocoder == nil {
		return Config{}, fmt.Errorf("load audio vae: the file's metadata have no config with the members audio_vae and " +
			"vocoder, which say how its networks are put together: take the file as it was published")
	}
	a, s := f.Autoencoder, melSides{}
	if both := cmp.Or(a.Model.Params.Encoder, a.Model.Params.Both); both != nil {
		s = *both
	}
	m := &Mel{
		Sounds: s.In, Bands: or(s.Bands, 64), Rate: or(a.Model.Params.Rate, or(a.Rate, 16000)),
		Hop: or(a.Preprocessing.STFT.Hop, 160), Window: or(a.Preprocessing.STFT.Window, 1024), Width: s.Width,
		Widths: s.Widths, Blocks: s.Blocks,
	}
	c := Config{Channels: s.Z, Rate: melRate, Step: melStep, Mel: m}
	if err := s.check(a.Model.Params.Decoder); err != nil {
		return c, fmt.Errorf("load audio vae: audio_vae of the metadata's config: %w", err)
	}
	if m.Rate < 1 || m.Rate > 1<<18 || m.Hop < 1 || m.Window < m.Hop || m.Window%2 != 0 || m.Window > mostWindow {
		return c, fmt.Errorf("load audio vae: audio_vae of the metadata's config: %d samples a second, %d between rows of a "+
			"spectrogram, which have %d: want an even number from that between rows to %d", m.Rate, m.Hop, m.Window, mostWindow)
	}
	if err := m.vocoders(f, &c.Out); err != nil {
		return c, fmt.Errorf("load audio vae: vocoder of the metadata's config: %w", err)
	}
	return c, nil
}

// check returns an error for a side that is not the kind that is implemented. decoder has other settings for that side;
// nil: the same.
func (s melSides) check(decoder *melSides) error {
	for _, side := range []melSides{s, or(decoder, s)} {
		switch bands := or(side.Bands, 64); {
		case side.Norm != "pixel":
			return fmt.Errorf("norm_type is %q: want pixel", side.Norm)
		case side.Causal != "height":
			return fmt.Errorf("causality_axis is %q: want height", side.Causal)
		case or(side.Middle, true) || len(side.Attention) > 0:
			return fmt.Errorf("mid_block_add_attention is %v and attn_resolutions %v: want false and none",
				or(side.Middle, true), side.Attention)
		case !or(side.Double, true) || !or(side.Resample, true) || side.Tanh || side.PreEnd:
			return fmt.Errorf("want double_z and resamp_with_conv, and neither tanh_out nor give_pre_end")
		case side.In < 1 || side.In > 2 || side.Out != side.In:
			return fmt.Errorf("in_channels is %d and out_ch %d: want 1 or 2 of both", side.In, side.Out)
		case len(side.Widths) != melLevels || slices.Min(side.Widths) < 1 || side.Width < 1 ||
			side.Width*slices.Max(side.Widths) > mostChannels || side.Width > mostChannels:
			return fmt.Errorf("ch is %d and ch_mult %v: want %d levels of 1 to %d channels", side.Width, side.Widths, melLevels,
				mostChannels)
		case side.Blocks < 1 || side.Blocks > mostLevels:
			return fmt.Errorf("num_res_blocks is %d: want 1..%d", side.Blocks, mostLevels)
		case side.Z < 1 || side.Z > mostChannels || bands < melFactor || bands%melFactor != 0 || bands > 1<<12:
			return fmt.Errorf("z_channels is %d and mel_bins %d: want 1 or more, and a multiple of %d", side.Z, bands, melFactor)
		case side.Z != s.Z || side.In != s.In || side.Width != s.Width || !slices.Equal(side.Widths, s.Widths) ||
			side.Blocks != s.Blocks || bands != or(s.Bands, 64):
			return fmt.Errorf("encoder and decoder have other sizes: want the same")
		}
	}
	return nil
}

// vocoders reads the networks behind the decoder, and the samples a second of what they make.
func (m *Mel) vocoders(f melFile, out *int) (err error) {
	first := f.Vocoder.vocoderFile
	w := f.Vocoder.Wider
	if w != nil {
		if f.Vocoder.First == nil {
			return fmt.Errorf("has a member bwe, but no vocoder")
		}
		first = *f.Vocoder.First
	}
	if m.Vocoder, err = first.generator(m.Sounds, m.Bands); err != nil {
		return err
	}
	m.Tanh, m.Raw = or(first.Tanh, true), !or(first.Bounds, true)
	if *out = or(first.Out, m.Rate*m.Vocoder.Rate()/m.Hop); w == nil {
		return nil
	}
	g, err := w.generator(m.Sounds, w.Bands)
	if err != nil {
		return fmt.Errorf("bwe: %w", err)
	}
	if w.From < 1 || w.To%w.From != 0 || w.Hop < 1 || w.Window < w.Hop || w.Window > mostWindow || w.Window%2 != 0 ||
		w.Bands < 1 || w.Bands > 1<<12 || g.Rate() != w.Hop*(w.To/w.From) {
		return fmt.Errorf("bwe: from %d to %d samples a second, %d of them for a row of %d bands, which come every %d "+
			"samples and have %d: want a multiple, and as many as last as long", w.From, w.To, g.Rate(), w.Bands, w.Hop,
			w.Window)
	}
	m.Wider = &Wider{Generator: g, Hop: w.Hop, Window: w.Window, Ratio: w.To / w.From}
	*out = w.To
	return nil
}

// melCodec is a loaded autoencoder of LTX-2's kind.
type melCodec struct {
	Mel
	channels  int // of the latents
	nets      melNets
	mean, std []float32 // of the latents' (channel, column)
}

// melNets mirrors the checkpoint: the tags are names in it, of the networks behind the decoder those of named.
type melNets struct {
	Encoder  melSide    `weight:"encoder"`
	Decoder  melSide    `weight:"decoder"`
	Spectrum spectrum   `weight:"spectrum"`
	Vocoder  *generator `weight:"vocoder"`
	Wide     *spectrum  `weight:"wide"` // nil: there is one network
	Wider    *generator `weight:"wider"`
}

// melSide is the encoder or the decoder.
type melSide struct {
	In     single     `weight:"conv_in"`
	Down   []melLevel `weight:"down"` // full size first
	Up     []melLevel `weight:"up"`   // full size first; processed from the end
	Middle struct {
		First  melBlock `weight:"block_1"`
		Second melBlock `weight:"block_2"`
	} `weight:"mid"`
	Out single `weight:"conv_out"` // of the encoder the means, without variances
}

// melLevel is residual blocks, and a convolution where the size changes.
type melLevel struct {
	Blocks []melBlock `weight:"block"`
	Halve  *single    `weight:"downsample"`
	Double *single    `weight:"upsample.conv"`
}

// melBlock is y = shortcut(x) + conv2(silu(norm(conv1(silu(norm(x)))))). Norms have no weights.
type melBlock struct {
	in, out  int     // channels
	Conv1    single  `weight:"conv1"`
	Conv2    single  `weight:"conv2"`
	Shortcut *single `weight:"nin_shortcut"` // nil: channels do not change
}

func newMelBlock(in, out int) melBlock {
	b := melBlock{in: in, out: out}
	if in != out {
		b.Shortcut = &single{}
	}
	return b
}

// newMelNets returns the structs for m, without weights.
func newMelNets(m Mel) (n melNets) {
	deep := m.Width * m.Widths[melLevels-1]
	for _, s := range []*melSide{&n.Encoder, &n.Decoder} {
		s.Middle.First, s.Middle.Second = newMelBlock(deep, deep), newMelBlock(deep, deep)
	}
	level := func(in, out, blocks int) (l melLevel) {
		for range blocks {
			l.Blocks = append(l.Blocks, newMelBlock(in, out))
			in = out
		}
		return l
	}
	down, up := m.Width, deep
	for i, factor := range m.Widths {
		l := level(down, m.Width*factor, m.Blocks)
		if i < melLevels-1 {
			l.Halve = &single{}
		}
		n.Encoder.Down, down = append(n.Encoder.Down, l), m.Width*factor
	}
	n.Decoder.Up = make([]melLevel, melLevels)
	for i := melLevels - 1; i >= 0; i-- {
		n.Decoder.Up[i] = level(up, m.Width*m.Widths[i], m.Blocks+1)
		if up = m.Width * m.Widths[i]; i > 0 {
			n.Decoder.Up[i].Double = &single{}
		}
	}
	n.Spectrum.hop = m.Hop
	n.Vocoder = newGenerator(m.Vocoder)
	if w := m.Wider; w != nil {
		n.Wide, n.Wider = &spectrum{hop: w.Hop}, newGenerator(w.Generator)
	}
	return n
}

// openMel loads an autoencoder that c describes.
func openMel(ops engine.Ops, set *weights.Set, c Config) (*melCodec, *weights.Loaded, error) {
	v := &melCodec{Mel: *c.Mel, channels: c.Channels, nets: newMelNets(*c.Mel)}
	named, err := v.named(set)
	if err != nil {
		return nil, nil, fmt.Errorf("load audio vae: %w", err)
	}
	loaded, err := weights.Load(ops, named, &v.nets, weights.Options{Spare: true, Model: "audio vae"})
	if err != nil {
		return nil, nil, err
	}
	if err := v.complete(); err != nil {
		loaded.Close()
		return nil, nil, fmt.Errorf("load audio vae: %w", err)
	}
	return v, loaded, nil
}

// named returns the tensors of the autoencoder and its vocoders under the names used here, and those of the spectrogram
// that the encoder reads, which a file does not have. Nothing else of a checkpoint is looked at.
func (v *melCodec) named(set *weights.Set) (*weights.Set, error) {
	out := map[string]weights.Stored{}
	first := vocoderPart
	if v.Wider != nil {
		first += nestedPart
	}
	for _, name := range set.Names() {
		t, _ := set.Get(name)
		tail, mel := strings.CutPrefix(name, melPart)
		if !mel {
			tail, mel = strings.CutPrefix(name, melPartAlone)
		}
		voice, vocoder := strings.CutPrefix(name, vocoderPart)
		switch {
		case mel && tail == melAnchor:
			v.mean = t.F32()
		case mel && strings.HasPrefix(tail, "per_channel_statistics."):
			if strings.HasSuffix(tail, ".std-of-means") {
				v.std = t.F32()
			}
		case mel && strings.HasPrefix(tail, "encoder.conv_out.conv."):
			means, err := t.Rows(0, v.channels)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			out[tail] = means
		case mel:
			out[tail] = t
		case strings.HasPrefix(name, first):
			v.nets.Vocoder.take(out, "vocoder.", strings.TrimPrefix(name, first), t)
		case vocoder && v.Wider != nil && strings.HasPrefix(voice, widerPart):
			v.nets.Wider.take(out, "wider.", strings.TrimPrefix(voice, widerPart), t)
		case vocoder && voice == stftPart+"stft_fn.forward_basis":
			if len(t.Shape) == 3 {
				t.Shape = []int{t.Shape[0], t.Shape[1] * t.Shape[2]}
			}
			out["wide.basis.weight"] = t
		case vocoder && voice == stftPart+"mel_basis":
			out["wide.bands.weight"] = t
		case vocoder && voice == stftPart+"stft_fn.inverse_basis": // nothing is made of it
		case vocoder:
			out[name] = t
		}
	}
	out["spectrum.basis.weight"] = fourier(v.Window)
	out["spectrum.bands.weight"] = slaney(v.Bands, v.Window, v.Rate)
	if n := v.channels * v.Columns(); len(v.mean) != n || len(v.std) != n {
		return nil, fmt.Errorf("%d means and %d deviations of latents, want %d of both", len(v.mean), len(v.std), n)
	}
	return weights.FromMap(out), nil
}

// complete returns an error for the first weight whose size is not the described one.
func (v *melCodec) complete() error {
	s, n := sizes{}, &v.nets
	blocks := func(all ...melBlock) {
		for _, b := range all {
			s.conv(b.Conv1.Conv, b.out, 9*b.in)
			s.conv(b.Conv2.Conv, b.out, 9*b.out)
			if b.Shortcut != nil {
				s.conv(b.Shortcut.Conv, b.out, b.in)
			}
		}
	}
	deep := v.Width * v.Widths[melLevels-1]
	s.conv(n.Encoder.In.Conv, v.Width, 9*v.Sounds)
	s.conv(n.Encoder.Out.Conv, v.channels, 9*deep)
	s.conv(n.Decoder.In.Conv, deep, 9*v.channels)
	s.conv(n.Decoder.Out.Conv, v.Sounds, 9*v.Width*v.Widths[0])
	for _, side := range []*melSide{&n.Encoder, &n.Decoder} {
		blocks(side.Middle.First, side.Middle.Second)
		for _, l := range slices.Concat(side.Down, side.Up) {
			blocks(l.Blocks...)
			for _, c := range []*single{l.Halve, l.Double} {
				if at := l.Blocks[len(l.Blocks)-1].out; c != nil {
					s.conv(c.Conv, at, 9*at)
				}
			}
		}
	}
	err := cmp.Or(s.err, n.Vocoder.complete())
	if w := v.Mel.Wider; w != nil && err == nil {
		s.conv(n.Wide.Basis, w.Window+2, w.Window)
		s.conv(n.Wide.Bands, w.In/v.Sounds, w.Window/2+1)
		err = cmp.Or(s.err, n.Wider.complete())
	}
	return err
}
