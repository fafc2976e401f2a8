package sampling

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/tests/golden"
)

func mustFind(t *testing.T, name string) Method {
	t.Helper()
	e, err := FindSampler(name)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// countingRun returns a run of 20 elements on a flow model that counts its evaluations.
func countingRun(t *testing.T, e Method, sigmas []float32, evals *int) *Run {
	t.Helper()
	g := NewGenerator(1)
	draws, err := NewDraws(e.Noise, 1, 20, sigmas, g)
	if err != nil {
		t.Fatal(err)
	}
	d := &denoiser{positive: 0.3, negative: -0.2, cfg: 2, uncond: e.NeedsUncond}
	return &Run{
		Sigmas: append([]float32(nil), sigmas...), X: NewGenerator(9).Randn(20),
		Model: goldenModel(t, "sd3"), Noise: draws.Draw,
		Denoise: func(x []float32, s float32) ([]float32, []float32, error) { *evals++; return d.denoise(x, s) },
	}
}

func TestEvaluationSigmasAreThoseOfTheRun(t *testing.T) {
	for _, e := range Samplers() {
		for _, sigmas := range [][]float32{{1, 0.9, 0.7, 0.4, 0}, {0.8, 0.5, 0.3, 0.1}, {0.9, 0}, {0.5}, nil} {
			var seen []float32
			r := countingRun(t, e, sigmas, new(int))
			inner := r.Denoise
			r.Denoise = func(x []float32, s float32) ([]float32, []float32, error) {
				seen = append(seen, s)
				return inner(x, s)
			}
			if err := e.Sample(r); err != nil {
				t.Errorf("%s %v: %v", e.Name, sigmas, err)
				continue
			}
			got, err := e.EvaluationSigmas(r.Model, sigmas, Options{})
			if err != nil {
				t.Errorf("%s %v: %v", e.Name, sigmas, err)
				continue
			}
			if e.Synchronous {
				if got != nil {
					t.Errorf("%s: got %v, want nil from a sampler that decides as it runs", e.Name, got)
				}
				continue
			}
			if d, at := absolute(got, seen); d != 0 {
				t.Errorf("%s %v: sigma %d differs, got %v, the run had %v", e.Name, sigmas, at, got, seen)
			}
		}
	}
}

func TestSigmasThatGiveNoPictureAreRefused(t *testing.T) {
	nan := float32(math.NaN())
	for _, sigmas := range [][]float32{{1, 0, 0.5}, {nan, 0}, {1, -0.5, 0}, {float32(math.Inf(1)), 0}} {
		r := countingRun(t, mustFind(t, "euler"), []float32{1, 0}, new(int))
		r.Sigmas = sigmas
		if err := mustFind(t, "euler").Sample(r); err == nil || !strings.Contains(err.Error(), "sigma ") {
			t.Errorf("%v: error %v does not name the sigma", sigmas, err)
		}
	}
}

func TestErrorsEndARun(t *testing.T) {
	sigmas := []float32{1, 0.9, 0.7, 0.4, 0}
	stop := errors.New("stop")
	for _, e := range Samplers() {
		evals := 0
		r := countingRun(t, e, sigmas, &evals)
		r.Step = func(i int, _, _ []float32) error {
			if i == 1 {
				return stop
			}
			return nil
		}
		if err := e.Sample(r); !errors.Is(err, stop) {
			t.Errorf("%s: got %v from a cancelled step, want it to be %v", e.Name, err, stop)
		}
		r = countingRun(t, e, sigmas, &evals)
		inner, calls := r.Denoise, 0
		r.Denoise = func(x []float32, s float32) ([]float32, []float32, error) {
			if calls++; calls == 2 {
				return nil, nil, stop
			}
			return inner(x, s)
		}
		if err := e.Sample(r); !errors.Is(err, stop) {
			t.Errorf("%s: got %v from a failed evaluation, want it to be %v", e.Name, err, stop)
		}
	}
}

func TestSamplersKeepTheirArguments(t *testing.T) {
	sigmas := []float32{1, 0.9, 0.7, 0.4, 0}
	for _, e := range Samplers() {
		evals := 0
		r := countingRun(t, e, sigmas, &evals)
		inner := r.Denoise
		var given, copies [][]float32
		r.Denoise = func(x []float32, s float32) ([]float32, []float32, error) {
			x0, uncond, err := inner(x, s)
			for _, v := range [][]float32{x0, uncond} {
				given, copies = append(given, v), append(copies, append([]float32(nil), v...))
			}
			return x0, uncond, err
		}
		drawn := r.Noise
		r.Noise = func(i int, s0, s1 float32) ([]float32, error) {
			v, err := drawn(i, s0, s1)
			given, copies = append(given, v), append(copies, append([]float32(nil), v...))
			return v, err
		}
		if err := e.Sample(r); err != nil {
			t.Fatal(err)
		}
		for i := range given {
			if d, at := absolute(given[i], copies[i]); d != 0 {
				t.Errorf("%s: changed an estimate or a draw at %d", e.Name, at)
			}
		}
	}
}

func TestAdaptiveNoiseIsDrawnOnceAnAcceptedStep(t *testing.T) {
	e := mustFind(t, "dpm_adaptive")
	sigmas := []float32{0.999, 0.5, 0.05, 0}
	var results [][]float32
	for _, eta := range []float64{0, 0.5} {
		r := countingRun(t, e, sigmas, new(int))
		var err error
		if r.Options, err = e.NewOptions(map[string]any{"eta": eta, "rtol": 0.01}); err != nil {
			t.Fatal(err)
		}
		inner, drawn, steps := r.Noise, 0, 0
		r.Noise = func(i int, s0, s1 float32) ([]float32, error) {
			if i != drawn || !(s1 < s0) {
				t.Errorf("draw %d from %v to %v, want number %d of a falling interval", i, s0, s1, drawn)
			}
			drawn++
			return inner(i, s0, s1)
		}
		r.Step = func(int, []float32, []float32) error { steps++; return nil }
		if err := e.Sample(r); err != nil {
			t.Fatal(err)
		}
		if eta == 0 && drawn != 0 || eta > 0 && (drawn == 0 || drawn > steps) {
			t.Errorf("eta %v: %d draws in %d steps", eta, drawn, steps)
		}
		results = append(results, r.X)
	}
	if d, _ := relative(results[1], results[0]); !(d > 1e-3) || math.IsInf(d, 0) {
		t.Errorf("eta 0.5 changes the result by %g only, or to no number", d)
	}
}

func TestUniPCWritesItsLastSigma(t *testing.T) {
	evals := 0
	r := countingRun(t, mustFind(t, "uni_pc"), []float32{1, 0.5, 0.2, 0}, &evals)
	if err := mustFind(t, "uni_pc").Sample(r); err != nil {
		t.Fatal(err)
	}
	if r.Sigmas[3] != 0.001 {
		t.Errorf("last sigma %v, want 0.001", r.Sigmas[3])
	}
}

func TestOptions(t *testing.T) {
	e := mustFind(t, "dpm_adaptive")
	o, err := e.NewOptions(map[string]any{"order": int64(2), "rtol": float32(0.5)})
	if err != nil {
		t.Fatal(err)
	}
	if o.Int("order") != 2 || o.Float("rtol") != 0.5 || o.Float("atol") != 0.0078 {
		t.Errorf("order %d, rtol %v, atol %v: want 2, 0.5, 0.0078", o.Int("order"), o.Float("rtol"), o.Float("atol"))
	}
	if _, err := mustFind(t, "deis").NewOptions(map[string]any{"deis_mode": "tab", "max_order": int64(2)}); err != nil {
		t.Errorf("deis_mode tab, which is ComfyUI's default: %v", err)
	}
	for what, c := range map[string]struct {
		sampler string
		given   map[string]any
		says    string
	}{
		"raises there": {"deis", map[string]any{"deis_mode": "rhoab"}, "tab"},
		"unknown":      {"dpm_adaptive", map[string]any{"tolerance": 1.0}, "accept_safety"},
		"out of range": {"dpm_adaptive", map[string]any{"order": 4}, "2 to 3"},
		"not whole":    {"dpm_adaptive", map[string]any{"order": 2.5}, "whole"},
		"NaN":          {"euler", map[string]any{"s_churn": math.NaN()}, "s_churn"},
		"wrong type":   {"euler", map[string]any{"s_churn": "much"}, "number"},
		"wrong word":   {"dpmpp_2m_sde", map[string]any{"solver_type": "rk4"}, "midpoint"},
		"not a switch": {"sa_solver", map[string]any{"use_pece": 1}, "true or false"},
		"none there":   {"dpmpp_2m", map[string]any{"eta": 1.0}, "dpmpp_2m"},
	} {
		if _, err := mustFind(t, c.sampler).NewOptions(c.given); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %v does not say %q", what, err, c.says)
		}
	}
	r := countingRun(t, mustFind(t, "euler"), []float32{1, 0}, new(int))
	r.Options = o
	if err := mustFind(t, "euler").Sample(r); err == nil {
		t.Error("euler took the options of dpm_adaptive")
	}
	if _, err := FindSampler("rk45"); err == nil || !strings.Contains(err.Error(), "uni_pc_bh2") {
		t.Errorf("error %v does not name the samplers there are", err)
	}
}

