package serve_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
	"patchbay/models/latent"
	"patchbay/node/pyjson"
	"patchbay/tests/golden"
)

// demoSample returns a run of the demo model on inputs by formula, from one latent. The caller sets the sigmas.
func demoSample() *message.SampleRequest {
	in := func(name string, scale float64, shape ...int) *wire.Tensor {
		n := 1
		for _, d := range shape {
			n *= d
		}
		return f32(golden.Fill("host/"+name, n, scale, 0), shape...)
	}
	cond := func(name string) []message.CondRef {
		return []message.CondRef{{ModelConds: map[string]*wire.Tensor{
			"c_crossattn": in(name+"c", 1, 1, 6, 128),
			"y":           in(name+"y", 1, 1, 128),
		}}}
	}
	cfg, negative := 2.5, cond("n")
	return &message.SampleRequest{
		Model: message.ModelRef{File: "demo_flux.safetensors"}, Sampler: message.SamplerRef{Name: "euler"},
		Latent: in("x", 1, 1, 16, 8, 8), CFG: &cfg,
		Conds: message.CondsRef{Positive: cond("p"), Negative: &negative},
	}
}

// TestPatchesEqualTheLoraNode checks that sample with the matrices of a LoRA file as patches gives what
// LoraLoaderModelOnly and KSamplerAdvanced give with the file, node by node, for patches of all rows of a weight and of
// a part of them.
func TestPatchesEqualTheLoraNode(t *testing.T) {
	root := t.TempDir()
	q := demoSample()
	modules := map[string][2]int{
		"double_blocks.0.img_attn.qkv": {576, 192}, "single_blocks.1.linear1": {1344, 192},
		"img_in": {192, 64},
	}
	var entries []safetensors.Tensor
	alpha, strength := 2.0, 0.75
	for name, size := range modules {
		up, down := golden.Fill("up"+name, size[0]*4, 2, 0),
			golden.Fill("down"+name, 4*size[1], 1/math.Sqrt(float64(size[1])), 0)
		stem := "lora_unet_" + strings.ReplaceAll(name, ".", "_")
		for part, v := range map[string]*wire.Tensor{
			".lora_up.weight": f32(up, size[0], 4), ".lora_down.weight": f32(down, 4, size[1]),
			".alpha": f32([]float32{float32(alpha)}, 1),
		} {
			entries = append(entries, safetensors.Tensor{
				Name: stem + part, FileType: "F32", Shape: v.Shape,
				Data: datafile.Of(v.Data),
			})
		}
		rows := []int{0, size[0]}
		if name == "double_blocks.0.img_attn.qkv" { // in two pieces, as ComfyUI splits fused weights
			rows = []int{0, 192, size[0]}
		}
		for i := 1; i < len(rows); i++ {
			part := up[rows[i-1]*4 : rows[i]*4]
			p := message.PatchRef{
				Key: "diffusion_model." + name + ".weight", Adapter: "lora", Strength: &strength,
				Tensors: message.PatchTensors{
					Up: f32(part, rows[i]-rows[i-1], 4), Down: f32(down, 4, size[1]), Alpha: &alpha,
				},
			}
			if len(rows) > 2 {
				p.Offset = []int{0, rows[i-1], rows[i] - rows[i-1]}
			}
			q.Model.Patches = append(q.Model.Patches, p)
		}
	}
	if err := os.Mkdir(filepath.Join(root, "loras"), 0o755); err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if err := safetensors.Write(&file, nil, entries); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "loras", "mine.safetensors"), file.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	c := ipctest.DialRig(t, realRig(t, "../../examples/demo", root))
	ctx := wiretest.Context(t)
	exec := func(class string, inputs ...any) []any {
		t.Helper()
		var out message.ExecReply
		if err := client.AskOne(ctx, c, message.VerbExec, "",
			&message.ExecRequest{Class: class, Inputs: pyjson.NewObject(inputs...)}, &out); err != nil {
			t.Fatalf("%s: %v", class, err)
		}
		return out.Outputs
	}
	const shift, scale = 0.0275, 0.5728 // of the demo's latent format
	cond := func(list []message.CondRef) []any {
		return []any{[]any{list[0].ModelConds["c_crossattn"], pyjson.NewObject("pooled_output", list[0].ModelConds["y"])}}
	}
	plain := exec("UNETLoader", "unet_name", "demo_flux.safetensors", "weight_dtype", "default")[0]
	adapted := exec("LoraLoaderModelOnly", "model", plain, "lora_name", "mine.safetensors", "strength_model", strength)[0]
	sigmas := floats(t, exec("BasicScheduler", "model", plain, "scheduler", "simple", "steps", int64(3), "denoise",
		1.0)[0].(*wire.Tensor))
	q.Sigmas = f32(sigmas[1:], 3)
	pixels := floats(t, q.Latent)
	inModel := make([]float32, len(pixels))
	for i, v := range pixels {
		inModel[i] = (v - shift) * scale
	}
	samples := q.Latent
	q.Latent = f32(inModel, 1, 16, 8, 8)
	byNode := func(model any) []float32 {
		out := exec("KSamplerAdvanced", "model", model, "add_noise", "disable", "noise_seed", int64(0), "steps", int64(3),
			"cfg", *q.CFG, "sampler_name", "euler",
			"scheduler", "simple", "positive", cond(q.Conds.Positive), "negative", cond(*q.Conds.Negative), "latent_image",
			pyjson.NewObject("samples", samples),
			"start_at_step", int64(1), "end_at_step", int64(10000), "return_with_leftover_noise", "disable")[0].(*pyjson.Object)
		x, _ := out.Get("samples")
		return floats(t, x.(*wire.Tensor))
	}
	bySample := func(q *message.SampleRequest) []float32 {
		t.Helper()
		done, err := ipctest.Sample(ctx, c, q, nil)
		if err != nil {
			t.Fatal(err)
		}
		x := floats(t, done.X)
		for i := range x {
			x[i] = x[i]/scale + shift
		}
		return x
	}
	base, with := byNode(plain), byNode(adapted)
	if d := apart(base, with); d < 1e-2 || math.IsInf(d, 1) {
		t.Fatalf("the LoRA changes %.2g, too little to tell anything", d)
	}
	without := *q
	without.Model.Patches = nil
	for name, rel := range map[string]float64{
		"patches": apart(bySample(q), with), "none": apart(bySample(&without), base),
		"patches again": apart(bySample(q), with),
	} {
		t.Logf("%s: relative error %.2g", name, rel)
		if rel > 1e-5 {
			t.Errorf("%s: relative error %.3g against the node, bound 1e-5", name, rel)
		}
	}
	half := 0.0
	q.Model.Patches[0].Strength = &half
	if apart(bySample(q), with) < 1e-4 {
		t.Error("another strength gave the same picture")
	}
	for want, change := range map[string]func(p *message.PatchRef){
		"no matrix of that name": func(p *message.PatchRef) { p.Key = "diffusion_model.nothing.weight" },
		"want [0, first row":     func(p *message.PatchRef) { p.Offset = []int{1, 0, 4} },
		"want a matrix":          func(p *message.PatchRef) { p.Tensors.Up = f32([]float32{1}, 1) },
		"[R, ":                   func(p *message.PatchRef) { p.Tensors.Down = f32(make([]float32, 8), 4, 2) },
	} {
		bad := *q
		bad.Model.Patches = slices.Clone(q.Model.Patches)
		change(&bad.Model.Patches[0])
		if _, err := ipctest.Sample(ctx, c, &bad, nil); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "model.patches[0]") {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if freed, err := client.Free(ctx, c, &message.FreeRequest{Models: []string{"demo_flux.safetensors"}}); err != nil ||
		freed.Bytes < 1<<20 {
		t.Errorf("free: %+v, %v", freed, err)
	}
}

