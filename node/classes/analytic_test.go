package classes

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/latent"
	"patchbay/models/sampling"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
	"patchbay/node/value"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
	"patchbay/tests/race"
)

// analytic is the denoiser of samplers.json as a diffusion model, so that those cases can run through nodes and
// request.Request: denoised = x/(1+s*s) + c*x/(1+|x|), where c is the only value of the text states. As a flow model
// it predicts (x - denoised)/s.
type analytic struct{ spec *dit.Spec }

func (m analytic) Spec() *dit.Spec { return m.spec }

func (m analytic) Prepare(_ dit.Env, entries []dit.Entry, grid dit.Grid) (*dit.Prepared, error) {
	return &dit.Prepared{N: len(entries), Lt: 1, Grid: grid, Entries: entries, CrossKV: make([]engine.Tensor, 1)}, nil
}

// Modulate stores the sigmas, which are timestep/1000.
func (m analytic) Modulate(env dit.Env, p *dit.Prepared, timesteps []float32) *dit.Modulation {
	head := env.Arena.Alloc(engine.F32, len(timesteps)/p.N, p.N, 1)
	if head.Buf.Host == nil { // the pass that only measures memory
		return &dit.Modulation{Image: make([]engine.Tensor, 1), Text: make([]engine.Tensor, 1), Head: head}
	}
	for i, t := range timesteps {
		head.F32()[i] = t / 1000
	}
	return &dit.Modulation{Image: make([]engine.Tensor, 1), Text: make([]engine.Tensor, 1), Head: head}
}

func (m analytic) Embed(env dit.Env, s *dit.State, x engine.Tensor) { env.Ops.Copy(s.ImageRows(), x) }

func (m analytic) Block(dit.Env, int, *dit.State, engine.Tensor) {}

func (m analytic) Head(env dit.Env, s *dit.State, out engine.Tensor) {
	env.Ops.Copy(out, s.ImageRows())
	if out.Buf.Host == nil {
		return
	}
	v, per := out.F32(), out.Len()/s.P.N
	for i, x := range v {
		sigma := s.M.Head.Index(0, s.Step).F32()[i/per]
		c := s.P.Entries[i/per].Context.Data[0]
		denoised := float32(x/(1+float32(sigma*sigma))) + float32(c*(x/(1+float32(math.Abs(float64(x))))))
		v[i] = (x - denoised) / sigma
	}
}

func (m analytic) PrepareBlock(dit.Env, *dit.Prepared, int) {}

func (m analytic) ModulateBlock(dit.Env, *dit.Modulation, int) {}

func (m analytic) Shards() *dit.Shards { return nil }

func (m analytic) Close() {}

// analyticModel returns a MODEL of the analytic denoiser for latents of 4 channels without scale or shift.
func analyticModel(t *testing.T) *value.Model {
	t.Helper()
	s, err := sampling.NewFlow(3, 1000)
	if err != nil {
		t.Fatal(err)
	}
	m := analytic{&dit.Spec{
		Family: "analytic", Width: 4, Heads: 1, HeadDim: 4, PatchSize: 1, Channels: 4, OutChannels: 4,
		ContextDim: 1,
		Blocks:     []dit.BlockSpec{{Kind: dit.Cross, Skip: -1, Attends: 1}},
	}}
	return &value.Model{
		Name: "analytic", Key: "analytic", Spec: m.spec,
		Format: latent.Format{Name: "plain", Channels: 4, Scale: 1}, Sampling: s,
		Weights: request.LoadFunc(func(engine.Ops, dit.Held) (dit.Model, error) { return m, nil }),
	}
}

// samplerCase is one entry of samplers.json.
type samplerCase struct {
	ModelSampling string `json:"model_sampling"`
	Sampler       string
	CFG           float64
	Seed          uint64
	Latent        *string
	Shape         []int
	AddNoise      bool `json:"add_noise"`
	Sigmas        []float32
	Node          string
	Mask          *string
	Evals         int
}

