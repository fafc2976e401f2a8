package sampling

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"patchbay/tests/golden"
)

// nodeSampler returns the method and options of a SamplerXXX node with the arguments of a golden key.
func nodeSampler(t *testing.T, key string) (Method, map[string]any) {
	t.Helper()
	part := strings.Split(key, "/")
	opts := map[string]any{}
	for _, word := range part[1:] {
		for _, name := range []string{"eta", "s_noise", "max_stage", "order", "rtol"} {
			if value, ok := strings.CutPrefix(word, name); ok {
				opts[name] = number64(t, value)
			}
		}
	}
	name := map[string]string{
		"SamplerEulerAncestral": "euler_ancestral", "SamplerEulerAncestralCFGPP": "euler_ancestral_cfg_pp",
		"SamplerDPMPP_3M_SDE": "dpmpp_3m_sde", "SamplerDPMPP_2M_SDE": "dpmpp_2m_sde", "SamplerDPMPP_SDE": "dpmpp_sde",
		"SamplerER_SDE": "er_sde", "SamplerSEEDS2": "seeds_2", "SamplerLMS": "lms",
		"SamplerDPMAdaptative": "dpm_adaptive", "SamplerSASolver": "sa_solver",
	}[part[0]]
	switch part[0] {
	case "SamplerEulerCFGpp":
		return AlternativeEulerCFGPP(), opts
	case "SamplerER_SDE", "SamplerDPMPP_2M_SDE", "SamplerSEEDS2":
		opts["solver_type"] = part[1]
	case "SamplerSASolver":
		start, end, _ := strings.Cut(strings.TrimPrefix(part[2], "sde"), "-")
		opts["sde_start_percent"], opts["sde_end_percent"] = number64(t, start), number64(t, end)
		opts["predictor_order"] = whole(t, part[3][1:2])
		opts["corrector_order"] = whole(t, part[3][3:])
		opts["use_pece"] = part[4] == "pece1"
		opts["simple_order_2"] = part[5] == "simple1"
	}
	if part[0] == "SamplerSEEDS2" || part[0] == "SamplerDPMPP_SDE" {
		for _, word := range part[2:] {
			if strings.HasPrefix(word, "r0") || strings.HasPrefix(word, "r1") {
				opts["r"] = number64(t, word[1:])
			}
		}
	}
	e, err := FindSampler(name)
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return e, opts
}

func TestSamplerNodeGoldens(t *testing.T) {
	read, _ := goldenTensors(t, "samplers.safetensors")
	flow, eps := worstTable{}, worstTable{}
	var kinds []string
	upscales := 0
	for name, c := range sampleCases(t, "node/") {
		if strings.HasPrefix(c.Node, "SamplerLCMUpscale/") {
			upscales++ // it changes the size of the latent, which a Run cannot do
			continue
		}
		kind, _, _ := strings.Cut(c.Node, "/")
		e, opts := nodeSampler(t, c.Node)
		got, rec := c.play(t, e, opts, nil)
		isFlow := goldenModel(t, c.ModelSampling).IsFlow()
		bound := sampleBound(e.Name, isFlow, false)
		for part, v := range map[string][]float32{"#output": got, "#denoised_output": rec.x0[len(rec.x0)-1]} {
			d, at := relative(v, read(name+part))
			if d > bound {
				t.Errorf("%s%s: differs by %.3g at %d, bound %.3g", name, part, d, at, bound)
			}
			if isFlow {
				flow.add(kind, d)
			} else {
				eps.add(kind, d)
			}
		}
		if rec.evals != c.Evals {
			t.Errorf("%s: %d evaluations, want %d", name, rec.evals, c.Evals)
		}
	}
	if upscales != 4 {
		t.Errorf("%d cases change the latent's size, want 4", upscales)
	}
	for kind := range flow {
		kinds = append(kinds, kind)
	}
	t.Log("flow models:")
	flow.log(t, kinds)
	t.Log("EPS models:")
	eps.log(t, kinds)
}

