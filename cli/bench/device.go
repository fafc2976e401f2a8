package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/rs/zerolog"
	"github.com/spf13/pflag"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/cli/workflow"
	"patchbay/daemon"
	"patchbay/engine"
	"patchbay/models/weights"
	"patchbay/parallel"
)

// device holds the flags of benchmarks outside the denoise loop: what to compute on, and with which weights.
type device struct {
	daemon.Config
	file   string // empty: the demo's
	random bool
}

func (d *device) add(fl *pflag.FlagSet, what string) {
	settings.Devices(fl, &d.Config)
	settings.Memory(fl, &d.Config)
	fl.StringVar(&d.Compute, "compute", "auto", "type of activations on a GPU: f32, or bf16 for auto")
	fl.BoolVar(&d.random, "random-weights", false, "measure "+what+" with random weights: no file is needed")
}

// openPool opens an engine on the devices of c, within the memory that serve would have. closing closes both.
func openPool(c *daemon.Config) (eng *parallel.Pool, closing func() error, err error) {
	cfg, release, err := c.BoundEngine(zerolog.Nop())
	if err != nil {
		return nil, nil, err
	}
	if eng, err = parallel.NewPool(cfg); err != nil {
		return nil, nil, errors.Join(err, release())
	}
	return eng, func() error { eng.Close(); return release() }, nil
}

// run opens an engine and the weights that the flags name (a file, the demo's file in folder, or random ones) and
// calls measure with them and the config in the file's metadata. It notes in the report what was used.
func (d *device) run(ctx context.Context, r *report, folder, demo string, random func() []weights.Declared,
	measure func(l *parallel.Workspace, set *weights.Set, config []byte) error,
) (err error) {
	if d.file == "" {
		if d.file, err = workflow.Demo(folder, demo); err != nil {
			return err
		}
	}
	var set *weights.Set
	var config []byte
	if d.random {
		set = weights.Random(random())
	} else {
		file, err := weights.Open(d.file, engine.BF16) // as loader nodes do
		if err != nil {
			return console.BadInput(err)
		}
		defer console.CloseQuietly(file)
		set, config = file.Set(), []byte(file.Metadata()["config"])
	}
	eng, closing, err := openPool(&d.Config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closing()) }()
	r.Extra["processors"], r.Extra["engine"], r.Extra["random"] = runtime.GOMAXPROCS(0), eng.Name(), d.random
	return eng.Do(ctx, r.Benchmark, func(l *parallel.Workspace) error { return measure(l, set.For(l.DType), config) })
}

// tensors collects the names and shapes of a network's tensors.
type tensors []weights.Declared

func (t *tensors) add(name string, shape ...int) {
	*t = append(*t, weights.Declared{Name: name, Shape: shape})
}

// conv adds the weight and bias of a convolution with a size x size kernel.
func (t *tensors) conv(name string, out, in, size int) {
	t.add(name+".weight", out, in, size, size)
	t.add(name+".bias", out)
}

// norm adds the weight and bias of a norm.
func (t *tensors) norm(name string, n int) {
	t.add(name+".weight", n)
	t.add(name+".bias", n)
}

// decoderOfFLUX returns the tensors of the decoder of FLUX's autoencoder (ae.safetensors): 128 channels, levels 1, 2,
// 4, 4, three blocks per level, latents of 16 channels.
func decoderOfFLUX() []weights.Declared {
	var t tensors
	block := func(name string, in, out int) {
		t.norm(name+".norm1", in)
		t.conv(name+".conv1", out, in, 3)
		t.norm(name+".norm2", out)
		t.conv(name+".conv2", out, out, 3)
		if in != out {
			t.conv(name+".nin_shortcut", out, in, 1)
		}
	}
	const deep, last = 512, 128
	t.conv("decoder.conv_in", deep, 16, 3)
	block("decoder.mid.block_1", deep, deep)
	block("decoder.mid.block_2", deep, deep)
	t.norm("decoder.mid.attn_1.norm", deep)
	for _, name := range []string{"q", "k", "v", "proj_out"} {
		t.conv("decoder.mid.attn_1."+name, deep, deep, 1)
	}
	at := deep
	for i, out := range []int{deep, deep, 256, last} {
		level := fmt.Sprintf("decoder.up.%d", 3-i)
		for b := range 3 {
			block(fmt.Sprintf("%s.block.%d", level, b), at, out)
			at = out
		}
		if i < 3 {
			t.conv(level+".upsample.conv", out, out, 3)
		}
	}
	t.norm("decoder.norm_out", last)
	t.conv("decoder.conv_out", 3, last, 3)
	return t
}

// t5XXL returns the tensors of the encoder of T5 v1.1 XXL.
func t5XXL() []weights.Declared { return t5(24, 4096, 64, 10240, 32128) }

// t5 returns the tensors of a gated T5 encoder with so many blocks and heads of 64.
func t5(blocks, width, heads, mlp, vocab int) []weights.Declared {
	var t tensors
	t.add("shared.weight", vocab, width)
	t.add("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", 32, heads)
	for b := range blocks {
		at := fmt.Sprintf("encoder.block.%d.layer.", b)
		t.add(at+"0.layer_norm.weight", width)
		for _, name := range []string{"q", "k", "v"} {
			t.add(at+"0.SelfAttention."+name+".weight", 64*heads, width)
		}
		t.add(at+"0.SelfAttention.o.weight", width, 64*heads)
		t.add(at+"1.layer_norm.weight", width)
		t.add(at+"1.DenseReluDense.wi_0.weight", mlp, width)
		t.add(at+"1.DenseReluDense.wi_1.weight", mlp, width)
		t.add(at+"1.DenseReluDense.wo.weight", width, mlp)
	}
	t.add("encoder.final_layer_norm.weight", width)
	return t
}
