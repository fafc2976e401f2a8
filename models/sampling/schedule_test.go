package sampling

import (
	"cmp"
	"encoding/json"
	"iter"
	"math"
	"strconv"
	"strings"
	"testing"

	"patchbay/tests/golden"
)

// scheduleBound returns the allowed distance in units of the last place (golden README, section 2). The curves of nodes
// use exp and pow in the same way.
func scheduleBound(name string) int64 {
	switch name {
	case "simple", "beta", "ddim_uniform", "linear_quadratic", "sigmas", "log_sigmas":
		return 1
	case "normal", "sgm_uniform", "BasicScheduler", "SDTurboScheduler", "Flux2Scheduler", "exponential",
		"ExponentialScheduler", "PolyexponentialScheduler", "LaplaceScheduler", "VPScheduler", "karras", "KarrasScheduler",
		"kl_optimal":
		return 2
	}
	return 0
}

func floats32(t *testing.T, raw json.RawMessage) []float32 {
	t.Helper()
	var v []float32
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return v
}

func number64(t *testing.T, text string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func whole(t *testing.T, text string) int {
	t.Helper()
	v, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// sigmaCases returns the cases of all files of schedules.
func sigmaCases(t *testing.T) iter.Seq2[string, json.RawMessage] {
	t.Helper()
	return func(yield func(string, json.RawMessage) bool) {
		for _, file := range []string{
			"sigmas.json", "modern/sigmas.json", "modern33/sigmas.json", "qwen21/sigmas.json", "sdxl/sigmas.json",
			"sdxl/edm_sigmas.json",
		} {
			var cases map[string]json.RawMessage
			if err := golden.JSON(file, &cases); err != nil {
				t.Fatal(err)
			}
			for name, raw := range cases {
				var node struct{ Sigmas json.RawMessage } // of nodes in the later files
				if strings.HasPrefix(name, "node/") && json.Unmarshal(raw, &node) == nil {
					raw = node.Sigmas
				}
				if !yield(name, raw) {
					return
				}
			}
		}
	}
}

// splitCase splits the name of a case into the model, with its patch if it has one, and the rest.
func splitCase(name string) (model string, rest []string) {
	part := strings.Split(name, "/")
	if strings.HasPrefix(part[1], "aura") || strings.HasPrefix(part[1], "ModelSampling") {
		return part[0] + "/" + part[1], part[2:]
	}
	return part[0], part[1:]
}

func TestSigmaTables(t *testing.T) {
	for _, file := range []string{"sigma_tables.safetensors", "modern/sigma_tables.safetensors"} {
		read, names := goldenTensors(t, file)
		for _, name := range names {
			model, rest := splitCase(name)
			m := goldenModel(t, model)
			got := m.sigmas
			if rest[0] == "log_sigmas" {
				got = m.logSigmas
			}
			if d := worstUlps(t, name, got, read(name)); d > 1 {
				t.Errorf("%s: differs by %d ulp, bound 1", name, d)
			}
		}
	}
}

func TestModelSamplingGoldens(t *testing.T) {
	for name, raw := range sigmaCases(t) {
		model, ok := strings.CutSuffix(name, "/conversions")
		if !ok {
			continue
		}
		var c struct {
			Prediction, Family   string
			Shift, Multiplier    *float64
			N                    int
			Sigma, Timestep      []float32
			SigmaToTimestep      []float32 `json:"sigma_to_timestep"`
			TimestepToSigma      []float32 `json:"timestep_to_sigma"`
			Percent              []float64
			PercentToSigma       []float64 `json:"percent_to_sigma"`
			PercentToSigmaDouble []float64 `json:"percent_to_sigma_f64"`
			Table                []float32
		}
		if err := json.Unmarshal(raw, &c); err != nil {
			t.Fatal(err)
		}
		m := goldenModel(t, model)
		if bases, _, _ := m.Classes(); c.Table != nil && bases[0] != c.Family {
			t.Errorf("%s: %s, want %s", model, bases[0], c.Family)
		}
		if c.Table != nil {
			if d := worstUlps(t, model+" table", m.sigmas, c.Table); d > 1 {
				t.Errorf("%s: the table differs by %d ulp, bound 1", model, d)
			}
		}
		brief := map[string]string{"eps": "EPS", "v": "V_PREDICTION", "zsnr": "V_PREDICTION", "lcm": "LCM"}[model]
		if m.Prediction().String() != cmp.Or(brief, c.Prediction) || len(m.sigmas) != c.N {
			t.Errorf("%s: got %v with %d sigmas, want %s with %d", model, m.Prediction(), len(m.sigmas), c.Prediction, c.N)
		}
		if c.Shift != nil && !(math.Abs(m.Shift()-*c.Shift) <= 1e-15) {
			t.Errorf("%s: shift %v, want %v", model, m.Shift(), *c.Shift)
		}
		if c.Multiplier != nil && m.Multiplier() != *c.Multiplier {
			t.Errorf("%s: multiplier %v, want %v", model, m.Multiplier(), *c.Multiplier)
		}
		var times, sigmas []float32
		for _, s := range c.Sigma {
			times = append(times, m.Timestep(s))
		}
		if c.Timestep == nil && c.TimestepToSigma != nil { // the later files have one list for both
			c.Timestep = c.Sigma
		}
		for _, s := range c.Timestep {
			sigmas = append(sigmas, m.Sigma(s))
		}
		if d := worstUlps(t, model+" timesteps", times, c.SigmaToTimestep); d > 1 {
			t.Errorf("%s: timesteps %v, want %v (%d ulp)", model, times, c.SigmaToTimestep, d)
		}
		if d := worstUlps(t, model+" sigmas", sigmas, c.TimestepToSigma); d > 8 {
			t.Errorf("%s: sigmas %v, want %v (%d ulp)", model, sigmas, c.TimestepToSigma, d)
		}
		if len(c.PercentToSigmaDouble) == 0 && model != "krea2" && brief == "" {
			t.Errorf("%s: no percentages in the golden file", model)
		}
		for i, want := range c.PercentToSigmaDouble {
			bound := 1e-15 + math.Abs(want)*1e-14
			if m.line == lineDiscrete {
				bound = math.Abs(want) * 5e-7
			}
			if got := m.PercentToSigma(c.Percent[i]); !(math.Abs(got-want) <= bound) {
				t.Errorf("%s: sigma at %v: got %v, want %v", model, c.Percent[i], got, want)
			}
		}
	}
}

func TestScheduleGoldens(t *testing.T) {
	worst, count := map[string]int64{}, map[string]int{}
	check := func(name, kind string, got, want []float32) {
		t.Helper()
		d := worstUlps(t, name, got, want)
		if d > scheduleBound(kind) {
			t.Errorf("%s: differs by %d ulp, bound %d\n got %v\nwant %v", name, d, scheduleBound(kind), got, want)
		}
		worst[kind] = max(worst[kind], d)
		count[kind]++
	}
	for name, raw := range sigmaCases(t) {
		model, part := splitCase(name)
		switch {
		case model == "node" || part[0] == "conversions":
			continue
		case part[0] == "discard":
			m := goldenModel(t, model)
			got, err := KSamplerSigmas(m, part[1], part[2], whole(t, part[3]), number64(t, part[4]))
			if err != nil {
				t.Fatal(err)
			}
			check(name, part[2], got, floats32(t, raw))
		case len(part) == 4: // scheduler/steps/denoise/value
			got, err := KSamplerSigmas(goldenModel(t, model), "euler", part[0], whole(t, part[1]), number64(t, part[3]))
			if err != nil {
				t.Fatal(err)
			}
			check(name, part[0], got, floats32(t, raw))
		default:
			var byDenoise map[string]json.RawMessage
			if err := json.Unmarshal(raw, &byDenoise); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			m := goldenModel(t, model)
			for denoise, list := range byDenoise {
				got, err := KSamplerSigmas(m, "euler", part[0], whole(t, part[1]), number64(t, denoise))
				if strings.Contains(string(list), "nan") {
					if err == nil {
						t.Errorf("%s denoise %s: got %v, want an error where the original gives NaN", name, denoise, got)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				check(name+" "+denoise, part[0], got, floats32(t, list))
			}
		}
	}
	for kind, d := range worst {
		t.Logf("%-16s %4d lists, largest distance %d ulp (bound %d)", kind, count[kind], d, scheduleBound(kind))
	}
}

func TestScheduleNames(t *testing.T) {
	var lists struct {
		Samplers   []string `json:"sampler_names"`
		Schedulers []string `json:"scheduler_names"`
		Discard    []string `json:"discard_penultimate"`
	}
	if err := golden.JSON("samplers.json", &lists); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(ScheduleNames(), " "), strings.Join(lists.Schedulers, " "); got != want {
		t.Errorf("schedulers:\n got %s\nwant %s", got, want)
	}
	if got, want := strings.Join(SamplerNames(), " "), strings.Join(lists.Samplers, " "); got != want {
		t.Errorf("samplers:\n got %s\nwant %s", got, want)
	}
	var discard []string
	for _, e := range Samplers() {
		if e.DiscardPenultimate {
			discard = append(discard, e.Name)
		}
	}
	if got, want := strings.Join(discard, " "), strings.Join(lists.Discard, " "); got != want {
		t.Errorf("discard the penultimate sigma: got %s, want %s", got, want)
	}
}

func TestScheduleErrors(t *testing.T) {
	m := goldenModel(t, "sd3")
	for what, err := range map[string]error{
		"unknown scheduler":  second(MakeSigmas(m, "cosine", 4)),
		"unknown sampler":    second(KSamplerSigmas(m, "rk45", "simple", 4, 1)),
		"no steps":           second(KSamplerSigmas(m, "euler", "simple", 0, 1)),
		"kl_optimal, 1 step": second(MakeSigmas(m, "kl_optimal", 1)),
		"tiny denoise":       second(KSamplerSigmas(m, "euler", "simple", 10000, 1e-9)),
		"beta of alpha 0":    second(BetaSigmas(m, 4, 0, 1)),
	} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	for want, err := range map[string]error{
		"sigma_min -1: want 0 or more":          second(Karras(4, -1, 1, 7)),
		"sigma_max -1: want 0 or more":          second(Laplace(4, 0, -1, 0, 1)),
		"sigma_min 0: want a number above 0":    second(Exponential(4, 0, 1)),
		"sigma_max +Inf: want a number above 0": second(Polyexponential(4, 1, math.Inf(1), 1)),
		"sigma_max NaN: want 0 or more":         second(Karras(4, 1, math.NaN(), 7)),
	} {
		if err == nil || err.Error() != want {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
	if _, err := MakeSigmas(m, "cosine", 4); err == nil || !strings.Contains(err.Error(), "sgm_uniform") {
		t.Errorf("error %v does not name the schedulers there are", err)
	}
}

func second(_ []float32, err error) error { return err }

func TestBetaQuantileInvertsTheDistribution(t *testing.T) {
	for _, ab := range [][2]float64{{0.6, 0.6}, {0.8, 0.4}, {1.2, 1}, {5, 2}, {50, 3}} {
		for u := 0.01; u < 1; u += 0.07 {
			x := betaQuantile(u, ab[0], ab[1])
			if d := math.Abs(betaCDF(x, ab[0], ab[1]) - u); !(d <= 1e-12) {
				t.Errorf("Beta%v: CDF(quantile(%v)) is off by %g", ab, u, d)
			}
		}
	}
	// Beta(2, 1) has CDF x^2, Beta(1, 3) has 1-(1-x)^3.
	if got, want := betaQuantile(0.3, 2, 1), math.Sqrt(0.3); !(math.Abs(got-want) <= 1e-14) {
		t.Errorf("Beta(2,1) quantile of 0.3: got %v, want %v", got, want)
	}
	if got, want := betaQuantile(0.3, 1, 3), 1-math.Cbrt(0.7); !(math.Abs(got-want) <= 1e-14) {
		t.Errorf("Beta(1,3) quantile of 0.3: got %v, want %v", got, want)
	}
}