func TestGuiderGoldens(t *testing.T) {
	read, _ := goldenTensors(t, "samplers.safetensors")
	type guider struct {
		Cond1, Cond2, Negative float32
		Seed                   uint64
		Evals                  int
		Sigmas                 []float32
	}
	var raw map[string]json.RawMessage
	if err := golden.JSON("samplers.json", &raw); err != nil {
		t.Fatal(err)
	}
	count := 0
	for name, text := range raw {
		part := strings.Split(name, "/")
		if part[0] != "guider" || part[1] != "dual" {
			continue
		}
		count++
		var c guider
		if err := json.Unmarshal(text, &c); err != nil {
			t.Fatal(err)
		}
		cfg1, cfg2 := float32(number64(t, part[3])), float32(number64(t, part[4]))
		m := goldenModel(t, "sd3")
		noise, _, err := PrepareNoise(c.Seed, 1, 64, nil)
		if err != nil {
			t.Fatal(err)
		}
		evals := 0
		var last []float32
		r := &Run{
			Sigmas: c.Sigmas, Model: m, X: m.NoiseScaling(c.Sigmas[0], noise, make([]float32, 64), true),
			Denoise: func(x []float32, sigma float32) ([]float32, []float32, error) {
				evals++
				a, b, n := estimate(x, sigma, c.Cond1), estimate(x, sigma, c.Cond2), estimate(x, sigma, c.Negative)
				for k := range a {
					if part[2] == "nested" {
						inner := b[k] + mul(a[k]-b[k], cfg1)
						a[k] = n[k] + mul(cfg2, inner-n[k])
					} else {
						outer := n[k] + mul(b[k]-n[k], cfg2)
						if cfg2 == 1 {
							outer = b[k]
						}
						a[k] = outer + mul(a[k]-b[k], cfg1)
					}
				}
				return a, nil, nil
			},
			Step: func(_ int, _, x0 []float32) error { last = x0; return nil },
		}
		e, err := FindSampler("euler")
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Sample(r); err != nil {
			t.Fatal(err)
		}
		if d, at := relative(r.X, read(name+"#output")); d > 2e-5 {
			t.Errorf("%s: differs by %.3g at %d", name, d, at)
		}
		if d, at := relative(last, read(name+"#denoised_output")); d > 2e-5 {
			t.Errorf("%s: denoised output differs by %.3g at %d", name, d, at)
		}
		if evals != c.Evals {
			t.Errorf("%s: %d evaluations, want %d", name, evals, c.Evals)
		}
	}
	if count != 4 {
		t.Errorf("%d dual guiders, want 4", count)
	}
}

func TestBasicGuiderWithoutNoise(t *testing.T) {
	read, _ := goldenTensors(t, "samplers.safetensors")
	var raw map[string]rawCase
	if err := golden.JSON("samplers.json", &raw); err != nil {
		t.Fatal(err)
	}
	c := raw["guider/basic"].sampleCase
	m := goldenModel(t, c.ModelSampling)
	latent := golden.Input(*c.Latent, 64)
	d := &denoiser{positive: 0.3, basic: true}
	r := &Run{
		Sigmas: c.Sigmas, Model: m, Denoise: d.denoise,
		X: m.NoiseScaling(c.Sigmas[0], make([]float32, 64), latent, true),
	}
	e, err := FindSampler(c.Sampler)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Sample(r); err != nil {
		t.Fatal(err)
	}
	if d, at := relative(r.X, read("guider/basic#output")); d > 2e-5 {
		t.Errorf("differs by %.3g at %d", d, at)
	}
}

