package audio

import (
	"fmt"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/models/weights"
)

// Codec describes an autoencoder of MiniMax-H3's kind. It follows from shapes.
type Codec struct {
	Width   int   // channels between latents and networks
	Strides []int // of the encoder's levels
	Encoder int   // its channels at the full rate; they double at each level
	Decoder Generator
}

// Hop returns how many samples a latent stands for.
func (c Codec) Hop() int {
	n := 1
	for _, s := range c.Strides {
		n *= s
	}
	return n
}

// Latents returns how many latents n samples become: the last of them is filled up with silence.
func (c Codec) Latents(n int) int { return (n + c.Hop() - 1) / c.Hop() }

// codec is a loaded autoencoder of MiniMax-H3's kind.
type codec struct {
	Codec
	channels int // of the latents
	nets     codecNets
	alphas   map[string][]float32 // of the encoder's activations, by name
	mean     []float32            // of the latents' channels, which are normalized outside of the networks
	std      []float32
}

// codecNets mirrors the checkpoint: the tags are the names that named gives its tensors.
type codecNets struct {
	In     *engine.Weight `weight:"encoder.in,conv"`
	Down   []down         `weight:"encoder.down"`
	Latent *engine.Weight `weight:"encoder.out,conv"`
	Head   head           `weight:"pre_block"`
	Mean   *engine.Weight `weight:"mean_proj"`

	Widen   *engine.Weight `weight:"dec_in_proj"`
	Decoder *generator     `weight:"decoder"`
}

// down is a level of the encoder: residual units, then an activation and a strided convolution.
type down struct {
	Units []unit         `weight:"unit"`
	Conv  *engine.Weight `weight:"conv,conv"`
}

// unit is x + conv2(act2(conv1(act1(x)))).
type unit struct {
	Conv1 *engine.Weight `weight:"conv1,conv"`
	Conv2 *engine.Weight `weight:"conv2,conv"`
}

// head is proj(norm3(x)) + attention(norm1(x)), then x + mlp(norm2(x)). Attention has the mean of its heads, of which
// groups of neighbors are averaged to the channels of latents.
type head struct {
	Norm1 affine         `weight:"norm1"`
	QKV   *engine.Weight `weight:"attn.qkv"`
	Out   *engine.Weight `weight:"attn.proj"`
	Norm3 affine         `weight:"norm3"`
	Proj  *engine.Weight `weight:"proj"`
	Norm2 affine         `weight:"norm2"`
	Norm  affine         `weight:"mlp.norm"`
	Gate  *engine.Weight `weight:"mlp.w0"`
	Up    *engine.Weight `weight:"mlp.w1"`
	Down  *engine.Weight `weight:"mlp.w2"`
}

type affine struct {
	Weight engine.Tensor `weight:"weight"`
	Bias   engine.Tensor `weight:"bias"`
}

const (
	codecAnchor = "pre_block.attn.zero_k_bias" // a name that only such files have
	heads       = 8
	latentTaps  = 3     // of the encoder's last convolution
	codecRate   = 32000 // samples a second
)

// codecDilations are those of the units of the encoder's levels.
func codecDilations() [blockLayers]int { return [...]int{1, 3, 9} }

// codecGenerator returns the decoder of an autoencoder whose first convolution has width channels, but for the taps.
func codecGenerator(in, width int) Generator {
	dilations := [blockLayers]int{1, 3, 5}
	return Generator{
		In: in, Out: 1, Width: width, Rates: []int{5, 5, 2, 2, 2, 2, 2}, Betas: true,
		Kernels: []int{3, 7, 11}, Dilations: [][blockLayers]int{dilations, dilations, dilations},
	}
}

// inferCodec derives the configuration from names and shapes.
func inferCodec(set *weights.Set) (Config, error) {
	k := &Codec{Width: set.Dim("dec_in_proj.weight", 0), Encoder: set.Dim("encoder.block.0.weight", 0)}
	c := Config{Channels: set.Dim("mean_proj.weight", 0), Rate: codecRate, Out: codecRate, Codec: k}
	k.Decoder = codecGenerator(k.Width, set.Dim("decoder.conv_pre.weight", 0))
	for i := 1; set.Has(fmt.Sprintf("encoder.block.%d.block.4.weight", i)); i++ {
		k.Strides = append(k.Strides, set.Dim(fmt.Sprintf("encoder.block.%d.block.4.weight", i), 2)/2)
	}
	for i := range k.Decoder.Rates {
		k.Decoder.Taps = append(k.Decoder.Taps, set.Dim(fmt.Sprintf("decoder.ups.%d.0.weight", i), 2))
	}
	if err := k.Decoder.check(); err != nil {
		return c, fmt.Errorf("load audio vae: decoder: %w", err)
	}
	c.Step = k.Hop()
	if c.Channels < 1 || k.Width%(heads*c.Channels) != 0 || k.Encoder < 1 || k.Hop() != k.Decoder.Rate() ||
		slices.Min(k.Strides) < 1 {
		return c, fmt.Errorf("load audio vae: %d channels of latents, %d between the networks, %d in the encoder, strides "+
			"%v: want %d samples for a latent", c.Channels, k.Width, k.Encoder, k.Strides, k.Decoder.Rate())
	}
	return c, nil
}