// TestLargeTensorsThroughADaemon checks that a daemon that leaves large tensors to its worker hands them on unchanged.
func TestLargeTensorsThroughADaemon(t *testing.T) {
	r, _ := ipctest.ChildRig(t, nil, func(sc *serve.ServiceConfig) { sc.Forward = true })
	c, _ := socketRig(t, r)
	ctx := wiretest.Context(t)
	q := smallSample("euler")
	q.Latent = f32(golden.Fill("big", 1<<20, 1, 0), 1, 16, 256, 256)
	for range 2 {
		done, err := ipctest.Sample(ctx, c, q, nil)
		if err != nil || !bytes.Equal(done.X.Data, q.Latent.Data) {
			t.Fatalf("got %v", err)
		}
	}
}

// TestSampleIsAJob checks that runs have the record and the events of a job, can be listed and cancelled, and take no
// job's id.
func TestSampleIsAJob(t *testing.T) {
	r := ipctest.NewRig(t, jobs.Config{}, jobs.OutputsConfig{})
	c, other := ipctest.DialRig(t, r), ipctest.DialRig(t, r)
	ctx := wiretest.Context(t)
	q := smallSample("euler")
	for range 2 { // the id may be used again
		q.ID = "s1"
		if _, err := ipctest.Sample(ctx, c, q, nil); err != nil {
			t.Fatal(err)
		}
	}
	rec, err := client.Status(ctx, other, "s1")
	if err != nil || rec.State != message.Done || rec.Kind != jobs.KindSample || rec.Attempt != 1 ||
		rec.Worker != "fake" || rec.Metrics["load_seconds"] != 0.5 {
		t.Errorf("got %+v, %v", rec, err)
	}
	var evs []message.Event
	end, err := client.Follow(ctx, other, "s1", 0, false,
		&client.Collector{Event: func(ev message.Event) { evs = append(evs, ev) }})
	if want := "queued execution_start progress metrics execution_success"; err != nil || end == nil ||
		strings.Join(ipctest.Types(evs), " ") != want {
		t.Errorf("got events %v, %v, want %s", ipctest.Types(evs), err, want)
	} else if sent, _ := evs[2].Data["sent"].(*pyjson.Object); sent == nil || sent.Len() != 1 {
		t.Errorf("the step says %v of what ranks have sent", evs[2].Data["sent"])
	}
	q = smallSample("wait")
	q.ID = "s2"
	_, err = ipctest.Sample(ctx, c, q, func(*message.SampleReply) {
		list, counts, err := client.List(ctx, other, message.Running, 10)
		if err != nil || len(list) != 1 || list[0].Job != "s2" || counts[message.Running] != 1 {
			t.Errorf("jobs: got %+v, %v, %v", list, counts, err)
		}
		if _, err := client.Submit(ctx, other, &message.RunRequest{
			ID:       "s2",
			Workflow: messagetest.Graph("Wait 1"),
		}); wiretest.Code(err) != fault.Duplicate {
			t.Errorf("a job of that id: got %v", err)
		}
		if did, _, err := client.Cancel(context.WithoutCancel(ctx), other, "s2"); !did || err != nil {
			t.Errorf("cancel: %v, %v", did, err)
		}
	})
	if rec, _ := client.Status(ctx, other, "s2"); wiretest.Code(err) != fault.Cancelled ||
		rec.State != message.Cancelled || !rec.Cancel {
		t.Errorf("got %v, record %+v", err, rec)
	}
	if err := client.Retry(ctx, other, "s2"); err == nil {
		t.Error("a sample was retried")
	}
	_, _, end = ipctest.RunJob(t, c, &message.RunRequest{ID: "job", Workflow: messagetest.Graph("Wait 1")})
	q = smallSample("euler")
	if q.ID = "job"; end.Type != message.EventSuccess {
		t.Fatal(end)
	}
	if _, err := ipctest.Sample(ctx, c, q, nil); wiretest.Code(err) != fault.Duplicate {
		t.Errorf("the id of a workflow: got %v", err)
	}
}

