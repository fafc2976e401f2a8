package sampling

import (
	"fmt"
	"math"
)

// fluxSigma returns e^mu / (e^mu + 1/t - 1), in the order of torch's float32 operations (Esser et al. 2024, eq. 23 in
// log form).
func fluxSigma(mu float64, t float32) float32 {
	e := float32(math.Exp(mu))
	return mul(1/(e+(1/t-1)), e)
}

// NewFlux returns the time line of FLUX.1 dev, Chroma, Qwen-Image (mu 1.15) and FLUX.2 (mu 2.02): 10000 sigmas, flow
// prediction, timestep = sigma. It returns an error unless mu is between -80 and 80.
func NewFlux(mu float64) (*ModelSampling, error) {
	if math.IsNaN(mu) || math.Abs(mu) > 80 {
		return nil, fmt.Errorf("flux shift %v: want a number between -80 and 80", mu)
	}
	m := &ModelSampling{prediction: Const, line: lineFlux, shift: mu, multiplier: 1}
	m.sigmas = make([]float32, 10000)
	for i := range m.sigmas {
		m.sigmas[i] = fluxSigma(mu, float32(i+1)/10000)
	}
	return m, nil
}

// FluxShift returns the mu of the node ModelSamplingFlux for a picture of width x height pixels, on the line through
// (256 tokens, base) and (4096 tokens, top), also outside that range. A token is 16 x 16 pixels.
func FluxShift(top, base float64, width, height int) float64 {
	slope := (top - base) / (4096 - 256)
	tokens := float64(width) * float64(height) / (8 * 8 * 2 * 2)
	return tokens*slope + (base - slope*256)
}

// NewFlow returns a flow time line of 1000 sigmas with shift alpha > 0; multiplier is the network's timestep at
// t = 1: SD3 (3, 1000), AuraFlow (1.73, 1), FLUX.1 schnell (1, 1), Lumina 2 (6, 1), Z-Image (3, 1),
// HiDream (1, 1000).
func NewFlow(alpha, multiplier float64) (*ModelSampling, error) {
	if !(alpha > 0) || math.IsInf(alpha, 1) {
		return nil, fmt.Errorf("flow shift %v: want a number above 0", alpha)
	}
	if !(multiplier > 0) || math.IsInf(multiplier, 1) {
		return nil, fmt.Errorf("flow multiplier %v: want a number above 0", multiplier)
	}
	m := &ModelSampling{prediction: Const, line: lineFlow, shift: alpha, multiplier: multiplier}
	m.sigmas = make([]float32, 1000)
	for i := range m.sigmas {
		m.sigmas[i] = m.Sigma(mul(float32(i+1)/1000, float32(multiplier)))
	}
	return m, nil
}

// Betas names how the betas of a discrete model grow.
type Betas string

// The beta schedules, by ComfyUI's names.
const (
	// ScaledLinear squares a line between the square roots of the ends ("linear" in ComfyUI).
	ScaledLinear Betas = "linear"
	// Linear is a line between the ends ("sqrt_linear" in ComfyUI).
	Linear Betas = "sqrt_linear"
)

// ddpm is what a discrete table is made of.
type ddpm struct {
	kind       Betas
	start, end float64
	n          int
	zeroSNR    bool
}

// NewDiscrete returns a DDPM time line of n sigmas, sigma_i = sqrt((1-abar_i)/abar_i) with abar the running product of
// 1-beta (Ho et al. 2020), for a network that predicts p. PixArt: (Eps, Linear, 0.0001, 0.02, 1000); HunyuanDiT 1.2:
// (V, ScaledLinear, 0.00085, 0.018, 1000), versions 1.0 and 1.1 end at 0.03.
func NewDiscrete(p Prediction, betas Betas, start, end float64, n int) (*ModelSampling, error) {
	return ddpm{betas, start, end, n, false}.line(p)
}

// NewZeroSNR returns the time line of NewDiscrete shifted so that the last timestep has no signal, for models that were
// trained so (arXiv:2305.08891, algorithm 1). Its sigma is that of an abar of 4.8973451890853435e-08, not infinite.
func NewZeroSNR(p Prediction, betas Betas, start, end float64, n int) (*ModelSampling, error) {
	return ddpm{betas, start, end, n, true}.line(p)
}

