package vae

import (
	"fmt"
	"math"

	"patchbay/engine"
	"patchbay/models/weights"
)

// Tokens describes a decoder that is a transformer over the latent pixels of a few frames, each of which becomes a box
// of pixels: Config.Step() frames of Config.Scale() pixels a side.
type Tokens struct {
	Width, Heads, Layers, Registers int
	Mean, Std                       []float32 // of the latents' channels, which are normalized outside of the networks
}

// tokenAnchor is a name that only such autoencoders have.
const tokenAnchor = "decoder.transformer_blocks.0.scale1"

const (
	tokenHead   = 64          // channels of a head
	tokenTurned = 24          // pairs of a head that rotate, 8 each with time, row and column; the rest stay
	tokenTheta  = 100         // base of the rotation's frequencies
	tokenScale  = 2 * math.Pi // of positions in -1..1
	tokenEps    = 1e-5
)

type tokenDecoder struct {
	In        *engine.Weight `weight:"x_embedder" shape:"E,Z"`
	Registers engine.Tensor  `weight:"register_tokens" shape:"1,R,E"`
	Blocks    []tokenBlock   `weight:"transformer_blocks"`
	Norm      engine.Tensor  `weight:"norm_out.weight" shape:"E"`
	NormBias  engine.Tensor  `weight:"norm_out.bias" shape:"E"`
	Out       *engine.Weight `weight:"proj_out" shape:"P,E"`
}

// tokenBlock computes x += scale1 * attention(norm1(x)), then x += scale2 * down(silu(gate) * up) with gate and up made
// of norm2(x).
type tokenBlock struct {
	Norm1  engine.Tensor  `weight:"norm1.weight" shape:"E"`
	QKV    *engine.Weight `weight:"attn.to_qkv,perm=qkv" shape:"3E,E"` // head by head
	Out    *engine.Weight `weight:"attn.to_out" shape:"E,E"`
	Scale1 engine.Tensor  `weight:"scale1" shape:"E"`
	Norm2  engine.Tensor  `weight:"norm2.weight" shape:"E"`
	GateUp *engine.Weight `weight:"ff.w1" shape:"2F,E"`
	Down   *engine.Weight `weight:"ff.w2" shape:"E,F"`
	Scale2 engine.Tensor  `weight:"scale2" shape:"E"`
}

// inferTokens derives the configuration of an autoencoder with such a decoder. Shapes do not tell which levels of the
// encoder halve the number of frames: those of the released file do.
func inferTokens(set *weights.Set) (Config, error) {
	t := &Tokens{
		Width: set.Dim("decoder.x_embedder.weight", 0), Layers: set.Count("decoder.transformer_blocks"),
		Registers: set.Dim("decoder.register_tokens", 1), Mean: tokenMean(), Std: tokenStd(),
	}
	t.Heads = t.Width / tokenHead
	c := Config{
		Channels: set.Dim("encoder.conv_in.weight", 0), Blocks: set.Count("encoder.down.0.block"),
		Z: set.Dim("post_quant_conv.weight", 0), Embed: set.Dim("post_quant_conv.weight", 1), In: 3, Out: 3, Groups: 32,
		Eps: 1e-6, Quant: true, CanEncode: true, Video: true, Tokens: t,
	}
	for i := range set.Count("encoder.down") {
		c.Mult = append(c.Mult, set.Dim(fmt.Sprintf("encoder.down.%d.block.0.conv1.weight", i), 0)/max(c.Channels, 1))
		if set.Has(fmt.Sprintf("encoder.down.%d.downsample.conv.weight", i)) {
			c.Time = append(c.Time, i == 1 || i == 2)
		}
	}
	for name, to := range map[string]*[]float32{"latents_mean": &t.Mean, "latents_std": &t.Std} {
		if s, ok := set.Get(name); ok {
			*to = s.F32()
		}
	}
	switch box, rows := c.box(), set.Dim("decoder.proj_out.weight", 0); {
	case t.Width < tokenHead || t.Width%tokenHead != 0:
		return c, fmt.Errorf("load vae: decoder.x_embedder.weight has %d rows, want a multiple of %d", t.Width, tokenHead)
	case rows != box:
		return c, fmt.Errorf("load vae: decoder.proj_out.weight has %d rows, want %d for %d frames of %d x %d pixels", rows,
			box, c.Step(), c.Scale(), c.Scale())
	case len(t.Mean) != c.Embed || len(t.Std) != c.Embed:
		return c, fmt.Errorf("load vae: %d latents_mean and %d latents_std for %d channels", len(t.Mean), len(t.Std), c.Embed)
	}
	return c, c.validate()
}

