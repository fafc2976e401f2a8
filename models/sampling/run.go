package sampling

import (
	"fmt"
	"math"
)

// Sampler is one update rule written as the paper's loop. It leaves its result in Run.X.
type Sampler func(r *Run) error

// Run is what a sampler sees of one sampling run over the elements it owns: the whole latent, or one part of it.
// A sampler touches nothing else. Samplers of several parts of one latent, each with its own Run, give the bits of
// one sampler over all of it, if Noise and Norm agree over the parts.
type Run struct {
	// Sigmas are the noise levels in order; the sampler's own copy, which it may change (uni_pc replaces a final 0
	// by 0.001, and the inverse noise scaling after the run must see that).
	Sigmas []float32
	// X are the elements this sampler owns: the noisy latent at the start; at the end the field holds the result,
	// usually in another slice.
	X []float32
	// Options are the sampler's options; the zero value means the defaults.
	Options Options
	// Model says what sigma means to the model.
	Model *ModelSampling
	// Denoise evaluates the model: x0 after guidance, and the negative's own x0 where the sampler's Method says
	// NeedsUncond (else it may be nil). It must not keep or change x; the results belong to the sampler.
	Denoise func(x []float32, sigma float32) (x0, uncond []float32, err error)
	// Noise returns the draw-th noise of this run for the sampler's own elements, standard normal; s0 and s1 are
	// the interval, for Brownian motions. The same draw index gives parts of the same noise to every part. The
	// sampler does not change it. It may be nil where nothing is drawn.
	Noise func(draw int, s0, s1 float32) ([]float32, error)
	// Norm turns a partial sum over the sampler's own elements into the sum over the whole latent (a barrier over
	// the parts). Nil means the identity.
	Norm func(partial float64) (float64, error)
	// Step is called once a step with the state and x0 as ComfyUI's callback sees them: progress, preview, cancel.
	// It must copy what it keeps. An error ends the run. It may be nil.
	Step func(i int, x, x0 []float32) error
	// Elements is the number of elements of the whole latent; 0 means len(X).
	Elements int

	guided bool // the sampler reads uncond
	draws  int
}

// Sample runs the entry's sampler over r after checking it. A list of fewer than two sigmas leaves X as it is.
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

// checkSigmas refuses lists that can only give a picture of NaN.
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

// EvaluationSigmas returns the sigma of every evaluation of a run in order, found by a run over one element with a
// model that costs nothing, so that whatever depends on sigma alone can be computed before the loop. Its length is
// the number of evaluations. A Synchronous sampler decides as it runs: nil.
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

// evaluate is estimates on X followed by Step.
func (r *Run) evaluate(i int, sigma float32) (x0, uncond []float32, err error) {
	x0, uncond, err = r.estimates(r.X, sigma)
	if err != nil {
		return nil, nil, err
	}
	return x0, uncond, r.report(i, r.X, x0)
}

// step is one step of a sampler: from s to next, with the estimates at s (uncond is nil unless the sampler's Method
// says NeedsUncond). It returns X at next.
type step func(i int, s, next float32, x0, uncond []float32) ([]float32, error)

// each makes a step for every interval of sigmas.
func (r *Run) each(sigmas []float32, f step) error {
	return r.eachFrom(sigmas, func(i int) (float32, error) { return sigmas[i], nil }, f)
}

// eachFrom is each whose steps begin at start(i), which may raise X to another sigma.
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

// untilZero is each for samplers whose step to 0 ends in x0.
func (r *Run) untilZero(sigmas []float32, f step) error {
	return r.each(sigmas, func(i int, s, next float32, x0, uncond []float32) ([]float32, error) {
		if next == 0 {
			return x0, nil
		}
		return f(i, s, next, x0, uncond)
	})
}

// finiteSigmas is Sigmas with a first value of 1 or more replaced by the sigma at 0.01 % of a flow model, where the
// log-SNR is finite.
func (r *Run) finiteSigmas() []float32 {
	if !r.Model.IsFlow() || r.Sigmas[0] < 1 {
		return r.Sigmas
	}
	out := append([]float32(nil), r.Sigmas...)
	out[0] = float32(r.Model.PercentToSigma(1e-4))
	return out
}

// estimates is Denoise, without the negative's x0 where the sampler does not read it.
func (r *Run) estimates(x []float32, sigma float32) (x0, uncond []float32, err error) {
	x0, uncond, err = r.Denoise(x, sigma)
	if !r.guided {
		uncond = nil
	}
	return x0, uncond, err
}

// denoise is Denoise without the negative's x0.
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

// addNoise adds ((noise*a)*b)*c of the next draw to x in place, in that order.
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

// f32 returns a number option as torch uses it beside a tensor.
func (r *Run) f32(name string) float32 { return float32(r.Options.Float(name)) }

// eta is the strength of the noise, 0 of samplers without that option.
func (r *Run) eta() float64 {
	eta, _ := r.Options.values["eta"].(float64)
	return eta
}

// noisy says whether the options ask for noise at all.
func (r *Run) noisy() bool { return r.eta() > 0 && r.f32("s_noise") > 0 }
