package serve_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
	"patchbay/models/latent"
	encoders "patchbay/models/text"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// fluxRun is a run of tests/golden/modern33/flux.json.
type fluxRun struct {
	Loras, Redux       [][2]any
	Seed               uint64
	Steps              int
	CFG                float64
	Sampler, Scheduler string
	Shape, Image       []int
}

// request returns the message of a run without adapters.
func (r *fluxRun) request(t *testing.T) *message.SampleRequest {
	t.Helper()
	text := func(tag string) []goldenCond {
		return []goldenCond{{Tag: tag, Context: []int{1, 13, 40}, Pooled: []int{1, 32}, Guidance: "default"}}
	}
	g := goldenSample{
		Node: "KSampler", Model: "kontext-a", Sampler: r.Sampler, Scheduler: r.Scheduler, Latent: "zeros", Seed: r.Seed,
		Steps: r.Steps, CFG: r.CFG, Denoise: 1, Shape: r.Shape, Positive: text("pos"), Negative: text("neg"),
	}
	return g.message(t, true)
}

// TestReduxThroughSample checks the recorded run of two styles, with attn_bias as ComfyUI's network gets it.
func TestReduxThroughSample(t *testing.T) {
	var record struct{ Runs map[string]*fluxRun }
	if err := golden.JSON("modern33/flux.json", &record); err != nil {
		t.Fatal(err)
	}
	results, err := golden.Open("modern33/flux.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = results.Close() }()
	e, _ := results.Entry("bias-0.3-twice")
	want, err := e.F32()
	if err != nil {
		t.Fatal(err)
	}
	set, _, err := goldenweights.Set("redux-a")
	if err != nil {
		t.Fatal(err)
	}
	ops, err := testOps(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	net, err := encoders.OpenRedux(ops, set)
	if err != nil {
		t.Fatal(err)
	}
	defer net.Close()
	dir, _ := goldenRoot(t, "kontext-a", "sd3-a")
	c, r := ipctest.DialRig(t, realRig(t, dir)), record.Runs["bias-0.3-twice"]
	q := r.request(t)
	states := floats(t, q.Conds.Positive[0].ModelConds["c_crossattn"])
	for i := range r.Redux {
		rows, err := net.Project(encoders.Env{Ops: ops}, golden.Input(fmt.Sprintf("redux-a/last_hidden_state/%d", i), 9*28))
		if err != nil {
			t.Fatal(err)
		}
		states = append(states, rows...)
	}
	q.Conds.Positive[0].ModelConds["c_crossattn"] = f32(states, 1, len(states)/40, 40)
	q.Conds.Positive[0].Biases = []message.BiasRef{
		{Start: 13, End: 22, Value: -1.2041015625}, {Start: 22, End: 31, Value: 0.916015625},
	}
	for _, q.Plan = range []string{"", "ulysses=3", "ring=2"} {
		done, err := ipctest.Sample(context.Background(), c, q, nil)
		if err != nil {
			t.Fatalf("%q: %v", q.Plan, err)
		}
		got := floats(t, done.X)
		latent.FLUX().FromModel(got, 1)
		if rel := apart(got, want); !(rel <= 1e-4) {
			t.Errorf("%q: relative error %.3g, bound 1e-4", q.Plan, rel)
		}
	}
	q.Model.File = "sd3-a.safetensors"
	if _, err := ipctest.Sample(context.Background(), c, q, nil); err == nil ||
		!strings.Contains(err.Error(), "conds.positive.biases: the sd3 model takes no biases") {
		t.Errorf("a bias on SD3: got %v, want a refusal", err)
	}
}

// patches returns what ComfyUI's LoRA code makes of a file like FLUX.1 Canny's: pairs, differences of biases, and whole
// norms under its own names.
func patches(file string, tensors [][4]any, strength float64) (out []message.PatchRef) {
	at := map[string]*wire.Tensor{}
	var names []string
	for _, row := range tensors {
		var shape []int
		n := 1
		for _, d := range row[1].([]any) {
			shape, n = append(shape, int(d.(float64))), n*int(d.(float64))
		}
		name := row[0].(string)
		names = append(names, name)
		at[name] = f32(golden.Fill(file+"/"+name, n, row[2].(float64), row[3].(float64)), shape...)
	}
	for _, name := range names {
		p := message.PatchRef{Strength: &strength}
		key := "diffusion_model." + strings.TrimPrefix(name, "diffusion_model.")
		if stem, ok := strings.CutSuffix(name, ".lora_A.weight"); ok {
			p.Key, p.Adapter = strings.TrimSuffix(key, ".lora_A.weight")+".weight", "lora"
			p.Tensors = message.PatchTensors{Up: at[stem+".lora_B.weight"], Down: at[name]}
		} else if stem, ok := strings.CutSuffix(key, ".lora_B.bias"); ok {
			p.Key, p.Adapter, p.Tensors.Value = stem+".bias", "diff", at[name]
		} else if stem, ok := strings.CutSuffix(key, "_norm.scale"); ok {
			p.Key, p.Adapter, p.Tensors.Value = stem+"_norm.weight", "set", at[name]
		} else {
			continue
		}
		out = append(out, p)
	}
	return out
}

// TestControlLorasThroughSample checks the recorded runs of control LoRAs, sent as patches of a host.
func TestControlLorasThroughSample(t *testing.T) {
	var record struct {
		Loras map[string][][4]any
		Runs  map[string]*fluxRun
	}
	if err := golden.JSON("modern33/flux.json", &record); err != nil {
		t.Fatal(err)
	}
	results, err := golden.Open("modern33/flux.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = results.Close() }()
	dir, _ := goldenRoot(t, "kontext-a")
	c := ipctest.DialRig(t, realRig(t, dir))
	for _, name := range []string{"canny", "canny-0"} {
		r := record.Runs[name]
		q := r.request(t)
		for _, use := range r.Loras {
			file := use[0].(string)
			q.Model.Patches = append(q.Model.Patches, patches(file, record.Loras[file], use[1].(float64))...)
		}
		image := golden.Input("flux/image", r.Image[1]*r.Image[2]*r.Image[3])
		latent.FLUX().ToModel(image, r.Shape[2]*r.Shape[3])
		for _, list := range [][]message.CondRef{q.Conds.Positive, *q.Conds.Negative} {
			list[0].ModelConds["c_concat"] = f32(image, r.Image...)
		}
		e, _ := results.Entry(name)
		want, err := e.F32()
		if err != nil {
			t.Fatal(err)
		}
		for _, q.Plan = range []string{"", "ulysses=3"} {
			done, err := ipctest.Sample(context.Background(), c, q, nil)
			if err != nil {
				t.Fatalf("%s %q: %v", name, q.Plan, err)
			}
			got := floats(t, done.X)
			latent.FLUX().FromModel(got, 1)
			if rel := apart(got, want); !(rel <= 1e-4) {
				t.Errorf("%s %q: relative error %.3g, bound 1e-4", name, q.Plan, rel)
			}
		}
	}
	for want, change := range map[string]func(p *message.PatchRef){
		"the model has no bias of that name": func(p *message.PatchRef) { p.Key = "diffusion_model.img_in.weight" },
		"want [120], and no offset":          func(p *message.PatchRef) { p.Tensors.Value = f32(make([]float32, 3), 3) },
		"diff has a value, and neither up":   func(p *message.PatchRef) { p.Tensors.Up = f32(make([]float32, 4), 2, 2) },
		"want lora, diff (of a bias) or set": func(p *message.PatchRef) { p.Adapter = "loha" },
		"the model has no norm of that name": func(p *message.PatchRef) { p.Adapter = "set" },
		"known are as many": func(p *message.PatchRef) {
			*p = message.PatchRef{Key: "diffusion_model.img_in.weight", Adapter: "lora", Tensors: message.PatchTensors{
				Up: f32(make([]float32, 120), 120, 1), Down: f32(make([]float32, 72), 1, 72),
			}}
		},
	} {
		q := record.Runs["canny"].request(t)
		q.Model.Patches = []message.PatchRef{{
			Key: "diffusion_model.img_in.bias", Adapter: "diff",
			Tensors: message.PatchTensors{Value: f32(make([]float32, 120), 120)},
		}}
		change(&q.Model.Patches[0])
		if _, err := ipctest.Sample(context.Background(), c, q, nil); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "model.patches") {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestStyleReferencesThroughSample checks the recorded run of a picture in front of the text, sent as the states that
// USO's projector reads, that sending them twice means a list of two, and that what does not fit is refused.
func TestStyleReferencesThroughSample(t *testing.T) {
	const name, side = "kontext-a/uso", 44
	ops, err := testOps(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	set, config, err := goldenweights.Set("siglip-deep-a")
	if err != nil {
		t.Fatal(err)
	}
	eyes, err := encoders.OpenPictureEncoder(ops, set, config, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer eyes.Close()
	image := golden.Fill("input:"+name+"/image0", side*side*3, 1, 0.5)
	pixels := make([]float32, 0, len(image))
	for c := range 3 {
		for i := range side * side {
			level := math.RoundToEven(255 * min(max(float64(image[3*i+c]), 0), 1))
			pixels = append(pixels, float32(level/127.5-1))
		}
	}
	_, deep, err := eyes.See(encoders.Env{Ops: ops}, pixels)
	if err != nil {
		t.Fatal(err)
	}
	text := []goldenCond{{Tag: "positive", Context: []int{1, 6, 40}, Pooled: []int{1, 32}, Guidance: 3.5}}
	q := (&goldenSample{
		Node: "KSampler", Model: "kontext-a", Sampler: "euler", Scheduler: "simple", Latent: "zeros", Seed: 7, Steps: 2,
		CFG: 1, Denoise: 1, Shape: []int{1, 16, 8, 6}, Positive: text,
	}).message(t, true)
	q.Conds.Positive[0].ModelConds["c_crossattn"] = f32(golden.Input(name+"/positive", 6*40), 1, 6, 40)
	q.Conds.Positive[0].ModelConds["y"] = f32(golden.Input(name+"/pooled", 32), 1, 32)
	dir, prints := goldenRoot(t, "kontext-a", "chroma-a", "uso-a", "uso-b")
	net := message.NetRef{
		File: "uso-a.safetensors", Fingerprint: prints["uso-a"], Hint: f32(deep, 3, 9, len(deep)/27),
	}
	c, ctx := ipctest.DialRig(t, realRig(t, dir)), wiretest.Context(t)
	results, err := golden.Open("modern33/patches.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = results.Close() }()
	e, _ := results.Entry(name)
	want, err := e.F32()
	if err != nil {
		t.Fatal(err)
	}
	run := func(nets ...message.NetRef) []float32 {
		t.Helper()
		q.Model.Nets = nets
		done, err := ipctest.Sample(ctx, c, q, nil)
		if err != nil {
			t.Fatalf("%q: %v", q.Plan, err)
		}
		got := floats(t, done.X)
		latent.FLUX().FromModel(got, 1)
		return got
	}
	for _, q.Plan = range []string{"", "ulysses=3", "tensor=3", "pipe=2,patches=2,warmup=99"} {
		if rel := apart(run(net), want); !(rel <= 1e-5) {
			t.Errorf("%q: relative error %.3g, bound 1e-5", q.Plan, rel)
		}
	}
	q.Plan = ""
	other := net
	other.File, other.Fingerprint = "uso-b.safetensors", ""
	if rel := apart(run(other, net), run(net)); !(rel > 1e-3) {
		t.Errorf("the second of two projectors moves the picture by %.3g", rel)
	}
	rows := func(nets ...message.NetRef) int64 {
		model := q.Model
		model.Nets = nets
		out, err := ipctest.Load(ctx, c, &message.LoadRequest{
			Model: model, Forecast: &message.WorkloadRef{Width: 256, Height: 256, Steps: 4},
		})
		if err != nil {
			t.Fatal(err)
		}
		return out.Forecast.Bytes
	}
	if plain, with := rows(), rows(net); with <= plain {
		t.Errorf("forecast of %d bytes with rows in front of the text, %d without", with, plain)
	}
	for field, spoil := range map[string]func(*message.SampleRequest, *message.NetRef){
		"model.nets[0].hint":     func(_ *message.SampleRequest, n *message.NetRef) { n.Hint = f32(deep[:9*28], 1, 9, 28) },
		"model.nets[0].hint ":    func(_ *message.SampleRequest, n *message.NetRef) { n.Hint = f32(deep, 1, 3, 9, 28) },
		"model.nets[0].strength": func(_ *message.SampleRequest, n *message.NetRef) { s := 0.5; n.Strength = &s },
		"model.nets[0].file":     func(q *message.SampleRequest, _ *message.NetRef) { q.Model.File = "chroma-a.safetensors" },
	} {
		bad, n := *q, net
		spoil(&bad, &n)
		bad.Model.Nets = []message.NetRef{n}
		var e *fault.Error
		if _, err := ipctest.Sample(ctx, c, &bad, nil); !errors.As(err, &e) || e.Field != strings.TrimSpace(field) {
			t.Errorf("%q: got %v (%+v)", field, err, e)
		}
	}
}
