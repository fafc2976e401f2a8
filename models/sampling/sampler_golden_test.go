package sampling

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"patchbay/tests/golden"
)

// denoiser is the analytic model of the golden README, section 5, with guidance. It counts evaluations.
type denoiser struct {
	positive, negative float32
	cfg                float64
	uncond             bool // evaluate the negative at cfg 1 too
	basic              bool // never evaluate the negative
	evals              int
}

// estimate computes a*x + c*(x/(1+|x|)) with a = 1/(1+s*s), in float32 and in this order.
func estimate(x []float32, sigma, c float32) []float32 {
	a := 1 / (1 + mul(sigma, sigma))
	out := make([]float32, len(x))
	for k, v := range x {
		out[k] = mul(a, v) + mul(c, v/(1+float32(math.Abs(float64(v)))))
	}
	return out
}

// denoise evaluates the model with ComfyUI's guidance, which skips the negative at cfg 1.
func (d *denoiser) denoise(x []float32, sigma float32) (x0, uncond []float32, err error) {
	d.evals++
	cond := estimate(x, sigma, d.positive)
	if d.basic || d.cfg == 1 && !d.uncond {
		return cond, nil, nil
	}
	uncond = estimate(x, sigma, d.negative)
	x0 = make([]float32, len(x))
	for k := range x {
		x0[k] = uncond[k] + mul(cond[k]-uncond[k], float32(d.cfg))
	}
	if d.uncond {
		return x0, uncond, nil
	}
	return x0, nil, nil
}

// sampleCase is one entry of samplers.json.
type sampleCase struct {
	ModelSampling string `json:"model_sampling"`
	Sampler       string
	Scheduler     string
	Steps         int
	CFG           float64
	Seed          uint64
	Denoise       float64
	Latent        *string
	Shape         []int
	StartStep     *int      `json:"start_step"`
	LastStep      *int      `json:"last_step"`
	ForceFull     bool      `json:"force_full_denoise"`
	AddNoise      bool      `json:"add_noise"`
	Sigmas        []float32 `json:"sigmas"`
	Evals         int
	Callbacks     int
	Queries       [][2]float32 `json:"noise_queries"`
	Options       map[string]any
	Node          string
	Mask          *string
}

// recording is what a run passed to its callback, and the intervals that it requested noise for.
type recording struct {
	x, x0   [][]float32
	queries [][2]float32
	evals   int
}

// cut returns the sigmas that the run visits.
func cut(c sampleCase) []float32 {
	if c.StartStep != nil {
		return CutSteps(c.Sigmas, *c.StartStep, *c.LastStep, c.ForceFull)
	}
	return append([]float32(nil), c.Sigmas...)
}

