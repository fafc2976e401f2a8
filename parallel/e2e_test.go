package parallel

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/models/sampling"
	"patchbay/models/tiny"
	"patchbay/models/weights/goldenweights"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
)

// goldenEntry is one conditioning entry of e2e.json.
type goldenEntry struct {
	Tag           string   `json:"tag"`
	Input         string   // name of the context input, unless it follows from the tag
	Context       []int    `json:"context"`
	Pooled        []int    `json:"pooled"`
	T5            []int    `json:"t5"`
	MaskLength    int      `json:"mask_length"`
	MaskLengthT5  int      `json:"mask_length_t5"`
	Guidance      any      `json:"guidance"`
	Start         *float64 `json:"start_percent"`
	End           *float64 `json:"end_percent"`
	Strength      *float32 `json:"strength"`
	Area          []any    `json:"area"`
	Bounds        bool     `json:"set_area_to_bounds"`
	MaskStrength  float32  `json:"mask_strength"`
	Mask          []int    `json:"mask"`
	Width, Height float32
	FinalContext  []int `json:"final_context"`
	References    []struct {
		Input string
		Shape []int // [1, C, Y, X], or of one frame
	} `json:"reference_latents"`
	Method string `json:"reference_latents_method"`
	Slots  []int  `json:"image_slots"`
	Zeroed bool   `json:"zeroed"`
}

// goldenRun is one case of e2e.json.
type goldenRun struct {
	Node, Model, Sampler, Scheduler, What string
	Seed                                  uint64
	Steps                                 int
	CFG                                   float32
	Denoise                               float64
	AddNoise                              string    `json:"add_noise"`
	Start                                 int       `json:"start_at_step"`
	End                                   int       `json:"end_at_step"`
	Leftover                              string    `json:"return_with_leftover_noise"`
	Sigmas                                []float32 `json:"sigmas"`
	Shape                                 []int     `json:"latent_shape"`
	Latent                                string
	Patch                                 []any     `json:"model_patch"` // class name and its arguments
	Norm                                  *float32  `json:"cfg_norm"`
	EasyCache                             []float64 // threshold, start and end
	t                                     int       // frames of latent_shape; 0: one
	Positive, Negative, Cond1, Cond2      []goldenEntry
	NetworkCalls                          [][]json.RawMessage `json:"network_calls"`
}

// goldenModel is what the loaders know about a golden model.
type goldenModel struct {
	model    request.Model
	sampling *sampling.ModelSampling
	format   latent.Format
	minText  int
}

// described holds the small models of all tests by name. Creating their weights takes longer than many tests.
var described sync.Map

// describe returns a small model. Tests may change the copy, but not what it points to.
func describe(t *testing.T, name string) *family.Diffusion {
	t.Helper()
	made, _ := described.LoadOrStore(name, sync.OnceValues(func() (*family.Diffusion, error) {
		return tiny.Describe(name)
	}))
	d, err := made.(func() (*family.Diffusion, error))()
	if err != nil {
		t.Fatal(err)
	}
	copied := *d
	return &copied
}

func openGolden(t *testing.T, name string) goldenModel {
	t.Helper()
	d := describe(t, name)
	line, err := d.Sampling.Build()
	if err != nil {
		t.Fatal(err)
	}
	m := request.Model{Key: name, Spec: &d.Spec, Weights: packedOnce(name, d.Load)}
	return goldenModel{m, line, d.Latent, d.MinText}
}

