package audio

import (
	"fmt"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/models/weights"
)

// nets mirrors the checkpoint: the tags are the names that named gives its tensors.
type nets struct {
	In     *engine.Weight `weight:"encoder.in,conv"`
	Down   []down         `weight:"encoder.down"`
	Latent *engine.Weight `weight:"encoder.out,conv"`
	Head   head           `weight:"pre_block"`
	Mean   *engine.Weight `weight:"mean_proj"`

	Widen  *engine.Weight `weight:"dec_in_proj"`
	Pre    *engine.Weight `weight:"decoder.conv_pre,conv"`
	Up     []single       `weight:"decoder.ups"`
	Blocks []block        `weight:"decoder.resblocks"` // kernels in turn for each level
	Post   *engine.Weight `weight:"decoder.conv_post,conv,nobias"`
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

type single struct {
	Conv *engine.Weight `weight:"conv,conv"`
}

// block adds convolutions of several dilations to a sound, each followed by one without.
type block struct {
	Dilated []single `weight:"convs1"`
	Plain   []single `weight:"convs2"`
}

const (
	anchor      = "pre_block.attn.zero_k_bias" // a name that only such files have
	heads       = 8
	kernels     = 3  // blocks at each level of the decoder
	filterTaps  = 12 // of the filters around activations
	blockLayers = 3
)

// dilations returns those of the convolutions of a unit, and of a block.
func dilations() (unit, block [blockLayers]int) { return [...]int{1, 3, 9}, [...]int{1, 3, 5} }

// rates returns by how much the levels of the decoder raise the number of samples.
func rates() []int { return []int{5, 5, 2, 2, 2, 2, 2} }

// Is reports whether a set holds such an autoencoder.
func Is(set *weights.Set) bool { return set.Has(anchor) }

// Infer derives the configuration from names and shapes.
func Infer(set *weights.Set) (Config, error) {
	c := Config{
		Channels: set.Dim("mean_proj.weight", 0), Width: set.Dim("dec_in_proj.weight", 0),
		Encoder: set.Dim("encoder.block.0.weight", 0), Decoder: set.Dim("decoder.conv_pre.weight", 0),
	}
	for i := 1; set.Has(fmt.Sprintf("encoder.block.%d.block.4.weight", i)); i++ {
		c.Strides = append(c.Strides, set.Dim(fmt.Sprintf("encoder.block.%d.block.4.weight", i), 2)/2)
	}
	total := 1
	for i, r := range rates() {
		total *= r
		if k := set.Dim(fmt.Sprintf("decoder.ups.%d.0.weight", i), 2); k <= r || (k-r)%2 != 0 {
			return c, fmt.Errorf("load audio vae: decoder.ups.%d.0.weight has %d taps, want %d and an even number more", i, k, r)
		}
	}
	if c.Channels < 1 || c.Width%(heads*c.Channels) != 0 || c.Encoder < 1 || c.Decoder>>len(rates()) < 1 ||
		c.Hop() != total || slices.Min(c.Strides) < 1 {
		return c, fmt.Errorf("load audio vae: %d channels of latents, %d between the networks, %d and %d in them, strides "+
			"%v: want %d samples for a latent", c.Channels, c.Width, c.Encoder, c.Decoder, c.Strides, total)
	}
	return c, nil
}

// Open loads an autoencoder. Missing names are reported all at once (*weights.MismatchError), unknown ones are left out
// (Unused). The caller must close the result.
func Open(ops engine.Ops, set *weights.Set) (*VAE, error) {
	c, err := Infer(set)
	if err != nil {
		return nil, err
	}
	v := &VAE{Config: c, alphas: map[string][]float32{}, upTaps: make([]int, len(rates()))}
	named, err := v.named(set)
	if err != nil {
		return nil, err
	}
	v.nets.Down = make([]down, len(c.Strides))
	for i := range v.nets.Down {
		v.nets.Down[i].Units = make([]unit, blockLayers)
	}
	v.nets.Up, v.nets.Blocks = make([]single, len(rates())), make([]block, kernels*len(rates()))
	for i := range v.nets.Blocks {
		v.nets.Blocks[i] = block{make([]single, blockLayers), make([]single, blockLayers)}
	}
	if v.loaded, err = weights.Load(ops, named, &v.nets, weights.Options{Spare: true, Model: "audio vae"}); err != nil {
		return nil, err
	}
	if err := v.complete(); err != nil {
		v.loaded.Close()
		return nil, err
	}
	return v, nil
}

// Unused names the tensors in set that Open does not know. Nothing is loaded; if Open would fail, there are none.
func Unused(set *weights.Set) []string {
	v, err := Open(weights.Shapes(), set)
	if err != nil {
		return nil
	}
	return v.loaded.Unused
}

// named returns the tensors of matrices and norms under the names used here, and keeps the rest. Filters are those that
// formulas give, and nothing reads the latents' variance.
func (v *VAE) named(set *weights.Set) (*weights.Set, error) {
	out := map[string]weights.Stored{}
	for _, name := range set.Names() {
		t, _ := set.Get(name)
		switch as := rename(name, len(v.Config.Strides)); {
		case name == "latents_mean":
			v.mean = t.F32()
		case name == "latents_std":
			v.std = t.F32()
		case strings.HasSuffix(name, ".alpha"), strings.HasSuffix(name, ".beta"):
			v.alphas[as] = t.F32()
		case strings.HasSuffix(name, ".filter"), strings.HasPrefix(name, "logs_proj."), name == "pre_block.attn.q_bias",
			name == "pre_block.attn.v_bias", name == anchor:
		case strings.HasPrefix(name, "decoder.ups.") && len(t.Shape) == 3:
			out[as], v.upTaps[level(as)] = v.transposed(t, as), t.Shape[2]
		case strings.HasPrefix(name, "decoder.ups."):
			out[as] = repeated(t, rates()[level(name)])
		default:
			if len(t.Shape) == 3 {
				t.Shape = []int{t.Shape[0], t.Shape[1], 1, t.Shape[2]}
			}
			out[as] = t
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

// level returns the number after "decoder.ups.".
func level(name string) (n int) {
	_, _ = fmt.Sscanf(name, "decoder.ups.%d.", &n)
	return min(n, len(rates())-1)
}

// rename maps one name; levels is the number of the encoder's.
func rename(name string, levels int) string {
	rest, ok := strings.CutPrefix(name, "encoder.block.")
	if !ok {
		for _, list := range []string{".convs1.", ".convs2."} {
			if at := strings.Index(name, list); at >= 0 {
				dot := strings.LastIndexByte(name, '.')
				return name[:dot] + ".conv" + name[dot:]
			}
		}
		if tail, up := strings.CutPrefix(name, "decoder.ups."); up {
			return "decoder.ups." + strings.Replace(tail, ".0.", ".conv.", 1)
		}
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
func (v *VAE) complete() error {
	const last = "decoder.activation_post.act."
	channels := v.nets.Post.K() / postTaps
	want := map[string]int{
		"encoder.alpha": v.nets.Latent.K() / latentTaps, last + "alpha": channels, last + "beta": channels,
	}
	for i, d := range v.nets.Down {
		at := fmt.Sprintf("encoder.down.%d.", i)
		want[at+"alpha"] = v.Config.Encoder << i
		for k := range d.Units {
			want[fmt.Sprintf("%sunit.%d.act1.alpha", at, k)] = v.Config.Encoder << i
			want[fmt.Sprintf("%sunit.%d.act2.alpha", at, k)] = v.Config.Encoder << i
		}
	}
	for i := range v.nets.Blocks {
		for k := range 2 * blockLayers {
			at := fmt.Sprintf("decoder.resblocks.%d.activations.%d.act.", i, k)
			want[at+"alpha"], want[at+"beta"] = v.Config.Decoder>>(i/kernels+1), v.Config.Decoder>>(i/kernels+1)
		}
	}
	for name, n := range want {
		if len(v.alphas[name]) != n {
			return fmt.Errorf("load audio vae: %s has %d values, want %d", name, len(v.alphas[name]), n)
		}
	}
	if len(v.mean) != v.Config.Channels || len(v.std) != v.Config.Channels {
		return fmt.Errorf("load audio vae: %d latents_mean and %d latents_std for %d channels", len(v.mean), len(v.std),
			v.Config.Channels)
	}
	return nil
}

const (
	latentTaps = 3 // of the encoder's last convolution
	postTaps   = 7 // of the decoder's last one
)