func TestModelErrors(t *testing.T) {
	for what, err := range map[string]error{
		"flux shift NaN":  modelError(NewFlux(math.NaN())),
		"flow shift 0":    modelError(NewFlow(0, 1000)),
		"flow multiplier": modelError(NewFlow(3, 0)),
		"const discrete":  modelError(NewDiscrete(Const, Linear, 1e-4, 0.02, 1000)),
		"betas":           modelError(NewDiscrete(Eps, "cosine", 1e-4, 0.02, 1000)),
		"falling betas":   modelError(NewDiscrete(Eps, Linear, 0.02, 1e-4, 1000)),
	} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

func modelError(_ *ModelSampling, err error) error { return err }

func TestInputAndDenoisedInvertTheNoising(t *testing.T) {
	latent, noise := NewGenerator(1).Randn(50), NewGenerator(2).Randn(50)
	for _, name := range []string{"sd3", "pixart_alpha", "hunyuandit12"} {
		m := goldenModel(t, name)
		sigma := float32(0.7)
		x := m.NoiseScaling(sigma, noise, latent, false)
		perfect := make([]float32, len(x)) // what an ideal network predicts
		alpha := 1 / sqrt32(1+sq(sigma))
		for k := range x {
			switch m.Prediction() {
			case Const:
				perfect[k] = noise[k] - latent[k]
			case Eps:
				perfect[k] = noise[k]
			case V:
				perfect[k] = alpha*noise[k] - alpha*sigma*latent[k]
			}
		}
		got := make([]float32, len(x))
		m.Denoised(got, perfect, x, sigma)
		if d, at := absolute(got, latent); d > 1e-6 {
			t.Errorf("%s: x0 differs from the latent by %g at %d", name, d, at)
		}
		in := make([]float32, len(x))
		m.Input(in, x, sigma)
		want := float64(x[3])
		if !m.IsFlow() {
			want /= math.Sqrt(1.49)
		}
		if !(math.Abs(float64(in[3])-want) <= 1e-6) {
			t.Errorf("%s: network input %v, want %v", name, in[3], want)
		}
	}
}

// TestEqualSigmas compares runs with equal sigmas after each other with those of ComfyUI 0.33.0: where that gives
// numbers the results are equal, and where it gives none there is an error, or they are no numbers.
func TestEqualSigmas(t *testing.T) {
	var all struct {
		Cases []struct {
			Sampler string
			Options map[string]any
			Sigmas  []float32
			X       []float32
			Error   string
		}
	}
	if err := golden.JSON("modern33/equal_sigmas.json", &all); err != nil {
		t.Fatal(err)
	}
	for _, c := range all.Cases {
		e := mustFind(t, c.Sampler)
		options, err := e.NewOptions(c.Options)
		if err != nil {
			t.Fatal(err)
		}
		x := golden.Input("equal", 64)
		draws, err := NewDraws(e.Noise, 5, len(x), c.Sigmas, nil)
		if err != nil {
			t.Fatal(err)
		}
		d := &denoiser{positive: 0.3, negative: -0.2, cfg: 1, uncond: e.NeedsUncond}
		r := &Run{
			Sigmas: slices.Clone(c.Sigmas), X: x, Model: goldenModel(t, "sd3"), Options: options, Noise: draws.Draw,
			Denoise: d.denoise,
		}
		err = e.Sample(r)
		name := fmt.Sprintf("%s %v %v", c.Sampler, c.Options, c.Sigmas)
		finite := err == nil && !slices.ContainsFunc(r.X, func(v float32) bool { return v-v != 0 })
		switch {
		case strings.HasPrefix(c.Error, "_LinAlgError"): // rounding decides whether ComfyUI notices a singular matrix
		case c.X == nil && finite:
			t.Errorf("%s: got %v, ComfyUI %s", name, r.X[:4], c.Error)
		case c.X == nil:
			var refused *fault.Error
			if err != nil && (!errors.As(err, &refused) || refused.Field != "sigmas") {
				t.Errorf("%s: %v, want an error of sigmas", name, err)
			}
		case err != nil:
			t.Errorf("%s: %v, ComfyUI has numbers", name, err)
		default:
			if rel, _ := relative(r.X[:len(c.X)], c.X); !(rel <= 2e-5) {
				t.Errorf("%s: relative error %.3g, bound 2e-5", name, rel)
			}
		}
	}
}
