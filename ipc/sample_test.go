package ipc

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"patchbay/node"
)

// smallSample is a request that the fake runs; name is what its sampler does.
func smallSample(name string) *SampleRequest {
	x := f32([]float32{1, 2, 3, 4}, 1, 1, 2, 2)
	return &SampleRequest{
		Model: ModelRef{File: "m.safetensors"}, Sampler: SamplerRef{Name: name}, Sigmas: f32([]float32{1, 0}, 2), Latent: x,
		Conds: CondsRef{Positive: []CondRef{{ModelConds: map[string]*Tensor{"c_crossattn": f32(make([]float32, 6), 1, 2, 3)}}}},
	}
}

func TestSampleOverFrames(t *testing.T) {
	r := newRig(t, JobsConfig{}, ShelfConfig{})
	c := dialRig(t, r)
	for _, enc := range []Encoding{Msgpack, JSON} {
		c.enc = enc
		q := smallSample("euler")
		q.ID = "mine"
		var seen []*SampleReply
		done, err := Sample(within(t, 10*time.Second), c, q, func(m *SampleReply) { seen = append(seen, m) })
		if err != nil {
			t.Fatal(err)
		}
		if done.ID != "mine" || done.Evals != 1 || string(done.X.Data) != string(q.Latent.Data) || done.Metrics["load_seconds"] != 0.5 || done.Worker != "fake" {
			t.Errorf("got %+v", done)
		}
		if len(seen) != 1 || seen[0].Step != 1 || seen[0].Steps != 1 || seen[0].Seq != 2 || seen[0].X0 == nil {
			t.Errorf("got progress %+v, want one step with x0", seen)
		}
	}
}

// TestSampleIsCancelled asks for the end of a run by cancel and by going away.
func TestSampleIsCancelled(t *testing.T) {
	r := newRig(t, JobsConfig{}, ShelfConfig{})
	c, other := dialRig(t, r), dialRig(t, r)
	ctx := within(t, 10*time.Second)
	q := smallSample("wait")
	q.ID = "stop-me"
	_, err := Sample(ctx, c, q, func(*SampleReply) {
		if _, err := Sample(ctx, other, q, nil); code(err) != ErrDuplicate {
			t.Errorf("a second run of that id: got %v, want %s", err, ErrDuplicate)
		}
		if did, _, err := Cancel(ctx, other, "stop-me"); !did || err != nil {
			t.Errorf("cancel: got %v, %v", did, err)
		}
	})
	if code(err) != ErrCancelled {
		t.Errorf("got %v, want %s", err, ErrCancelled)
	}
	if did, state, err := Cancel(ctx, other, "stop-me"); did || state != Cancelled || err != nil {
		t.Errorf("cancel after the end: got %v, %s, %v, want false and %s", did, state, err, Cancelled)
	}
	_, err = Sample(ctx, c, q, func(*SampleReply) { go c.Close() })
	if err == nil {
		t.Error("the run ended well without its client")
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if rec, err := Status(ctx, other, "stop-me"); err == nil && rec.State == Cancelled && strings.Contains(rec.Error.Message, "client") {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the run goes on though its client went away")
		}
	}
}

func code(err error) string {
	var e *Error
	if !errors.As(err, &e) {
		return ""
	}
	return e.Code
}