// TestNetsOfHosts checks that forecasts count a model patch and a control net, that a patch is accepted by the hash of
// its header, and that one that does not fit the model or the latent is refused by its field. TestComfyUIReplay
// compares the results of runs.
func TestNetsOfHosts(t *testing.T) {
	dir, prints := goldenRoot(t, "qwen-a", "flux-b", "diffsynth-a", "diffsynth-inpaint-a", "cn-qwen-a", "cn-fun-a")
	c, ctx := ipctest.DialRig(t, realRig(t, dir)), wiretest.Context(t)
	ref := message.ModelRef{File: "qwen-a.safetensors"}
	expect := func(nets ...message.NetRef) (message.Forecast, error) {
		with := ref
		with.Nets = nets
		out, err := ipctest.Load(ctx, c, &message.LoadRequest{
			Model: with, Forecast: &message.WorkloadRef{Width: 256, Height: 256, Steps: 4},
		})
		if err != nil {
			return message.Forecast{}, err
		}
		return *out.Forecast, nil
	}
	net := message.NetRef{File: "diffsynth-a.safetensors", Fingerprint: prints["diffsynth-a"]}
	one, err := expect()
	if err != nil {
		t.Fatal(err)
	}
	two, err := expect(net)
	if err != nil {
		t.Fatal(err)
	}
	more := func(folder, name string, with, without message.Forecast, borrowed int64) {
		t.Helper()
		file, err := os.Stat(filepath.Join(dir, folder, name))
		if err != nil {
			t.Fatal(err)
		}
		if with.WeightBytes-without.WeightBytes != file.Size()+borrowed || with.Bytes-without.Bytes <= file.Size() ||
			!(with.Seconds > 1.02*without.Seconds && with.StepSeconds > 1.02*without.StepSeconds) {
			t.Errorf("%+v is forecast with %s of %d bytes, %+v without", with, name, file.Size(), without)
		}
	}
	more("model_patches", net.File, two, one, 0)
	three, err := expect(net, message.NetRef{File: "cn-qwen-a.safetensors"})
	if err != nil {
		t.Fatal(err)
	}
	more("controlnet", "cn-qwen-a.safetensors", three, two, 0)
	fun, err := expect(message.NetRef{File: "cn-fun-a.safetensors"})
	if err != nil {
		t.Fatal(err)
	}
	const width, in, text, features = 120, 64, 56, 256 // of img_in, txt_in, txt_norm and the timesteps of qwen-a
	borrowed := 4 * (width*(in+1) + width*(text+1) + text + width*(features+1) + width*(width+1))
	more("controlnet", "cn-fun-a.safetensors", fun, one, int64(borrowed))
	q := &message.SampleRequest{
		Model: ref, Sampler: message.SamplerRef{Name: "euler"}, Sigmas: f32([]float32{1, 0}, 2),
		Latent: f32(make([]float32, 16*64), 1, 16, 8, 8),
		Conds: message.CondsRef{Positive: []message.CondRef{{
			ModelConds: map[string]*wire.Tensor{"c_crossattn": f32(golden.Fill("c", 5*56, 1, 0), 1, 5, 56)},
		}}},
	}
	net.Hint = f32(golden.Fill("hint", 16*64, 1, 0), 1, 16, 8, 8)
	q.Model.Nets = []message.NetRef{net}
	with, err := ipctest.Sample(ctx, c, q, nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Model.Nets = nil
	without, err := ipctest.Sample(ctx, c, q, nil)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(with.X.Data, without.X.Data) {
		t.Error("a model patch changes nothing")
	}
	for field, spoil := range map[string]func(*message.SampleRequest, *message.NetRef){
		"model.nets[0].file":        func(_ *message.SampleRequest, n *message.NetRef) { n.File = "none.safetensors" },
		"model.nets[0].fingerprint": func(_ *message.SampleRequest, n *message.NetRef) { n.Fingerprint = "00" },
		"model.nets[0].hint": func(_ *message.SampleRequest, n *message.NetRef) {
			n.File, n.Fingerprint = "diffsynth-inpaint-a.safetensors", "" // it also reads a mask
		},
		"model.nets[0].hint ": func(_ *message.SampleRequest, n *message.NetRef) {
			n.Hint = f32(make([]float32, 16*32), 1, 16, 4, 8)
		},
		"model.nets[0].file  ": func(_ *message.SampleRequest, n *message.NetRef) {
			n.File, n.Fingerprint = "cn-qwen-a.safetensors", "" // only forecasts accept it
		},
		"model.nets[0].file ": func(q *message.SampleRequest, _ *message.NetRef) { q.Model.File = "flux-b.safetensors" },
	} {
		bad, n := *q, net
		spoil(&bad, &n)
		bad.Model.Nets = []message.NetRef{n}
		if bad.Model.File != q.Model.File {
			bad.Conds.Positive = []message.CondRef{{ModelConds: map[string]*wire.Tensor{
				"c_crossattn": f32(golden.Fill("c", 6*40, 1, 0), 1, 6, 40), "y": f32(golden.Fill("y", 32, 1, 0), 1, 32),
			}}}
		}
		var e *fault.Error
		if _, err := ipctest.Sample(ctx, c, &bad, nil); !errors.As(err, &e) || e.Field != strings.TrimSpace(field) {
			t.Errorf("%q: got %v (%+v)", field, err, e)
		}
	}
	q.Model.Nets = []message.NetRef{net}
	var e *fault.Error
	_, err = ipctest.Load(ctx, c, &message.LoadRequest{Model: q.Model})
	if !errors.As(err, &e) || e.Field != "model.nets" {
		t.Errorf("load with a patch: %v", err)
	}
}

// TestFunNetsOfHosts checks that a run with a Fun net of Z-Image, whose hint covers whole tokens beside a latent of odd
// sides, gives what ComfyUI's network gives. A style projector for another family is refused by name.
func TestFunNetsOfHosts(t *testing.T) {
	const run, y, x, sigma, strength = "zimage-a/7x9-lite", 7, 9, 0.5, -0.6
	dir, _ := goldenRoot(t, "zimage-a", "fun-lite-a", "uso-a")
	c, ctx := ipctest.DialRig(t, realRig(t, dir)), wiretest.Context(t)
	f, err := golden.Open("modern33/patches.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	entry, ok := f.Entry(run)
	if !ok {
		t.Fatalf("nothing is recorded as %s", run)
	}
	want, err := entry.F32()
	if err != nil {
		t.Fatal(err)
	}
	in := golden.Input(run+"/x", 16*y*x)
	noise := make([]float32, len(in))
	for i, v := range in {
		noise[i], want[i] = v/sigma, v-sigma*want[i]
	}
	hint, fill := golden.Input(run+"/hint0", 16*8*10), golden.Input(run+"/fill0", 16*8*10)
	latent.FLUX().ToModel(hint, 8*10)
	latent.FLUX().ToModel(fill, 8*10)
	hint = slices.Concat(hint, make([]float32, 8*10), fill) // the zero mask keeps nothing of the picture to fill in
	most := strength
	q := &message.SampleRequest{
		Model: message.ModelRef{File: "zimage-a.safetensors", Nets: []message.NetRef{{
			File: "fun-lite-a.safetensors", Strength: &most, Hint: f32(hint, 1, 33, 8, 10),
		}}},
		Sampler: message.SamplerRef{Name: "euler"}, Sigmas: f32([]float32{sigma, 0}, 2),
		Latent: f32(make([]float32, len(in)), 1, 16, y, x), Noise: f32(noise, 1, 16, y, x),
		Conds: message.CondsRef{Positive: []message.CondRef{{ModelConds: map[string]*wire.Tensor{
			"c_crossattn": f32(golden.Input(run+"/context", 40*56), 1, 40, 56),
		}}}},
	}
	for _, q.Plan = range []string{"", "ulysses=3"} {
		got, err := ipctest.Sample(ctx, c, q, nil)
		if err != nil {
			t.Fatal(err)
		}
		if rel := apart(floats(t, got.X), want); !(rel <= 2e-5) {
			t.Errorf("%q: %.3g from ComfyUI's network, bound 2e-5", q.Plan, rel)
		}
	}
	for field, spoil := range map[string]func(n *message.NetRef){
		"model.nets[0].hint": func(n *message.NetRef) { n.Hint = f32(make([]float32, 33*y*x), 1, 33, y, x) },
		"model.nets[0].file": func(n *message.NetRef) { n.File = "uso-a.safetensors" },
	} {
		bad, n := *q, q.Model.Nets[0]
		spoil(&n)
		bad.Model.Nets = []message.NetRef{n}
		var e *fault.Error
		if _, err := ipctest.Sample(ctx, c, &bad, nil); !errors.As(err, &e) || e.Field != field {
			t.Errorf("%q: got %v (%+v)", field, err, e)
		}
		_, err := ipctest.Load(ctx, c, &message.LoadRequest{
			Model: bad.Model, Forecast: &message.WorkloadRef{Width: 72, Height: 56, Steps: 1},
		})
		if n.File == "uso-a.safetensors" && (!errors.As(err, &e) || e.Field != field) {
			t.Errorf("forecast with %s: got %v", n.File, err)
		}
	}
}
