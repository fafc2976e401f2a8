package sampling

import (
	"fmt"
	"math"
)

// Sampler is one update rule written as the paper's loop. It leaves its result in Run.X.
type Sampler func(r *Run) error

// Run is a sampler's view of one sampling run over the elements it owns: the whole latent, or one part of it. A sampler
// uses nothing else. Samplers of several parts of a latent, each with its own Run, give the same bits as one sampler
// over all of it, provided that Noise and Norm agree across the parts.
type Run struct {
	// Sigmas are the noise levels in order. The sampler owns the slice and may change it (uni_pc replaces a final 0 by
	// 0.001, and the inverse noise scaling after the run must see that).
	Sigmas []float32
	// X holds the elements this sampler owns: the noisy latent at the start, and at the end the result, usually in
	// another slice.
	X []float32
	// Options are the sampler's options; the zero value means the defaults.
	Options Options
	// Model defines what sigma means to the model.
	Model *ModelSampling
	// Denoise evaluates the model and returns x0 after guidance, and the negative's own x0 if the sampler's Method has
	// NeedsUncond (else it may be nil). It must not keep or modify x. The sampler owns the results.
	Denoise func(x []float32, sigma float32) (x0, uncond []float32, err error)
	// Noise returns the draw-th noise of this run, standard normal, for the sampler's own elements. s0 and s1 are the
	// interval, for Brownian motions. Parts that use the same draw index get parts of the same noise. The sampler does
	// not modify it. It may be nil if nothing is drawn.
	Noise func(draw int, s0, s1 float32) ([]float32, error)
	// Norm turns a partial sum over the sampler's own elements into the sum over the whole latent (a barrier over
	// the parts). Nil means the identity.
	Norm func(partial float64) (float64, error)
	// Step is called once per step with the state and x0, like ComfyUI's callback: for progress, preview and
	// cancellation. It must copy what it keeps. An error ends the run. It may be nil.
	Step func(i int, x, x0 []float32) error
	// Elements is the number of elements of the whole latent; 0 means len(X).
	Elements int

	guided bool // the sampler reads uncond
	draws  int
}

// Sample checks r and runs the method's sampler. With fewer than two sigmas it leaves X as it is.
func (e Method) Sample(r *Run) error {
	if len(r.X) == 0 || r.Model == nil || r.Denoise == nil {
		return fmt.Errorf("sampler %s: run without x, model sampling or denoiser", e.Name)
	}
	if len(r.Sigmas) < 2 {
		return nil
	}
	if err := checkSigmas(r.Sigmas); err != nil {
		return fmt.Errorf("sampler %s: %w", e.Name, err)
	}
	if r.Options.owner == "" {
		r.Options = e.Defaults()
	}
	if r.Options.owner != e.Name {
		return fmt.Errorf("sampler %s: options are those of %s", e.Name, r.Options.owner)
	}
	if r.Elements == 0 {
		r.Elements = len(r.X)
	}
	if r.Norm == nil {
		r.Norm = func(partial float64) (float64, error) { return partial, nil }
	}
	r.guided, r.draws = e.NeedsUncond, 0
	if err := e.Func(r); err != nil {
		return fmt.Errorf("sampler %s: %w", e.Name, err)
	}
	return nil
}

// checkSigmas rejects lists that can only give a picture of NaN.
func checkSigmas(sigmas []float32) error {
	for i, s := range sigmas {
		switch {
		case s != s || math.IsInf(float64(s), 0) || s < 0:
			return fmt.Errorf("sigma %d is %v: want a finite number of 0 or more", i, s)
		case s == 0 && i < len(sigmas)-1:
			return fmt.Errorf("sigma %d is 0: 0 may only come last", i)
		}
	}
	return nil
}

// EvaluationSigmas returns the sigma of every evaluation of a run in order, so that whatever depends on sigma alone can
// be computed before the loop. It finds them by a dry run over one element with a model that costs nothing. It returns
// nil for a Synchronous sampler, which decides at run time.
func (e Method) EvaluationSigmas(m *ModelSampling, sigmas []float32, o Options) ([]float32, error) {
	if e.Synchronous {
		return nil, nil
	}
	var seen []float32
	err := e.Sample(&Run{
		Sigmas: append([]float32(nil), sigmas...), X: make([]float32, 1), Options: o, Model: m,
		Denoise: func(_ []float32, sigma float32) (x0, uncond []float32, err error) {
			seen = append(seen, sigma)
			return make([]float32, 1), make([]float32, 1), nil
		},
		Noise: func(int, float32, float32) ([]float32, error) { return make([]float32, 1), nil },
	})
	return seen, err
}