// TestSampleRefusals checks that every refusal names its field and comes before anything runs.
func TestSampleRefusals(t *testing.T) {
	r := newRig(t, JobsConfig{}, ShelfConfig{})
	c := dialRig(t, r)
	ctx := within(t, 20*time.Second)
	entry := func(key string, x *Tensor) func(*SampleRequest) {
		return func(q *SampleRequest) { q.Conds.Positive[0].ModelConds[key] = x }
	}
	two := 2.0
	for field, change := range map[string]func(*SampleRequest){
		"model.file":                   func(q *SampleRequest) { q.Model.File = "" },
		"sampler.name":                 func(q *SampleRequest) { q.Sampler.Name = "" },
		"id":                           func(q *SampleRequest) { q.ID = "a b" },
		"sigmas":                       func(q *SampleRequest) { q.Sigmas = nil },
		"latent":                       func(q *SampleRequest) { q.Latent = f32([]float32{1}, 1) },
		"noise":                        func(q *SampleRequest) { q.Noise = f32([]float32{1}, 1, 1, 1, 1) },
		"mask":                         func(q *SampleRequest) { q.Mask = f32([]float32{1}, 1) },
		"preview":                      func(q *SampleRequest) { q.Preview = "png" },
		"plan":                         func(q *SampleRequest) { q.Plan = "ulysses=x" },
		"noise_draws[0]":               func(q *SampleRequest) { q.NoiseDraws = []int{0} },
		"sampling.bases":               func(q *SampleRequest) { q.Sampling = &SamplingRef{} },
		"conds.negative":               func(q *SampleRequest) { q.CFG = &two },
		"sampler.mask_noise_from_seed": func(q *SampleRequest) { q.Sampler = SamplerRef{Name: "heun", MaskNoiseFromSeed: true} },
		"conds.positive[0].area":       func(q *SampleRequest) { q.Conds.Positive[0].Area = []int{1} },
		"conds.positive[0].mask":       func(q *SampleRequest) { q.Conds.Positive[0].Mask = f32([]float32{1}, 1) },
		"conds.positive[0].model_conds.c_crossattn":    entry("c_crossattn", f32(make([]float32, 12), 2, 2, 3)),
		"conds.positive[0].model_conds.c_concat":       entry("c_concat", f32([]float32{1}, 1)),
		"conds.positive[0].model_conds.guidance":       entry("guidance", f32([]float32{1, 2}, 2)),
		"conds.positive[0].model_conds.attention_mask": entry("attention_mask", f32([]float32{1, 0, 1}, 1, 3)),
	} {
		q := smallSample("euler")
		change(q)
		var e *Error
		if _, err := Sample(ctx, c, q, nil); !errors.As(err, &e) || e.Code != ErrBadRequest || e.Input != field {
			t.Errorf("%s: got %v", field, err)
		}
	}
	for field, body := range map[string]map[string]any{
		"hooks":                     {"hooks": 1},
		"model.lora":                {"model": map[string]any{"file": "m", "lora": []any{}}},
		"model.patches[0].adapter":  {"model": map[string]any{"file": "m", "patches": []any{map[string]any{"key": "a", "adapter": "loha"}}}, "sampler": map[string]any{"name": "euler"}},
		"model.patches[0].tensors":  {"model": map[string]any{"file": "m", "patches": []any{map[string]any{"key": "a", "adapter": "lora"}}}, "sampler": map[string]any{"name": "euler"}},
		"conds.positive[0].control": {"conds": map[string]any{"positive": []any{map[string]any{"control": 1}}}},
		"sigmas":                    {"sigmas": []any{1.0}},
		"seed":                      {"seed": -1},
	} {
		var e *Error
		err := askOne(ctx, c, VerbSample, "", body, &struct{}{})
		if !errors.As(err, &e) || e.Input != field {
			t.Errorf("%s: got %v (%+v)", field, err, e)
		}
	}
	if _, err := Load(ctx, c, &LoadRequest{}); code(err) != ErrBadRequest {
		t.Errorf("load without a file: got %v", err)
	}
}

