package classes

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"

	"patchbay/array"
	"patchbay/models/sampling"
	"patchbay/node/graph"
	"patchbay/node/value"
	"patchbay/tests/golden"
)

// sigmaModels returns the models that keys of sigmas.json name.
func sigmaModels(t *testing.T) map[string]*value.Model {
	out := map[string]*value.Model{}
	add := func(name string, s *sampling.ModelSampling, err error) {
		check(t, err)
		out[name] = &value.Model{Name: name, Sampling: s}
	}
	s, err := sampling.NewFlow(3, 1000)
	add("sd3", s, err)
	s, err = sampling.NewFlux(1.15)
	add("flux_dev", s, err)
	s, err = sampling.NewDiscrete(sampling.Eps, sampling.Linear, 0.0001, 0.02, 1000)
	add("pixart_alpha", s, err)
	s, err = sampling.NewDiscrete(sampling.V, sampling.ScaledLinear, 0.00085, 0.018, 1000)
	add("hunyuandit12", s, err)
	return out
}

// TestSigmaNodesMatchGolden compares every recorded call of a scheduler or sigma node with Runner.Exec. The bounds in
// units of the last place are those of the golden README, section 2.
func TestSigmaNodesMatchGolden(t *testing.T) {
	var raw map[string]json.RawMessage
	check(t, golden.JSON("sigmas.json", &raw))
	run, err := graph.NewRunner(graph.Config{Catalogue: All()})
	check(t, err)
	models, ran := sigmaModels(t), map[string]int{}
	lists := func(text json.RawMessage) (out [][]float32) {
		var one []float32
		if json.Unmarshal(text, &one) == nil {
			return [][]float32{one}
		}
		check(t, json.Unmarshal(text, &out))
		return out
	}
	base := lists(raw["node/sigma_tools/base_sd3_simple_8"])[0]
	names := map[string][]string{
		"KarrasScheduler":          {"steps", "sigma_max", "sigma_min", "rho"},
		"ExponentialScheduler":     {"steps", "sigma_max", "sigma_min"},
		"PolyexponentialScheduler": {"steps", "sigma_max", "sigma_min", "rho"},
		"LaplaceScheduler":         {"steps", "sigma_max", "sigma_min", "mu", "beta"},
		"VPScheduler":              {"steps", "beta_d", "beta_min", "eps_s"}, "BasicScheduler": {
			"model", "scheduler",
			"steps", "denoise",
		},
		"BetaSamplingScheduler": {"model", "steps", "alpha", "beta"}, "SDTurboScheduler": {"model", "steps", "denoise"},
		"SplitSigmas": {"step"}, "SplitSigmasDenoise": {"denoise"}, "FlipSigmas": {}, "SetFirstSigma": {"sigma"},
		"ManualSigmas":             {"sigmas"},
		"Flux2Scheduler":           {"steps", "width", "height"},
		"ExtendIntermediateSigmas": {"steps", "start_at_sigma", "end_at_sigma", "spacing"},
		"SamplingPercentToSigma":   {"model", "sampling_percent", "return_actual_sigma"},
	}
	bounds := map[string]int64{
		"KarrasScheduler": 32, "ExponentialScheduler": 16, "PolyexponentialScheduler": 32,
		"LaplaceScheduler": 16, "VPScheduler": 16, "BasicScheduler": 8,
	}
	for key, text := range raw {
		part := strings.Split(key, "/")
		if part[0] != "node" || names[part[1]] == nil {
			continue
		}
		class, in := part[1], map[string]any{}
		ran[class]++
		for i, name := range names[class] {
			word := strings.TrimLeft(part[2+i], "abcdefghijklmnopqrstuvwxyz") // "rho5", "mu0.1"
			switch {
			case name == "model":
				in[name] = run.Hold(models[part[2+i]], 0)
			case name == "scheduler" || name == "sigmas" || name == "spacing" || name == "return_actual_sigma":
				in[name] = part[2+i]
				if name == "return_actual_sigma" {
					in[name] = part[2+i] == "True"
				}
			default:
				v, err := strconv.ParseFloat(word, 64)
				check(t, err)
				in[name] = v
			}
		}
		if k := All().Class(class).Input("sigmas"); k != nil && k.Type == "SIGMAS" {
			in["sigmas"] = array.New(base, len(base))
		}
		out, err := run.Exec(t.Context(), graph.ExecRequest{Class: class, Inputs: in}, nil)
		if err != nil {
			t.Errorf("%s: %v", key, err)
			continue
		}
		if class == "SamplingPercentToSigma" {
			want, err := strconv.ParseFloat(string(text), 64)
			check(t, err)
			if got := out.Outputs[0].(float64); !(math.Abs(got-want) <= 1e-15) {
				t.Errorf("%s: got %v, want %v", key, got, want)
			}
			continue
		}
		for i, want := range lists(text) {
			got := values(t, out.Outputs[i])
			if len(got) != len(want) {
				t.Errorf("%s: output %d: got %v, want %v", key, i, got, want)
				continue
			}
			for k := range want {
				if d := ulps(got[k], want[k]); d > max(bounds[class], 1) {
					t.Errorf("%s: output %d: value %d is %v, want %v: %d ulp, bound %d", key, i, k, got[k], want[k], d,
						max(bounds[class], 1))
				}
			}
		}
	}
	if len(ran) != len(names) {
		t.Errorf("ran %v, want all of %d classes", ran, len(names))
	}
}

// ulps returns the distance of two values of equal sign in units of the last place.
func ulps(a, b float32) int64 {
	d := int64(math.Float32bits(a)) - int64(math.Float32bits(b))
	return max(d, -d)
}
