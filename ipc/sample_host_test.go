package ipc

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
	"time"

	"patchbay/engine/safetensors"
	"patchbay/node"
	"patchbay/tests/golden"
)

// demoSample is a run of the demo model on numbers by formula, two steps from one latent.
func demoSample() *SampleRequest {
	in := func(name string, scale float64, shape ...int) *Tensor {
		n := 1
		for _, d := range shape {
			n *= d
		}
		return f32(golden.Fill("host/"+name, n, scale, 0), shape...)
	}
	cond := func(name string) []CondRef {
		return []CondRef{{ModelConds: map[string]*Tensor{"c_crossattn": in(name+"c", 1, 1, 6, 128), "y": in(name+"y", 1, 1, 128)}}}
	}
	cfg, negative := 2.5, cond("n")
	return &SampleRequest{
		Model: ModelRef{File: "demo_flux.safetensors"}, Sampler: SamplerRef{Name: "euler"}, Latent: in("x", 1, 1, 16, 8, 8), CFG: &cfg,
		Conds: CondsRef{Positive: cond("p"), Negative: &negative},
	}
}

// TestPatchesEqualTheLoraNode runs the demo model with a LoRA file through LoraLoaderModelOnly and KSamplerAdvanced, node by node, and through sample with the same
// matrices as patches: over all rows of a weight, and over a part of them.
func TestPatchesEqualTheLoraNode(t *testing.T) {
	root := t.TempDir()
	q := demoSample()
	modules := map[string][2]int{"double_blocks.0.img_attn.qkv": {576, 192}, "single_blocks.1.linear1": {1344, 192}, "img_in": {192, 64}}
	var entries []safetensors.Entry
	alpha, strength := 2.0, 0.75
	for name, size := range modules {
		up, down := golden.Fill("up"+name, size[0]*4, 2, 0), golden.Fill("down"+name, 4*size[1], 1/math.Sqrt(float64(size[1])), 0)
		stem := "lora_unet_" + strings.ReplaceAll(name, ".", "_")
		entries = append(entries, safetensors.FromF32(stem+".lora_up.weight", up, size[0], 4), safetensors.FromF32(stem+".lora_down.weight", down, 4, size[1]),
			safetensors.FromF32(stem+".alpha", []float32{float32(alpha)}, 1))
		rows := []int{0, size[0]}
		if name == "double_blocks.0.img_attn.qkv" { // in two pieces, as ComfyUI has those of fused weights
			rows = []int{0, 192, size[0]}
		}
		for i := 1; i < len(rows); i++ {
			part := up[rows[i-1]*4 : rows[i]*4]
			p := PatchRef{Key: "diffusion_model." + name + ".weight", Adapter: "lora", Strength: &strength, Tensors: PatchTensors{
				Up: f32(part, rows[i]-rows[i-1], 4), Down: f32(down, 4, size[1]), Alpha: &alpha,
			}}
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
	c := dialRig(t, realRig(t, "../examples/demo", root))
	ctx := within(t, 60*time.Second)
	exec := func(class string, inputs ...any) []any {
		t.Helper()
		var out ExecReply
		if err := askOne(ctx, c, VerbExec, "", &ExecRequest{Class: class, Inputs: node.NewObject(inputs...)}, &out); err != nil {
			t.Fatalf("%s: %v", class, err)
		}
		return out.Outputs
	}
	const shift, scale = 0.0275, 0.5728 // of the demo's latent format
	cond := func(list []CondRef) []any {
		return []any{[]any{list[0].ModelConds["c_crossattn"], node.NewObject("pooled_output", list[0].ModelConds["y"])}}
	}
	plain := exec("UNETLoader", "unet_name", "demo_flux.safetensors", "weight_dtype", "default")[0]
	adapted := exec("LoraLoaderModelOnly", "model", plain, "lora_name", "mine.safetensors", "strength_model", strength)[0]
	sigmas := floats(t, exec("BasicScheduler", "model", plain, "scheduler", "simple", "steps", int64(3), "denoise", 1.0)[0].(*Tensor))
	q.Sigmas = f32(sigmas[1:], 3)
	pixels := floats(t, q.Latent)
	inModel := make([]float32, len(pixels))
	for i, v := range pixels {
		inModel[i] = (v - shift) * scale
	}
	samples := q.Latent
	q.Latent = f32(inModel, 1, 16, 8, 8)
	byNode := func(model any) []float32 {
		out := exec("KSamplerAdvanced", "model", model, "add_noise", "disable", "noise_seed", int64(0), "steps", int64(3), "cfg", *q.CFG, "sampler_name", "euler",
			"scheduler", "simple", "positive", cond(q.Conds.Positive), "negative", cond(*q.Conds.Negative), "latent_image", node.NewObject("samples", samples),
			"start_at_step", int64(1), "end_at_step", int64(10000), "return_with_leftover_noise", "disable")[0].(*node.Object)
		x, _ := out.Get("samples")
		return floats(t, x.(*Tensor))
	}
	bySample := func(q *SampleRequest) []float32 {
		t.Helper()
		done, err := Sample(ctx, c, q, nil)
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
	for name, rel := range map[string]float64{"patches": apart(bySample(q), with), "none": apart(bySample(&without), base), "patches again": apart(bySample(q), with)} {
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
	for want, change := range map[string]func(p *PatchRef){
		"no matrix of that name": func(p *PatchRef) { p.Key = "diffusion_model.nothing.weight" },
		"want [0, first row":     func(p *PatchRef) { p.Offset = []int{1, 0, 4} },
		"want a matrix":          func(p *PatchRef) { p.Tensors.Up = f32([]float32{1}, 1) },
		"[R, ":                   func(p *PatchRef) { p.Tensors.Down = f32(make([]float32, 8), 4, 2) },
	} {
		bad := *q
		bad.Model.Patches = slices.Clone(q.Model.Patches)
		change(&bad.Model.Patches[0])
		if _, err := Sample(ctx, c, &bad, nil); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "model.patches[0]") {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if freed, err := Free(ctx, c, &FreeRequest{Models: []string{"demo_flux.safetensors"}}); err != nil || freed.Bytes < 1<<20 {
		t.Errorf("free: %+v, %v", freed, err)
	}
}

// TestTensorsByHash sends a tensor once and its hash afterwards.
func TestTensorsByHash(t *testing.T) {
	r := newRig(t, JobsConfig{}, ShelfConfig{})
	c := dialRig(t, r)
	ctx := within(t, 20*time.Second)
	for _, enc := range []Encoding{Msgpack, JSON} {
		c.enc = enc
		x := f32(golden.Fill(string(rune('a'+enc)), 4, 1, 0), 1, 1, 2, 2)
		x.Name()
		bare := func() *SampleRequest {
			q := smallSample("euler")
			q.Latent = &Tensor{DType: "f32", Shape: x.Shape, Hash: x.Hash}
			return q
		}
		var e *Error
		_, err := sampleOnce(ctx, c, bare(), nil)
		if !errors.As(err, &e) || e.Code != ErrMissing || len(e.Extra["missing"].([]any)) != 1 || e.Extra["missing"].([]any)[0] != x.Hash {
			t.Fatalf("got %v (%+v)", err, e)
		}
		q := smallSample("euler")
		q.Latent = x
		for range 2 {
			done, err := Sample(ctx, c, q, nil)
			if err != nil || !bytes.Equal(done.X.Data, x.Data) {
				t.Fatalf("got %+v, %v", done, err)
			}
		}
		if done, err := sampleOnce(ctx, c, bare(), nil); err != nil || !bytes.Equal(done.X.Data, x.Data) {
			t.Errorf("by its hash: %v", err)
		}
		lie := bare()
		lie.Latent.Shape = []int{1, 1, 2, 4}
		if _, err := sampleOnce(ctx, c, lie, nil); code(err) != ErrBadRequest || !strings.Contains(err.Error(), "needs 32 bytes") {
			t.Errorf("a hash with another shape: %v", err)
		}
		lie = smallSample("euler")
		lie.Latent.Hash = strings.Repeat("ab", 32)
		if _, err := sampleOnce(ctx, c, lie, nil); code(err) != ErrBadRequest || !strings.Contains(err.Error(), "has the hash") {
			t.Errorf("a hash that lies: %v", err)
		}
	}
	cache := NewTensorCache(1000)
	for i := range 20 {
		v := f32(golden.Fill(string(rune('a'+i)), 50, 1, 0), 50)
		v.Name()
		cache.put(v.Hash, v.Data)
		if cache.used > 1000 || cache.order.Len() != len(cache.held) {
			t.Fatalf("%d bytes in %d tensors, the budget is 1000", cache.used, len(cache.held))
		}
	}
	if len(cache.held) != 5 {
		t.Errorf("%d tensors of 200 bytes fit 1000", len(cache.held))
	}
}

// TestHashesThroughADaemon: the daemon passes hashes on, the worker knows them.
func TestHashesThroughADaemon(t *testing.T) {
	r, _ := childRig(t, nil)
	r.svc.cfg.Tensors, r.svc.cfg.Forward = nil, true
	c, _ := socketRig(t, r)
	ctx := within(t, 20*time.Second)
	q := smallSample("euler")
	q.Latent = f32(golden.Fill("big", 1<<20, 1, 0), 1, 16, 256, 256)
	q.Latent.Name()
	for range 2 {
		done, err := Sample(ctx, c, q, nil)
		if err != nil || !bytes.Equal(done.X.Data, q.Latent.Data) {
			t.Fatalf("got %v", err)
		}
	}
	bare := *q
	bare.Latent = &Tensor{DType: "f32", Shape: q.Latent.Shape, Hash: q.Latent.Hash}
	if _, err := sampleOnce(ctx, c, &bare, nil); err != nil {
		t.Errorf("by its hash: %v", err)
	}
}

// TestSampleIsAJob looks at the record and the events of runs.
func TestSampleIsAJob(t *testing.T) {
	r := newRig(t, JobsConfig{}, ShelfConfig{})
	c, other := dialRig(t, r), dialRig(t, r)
	ctx := within(t, 20*time.Second)
	q := smallSample("euler")
	for range 2 { // the id may be used again
		q.ID = "s1"
		if _, err := Sample(ctx, c, q, nil); err != nil {
			t.Fatal(err)
		}
	}
	rec, err := Status(ctx, other, "s1")
	if err != nil || rec.State != Done || rec.Kind != KindSample || rec.Attempt != 1 || rec.Worker != "fake" || rec.Metrics["load_seconds"] != 0.5 {
		t.Errorf("got %+v, %v", rec, err)
	}
	var evs []Event
	end, err := Follow(ctx, other, "s1", 0, false, &Collector{Event: func(ev Event) { evs = append(evs, ev) }})
	if want := "queued execution_start progress metrics execution_success"; err != nil || end == nil || strings.Join(types(evs), " ") != want {
		t.Errorf("got events %v, %v, want %s", types(evs), err, want)
	}
	q = smallSample("wait")
	q.ID = "s2"
	_, err = Sample(ctx, c, q, func(*SampleReply) {
		list, counts, err := List(ctx, other, Running, 10)
		if err != nil || len(list) != 1 || list[0].Job != "s2" || counts[Running] != 1 {
			t.Errorf("jobs: got %+v, %v, %v", list, counts, err)
		}
		if _, err := Submit(ctx, other, &RunRequest{ID: "s2", Workflow: graph("Wait 1")}); code(err) != ErrDuplicate {
			t.Errorf("a job of that id: got %v", err)
		}
		if did, _, err := Cancel(context.WithoutCancel(ctx), other, "s2"); !did || err != nil {
			t.Errorf("cancel: %v, %v", did, err)
		}
	})
	if rec, _ := Status(ctx, other, "s2"); code(err) != ErrCancelled || rec.State != Cancelled || !rec.Cancel {
		t.Errorf("got %v, record %+v", err, rec)
	}
	if err := Retry(ctx, other, "s2"); err == nil {
		t.Error("a sample was retried")
	}
	_, _, end = runJob(t, c, &RunRequest{ID: "job", Workflow: graph("Wait 1")})
	q = smallSample("euler")
	if q.ID = "job"; end.Type != EventSuccess {
		t.Fatal(end)
	}
	if _, err := Sample(ctx, c, q, nil); code(err) != ErrDuplicate {
		t.Errorf("the id of a workflow: got %v", err)
	}
}