// Continuous returns the time line of a network that predicts p at every sigma from low to high, for the model of m: a
// table of 1000 sigmas, evenly spaced in their logarithm, and timestep = log(sigma)/4, or for CosmosFlow
// sigma/(sigma+1) (ComfyUI ModelSamplingContinuousEDM, ModelSamplingCosmosRFlow). It returns an error for flow
// predictions, and unless 0 < low < high.
func (m *ModelSampling) Continuous(p Prediction, low, high float64) (*ModelSampling, error) {
	line := lineLog
	if p == CosmosFlow {
		line = lineRatio
	}
	return m.continuous(line, p, low, high)
}

// Arc is Continuous for V, with timestep = atan(sigma)*2/pi (ComfyUI ModelSamplingContinuousV).
func (m *ModelSampling) Arc(low, high float64) (*ModelSampling, error) {
	return m.continuous(lineArc, V, low, high)
}

func (m *ModelSampling) continuous(line timeLine, p Prediction, low, high float64) (*ModelSampling, error) {
	switch p {
	case Eps, V, EDM, CosmosFlow:
	default:
		return nil, fmt.Errorf("continuous prediction %v: want EPS, V_PREDICTION, EDM or COSMOS_RFLOW", p)
	}
	if !(low > 0 && high > low) || math.IsInf(high, 1) {
		return nil, fmt.Errorf("sigmas from %v to %v: want 0 < sigma_min < sigma_max", low, high)
	}
	out := &ModelSampling{prediction: p, line: line, multiplier: 1, betas: m.betas}
	out.sigmas = curve(1000, float32(math.Log(low)), float32(math.Log(high)), exp32)
	return out, nil
}

// Discrete returns the time line of a network that predicts p, made of the betas of m, or of those of Stable Diffusion
// if m is not discrete (ComfyUI ModelSamplingDiscrete). For LCM it has the 50 timesteps that such models were distilled
// to.
func (m *ModelSampling) Discrete(p Prediction, zeroSNR bool) (*ModelSampling, error) {
	d := m.betas
	if d == (ddpm{}) {
		d = ddpm{kind: ScaledLinear, start: 0.00085, end: 0.012, n: 1000}
	}
	d.zeroSNR = zeroSNR
	out, err := d.line(p)
	const few = 50
	if err != nil || p != LCM || d.n < few {
		return out, err
	}
	full := *out
	out.sigmas, out.logSigmas, out.skip = nil, nil, d.n/few
	for i := range few {
		s := full.sigmas[d.n-1-(few-1-i)*out.skip]
		out.sigmas, out.logSigmas = append(out.sigmas, s), append(out.logSigmas, log32(s))
	}
	return out, nil
}

// line returns the time line for a network that predicts p.
func (d ddpm) line(p Prediction) (*ModelSampling, error) {
	table, err := d.sigmas(p)
	if err != nil {
		return nil, err
	}
	if d.zeroSNR {
		root := func(s float64) float64 { return math.Sqrt(1 / (s*s + 1)) }
		first, last := root(table[0]), root(table[d.n-1])
		for i, s := range table {
			v := (root(s) - last) * (first / (first - last))
			abar := v * v
			if i == d.n-1 {
				abar = 4.8973451890853435e-08
			}
			table[i] = math.Sqrt((1 - abar) / abar)
		}
	}
	m := &ModelSampling{prediction: p, line: lineDiscrete, multiplier: 1, betas: d}
	for _, s := range table {
		m.sigmas, m.logSigmas = append(m.sigmas, float32(s)), append(m.logSigmas, float32(math.Log(s)))
	}
	return m, nil
}

// sigmas returns the sigmas without zeroSNR.
func (d ddpm) sigmas(p Prediction) ([]float64, error) {
	betas, start, end, n := d.kind, d.start, d.end, d.n
	if p == Const {
		return nil, fmt.Errorf("discrete prediction %v: want EPS, V_PREDICTION, X0 or LCM", p)
	}
	if !(start > 0 && end > start && end < 1) {
		return nil, fmt.Errorf("betas %v..%v: want 0 < start < end < 1", start, end)
	}
	if n < 2 {
		return nil, fmt.Errorf("timesteps %d: want 2 or more", n)
	}
	a, b := start, end
	if betas == ScaledLinear {
		a, b = math.Sqrt(start), math.Sqrt(end)
	} else if betas != Linear {
		return nil, fmt.Errorf("beta schedule %q: want %q or %q", betas, ScaledLinear, Linear)
	}
	table := make([]float64, n)
	step, abar := (b-a)/float64(n-1), 1.0
	for i := range n {
		v := a + step*float64(i)
		if i >= n/2 {
			v = b - step*float64(n-i-1)
		}
		if betas == ScaledLinear {
			v *= v
		}
		abar *= 1 - v
		table[i] = math.Sqrt((1 - abar) / abar)
	}
	return table, nil
}