// TestModelsOfHosts loads, misnames and frees a real model file.
func TestModelsOfHosts(t *testing.T) {
	dir, prints := goldenRoot(t, "flux-b")
	c := dialRig(t, realRig(t, dir))
	ctx := within(t, 30*time.Second)
	ref := ModelRef{File: "flux-b.safetensors", Fingerprint: strings.ToUpper(prints["flux-b"])}
	first, err := Load(ctx, c, &LoadRequest{Model: ref})
	if err != nil {
		t.Fatal(err)
	}
	again, err := Load(ctx, c, &LoadRequest{Model: ref})
	if err != nil {
		t.Fatal(err)
	}
	if first.Bytes < 1000 || first.Seconds == 0 || again.Seconds != 0 || again.Bytes != first.Bytes || first.Workers != 1 {
		t.Errorf("got %+v, then %+v: want the second to find the weights there", first, again)
	}
	freed, err := Free(ctx, c, &FreeRequest{Models: []string{"flux-b.safetensors"}})
	if err != nil || freed.Bytes != first.Bytes {
		t.Errorf("free: got %+v, %v, want %d bytes", freed, err, first.Bytes)
	}
	if freed, err = Free(ctx, c, &FreeRequest{}); err != nil || freed.Bytes != 0 {
		t.Errorf("free twice: got %+v, %v, want 0 bytes", freed, err)
	}
	for _, row := range []struct {
		model       ModelRef
		code, input string
	}{
		{ModelRef{File: "none.safetensors"}, ErrNoModel, "model.file"},
		{ModelRef{File: "../x.safetensors"}, ErrBadRequest, "model.file"},
		{ModelRef{File: "flux-b.safetensors", Fingerprint: "00"}, ErrNoModel, "model.fingerprint"},
	} {
		var e *Error
		if _, err := Load(ctx, c, &LoadRequest{Model: row.model}); !errors.As(err, &e) || e.Code != row.code || e.Input != row.input {
			t.Errorf("load %+v: got %v, want %s of %s", row.model, err, row.code, row.input)
		}
	}
	q := smallSample("euler")
	q.Model = ref
	var e *Error
	if _, err := Sample(ctx, c, q, nil); !errors.As(err, &e) || e.Input != "latent" || !strings.Contains(e.Message, "channels") {
		t.Errorf("a latent of one channel: got %v", err)
	}
	q.Sampling = &SamplingRef{Bases: []string{"ModelSamplingCascade"}}
	if _, err := Sample(ctx, c, q, nil); !errors.As(err, &e) || e.Input != "sampling.bases" {
		t.Errorf("an unknown base: got %v", err)
	}
}

// TestSampleInAChild goes through a supervised process, which may die of it.
func TestSampleInAChild(t *testing.T) {
	_, ch := childRig(t, nil)
	ctx := within(t, 20*time.Second)
	if err := ch.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	steps := 0
	done, err := ch.Sample(ctx, smallSample("euler"), func(*SampleReply) { steps++ })
	if err != nil || done.Evals != 1 || steps != 1 {
		t.Fatalf("got %+v, %v, %d steps", done, err, steps)
	}
	if out, err := ch.Load(ctx, &LoadRequest{Model: ModelRef{File: "abc"}}); err != nil || out.Bytes != 3 {
		t.Errorf("load: got %+v, %v", out, err)
	}
	stop, cancel := context.WithCancel(ctx)
	q := smallSample("wait")
	q.ID = NewJobID()
	if _, err := ch.Sample(stop, q, func(*SampleReply) { cancel() }); code(err) != ErrCancelled {
		t.Errorf("cancelled: got %v", err)
	}
	if _, err := ch.Sample(ctx, smallSample("die"), nil); code(err) != ErrWorkerLost {
		t.Errorf("a worker that dies: got %v", err)
	}
}

// BenchmarkTensorOverSocket sends a 64 MiB latent over the unix socket into a real executor's decoder and gets the refusal of its shape.
func BenchmarkTensorOverSocket(b *testing.B) {
	sock, err := ListenSocket(filepath.Join(b.TempDir(), "s"))
	if err != nil {
		b.Fatal(err)
	}
	svc := NewService(ServiceConfig{Executors: []Executor{&fake{name: "fake"}}})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = sock.Serve(ctx, ctx, svc) }()
	nc, err := net.Dial("unix", filepath.Join(strings.TrimPrefix(sock.Name(), "socket ")))
	if err != nil {
		b.Fatal(err)
	}
	c := NewFrameClient(nc, nc, nc.Close)
	body := map[string]any{"class_type": "Sink", "inputs": node.NewObject("value", &Tensor{DType: "f32", Shape: []int{16, 1024, 1024}, Data: make([]byte, 64<<20)})}
	b.SetBytes(64 << 20)
	for b.Loop() {
		if err := askOne(ctx, c, VerbExec, "", body, &struct{}{}); code(err) != ErrNoNodeType {
			b.Fatal(err)
		}
	}
	_ = c.Close()
	stop()
	<-done
	svc.Close()
}