// evaluate calls estimates on X and then Step.
func (r *Run) evaluate(i int, sigma float32) (x0, uncond []float32, err error) {
	x0, uncond, err = r.estimates(r.X, sigma)
	if err != nil {
		return nil, nil, err
	}
	return x0, uncond, r.report(i, r.X, x0)
}

// step is one step of a sampler from s to next, given the estimates at s (uncond is nil unless the sampler's Method has
// NeedsUncond). It returns X at next.
type step func(i int, s, next float32, x0, uncond []float32) ([]float32, error)

// each runs a step for every interval of sigmas.
func (r *Run) each(sigmas []float32, f step) error {
	return r.eachFrom(sigmas, func(i int) (float32, error) { return sigmas[i], nil }, f)
}

// eachFrom is each with steps that begin at the sigma start(i), to which start may have raised X.
func (r *Run) eachFrom(sigmas []float32, start func(i int) (float32, error), f step) error {
	for i := range len(sigmas) - 1 {
		s, err := start(i)
		if err != nil {
			return err
		}
		x0, uncond, err := r.evaluate(i, s)
		if err != nil {
			return err
		}
		if r.X, err = f(i, s, sigmas[i+1], x0, uncond); err != nil {
			return err
		}
	}
	return nil
}

// untilZero is each for samplers that return x0 for a step to 0.
func (r *Run) untilZero(sigmas []float32, f step) error {
	return r.each(sigmas, func(i int, s, next float32, x0, uncond []float32) ([]float32, error) {
		if next == 0 {
			return x0, nil
		}
		return f(i, s, next, x0, uncond)
	})
}

// finiteSigmas returns Sigmas, for flow models with a first value of 1 or more replaced by the sigma at 0.01 % of the
// run, where the log-SNR is finite.
func (r *Run) finiteSigmas() []float32 {
	if !r.Model.IsFlow() || r.Sigmas[0] < 1 {
		return r.Sigmas
	}
	out := append([]float32(nil), r.Sigmas...)
	out[0] = float32(r.Model.PercentToSigma(1e-4))
	return out
}

// estimates is Denoise, with uncond dropped if the sampler does not read it.
func (r *Run) estimates(x []float32, sigma float32) (x0, uncond []float32, err error) {
	x0, uncond, err = r.Denoise(x, sigma)
	if !r.guided {
		uncond = nil
	}
	return x0, uncond, err
}

// denoise is Denoise without uncond.
func (r *Run) denoise(x []float32, sigma float32) ([]float32, error) {
	x0, _, err := r.Denoise(x, sigma)
	return x0, err
}

func (r *Run) report(i int, x, x0 []float32) error {
	if r.Step == nil {
		return nil
	}
	return r.Step(i, x, x0)
}

// noise returns the next draw.
func (r *Run) noise(s0, s1 float32) ([]float32, error) {
	if r.Noise == nil {
		return nil, fmt.Errorf("noise between sigmas %v and %v: the run has none", s0, s1)
	}
	r.draws++
	return r.Noise(r.draws-1, s0, s1)
}

// addNoise adds the next draw to x in place, multiplied in the order ((noise*a)*b)*c.
func (r *Run) addNoise(x []float32, s0, s1, a, b, c float32) error {
	noise, err := r.noise(s0, s1)
	if err != nil {
		return err
	}
	for k := range x {
		x[k] += mul(mul(mul(noise[k], a), b), c)
	}
	return nil
}

// f32 returns a float option rounded to float32, as torch uses it with a tensor.
func (r *Run) f32(name string) float32 { return float32(r.Options.Float(name)) }

// eta returns the strength of the noise, 0 for samplers without that option.
func (r *Run) eta() float64 {
	eta, _ := r.Options.values["eta"].(float64)
	return eta
}

// noisy reports whether the options ask for noise.
func (r *Run) noisy() bool { return r.eta() > 0 && r.f32("s_noise") > 0 }