// scheduleNode returns the one or two lists that our node returns for the parts of a golden key.
func scheduleNode(t *testing.T, p []string, base []float32) (lists [][]float32, err error) {
	t.Helper()
	one := func(list []float32, err error) ([][]float32, error) { return [][]float32{list}, err }
	switch p[1] {
	case "KarrasScheduler":
		return one(Karras(whole(t, p[2]), number64(t, p[4]), number64(t, p[3]), number64(t, p[5][3:])))
	case "ExponentialScheduler":
		return one(Exponential(whole(t, p[2]), number64(t, p[4]), number64(t, p[3])))
	case "PolyexponentialScheduler":
		return one(Polyexponential(whole(t, p[2]), number64(t, p[4]), number64(t, p[3]), number64(t, p[5][3:])))
	case "LaplaceScheduler":
		mu, beta := number64(t, p[5][2:]), number64(t, p[6][4:])
		return one(Laplace(whole(t, p[2]), number64(t, p[4]), number64(t, p[3]), mu, beta))
	case "VPScheduler":
		return one(VP(whole(t, p[2]), number64(t, p[3]), number64(t, p[4]), number64(t, p[5])))
	case "Flux2Scheduler":
		return one(Flux2(whole(t, p[2]), whole(t, p[3]), whole(t, p[4])))
	case "BasicScheduler":
		return one(BasicSchedulerSigmas(goldenModel(t, p[2]), p[3], whole(t, p[4]), number64(t, p[5])))
	case "BetaSamplingScheduler":
		return one(BetaSigmas(goldenModel(t, p[2]), whole(t, p[3]), number64(t, p[4]), number64(t, p[5])))
	case "SDTurboScheduler":
		return one(SDTurbo(goldenModel(t, p[2]), whole(t, p[3]), number64(t, p[4])))
	case "sigma_tools":
		return one(KSamplerSigmas(goldenModel(t, "sd3"), "euler", "simple", 8, 1))
	case "FlipSigmas":
		return one(FlipSigmas(base), nil)
	case "SetFirstSigma":
		return one(SetFirstSigma(base, number64(t, p[2])))
	case "ExtendIntermediateSigmas":
		return one(ExtendSigmas(base, whole(t, p[2]), number64(t, p[3]), number64(t, p[4]), p[5]))
	case "ManualSigmas":
		return one(ManualSigmas(p[2]))
	case "SplitSigmas":
		high, low := SplitSigmas(base, whole(t, p[2]))
		return [][]float32{high, low}, nil
	case "SplitSigmasDenoise":
		high, low := SplitSigmasDenoise(base, number64(t, p[2]))
		return [][]float32{high, low}, nil
	}
	t.Fatalf("unknown node %q", p[1])
	return nil, nil
}

func TestScheduleNodeGoldens(t *testing.T) {
	var base []float32
	for key, raw := range sigmaCases(t) {
		if key == "node/sigma_tools/base_sd3_simple_8" {
			base = floats32(t, raw)
		}
	}
	worst := map[string]int64{}
	count := 0
	for key, raw := range sigmaCases(t) {
		p := strings.Split(key, "/")
		if p[0] != "node" {
			continue
		}
		count++
		if p[1] == "SamplingPercentToSigma" {
			got := goldenModel(t, p[2]).SamplingPercentToSigma(number64(t, p[3]), p[4] == "True")
			if want := number64(t, string(raw)); !(math.Abs(got-want) <= 1e-15) {
				t.Errorf("%s: got %v, want %v", key, got, want)
			}
			continue
		}
		got, err := scheduleNode(t, p, base)
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		var want [][]float32
		if len(got) == 1 {
			want = [][]float32{floats32(t, raw)}
		} else if err := json.Unmarshal(raw, &want); err != nil {
			t.Fatal(err)
		}
		for i := range want {
			d := worstUlps(t, key, got[i], want[i])
			if d > scheduleBound(p[1]) {
				t.Errorf("%s: differs by %d ulp, bound %d\n got %v\nwant %v", key, d, scheduleBound(p[1]), got[i], want[i])
			}
			worst[p[1]] = max(worst[p[1]], d)
		}
	}
	if count < 49 {
		t.Errorf("%d node cases, want 49 or more", count)
	}
	for kind, d := range worst {
		t.Logf("%-26s largest distance %d ulp (bound %d)", kind, d, scheduleBound(kind))
	}
}