// samplerNode adds the SAMPLER of a case, by name or as the node that the case's key gives with its arguments.
func (c *samplerCase) samplerNode(t *testing.T, g *graphMaker, model []any) []any {
	if c.Node == "" {
		return g.add("KSamplerSelect", "sampler_name", c.Sampler)
	}
	part := strings.Split(c.Node, "/")
	in := pyjson.NewObject()
	k := All().Class(part[0])
	for i := range k.Inputs { // inputs that the key leaves out have their defaults
		decl := &k.Inputs[i]
		switch preset, ok := decl.Options.Get("default"); {
		case decl.Name == "model":
			in.Set(decl.Name, model)
		case ok:
			in.Set(decl.Name, preset)
		case decl.Type == "COMBO":
			in.Set(decl.Name, decl.Choices[0])
		}
	}
	number := func(s string) float64 {
		v, err := strconv.ParseFloat(s, 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, word := range part[1:] {
		if choice := k.Input("solver_type"); choice != nil && strings.Contains(strings.Join(choice.Choices, "|"), word) {
			in.Set("solver_type", word)
			continue
		}
		if part[0] == "SamplerEulerCFGpp" {
			in.Set("version", word)
			continue
		}
		switch a, b, isRange := strings.Cut(strings.TrimPrefix(word, "sde"), "-"); {
		case word == "cpu":
			in.Set("noise_device", word)
		case isRange:
			in.Set("sde_start_percent", number(a))
			in.Set("sde_end_percent", number(b))
		case strings.HasPrefix(word, "pece"):
			in.Set("use_pece", word == "pece1")
		case part[0] == "SamplerSASolver" && word[0] == 'p' && word[2] == 'c':
			in.Set("predictor_order", int64(number(word[1:2])))
			in.Set("corrector_order", int64(number(word[3:])))
		case strings.HasPrefix(word, "simple"):
			in.Set("simple_order_2", word == "simple1")
		default:
			at := strings.IndexAny(word, "0123456789")
			in.Set(word[:at], number(word[at:]))
		}
	}
	var inputs []any
	for _, name := range in.Keys() {
		inputs = append(inputs, name, in.At(name))
	}
	return g.add(part[0], inputs...)
}

// graph builds the workflow of a case with SamplerCustom.
func (c *samplerCase) graph(t *testing.T, m *value.Model) (*graphMaker, map[string]given) {
	one := func(v float32) given {
		return given{"CONDITIONING", value.Conditioning{{
			Entry:        dit.Entry{Context: dit.Array{Rows: 1, Cols: 1, Data: []float32{v}}},
			MaskStrength: 1,
		}}}
	}
	l := &value.Latent{Samples: request.NewLatent(c.Shape[0], c.Shape[1], c.Shape[2], c.Shape[3])}
	if c.Latent != nil {
		l.Samples.Data = golden.Input(*c.Latent, l.Samples.Len())
	}
	values := map[string]given{
		"TheModel": {"MODEL", m}, "Positive": one(0.3), "Negative": one(-0.2), "TheLatent": {"LATENT", l},
		"TheSigmas": {"SIGMAS", value.Sigmas(c.Sigmas)},
	}
	g := newGraph()
	model, start := g.add("TheModel"), g.add("TheLatent")
	if c.Mask != nil { // rows 1-2, columns 2-3 = 1, (0,0) = 0.4, else 0
		mask := &picture.Mask{B: 1, Y: 4, X: 4, Data: make([]float32, 16)}
		mask.Data[0], mask.Data[6], mask.Data[7], mask.Data[10], mask.Data[11] = 0.4, 1, 1, 1, 1
		values["TheMask"] = given{"MASK", mask}
		start = g.add("SetLatentNoiseMask", "samples", start, "mask", g.add("TheMask"))
	}
	s := g.add("SamplerCustom", "model", model, "add_noise", c.AddNoise, "noise_seed", c.Seed, "cfg", c.CFG, "positive",
		g.add("Positive"), "negative", g.add("Negative"),
		"sampler", c.samplerNode(t, g, model), "sigmas", g.add("TheSigmas"), "latent_image", start)
	g.add("Keep", "latent", s, "as", "output")
	g.add("Keep", "latent", second(s), "as", "denoised")
	return g, values
}

// TestSamplersMatchGolden compares the recorded calls of SamplerCustom on flow models through the nodes: split, masked,
// empty and single sigmas, and the SamplerXXX nodes with their arguments. Package sampling tests EPS models, which need
// sigmas between the steps of their table that a network does not get.
func TestSamplersMatchGolden(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansDrawTheSamePicture has the goroutines of a run")
	}
	var raw map[string]json.RawMessage
	if err := golden.JSON("samplers.json", &raw); err != nil {
		t.Fatal(err)
	}
	m, eng, ran, worstAt := analyticModel(t), refEngine(t), 0, map[string]float64{}
	cat := All()
	for name, text := range raw {
		family, _, _ := strings.Cut(name, "/")
		if family != "custom" && family != "node" {
			continue
		}
		var c samplerCase
		if err := json.Unmarshal(text, &c); err != nil {
			t.Fatal(err)
		}
		class, _, _ := strings.Cut(c.Node, "/")
		if c.ModelSampling != "sd3" || (class != "" && cat.Class(class) == nil) {
			continue
		}
		ran++
		g, values := c.graph(t, m)
		got := runGraph(t, eng, g, values)
		bound := 2e-5
		if class == "SamplerDPMPP_SDE" {
			bound = 1e-4
		}
		for part, as := range map[string]string{"#output": "output", "#denoised_output": "denoised"} {
			rel := relative(got[as].Samples.Data, samplerTensor(t, name+part))
			worstAt[family+" "+class] = max(worstAt[family+" "+class], rel)
			if rel > bound {
				t.Errorf("%s%s: relative error %.3g, bound %.3g", name, part, rel, bound)
			}
		}
	}
	if ran < 44 {
		t.Errorf("ran %d cases, want 44", ran)
	}
	t.Logf("%d cases, largest relative errors: %v", ran, worstAt)
}

// TestGuidersMatchGolden compares the recorded cases of DualCFGGuider, and of BasicGuider without noise.
func TestGuidersMatchGolden(t *testing.T) {
	var raw map[string]json.RawMessage
	if err := golden.JSON("samplers.json", &raw); err != nil {
		t.Fatal(err)
	}
	m, eng, ran := analyticModel(t), refEngine(t), 0
	for name, text := range raw {
		part := strings.Split(name, "/")
		if part[0] != "guider" {
			continue
		}
		ran++
		var c struct {
			samplerCase
			Cond1, Cond2, Negative float32
		}
		if err := json.Unmarshal(text, &c); err != nil {
			t.Fatal(err)
		}
		if c.Shape == nil {
			c.Shape = []int{1, 4, 4, 4}
		}
		_, values := c.graph(t, m)
		g := newGraph() // another chain with the same values
		model, noise := g.add("TheModel"), g.add("DisableNoise")
		guider := g.add("BasicGuider", "model", model, "conditioning", g.add("Positive"))
		if part[1] == "dual" {
			noise = g.add("RandomNoise", "noise_seed", c.Seed)
			for k, v := range map[string]float32{"One": c.Cond1, "Two": c.Cond2, "Three": c.Negative} {
				values[k] = given{"CONDITIONING", value.Conditioning{{
					Entry:        dit.Entry{Context: dit.Array{Rows: 1, Cols: 1, Data: []float32{v}}},
					MaskStrength: 1,
				}}}
			}
			scale := func(i int) (v float64) { _, err := fmt.Sscan(part[i], &v); check(t, err); return v }
			guider = g.add("DualCFGGuider", "model", model, "cond1", g.add("One"), "cond2", g.add("Two"),
				"negative", g.add("Three"),
				"cfg_conds", scale(3), "cfg_cond2_negative", scale(4), "style", part[2])
		}
		sampler := c.Sampler
		if sampler == "" {
			sampler = "euler"
		}
		s := g.add("SamplerCustomAdvanced", "noise", noise, "guider", guider, "sampler",
			g.add("KSamplerSelect", "sampler_name", sampler),
			"sigmas", g.add("TheSigmas"), "latent_image", g.add("TheLatent"))
		g.add("Keep", "latent", s, "as", "output")
		g.add("Keep", "latent", second(s), "as", "denoised")
		got := runGraph(t, eng, g, values)
		for suffix, as := range map[string]string{"#output": "output", "#denoised_output": "denoised"} {
			if part[1] == "basic" && as == "denoised" { // not recorded
				continue
			}
			if rel := relative(got[as].Samples.Data, samplerTensor(t, name+suffix)); rel > 2e-5 {
				t.Errorf("%s%s: relative error %.3g, bound 2e-5", name, suffix, rel)
			}
		}
	}
	if ran != 5 {
		t.Errorf("ran %d cases, want 5", ran)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