// openCodec loads an autoencoder that c describes.
func openCodec(ops engine.Ops, set *weights.Set, c Config) (*codec, *weights.Loaded, error) {
	v := &codec{Codec: *c.Codec, channels: c.Channels, alphas: map[string][]float32{}}
	v.nets.Decoder = newGenerator(v.Decoder)
	named, err := v.named(set)
	if err != nil {
		return nil, nil, err
	}
	v.nets.Down = make([]down, len(v.Strides))
	for i := range v.nets.Down {
		v.nets.Down[i].Units = make([]unit, blockLayers)
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

// named returns the tensors of matrices and norms under the names used here, and keeps the rest. Nothing reads the
// latents' variance.
func (v *codec) named(set *weights.Set) (*weights.Set, error) {
	const decoder = "decoder."
	out := map[string]weights.Stored{}
	for _, name := range set.Names() {
		t, _ := set.Get(name)
		tail, decodes := strings.CutPrefix(name, decoder)
		as := rename(name, len(v.Strides))
		switch {
		case name == "latents_mean":
			v.mean = t.F32()
		case name == "latents_std":
			v.std = t.F32()
		case decodes:
			v.nets.Decoder.take(out, decoder, tail, t)
		case strings.HasSuffix(name, ".alpha"):
			v.alphas[as] = t.F32()
		case strings.HasPrefix(name, "logs_proj."), name == "pre_block.attn.q_bias", name == "pre_block.attn.v_bias",
			name == codecAnchor:
		default:
			out[as] = flat(t)
		}
	}
	var bias []float32
	for _, part := range []string{"q_bias", "zero_k_bias", "v_bias"} {
		t, ok := set.Get("pre_block.attn." + part)
		if !ok {
			return nil, fmt.Errorf("load audio vae: no pre_block.attn.%s", part)
		}
		bias = append(bias, t.F32()...)
	}
	out["pre_block.attn.qkv.bias"] = weights.Floats(bias, len(bias))
	return weights.FromMap(out), nil
}

// rename maps one name of the encoder; levels is the number of its levels.
func rename(name string, levels int) string {
	rest, ok := strings.CutPrefix(name, "encoder.block.")
	if !ok {
		return name
	}
	var i, k int
	var tail string
	if _, err := fmt.Sscanf(rest, "%d.%s", &i, &tail); err != nil {
		return name
	}
	switch {
	case i == 0:
		return "encoder.in." + tail
	case i == levels+1:
		return "encoder." + tail
	case i > levels:
		return "encoder.out." + tail
	}
	at := fmt.Sprintf("encoder.down.%d.", i-1)
	if _, err := fmt.Sscanf(tail, "block.%d.%s", &k, &tail); err != nil {
		return name
	}
	inner := map[string]string{"block.0": "act1", "block.1": "conv1", "block.2": "act2", "block.3": "conv2"}
	switch {
	case k == blockLayers:
		return at + tail
	case k > blockLayers:
		return at + "conv." + tail
	}
	for from, to := range inner {
		if end, ok := strings.CutPrefix(tail, from+"."); ok {
			return fmt.Sprintf("%sunit.%d.%s.%s", at, k, to, end)
		}
	}
	return name
}

// complete returns an error for the first activation or statistic that is missing or of another size.
func (v *codec) complete() error {
	want := map[string]int{"encoder.alpha": v.nets.Latent.K() / latentTaps}
	for i, d := range v.nets.Down {
		at := fmt.Sprintf("encoder.down.%d.", i)
		want[at+"alpha"] = v.Encoder << i
		for k := range d.Units {
			want[fmt.Sprintf("%sunit.%d.act1.alpha", at, k)] = v.Encoder << i
			want[fmt.Sprintf("%sunit.%d.act2.alpha", at, k)] = v.Encoder << i
		}
	}
	for name, n := range want {
		if len(v.alphas[name]) != n {
			return fmt.Errorf("%s has %d values, want %d", name, len(v.alphas[name]), n)
		}
	}
	if len(v.mean) != v.channels || len(v.std) != v.channels {
		return fmt.Errorf("%d latents_mean and %d latents_std for %d channels", len(v.mean), len(v.std), v.channels)
	}
	if err := v.nets.Decoder.complete(); err != nil {
		return fmt.Errorf("decoder: %w", err)
	}
	return nil
}
