package sampling

import (
	"fmt"
	"math"
)

// Prediction is what a network predicts, which determines how noise is mixed in and how x0 is recovered.
type Prediction int

// The predictions.
const (
	// Const is flow matching: x = (1-sigma)*x0 + sigma*noise; the network predicts the velocity noise - x0.
	Const Prediction = iota
	// Eps predicts the noise of x = x0 + sigma*noise.
	Eps
	// V predicts v = alpha*noise - sigma*x0 in the variance-preserving view of x = x0 + sigma*noise.
	V
	// X0 predicts x0 of x = x0 + sigma*noise.
	X0
	// LCM is Eps of a latent consistency model (arXiv:2310.04378), whose x0 is mixed with x at small timesteps.
	LCM
	// EDM predicts what Karras et al. 2022 call F, -V for data of a deviation of 0.5.
	EDM
	// CosmosFlow is a flow on t = sigma/(sigma+1), whose state samplers carry as x = x0 + sigma*noise.
	CosmosFlow
)

// String names the prediction as ComfyUI does.
func (p Prediction) String() string {
	switch p {
	case Const:
		return "CONST"
	case Eps:
		return "EPS"
	case V:
		return "V_PREDICTION"
	case X0:
		return "X0"
	case LCM:
		return "LCM"
	case EDM:
		return "EDM"
	case CosmosFlow:
		return "COSMOS_RFLOW"
	}
	return fmt.Sprintf("Prediction(%d)", int(p))
}

// timeLine is the kind of relation between a model's timestep and sigma.
type timeLine int

const (
	lineFlux     timeLine = iota // sigma(t) = e^mu / (e^mu + 1/t - 1), timestep = sigma
	lineFlow                     // sigma(t) = a*t/(1 + (a-1)*t) (Esser et al. 2024, 5.3.2), timestep = sigma*multiplier
	lineDiscrete                 // table of DDPM sigmas, interpolated in log sigma
	lineLog                      // timestep = log(sigma)/4 (Karras et al. 2022, table 1)
	lineArc                      // timestep = atan(sigma)*2/pi
	lineRatio                    // timestep = sigma/(sigma+1)
)

// ModelSampling defines what sigma means to a model: its table of sigmas, the mappings sigma <-> timestep and percent
// -> sigma, and how noise is mixed in. It is immutable; copies share the table.
type ModelSampling struct {
	prediction Prediction
	line       timeLine
	shift      float64
	soundShift float64 // of a sound beside a video; 0: none of its own
	multiplier float64
	sigmas     []float32 // ascending
	logSigmas  []float32 // discrete only
	betas      ddpm      // that the table was made of; zero: not discrete
	skip       int       // timesteps that an entry of the table stands for; 0: one
}

// Prediction returns what the network predicts.
func (m *ModelSampling) Prediction() Prediction { return m.prediction }

// Predicting returns the same time line for a network that predicts p, Eps or V. Flow models are returned unchanged.
func (m *ModelSampling) Predicting(p Prediction) *ModelSampling {
	out := *m
	if !m.IsFlow() && p != Const {
		out.prediction = p
	}
	return &out
}

// Classes describes the equivalent model sampling in ComfyUI: the names of its two classes, time line and prediction,
// and the parameters of the first, nil where it has none.
func (m *ModelSampling) Classes() (bases []string, shift, multiplier *float64) {
	switch m.line {
	case lineFlux:
		return []string{"ModelSamplingFlux", m.prediction.String()}, &m.shift, nil
	case lineFlow:
		return []string{"ModelSamplingDiscreteFlow", m.prediction.String()}, &m.shift, &m.multiplier
	}
	name := map[timeLine]string{
		lineDiscrete: "ModelSamplingDiscrete", lineLog: "ModelSamplingContinuousEDM", lineArc: "ModelSamplingContinuousV",
		lineRatio: "ModelSamplingCosmosRFlow",
	}
	return []string{name[m.line], m.prediction.String()}, nil, nil
}

// IsFlow reports whether x interpolates between latent and noise (Const).
func (m *ModelSampling) IsFlow() bool { return m.prediction == Const }

// Shift returns mu of a Flux time line, alpha of a flow time line, and 0 for a discrete one.
func (m *ModelSampling) Shift() float64 { return m.shift }