func (e goldenEntry) lower(t *testing.T, run goldenRun, g goldenModel) request.Entry {
	t.Helper()
	base := "e2e/" + run.Model + "/" + e.Tag + "/"
	out := request.Entry{Strength: 1, MaskStrength: e.MaskStrength}
	rows, cols := e.Context[1], e.Context[2]
	if e.Input == "" {
		e.Input = base + "context"
	}
	out.Context = dit.Array{Rows: rows, Cols: cols, Data: golden.Input(e.Input, rows*cols)}
	if e.Pooled != nil {
		out.Pooled = golden.Input(base+"pooled", e.Pooled[1])
	}
	if e.T5 != nil {
		out.Context2 = dit.Array{Rows: e.T5[1], Cols: e.T5[2], Data: golden.Input(base+"t5", e.T5[1]*e.T5[2])}
		out.ContextLen, out.Context2Len = e.MaskLength, e.MaskLengthT5
	}
	if e.FinalContext != nil { // ConditioningConcat with pos3
		more := golden.Input("e2e/"+run.Model+"/pos3/context", (e.FinalContext[1]-rows)*cols)
		out.Context.Data, out.Context.Rows = append(out.Context.Data, more...), e.FinalContext[1]
	}
	for _, r := range e.References {
		y, x := r.Shape[len(r.Shape)-2], r.Shape[len(r.Shape)-1]
		data := golden.Input(r.Input, r.Shape[1]*y*x)
		g.format.ToModel(data, y*x)
		out.References = append(out.References, dit.Reference{Y: y, X: x, Data: data})
	}
	out.Slots = e.Slots
	out.Method, _, _ = strings.Cut(e.Method, "/") // FluxKontextMultiReferenceLatentMethod's "uxo/uno"
	if e.Zeroed {
		clear(out.Context.Data)
		clear(out.Pooled)
	}
	if pad := g.minText - out.Context.Rows; pad > 0 {
		out.Context.Rows, out.Context.Data = g.minText, append(make([]float32, pad*cols), out.Context.Data...)
	}
	if strings.HasPrefix(run.What, "ConditioningAverage") && e.Tag == "pos" { // .3 pos + .7 pos3 padded with zeros
		from := golden.Input("e2e/"+run.Model+"/pos3/context", 7*cols)
		pooled := golden.Input("e2e/"+run.Model+"/pos3/pooled", len(out.Pooled))
		for i := range out.Context.Data {
			v := float32(0)
			if i < len(from) {
				v = from[i]
			}
			out.Context.Data[i] = out.Context.Data[i]*0.3 + v*0.7
		}
		for i := range out.Pooled {
			out.Pooled[i] = out.Pooled[i]*0.3 + pooled[i]*0.7
		}
	}
	if kontext := strings.HasPrefix(run.Model, "kontext"); kontext || strings.HasPrefix(run.Model, "flux") {
		if e.Guidance == nil && kontext { // recordings made later omit absent keys
			e.Guidance = "absent"
		}
		switch v := e.Guidance.(type) {
		case float64:
			f := float32(v)
			out.Guidance = &f
		case string: // key absent
			f := float32(3.5)
			out.Guidance = &f
		}
	}
	if e.Start != nil {
		out.Ranged = true
		out.SigmaStart, out.SigmaEnd = float32(g.sampling.PercentToSigma(*e.Start)),
			float32(g.sampling.PercentToSigma(*e.End))
	}
	if e.Strength != nil {
		out.Strength = *e.Strength
	}
	if e.Area != nil {
		at := func(i int) int { return int(e.Area[i].(float64)) }
		out.Area = request.Area{H: at(0), W: at(1), Y: at(2), X: at(3)}
	}
	out.MaskBounds = e.Bounds
	if e.Width > 0 {
		out.Size = []float32{e.Height, e.Width, e.Height / e.Width}
	}
	return out
}

// rectangle returns the golden files' mask: 1 in rows h/4..3h/4-1 and columns from w/3 on, 0.5 at (0,0).
func rectangle(h, w int) []float32 {
	m := make([]float32, h*w)
	for y := h / 4; y < 3*h/4; y++ {
		for x := w / 3; x < w; x++ {
			m[y*w+x] = 1
		}
	}
	m[0] = 0.5
	return m
}

// shrink8 returns torch's bilinear resize of a mask to an eighth: the mean of the four middle pixels.
func shrink8(m []float32, h, w int) []float32 {
	out := make([]float32, h/8*w/8)
	for y := range h / 8 {
		for x := range w / 8 {
			at := (8*y+3)*w + 8*x + 3
			out[y*(w/8)+x] = (m[at] + m[at+1] + m[at+w] + m[at+w+1]) / 4
		}
	}
	return out
}