// play does what ComfyUI does around a sampler: noise, start, loop, end. recorded, if not nil, replaces the draws.
func (c sampleCase) play(t *testing.T, e Method, opts map[string]any, recorded []float32) ([]float32, *recording) {
	t.Helper()
	m := goldenModel(t, c.ModelSampling)
	item := 1
	for _, n := range c.Shape[1:] {
		item *= n
	}
	n := c.Shape[0] * item
	noise, stream, err := PrepareNoise(c.Seed, c.Shape[0], item, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !c.AddNoise {
		clear(noise)
	}
	latent := make([]float32, n)
	if c.Latent != nil {
		latent = golden.Input(*c.Latent, n)
	}
	sigmas := cut(c)
	rec := &recording{}
	if len(sigmas) == 0 {
		return latent, rec
	}
	draws, err := NewDraws(e.Noise, c.Seed, n, sigmas, stream)
	if err != nil {
		t.Fatal(err)
	}
	options, err := e.NewOptions(opts)
	if err != nil {
		t.Fatal(err)
	}
	d := &denoiser{positive: 0.3, negative: -0.2, cfg: c.CFG, uncond: e.NeedsUncond}
	r := &Run{
		Sigmas: sigmas, Model: m, Options: options, Denoise: d.denoise,
		X: m.NoiseScaling(sigmas[0], noise, latent, m.MaxDenoise(sigmas[0])),
		Noise: func(i int, s0, s1 float32) ([]float32, error) {
			for len(rec.queries) <= i {
				rec.queries = append(rec.queries, [2]float32{s0, s1})
			}
			if recorded != nil {
				return recorded[i*n : (i+1)*n], nil
			}
			return draws.Draw(i, s0, s1)
		},
		Step: func(i int, x, x0 []float32) error {
			if i != len(rec.x) {
				return fmt.Errorf("step %d reported as number %d", i, len(rec.x))
			}
			rec.x = append(rec.x, append([]float32(nil), x...))
			rec.x0 = append(rec.x0, append([]float32(nil), x0...))
			return nil
		},
	}
	if c.Mask != nil {
		if e.MaskNoise {
			noise = MaskNoise(c.Seed, n)
		}
		r.Denoise = masked(m, d.denoise, noise, latent)
	}
	if err := e.Sample(r); err != nil {
		t.Fatal(err)
	}
	m.InverseNoiseScaling(r.Sigmas[len(r.Sigmas)-1], r.X)
	rec.evals = d.evals
	return r.X, rec
}

// evaluation is the type of Run.Denoise.
type evaluation func(x []float32, sigma float32) (x0, uncond []float32, err error)

// masked keeps the latent outside the golden mask: noisy before an evaluation, clean after it.
func masked(m *ModelSampling, inner evaluation, noise, latent []float32) evaluation {
	mask := make([]float32, len(latent))
	for k := range mask {
		row, column := k/4%4, k%4
		if (row == 1 || row == 2) && column >= 2 {
			mask[k] = 1
		} else if row == 0 && column == 0 {
			mask[k] = 0.4
		}
	}
	return func(x []float32, sigma float32) ([]float32, []float32, error) {
		noisy := m.NoiseScaling(sigma, noise, latent, false)
		in := make([]float32, len(x))
		for k := range x {
			in[k] = mul(x[k], mask[k]) + mul(noisy[k], 1-mask[k])
		}
		x0, uncond, err := inner(in, sigma)
		for k := range x0 {
			x0[k] = mul(x0[k], mask[k]) + mul(latent[k], 1-mask[k])
		}
		return x0, uncond, err
	}
}

// sampleBound is the tolerance of golden README section 2, relative to the largest reference value.
func sampleBound(sampler string, flow, recordedDraws bool) float64 {
	sde := strings.HasPrefix(sampler, "dpmpp_sde")
	switch {
	case sde && recordedDraws:
		return 5e-5
	case sde && flow:
		return 1e-4
	case sde:
		return 5e-3
	case strings.HasPrefix(sampler, "uni_pc") && flow:
		return 5e-5
	case strings.HasPrefix(sampler, "uni_pc"):
		return 5e-4
	case sampler == "dpm_adaptive" && !flow:
		return 2e-3
	case flow:
		return 2e-5
	}
	return 2e-4
}

// showsStart reports whether ComfyUI's callback for this sampler gets the start of the run as x in every step. Ours
// gets the current state.
func showsStart(sampler string) bool {
	return strings.HasPrefix(sampler, "ipndm") || sampler == "deis"
}

func joined(parts [][]float32) []float32 {
	var out []float32
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// sampleCases decodes the cases of samplers.json whose name starts with prefix.
func sampleCases(t *testing.T, prefixes ...string) map[string]sampleCase {
	t.Helper()
	var raw map[string]rawCase
	if err := golden.JSON("samplers.json", &raw); err != nil {
		t.Fatal(err)
	}
	out := map[string]sampleCase{}
	for name, c := range raw {
		for _, p := range prefixes {
			if strings.HasPrefix(name, p) {
				out[name] = c.sampleCase
			}
		}
	}
	if len(out) == 0 {
		t.Fatalf("no golden cases under %q", prefixes)
	}
	return out
}

// worstTable records the largest difference of every group.
type worstTable map[string]float64

func (w worstTable) add(group string, d float64) { w[group] = max(w[group], d) }

func (w worstTable) log(t *testing.T, names []string) {
	t.Helper()
	for _, name := range names {
		if d, ok := w[name]; ok {
			t.Logf("%-32s %.2g", name, d)
		}
	}
}

func TestKSamplerGoldens(t *testing.T) {
	read, _ := goldenTensors(t, "samplers.safetensors")
	flow, eps, drawn := worstTable{}, worstTable{}, worstTable{}
	for name, c := range sampleCases(t, "k/", "advanced/") {
		e, err := FindSampler(c.Sampler)
		if err != nil {
			t.Fatal(err)
		}
		isFlow := goldenModel(t, c.ModelSampling).IsFlow()
		want := read(name)
		got, rec := c.play(t, e, nil, nil)
		bound := sampleBound(c.Sampler, isFlow, false)
		d, at := relative(got, want)
		if d > bound {
			t.Errorf("%s: result differs by %.3g at %d, bound %.3g", name, d, at, bound)
		}
		if isFlow {
			flow.add(c.Sampler, d)
		} else {
			eps.add(c.Sampler, d)
		}
		visits, err := e.EvaluationSigmas(goldenModel(t, c.ModelSampling), cut(c), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if !e.Synchronous && len(visits) != c.Evals {
			t.Errorf("%s: %d evaluations foretold, want %d", name, len(visits), c.Evals)
		}
		if rec.evals != c.Evals || len(rec.x) != c.Callbacks {
			t.Errorf("%s: %d evaluations and %d steps, want %d and %d", name, rec.evals, len(rec.x), c.Evals, c.Callbacks)
		}
		checkTrace(t, name, c, rec, read, bound)
		if draws := read(name + "#noise"); draws != nil {
			got, _ := c.play(t, e, nil, draws)
			bound := sampleBound(c.Sampler, isFlow, true)
			d, at := relative(got, want)
			if d > bound {
				t.Errorf("%s: with the recorded draws the result differs by %.3g at %d, bound %.3g", name, d, at, bound)
			}
			drawn.add(c.Sampler, d)
		}
	}
	t.Log("largest relative differences, flow models:")
	flow.log(t, SamplerNames())
	t.Log("EPS and v models:")
	eps.log(t, SamplerNames())
	t.Log("with the recorded draws:")
	drawn.log(t, SamplerNames())
}

// checkTrace compares the states and estimates of every step and the intervals that noise was requested for.
func checkTrace(t *testing.T, name string, c sampleCase, rec *recording, read func(string) []float32, bound float64) {
	t.Helper()
	if want := read(name + "#x0"); want != nil {
		if d, at := relative(joined(rec.x0), want); d > bound {
			t.Errorf("%s: estimates differ by %.3g at %d, bound %.3g", name, d, at, bound)
		}
	}
	if want := read(name + "#x"); want != nil {
		got := joined(rec.x)
		if showsStart(c.Sampler) {
			n := len(rec.x[0])
			got = nil
			for range rec.x {
				got = append(got, rec.x[0][:n]...)
			}
		}
		if d, at := relative(got, want); d > bound {
			t.Errorf("%s: states differ by %.3g at %d, bound %.3g", name, d, at, bound)
		}
	}
	if len(rec.queries) > len(c.Queries) && c.Queries != nil {
		t.Errorf("%s: %d draws, want at most %d", name, len(rec.queries), len(c.Queries))
		return
	}
	// The Brownian tree at an intermediate sigma depends on the sigma's last bit: dpmpp_sde must match torch exactly.
	allowed := int64(1)
	if strings.HasPrefix(c.Sampler, "dpmpp_sde") {
		allowed = 0
	}
	for i, q := range rec.queries {
		if c.Queries == nil {
			break
		}
		for j := range q {
			if ulps(q[j], c.Queries[i][j]) > allowed {
				t.Errorf("%s: draw %d for %v, want %v", name, i, q, c.Queries[i])
			}
		}
	}
}

func TestOptionGoldens(t *testing.T) {
	read, _ := goldenTensors(t, "samplers.safetensors")
	worst := worstTable{}
	for name, c := range sampleCases(t, "option/") {
		e, err := FindSampler(c.Sampler)
		if err != nil {
			t.Fatal(err)
		}
		got, rec := c.play(t, e, c.Options, nil)
		bound := sampleBound(c.Sampler, goldenModel(t, c.ModelSampling).IsFlow(), false)
		for part, v := range map[string][]float32{"#output": got, "#denoised_output": rec.x0[len(rec.x0)-1]} {
			want := read(name + part)
			if want == nil {
				t.Fatalf("no golden tensor %s%s", name, part)
			}
			d, at := relative(v, want)
			if d > bound {
				t.Errorf("%s%s: differs by %.3g at %d, bound %.3g", name, part, d, at, bound)
			}
			worst.add(c.Sampler, d)
		}
		if rec.evals != c.Evals {
			t.Errorf("%s: %d evaluations, want %d", name, rec.evals, c.Evals)
		}
	}
	worst.log(t, SamplerNames())
}

func TestCustomGoldens(t *testing.T) {
	read, _ := goldenTensors(t, "samplers.safetensors")
	for name, c := range sampleCases(t, "custom/") {
		e, err := FindSampler(c.Sampler)
		if err != nil {
			t.Fatal(err)
		}
		got, rec := c.play(t, e, nil, nil)
		want := read(name + "#output")
		bound := sampleBound(c.Sampler, goldenModel(t, c.ModelSampling).IsFlow(), false)
		if d, at := relative(got, want); d > bound {
			t.Errorf("%s: differs by %.3g at %d, bound %.3g", name, d, at, bound)
		}
		if rec.evals != c.Evals {
			t.Errorf("%s: %d evaluations, want %d", name, rec.evals, c.Evals)
		}
		denoised := got // without steps the second output equals the first
		if len(rec.x0) > 0 {
			denoised = rec.x0[len(rec.x0)-1]
		}
		if d, at := relative(denoised, read(name+"#denoised_output")); d > bound {
			t.Errorf("%s: denoised output differs by %.3g at %d, bound %.3g", name, d, at, bound)
		}
	}
}