// Multiplier returns the factor between t in 0..1 and the network's timestep (1 where there is none).
func (m *ModelSampling) Multiplier() float64 { return m.multiplier }

// SigmaMin returns the smallest sigma of the table.
func (m *ModelSampling) SigmaMin() float32 { return m.sigmas[0] }

// SigmaMax returns the largest sigma of the table.
func (m *ModelSampling) SigmaMax() float32 { return m.sigmas[len(m.sigmas)-1] }

// Timestep returns the network's timestep for sigma. For flow time lines this is not the inverse of Sigma, because
// sigma already includes the shift. For discrete models it is the index of the nearest sigma in log space.
func (m *ModelSampling) Timestep(sigma float32) float32 {
	switch m.line {
	case lineFlux, lineFlow:
		return mul(sigma, float32(m.multiplier))
	case lineLog:
		return mul(0.25, log32(sigma))
	case lineArc:
		return mul(float32(math.Atan(float64(sigma)))/math.Pi, 2)
	case lineRatio:
		return sigma / (sigma + 1)
	}
	ls := log32(sigma)
	best, at := float32(math.Inf(1)), 0
	for i, v := range m.logSigmas {
		if d := float32(math.Abs(float64(ls - v))); d < best {
			best, at = d, i
		}
	}
	if m.skip > 0 {
		at = at*m.skip + m.skip - 1
	}
	return float32(at)
}

func (m *ModelSampling) Sigma(timestep float32) float32 {
	switch m.line {
	case lineFlux:
		return fluxSigma(m.shift, timestep)
	case lineFlow:
		t := timestep / float32(m.multiplier)
		if m.shift == 1 {
			return t
		}
		return mul(float32(m.shift), t) / (1 + mul(float32(m.shift-1), t))
	case lineLog:
		return exp32(timestep / 0.25)
	case lineArc:
		return float32(math.Tan(float64(mul(timestep, math.Pi) / 2)))
	case lineRatio:
		if top := m.SigmaMax(); timestep >= top/(top+1) {
			return top
		}
		return timestep / (1 - timestep)
	}
	if m.skip > 0 {
		timestep = (timestep - float32(m.skip-1)) / float32(m.skip)
	}
	t := min(max(timestep, 0), float32(len(m.sigmas)-1))
	low := float32(math.Floor(float64(t)))
	high := float32(math.Ceil(float64(t)))
	w := t - low
	return exp32(mul(1-w, m.logSigmas[int(low)]) + mul(w, m.logSigmas[int(high)]))
}

// PercentToSigma returns the sigma reached after the given fraction of the timesteps (0 = start, 1 = end), in float64,
// as conditioning ranges use it. At 0 a flow model gives 1, others 999999999.9; at 1 all give 0.
func (m *ModelSampling) PercentToSigma(percent float64) float64 {
	if percent <= 0 {
		if m.line == lineFlux || m.line == lineFlow {
			return 1
		}
		return 999999999.9
	}
	if percent >= 1 {
		return 0
	}
	t := 1 - percent
	switch m.line {
	case lineFlux:
		e := math.Exp(m.shift)
		return e / (e + (1/t - 1))
	case lineFlow:
		if m.shift == 1 {
			return t
		}
		return m.shift * t / (1 + (m.shift-1)*t)
	case lineLog, lineArc, lineRatio:
		low := math.Log(float64(m.SigmaMin()))
		return math.Exp((math.Log(float64(m.SigmaMax()))-low)*t + low)
	}
	return float64(m.Sigma(float32(t * 999)))
}

// SamplingPercentToSigma implements the node of that name: PercentToSigma, or with actual the real table ends at 0 and
// 1.
func (m *ModelSampling) SamplingPercentToSigma(percent float64, actual bool) float64 {
	if actual && percent == 0 {
		return float64(m.SigmaMax())
	}
	if actual && percent == 1 {
		return float64(m.SigmaMin())
	}
	return m.PercentToSigma(percent)
}

// MaxDenoise reports whether a run that starts at sigma starts from pure noise: whether sigma is the table maximum
// within a relative 1e-5, or above it. All but flow models then scale the noise by sqrt(1+sigma^2).
func (m *ModelSampling) MaxDenoise(sigma float32) bool {
	top, s := float64(m.SigmaMax()), float64(sigma)
	return s > top || math.Abs(s-top) <= 1e-5*math.Max(math.Abs(s), math.Abs(top))
}

