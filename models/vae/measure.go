package vae

import "patchbay/engine"

// DecodeBytes returns the arena size that Decode needs for latents of y rows and x columns, from the configuration
// alone: no weights are read and nothing is computed.
func DecodeBytes(cfg Config, dtype engine.DType, y, x int) int {
	return BandBytes(cfg, dtype, Band{0, y, y}, x)
}

// BandBytes returns the arena size that DecodeBand needs on the rank of that band, including z and the result.
func BandBytes(cfg Config, dtype engine.DType, band Band, x int) int {
	return measured(cfg, dtype, band, (*VAE).DecodeBand, band.Len(), x, cfg.Latent())
}

// EncodeBytes returns the arena size that Encode needs for pictures of y rows and x columns.
func EncodeBytes(cfg Config, dtype engine.DType, y, x int) int {
	s := cfg.Scale()
	return EncodeBandBytes(cfg, dtype, Band{0, y / s, y / s}, x)
}

// EncodeBandBytes returns the arena size that EncodeBand needs for pictures of x columns on the rank of that band of
// latent rows, including picture and result.
func EncodeBandBytes(cfg Config, dtype engine.DType, band Band, x int) int {
	return measured(cfg, dtype, band, (*VAE).EncodeBand, cfg.Scale()*band.Len(), x, cfg.In)
}

// measured returns the bytes that f takes for a band [1, y, x, c], without those of weights.
func measured(cfg Config, dtype engine.DType, band Band,
	f func(*VAE, Env, engine.Tensor, Band) (engine.Tensor, error), y, x, c int,
) int {
	env := measuring(dtype, band)
	v := &VAE{Config: cfg, layers: newLayers(cfg)}
	_, _ = f(v, env, env.Arena.Alloc(dtype, 1, y, x, c), band) // there is no error without Check
	return env.Arena.Peak()
}

// measuring returns an environment that computes nothing.
func measuring(dtype engine.DType, band Band) Env {
	env := Env{Ops: silent, Arena: engine.NewMeasuringArena("vae"), DType: dtype}
	if band.Len() != band.Total {
		env.Exchange = silentExchange()
	}
	return env
}

func silentExchange() *Exchange {
	return &Exchange{
		Halo: func(_, _, _ engine.Tensor) {}, Sum: func(engine.Tensor) {},
		Gather: func(_, _ engine.Tensor) {},
	}
}

// silent is an Ops whose operations do nothing, for walks that only measure. It needs neither weights nor memory.
// Methods that return something panic.
var silent engine.Ops = struct {
	engine.Through
	others
}{Through: engine.Through{Do: func(string, func(), func(engine.Ops)) {}}}

type others struct{ engine.Ops }