// lower returns the Request that the sampling nodes make of a golden case.
func (run goldenRun) lower(t *testing.T, name string, g goldenModel) *request.Request {
	t.Helper()
	b, c, y, x := run.Shape[0], g.model.Spec.Channels, run.Shape[2], run.Shape[3]
	l := request.NewLatent(b, c, y, x)
	l.T = run.t
	switch {
	case strings.HasPrefix(run.Latent, "input:"):
		l.Data = golden.Input(strings.TrimPrefix(run.Latent, "input:"), l.Len())
		g.format.ToModel(l.Data, y*x)
	case run.Latent == "see what":
		l.Data = tensor(t, strings.Replace(name, "stage2", "stage1", 1))
		g.format.ToModel(l.Data, y*x)
	}
	var inds []int
	if strings.Contains(run.What, "items 3 and 1") {
		inds = []int{3, 1}
	}
	noise, _, err := sampling.PrepareNoise(run.Seed, b, c*y*x, inds)
	if err != nil {
		t.Fatal(err)
	}
	r := &request.Request{
		Model: g.model, Sampling: g.sampling, Sampler: run.Sampler, Latent: l, Seed: run.Seed,
		Noise:  request.Latent{B: b, C: c, T: l.T, Y: y, X: x, Data: noise},
		Guider: request.Guider{Kind: request.GuideCFG, CFG: run.CFG},
	}
	if c := run.EasyCache; c != nil {
		r.Cache = &request.Cache{Threshold: float32(c[0]), Start: c[1], End: c[2]}
	}
	if run.AddNoise == "disable" {
		clear(r.Noise.Data)
	}
	r.Sigmas = run.sigmas(t, g)
	run.guide(t, r, g)
	r.Guider.Norm = run.Norm
	run.mask(r)
	return r
}

func (run goldenRun) sigmas(t *testing.T, g goldenModel) []float32 {
	t.Helper()
	if run.Sigmas != nil {
		return run.Sigmas
	}
	d := run.Denoise
	if run.Node == "KSamplerAdvanced" {
		d = 1
	}
	s, err := sampling.KSamplerSigmas(g.sampling, run.Sampler, run.Scheduler, run.Steps, d)
	if err != nil {
		t.Fatal(err)
	}
	if run.Node == "KSamplerAdvanced" {
		s = sampling.CutSteps(s, run.Start, run.End, run.Leftover == "disable")
	}
	return s
}

// guide sets the branches and the guider of r.
func (run goldenRun) guide(t *testing.T, r *request.Request, g goldenModel) {
	t.Helper()
	lists := [][]goldenEntry{run.Positive, run.Negative}
	switch {
	case run.Cond1 != nil:
		lists = [][]goldenEntry{run.Cond1, run.Cond2, run.Negative}
		r.Guider, r.Sampler = request.Guider{Kind: request.GuideDual, CFG: 3, CFG2: 2}, "euler"
	case run.Node == "SamplerCustomAdvanced" && run.Negative == nil:
		lists = lists[:1]
		r.Guider, r.Sampler = request.Guider{Kind: request.GuideBasic}, "euler"
	case run.Node == "SamplerCustomAdvanced" && run.CFG != 0:
	case run.Node == "SamplerCustomAdvanced":
		r.Guider, r.Sampler = request.Guider{Kind: request.GuideCFG, CFG: 3.5}, "dpmpp_2m"
	}
	masks := 0
	for i, list := range lists {
		br := request.Branch{Name: []string{"positive", "negative", "third"}[i]}
		for _, e := range list {
			entry := e.lower(t, run, g)
			if e.Mask != nil {
				h, w := r.Latent.Y, r.Latent.X
				entry.Mask = request.Latent{B: 1, C: 1, Y: h, X: w, Data: entryMask(masks, h, w, e)}
				masks++
			}
			br.Entries = append(br.Entries, entry)
		}
		r.Branches = append(r.Branches, br)
	}
}

// entryMask returns the mask of the k-th masked entry: the golden rectangle, or for the second entry its complement.
func entryMask(k, h, w int, _ goldenEntry) []float32 {
	m := rectangle(h, w)
	if k == 1 {
		for i := range m {
			m[i] = 1 - m[i]
		}
	}
	return m
}

// mask sets the noise mask of a case.
func (run goldenRun) mask(r *request.Request) {
	h, w := run.Shape[2], run.Shape[3]
	switch {
	case strings.HasPrefix(run.What, "noise_mask"):
		r.Mask = request.Latent{B: 1, C: 1, Y: h, X: w, Data: shrink8(rectangle(8*h, 8*w), 8*h, 8*w)}
	case strings.HasPrefix(run.What, "DifferentialDiffusion"):
		r.Mask = request.Latent{B: 1, C: 1, Y: h, X: w, Data: golden.Fill("input:e2e/diffmask", h*w, 1, 0.5)}
		r.Differential, r.DifferentialStrength = true, 1
	}
}