// box returns how many values a token becomes.
func (c Config) box() int { return c.Out * c.Step() * c.Scale() * c.Scale() }

// fromTokens returns the tensors of such an autoencoder under the names used here: each tap of a convolution over time
// has one of its own. Nothing reads the mask token.
func fromTokens(set *weights.Set) (*weights.Set, error) {
	out := map[string]weights.Stored{}
	for _, name := range set.Names() {
		t, _ := set.Get(name)
		if name == "decoder.mask_token" {
			continue
		}
		var err error
		if out[name], err = taps(out, name, t, true); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return weights.FromMap(out), nil
}

func newTokenDecoder(c Config) *tokenDecoder {
	if c.Tokens == nil {
		return nil
	}
	return &tokenDecoder{Blocks: make([]tokenBlock, c.Tokens.Layers)}
}

// options returns what loading such a decoder needs. The two halves of rotary pairs, tokenTurned rows apart in files,
// come next to each other, as engine.RoPE expects.
func (c Config) options(set *weights.Set, opt weights.Options) weights.Options {
	t := c.Tokens
	if t == nil {
		return opt
	}
	var order []int
	for h := range t.Heads {
		for part := range 3 {
			first := (3*h + part) * tokenHead
			for k := range tokenHead {
				at := k
				if part < 2 && k < 2*tokenTurned {
					at = k%2*tokenTurned + k/2
				}
				order = append(order, first+at)
			}
		}
	}
	opt.Perms = map[string][]int{"qkv": order}
	opt.Dims = map[string]int{
		"E": t.Width, "Z": c.Z, "R": t.Registers, "P": c.box(), "F": set.Dim("decoder.transformer_blocks.0.ff.w2.weight", 1),
	}
	opt.Ignore = append(opt.Ignore, "latents_mean", "latents_std")
	return opt
}

// tokenWork is the memory of one run over L tokens, those of latent pixels first.
type tokenWork struct {
	z, quant, x, norm, qkv, wide, hidden engine.Tensor // [1, L, columns]
	out                                  engine.Tensor // [1, T*Y*X, P]
	rope                                 engine.RoPE
}

func (c Config) tokenWork(a *engine.Arena, dtype engine.DType, pixels, hidden int) tokenWork {
	e, l := c.Tokens.Width, pixels+c.Tokens.Registers+1
	row := func(l, n int) engine.Tensor { return a.Alloc(dtype, 1, l, n) }
	return tokenWork{
		z: row(pixels, c.Embed), quant: row(pixels, c.Z), x: row(l, e), norm: row(l, e), qkv: row(l, 3*e),
		wide: row(l, 2*hidden), hidden: row(l, hidden), out: row(pixels, c.box()),
		rope: engine.RoPE{Cos: a.Alloc(engine.F32, l, tokenHead/2), Sin: a.Alloc(engine.F32, l, tokenHead/2)},
	}
}

// rotation returns cos and sin [L, 32] of the tokens of t frames of y x x latent pixels, whose middles are at -1..1
// on every axis, and of the tokens behind them, which do not rotate.
func (c Config) rotation(t, y, x int) (cos, sin []float32) {
	const each = tokenTurned / 3
	for i := range t*y*x + c.Tokens.Registers + 1 {
		at := [3]float32{}
		for axis, place := range [3][2]int{{i / (y * x), t}, {i / x % y, y}, {i % x, x}} {
			if i < t*y*x {
				at[axis] = 2*((float32(place[0])+0.5)/float32(place[1])) - 1
			}
		}
		for k := range tokenHead / 2 {
			angle := float32(0)
			if k < tokenTurned {
				f := float32(1 / math.Pow(tokenTheta, float64(k%each)/each))
				angle = float32(tokenScale*at[k/each]) * f
			}
			s, co := math.Sincos(float64(angle))
			cos, sin = append(cos, float32(co)), append(sin, float32(s))
		}
	}
	return cos, sin
}

// decodeTokens decodes z [T*Y*X, C], t frames of y x x latent pixels before normalization, and returns [T*Y*X, P]: the
// values of each token's box in the order (channel, frame, row, column).
func (v *VAE) decodeTokens(env Env, z []float32, t, y, x int) ([]float32, error) {
	ops, d, n := env.Ops, v.layers.Tokens, t*y*x
	w := v.Config.tokenWork(env.Arena, env.DType, n, d.Blocks[0].Down.K())
	cos, sin := v.Config.rotation(t, y, x)
	ops.Upload(w.rope.Cos, cos)
	ops.Upload(w.rope.Sin, sin)
	ops.Upload(w.z, z)
	ops.Linear(w.quant, w.z, v.layers.PostQuant, engine.Epilogue{})
	ops.Linear(w.x.Slice(1, 0, n), w.quant, d.In, engine.Epilogue{})
	ops.Copy(w.x.Slice(1, n, n+v.Config.Tokens.Registers), d.Registers)
	ops.Fill(w.x.Slice(1, n+v.Config.Tokens.Registers, w.x.Dim(1)), 0)
	for i := range d.Blocks {
		if env.Check != nil {
			if err := env.Check(i, len(d.Blocks)); err != nil {
				return nil, err
			}
		}
		v.tokenBlock(ops, w, &d.Blocks[i])
	}
	pixels := w.norm.Slice(1, 0, n)
	ops.LayerNorm(pixels, w.x.Slice(1, 0, n), d.Norm, d.NormBias, tokenEps)
	ops.Linear(w.out, pixels, d.Out, engine.Epilogue{})
	out := make([]float32, w.out.Len())
	return out, ops.Download(out, w.out).Wait()
}

func (v *VAE) tokenBlock(ops engine.Ops, w tokenWork, b *tokenBlock) {
	heads, none := v.Config.Tokens.Heads, engine.Tensor{}
	ops.RMSNorm(w.norm, w.x, b.Norm1, tokenEps)
	ops.Linear(w.qkv, w.norm, b.QKV, engine.Epilogue{})
	five := w.qkv.Split(2, heads, 3, tokenHead)
	q, k, val := five.Index(3, 0), five.Index(3, 1), five.Index(3, 2)
	ops.QKNormRoPE(q, k, none, q, k, none, engine.QKNorm{Kind: engine.RMSNorm, Eps: tokenEps}, w.rope)
	ops.Attention(w.norm.Split(2, heads, tokenHead), q, k, val, engine.AttentionArgs{})
	ops.Linear(w.x, w.norm, b.Out, engine.Epilogue{Gate: b.Scale1.Unsqueeze(0), Residual: w.x})
	ops.RMSNorm(w.norm, w.x, b.Norm2, tokenEps)
	ops.Linear(w.wide, w.norm, b.GateUp, engine.Epilogue{})
	half := w.hidden.Dim(2)
	ops.ActivateMul(w.hidden, w.wide.Slice(2, 0, half), w.wide.Slice(2, half, 2*half), engine.SiLU)
	ops.Linear(w.x, w.hidden, b.Down, engine.Epilogue{Gate: b.Scale2.Unsqueeze(0), Residual: w.x})
}

// tokenMean and tokenStd return the statistics of the released autoencoder's latents, which files need not hold
// (ComfyUI comfy/ldm/minimax/vae.py).
func tokenMean() []float32 {
	return []float32{
		0.858090341091156, -0.9606591463088989, 1.0661640167236328, -0.5090325474739075, -0.2727581858634949,
		-1.3675414323806763, -0.2553254961967468, -0.26907554268836975, -0.5376840829849243, -0.0464097298681736,
		0.6657370328903198, 0.19690127670764923, -0.5460608005523682, -0.4035342037677765, -0.23683024942874908,
		0.25928452610969543, -0.30133944749832153, 0.211341992020607, -1.1206848621368408, 0.3581933379173279,
		-0.04225143790245056, 0.2604829967021942, 0.22864092886447906, 0.7056031823158264,
	}
}

func tokenStd() []float32 {
	return []float32{
		1.2223774194717407, 1.2767263650894165, 1.68317747116088865, 1.7549455165863037, 1.5636216402053833,
		2.194143533706665, 0.96531379222869875, 1.05698859691619875, 0.841948926448822, 0.7729952931404114,
		1.8955937623977661, 0.946841835975647, 0.7996809482574463, 0.44988900423049925, 0.7197399735450745,
		0.69362932443618775, 2.961095094680786, 2.7694199085235595, 3.0496184825897215, 2.1088054180145265,
		3.276226282119751, 3.1627357006073, 2.28168129920959475, 2.6127843856811525,
	}
}
