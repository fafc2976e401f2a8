package sampling

import (
	"cmp"
	"fmt"
	"math"
)

// checkCurve returns an error for arguments that would give infinities or NaN instead of sigmas; log requires sigmas
// above 0.
func checkCurve(steps int, lo, hi float64, log bool) error {
	if steps < 1 || steps > 100*MaxSteps {
		return fmt.Errorf("steps %d: want 1 to %d", steps, 100*MaxSteps)
	}
	allowed := "0 or more"
	if log {
		allowed = "a number above 0"
	}
	for i, v := range []float64{lo, hi} {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 || log && v == 0 {
			return fmt.Errorf("sigma_%s %v: want %s", [...]string{"min", "max"}[i], v, allowed)
		}
	}
	return nil
}

// Karras returns (hi^(1/rho) + i/(n-1)*(lo^(1/rho) - hi^(1/rho)))^rho for i < n = steps, then 0 (Karras et al. 2022,
// eq. 5). rho must be positive.
func Karras(steps int, lo, hi, rho float64) ([]float32, error) {
	if err := checkCurve(steps, lo, hi, false); err != nil {
		return nil, err
	}
	if !(rho > 0) {
		return nil, fmt.Errorf("rho %v: want a number above 0", rho)
	}
	low, high := math.Pow(lo, 1/rho), math.Pow(hi, 1/rho)
	return append(curve(steps, 0, 1, func(w float32) float32 {
		return pow32(float32(high)+mul(w, float32(low-high)), float32(rho))
	}), 0), nil
}

// Exponential returns sigmas evenly spaced in log sigma from hi to lo, then 0.
func Exponential(steps int, lo, hi float64) ([]float32, error) {
	if err := checkCurve(steps, lo, hi, true); err != nil {
		return nil, err
	}
	return append(curve(steps, float32(math.Log(hi)), float32(math.Log(lo)), exp32), 0), nil
}

// Polyexponential returns exp(log(lo) + ramp^rho*(log(hi)-log(lo))) for a ramp from 1 to 0, then 0.
func Polyexponential(steps int, lo, hi, rho float64) ([]float32, error) {
	if err := checkCurve(steps, lo, hi, true); err != nil {
		return nil, err
	}
	if !(rho >= 0) {
		return nil, fmt.Errorf("rho %v: want 0 or more", rho)
	}
	span, low := float32(math.Log(hi)-math.Log(lo)), float32(math.Log(lo))
	return append(curve(steps, 1, 0, func(w float32) float32 {
		return exp32(mul(pow32(w, float32(rho)), span) + low)
	}), 0), nil
}

// Laplace returns the quantiles of a Laplace distribution of log sigma with location mu and scale beta, clamped to
// lo..hi (Hang et al. 2024, "Improved Noise Schedule for Diffusion Training"). There are steps values and no 0 at
// the end.
func Laplace(steps int, lo, hi, mu, beta float64) ([]float32, error) {
	if err := checkCurve(steps, lo, hi, false); err != nil {
		return nil, err
	}
	if math.IsNaN(mu) || math.IsNaN(beta) {
		return nil, fmt.Errorf("mu %v, beta %v: want numbers", mu, beta)
	}
	return curve(steps, 0, 1, func(w float32) float32 {
		half := 0.5 - w
		sign := float32(cmp.Compare(half, 0))
		inside := 1 - mul(2, float32(math.Abs(float64(half)))) + float32(1e-5)
		l := float32(mu) - mul(mul(float32(beta), sign), log32(inside))
		return min(max(exp32(l), float32(lo)), float32(hi))
	}), nil
}