func tensor(t *testing.T, name string) []float32 {
	t.Helper()
	file := goldenweights.Folder(name) + "e2e.safetensors"
	f, err := golden.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	e, ok := f.Entry(name)
	if !ok {
		t.Fatalf("e2e.safetensors has no %s", name)
	}
	v, err := e.F32()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// relative returns the largest difference divided by the largest absolute reference value.
func relative(got, want []float32) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	worst, top := 0.0, 1e-30
	for i, w := range want {
		d := math.Abs(float64(got[i]) - float64(w))
		if math.IsNaN(d) {
			return math.Inf(1)
		}
		worst, top = math.Max(worst, d), math.Max(top, math.Abs(float64(w)))
	}
	return worst / top
}

func newEngine(t *testing.T) *Pool {
	t.Helper()
	return newEngineOf(t, testOps)
}

func newEngineOf(t *testing.T, ops func(rank, ranks int) (engine.Ops, error)) *Pool {
	t.Helper()
	e, err := NewPool(Config{NewOps: ops, Recode: roundTrip})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// TestEndToEndMatchesComfyUI checks every recorded run against ComfyUI, at the Request level, within the tolerance of
// tests/golden/README.md section 2.
func TestEndToEndMatchesComfyUI(t *testing.T) {
	if testing.Short() {
		t.Skip("long: every recorded run; node/classes runs some of them through the nodes")
	}
	runs := map[string]goldenRun{}
	for _, file := range []string{"e2e.json", "modern/e2e.json", "qwen21/e2e.json"} {
		if err := golden.JSON(file, &runs); err != nil {
			t.Fatal(err)
		}
	}
	e := newEngine(t)
	models := map[string]goldenModel{}
	names := make([]string, 0, len(runs))
	for name, run := range runs {
		if run.Model != "fill-a" && run.Model != "depth-a" { // nodes make their inputs: see package classes
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		run := runs[name]
		t.Run(name, func(t *testing.T) {
			g, ok := models[run.Model]
			if !ok {
				g = openGolden(t, run.Model)
				models[run.Model] = g
			}
			if strings.HasPrefix(run.What, "ModelSamplingFlux 1.15") {
				g.sampling, _ = sampling.NewFlux(sampling.FluxShift(1.15, 0.5, 96, 64))
			}
			switch {
			case strings.HasPrefix(run.What, "ModelSamplingSD3"):
				g.sampling, _ = sampling.NewFlow(6, 1000)
			case run.Patch == nil:
			case run.Patch[0] == "ModelSamplingAuraFlow":
				g.sampling, _ = sampling.NewFlow(run.Patch[1].(float64), 1)
			default: // ModelSamplingFlux
				at := func(i int) float64 { return run.Patch[i].(float64) }
				g.sampling, _ = sampling.NewFlux(sampling.FluxShift(at(1), at(2), int(at(3)), int(at(4))))
			}
			if s := run.Shape; len(s) == 5 {
				run.t, run.Shape = s[2], []int{s[0], s[1], s[2] * s[3], s[4]}
			}
			r := run.lower(t, name, g)
			res, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			g.format.FromModel(res.Latent.Data, res.Latent.Y*res.Latent.X)
			if rel := relative(res.Latent.Data, tensor(t, name)); rel > 1e-4 {
				t.Errorf("relative error %.3g, bound 1e-4", rel)
			}
			if run.Node == "SamplerCustomAdvanced" {
				g.format.FromModel(res.X0.Data, res.X0.Y*res.X0.X)
				if rel := relative(res.X0.Data, tensor(t, name+"#denoised_output")); rel > 1e-4 {
					t.Errorf("denoised output: relative error %.3g, bound 1e-4", rel)
				}
			}
			if rows := rowsOf(t, run); res.Stats.Rows != rows {
				t.Errorf("%d latents predicted, ComfyUI %d", res.Stats.Rows, rows)
			}
		})
	}
}

// rowsOf returns the sum of the rows of all network calls that ComfyUI made.
func rowsOf(t *testing.T, run goldenRun) int {
	t.Helper()
	n := 0
	for _, c := range run.NetworkCalls {
		var rows int
		if err := json.Unmarshal(c[0], &rows); err != nil {
			t.Fatal(err)
		}
		n += rows
	}
	if n == 0 {
		t.Fatal(fmt.Errorf("no network calls recorded"))
	}
	return n
}