// NoiseScaling returns the noisy latent at sigma in a new slice: sigma*noise + (1-sigma)*latent for flow models,
// else noise*sigma + latent, or noise*sqrt(1+sigma^2) + latent with maxDenoise, which CosmosFlow ignores. noise and
// latent have equal length.
func (m *ModelSampling) NoiseScaling(sigma float32, noise, latent []float32, maxDenoise bool) []float32 {
	switch {
	case m.IsFlow():
		return combine(sigma, noise, 1-sigma, latent)
	case maxDenoise && m.prediction != CosmosFlow:
		return advance(latent, noise, sqrt32(1+sq(sigma)))
	}
	return advance(latent, noise, sigma)
}

// InverseNoiseScaling undoes, in place, the weight of the latent at the last sigma of a run: x/(1-sigma) for flow
// models.
func (m *ModelSampling) InverseNoiseScaling(sigma float32, x []float32) {
	if !m.IsFlow() {
		return
	}
	w := 1 - sigma
	for k := range x {
		x[k] /= w
	}
}

// deviation is that of the data as the network sees it (sigma_data of Karras et al. 2022).
func (m *ModelSampling) deviation() float32 {
	if m.prediction == EDM {
		return 0.5
	}
	return 1
}

// Input sets dst to the network's input for x at sigma: x itself for flow models, x*(1-t) with t = sigma/(sigma+1) for
// CosmosFlow, else x/sqrt(sigma^2+d^2), d being 0.5 for EDM and 1 for others. dst may be x.
func (m *ModelSampling) Input(dst, x []float32, sigma float32) {
	if m.IsFlow() {
		copy(dst, x)
		return
	}
	if m.prediction == CosmosFlow {
		keep := 1 - sigma/(sigma+1)
		for k := range dst {
			dst[k] = x[k] * keep
		}
		return
	}
	w := sqrt32(sq(sigma) + sq(m.deviation()))
	for k := range dst {
		dst[k] = x[k] / w
	}
}

// Denoised sets dst to x0, given the network's output for x at sigma: x - output*sigma for Const and Eps, x/(sigma^2+1)
// - output*sigma/sqrt(sigma^2+1) for V, x*d^2/(sigma^2+d^2) + output*sigma*d/sqrt(sigma^2+d^2) with d = 0.5 for EDM,
// the output for X0, for LCM a mean of x and that of Eps, and x*(1-t) - output*t with t = sigma/(sigma+1) for
// CosmosFlow. dst may be x or output.
func (m *ModelSampling) Denoised(dst, output, x []float32, sigma float32) {
	switch m.prediction {
	case X0:
		copy(dst, output)
		return
	case LCM:
		t := m.Timestep(sigma) * 10
		skip, out := 0.25/(sq(t)+0.25), t/sqrt32(sq(t)+0.25)
		for k := range dst {
			dst[k] = mul(out, x[k]-mul(output[k], sigma)) + mul(skip, x[k])
		}
		return
	case Const, Eps:
		for k := range dst {
			dst[k] = x[k] - mul(output[k], sigma)
		}
		return
	case CosmosFlow:
		t := sigma / (sigma + 1)
		for k := range dst {
			dst[k] = mul(x[k], 1-t) - mul(output[k], t)
		}
		return
	}
	d := m.deviation()
	v := sq(sigma) + sq(d)
	w, sign := sqrt32(v), float32(-1)
	if m.prediction == EDM {
		sign = 1
	}
	for k := range dst {
		dst[k] = mul(x[k], sq(d))/v + sign*(mul(mul(output[k], sigma), d)/w)
	}
}

// halfLogSNR returns lambda = log(alpha/sigma): -logit(sigma) for flow models, else -log(sigma).
func (m *ModelSampling) halfLogSNR(sigma float32) float32 {
	if m.IsFlow() {
		return -log32(sigma / (1 - sigma))
	}
	return -log32(sigma)
}

// sigmaFromLambda is the inverse of halfLogSNR.
func (m *ModelSampling) sigmaFromLambda(lambda float32) float32 {
	if m.IsFlow() {
		return 1 / (1 + exp32(lambda))
	}
	return exp32(-lambda)
}