// VP returns sqrt(exp(betaD*t^2/2 + betaMin*t) - 1) for t from 1 to epsS, then 0 (Song et al. 2021, the
// variance-preserving SDE in Karras' notation).
func VP(steps int, betaD, betaMin, epsS float64) ([]float32, error) {
	if steps < 1 || steps > MaxSteps {
		return nil, fmt.Errorf("steps %d: want 1 to %d", steps, MaxSteps)
	}
	if !(betaD >= 0) || !(betaMin >= 0) || !(epsS >= 0) {
		return nil, fmt.Errorf("beta_d %v, beta_min %v, eps_s %v: want 0 or more", betaD, betaMin, epsS)
	}
	return append(curve(steps, 1, float32(epsS), func(t float32) float32 {
		return sqrt32(expm132(mul(float32(betaD), sq(t))/2 + mul(float32(betaMin), t)))
	}), 0), nil
}

// Flux2 returns the sigmas of the node Flux2Scheduler for a picture of width x height pixels: the Flux time line from 1
// to 0 with a mu that depends on the number of 16 x 16 tokens and on the steps.
func Flux2(steps, width, height int) ([]float32, error) {
	if steps < 1 || steps > 4096 {
		return nil, fmt.Errorf("steps %d: want 1 to 4096", steps)
	}
	if width < 16 || height < 16 {
		return nil, fmt.Errorf("picture %dx%d: want 16 pixels or more on each side", width, height)
	}
	tokens := math.RoundToEven(float64(width) * float64(height) / 256)
	at200 := 0.00016927*tokens + 0.45666666
	mu := at200
	if tokens <= 4300 {
		at10 := 8.73809524e-05*tokens + 1.89833333
		slope := (at200 - at10) / 190
		mu = slope*float64(steps) + (at200 - 200*slope)
	}
	return curve(steps+1, 1, 0, func(t float32) float32 { return fluxSigma(mu, t) }), nil
}

// LTXVShift returns the shift of the nodes LTXVScheduler and ModelSamplingLTXV for so many tokens of a video: base at
// 1024 of them, top at 4096.
func LTXVShift(top, base float64, tokens int) float64 {
	slope := (top - base) / (4096 - 1024)
	return float64(tokens)*slope + (base - slope*1024)
}

// LTXV returns the sigmas of the node LTXVScheduler: the Flux time line from 1 to 0, stretched so that the last sigma
// before 0 is terminal; nil: not stretched.
func LTXV(steps int, shift float64, terminal *float64) ([]float32, error) {
	if steps < 1 || steps > 10000 {
		return nil, fmt.Errorf("steps %d: want 1 to 10000", steps)
	}
	if math.IsNaN(shift) || math.Abs(shift) > 80 {
		return nil, fmt.Errorf("max_shift: the shift for this latent is %v: want a number between -80 and 80", shift)
	}
	out := linspace32(1, 0, steps+1)
	for i, t := range out[:steps] {
		out[i] = fluxSigma(shift, t)
	}
	if terminal == nil {
		return out, nil
	}
	last := 1 - out[steps-1]
	if last == 0 {
		return nil, fmt.Errorf("stretch: the last of %d sigmas before 0 is 1, which cannot be stretched to %v", steps,
			*terminal)
	}
	factor := last / float32(1-*terminal)
	for i, s := range out[:steps] {
		out[i] = 1 - (1-s)/factor
	}
	return out, nil
}

// SDTurbo returns the sigmas of the node SDTurboScheduler: up to steps of the ten timesteps 999, 899 .. 99, skipping
// the first 10 - int(10*denoise), then 0.
func SDTurbo(m *ModelSampling, steps int, denoise float64) ([]float32, error) {
	if steps < 1 || steps > 10 {
		return nil, fmt.Errorf("steps %d: want 1 to 10", steps)
	}
	if !(denoise >= 0 && denoise <= 1) {
		return nil, fmt.Errorf("denoise %v: want 0 to 1", denoise)
	}
	var out []float32
	for i := 10 - int(10*denoise); i < 10 && len(out) < steps; i++ {
		out = append(out, m.Sigma(float32((10-i)*100-1)))
	}
	return append(out, 0), nil
}
