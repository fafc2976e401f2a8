package serve_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"patchbay/array"
	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
	"patchbay/node/pyjson"
)

// smallSample returns a request that the fake runs. name, its sampler, says what happens.
func smallSample(name string) *message.SampleRequest {
	x := f32([]float32{1, 2, 3, 4}, 1, 1, 2, 2)
	return &message.SampleRequest{
		Model: message.ModelRef{File: "m.safetensors"}, Sampler: message.SamplerRef{Name: name},
		Sigmas: f32([]float32{1, 0}, 2), Latent: x,
		Conds: message.CondsRef{Positive: []message.CondRef{{
			ModelConds: map[string]*wire.Tensor{"c_crossattn": f32(make([]float32, 6), 1, 2, 3)},
		}}},
	}
}

func TestSampleOverFrames(t *testing.T) {
	r := ipctest.NewRig(t, jobs.Config{}, jobs.OutputsConfig{})
	c := ipctest.DialRig(t, r)
	for _, enc := range []wire.Encoding{wire.Msgpack, wire.JSON} {
		c.Enc = enc
		q := smallSample("euler")
		q.ID = "mine"
		var seen []*message.SampleReply
		done, err := ipctest.Sample(wiretest.Context(t), c, q,
			func(m *message.SampleReply) { seen = append(seen, m) })
		if err != nil {
			t.Fatal(err)
		}
		if done.ID != "mine" || done.Evals != 1 || string(done.X.Data) != string(q.Latent.Data) ||
			done.Metrics["load_seconds"] != 0.5 || done.Worker != "fake" {
			t.Errorf("got %+v", done)
		}
		if len(seen) != 1 || seen[0].Step != 1 || seen[0].Steps != 1 || seen[0].Seq != 2 || seen[0].X0 == nil {
			t.Errorf("got progress %+v, want one step with x0", seen)
		}
	}
}

// TestSampleIsCancelled checks that a run ends when it is cancelled and when its client goes away.
func TestSampleIsCancelled(t *testing.T) {
	r := ipctest.NewRig(t, jobs.Config{}, jobs.OutputsConfig{})
	c, other := ipctest.DialRig(t, r), ipctest.DialRig(t, r)
	ctx := wiretest.Context(t)
	q := smallSample("wait")
	q.ID = "stop-me"
	_, err := ipctest.Sample(ctx, c, q, func(*message.SampleReply) {
		if _, err := ipctest.Sample(ctx, other, q, nil); wiretest.Code(err) != fault.Duplicate {
			t.Errorf("a second run of that id: got %v, want %s", err, fault.Duplicate)
		}
		if did, _, err := client.Cancel(ctx, other, "stop-me"); !did || err != nil {
			t.Errorf("cancel: got %v, %v", did, err)
		}
	})
	if wiretest.Code(err) != fault.Cancelled {
		t.Errorf("got %v, want %s", err, fault.Cancelled)
	}
	if did, state, err := client.Cancel(ctx, other, "stop-me"); did || state != message.Cancelled || err != nil {
		t.Errorf("cancel after the end: got %v, %s, %v, want false and %s", did, state, err, message.Cancelled)
	}
	_, err = ipctest.Sample(ctx, c, q, func(*message.SampleReply) { go c.Close() })
	if err == nil {
		t.Error("the run ended well without its client")
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if rec, err := client.Status(ctx, other, "stop-me"); err == nil && rec.State == message.Cancelled &&
			strings.Contains(rec.Error.Text, "client") {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the run goes on though its client went away")
		}
	}
}

// TestSampleRefusals checks that every refusal names its field and comes before anything runs.
func TestSampleRefusals(t *testing.T) {
	r := ipctest.NewRig(t, jobs.Config{}, jobs.OutputsConfig{})
	c := ipctest.DialRig(t, r)
	ctx := wiretest.Context(t)
	entry := func(key string, x *wire.Tensor) func(*message.SampleRequest) {
		return func(q *message.SampleRequest) { q.Conds.Positive[0].ModelConds[key] = x }
	}
	two := 2.0
	for field, change := range map[string]func(*message.SampleRequest){
		"model.file":     func(q *message.SampleRequest) { q.Model.File = "" },
		"sampler.name":   func(q *message.SampleRequest) { q.Sampler.Name = "" },
		"id":             func(q *message.SampleRequest) { q.ID = "a b" },
		"sigmas":         func(q *message.SampleRequest) { q.Sigmas = nil },
		"latent":         func(q *message.SampleRequest) { q.Latent = f32([]float32{1}, 1) },
		"noise":          func(q *message.SampleRequest) { q.Noise = f32([]float32{1}, 1, 1, 1, 1) },
		"mask":           func(q *message.SampleRequest) { q.Mask = f32([]float32{1}, 1) },
		"preview":        func(q *message.SampleRequest) { q.Preview = "png" },
		"plan":           func(q *message.SampleRequest) { q.Plan = "ulysses=x" },
		"noise_draws[0]": func(q *message.SampleRequest) { q.NoiseDraws = []int{0} },
		"sampling.bases": func(q *message.SampleRequest) { q.Sampling = &message.SamplingRef{} },
		"conds.negative": func(q *message.SampleRequest) { q.CFG = &two },
		"cache.rule": func(q *message.SampleRequest) {
			q.Cache = &message.CacheRef{Rule: "tea", Threshold: &two}
		},
		"cache.threshold": func(q *message.SampleRequest) { q.Cache = &message.CacheRef{Rule: "easy"} },
		"sampler.mask_noise_from_seed": func(q *message.SampleRequest) {
			q.Sampler = message.SamplerRef{
				Name:              "heun",
				MaskNoiseFromSeed: true,
			}
		},
		"dual.middle[0].area": func(q *message.SampleRequest) {
			q.Conds.Negative, q.Dual = &[]message.CondRef{}, &message.DualRef{Middle: slices.Clone(q.Conds.Positive)}
			q.Dual.Middle[0].Area = []int{1}
		},
		"conds.positive[0].area": func(q *message.SampleRequest) {
			q.Conds.Positive[0].Area = []int{1}
		},
		"conds.positive[0].references[0]": func(q *message.SampleRequest) {
			q.Conds.Positive[0].References = []*wire.Tensor{f32(make([]float32, 8), 2, 1, 2, 2)}
		},
		"conds.positive[0].references[1]": func(q *message.SampleRequest) {
			q.Conds.Positive[0].References = []*wire.Tensor{f32(make([]float32, 4), 1, 1, 2, 2), nil}
		},
		"conds.positive[0].control[0].rows": func(q *message.SampleRequest) {
			q.Conds.Positive[0].Control = []message.ControlRef{{Blocks: []int{0}, Rows: f32(make([]float32, 4), 2, 2)}}
		},
		"conds.positive[0].mask": func(q *message.SampleRequest) {
			q.Conds.Positive[0].Mask = f32([]float32{1}, 1)
		},
		"conds.positive[0].model_conds.c_crossattn":    entry("c_crossattn", f32(make([]float32, 12), 2, 2, 3)),
		"conds.positive[0].model_conds.c_concat":       entry("c_concat", f32([]float32{1}, 1)),
		"conds.positive[0].model_conds.guidance":       entry("guidance", f32([]float32{1, 2}, 2)),
		"conds.positive[0].model_conds.attention_mask": entry("attention_mask", f32([]float32{0, 1}, 1, 2)),
	} {
		q := smallSample("euler")
		change(q)
		var e *fault.Error
		if _, err := ipctest.Sample(ctx, c, q, nil); !errors.As(err, &e) || e.Public() != fault.BadRequest ||
			e.Field != field {
			t.Errorf("%s: got %v", field, err)
		}
	}
	q, e := smallSample("euler"), (*fault.Error)(nil)
	q.Dual = &message.DualRef{}
	if _, err := ipctest.Sample(ctx, c, q, nil); !errors.As(err, &e) || e.Field != "conds.negative" {
		t.Errorf("dual guidance without a negative: got %v", err)
	}
	for field, body := range map[string]map[string]any{
		"hooks":      {"hooks": 1},
		"model.lora": {"model": map[string]any{"file": "m", "lora": []any{}}},
		"model.patches[0].adapter": {"model": map[string]any{
			"file":    "m",
			"patches": []any{map[string]any{"key": "a", "adapter": "loha"}},
		}, "sampler": map[string]any{"name": "euler"}},
		"model.patches[0].tensors": {"model": map[string]any{
			"file":    "m",
			"patches": []any{map[string]any{"key": "a", "adapter": "lora"}},
		}, "sampler": map[string]any{"name": "euler"}},
		"model.nets[0].file": {
			"model":   map[string]any{"file": "m", "nets": []any{map[string]any{"strength": 1}}},
			"sampler": map[string]any{"name": "euler"},
		},
		"model.nets[0].hint": {
			"model":   map[string]any{"file": "m", "nets": []any{map[string]any{"file": "n"}}},
			"sampler": map[string]any{"name": "euler"},
		},
		"conds.positive[0].control": {"conds": map[string]any{"positive": []any{map[string]any{"control": 1}}}},
		"sigmas":                    {"sigmas": []any{1.0}},
		"seed":                      {"seed": -1},
	} {
		var e *fault.Error
		err := client.AskOne(ctx, c, message.VerbSample, "", body, &struct{}{})
		if !errors.As(err, &e) || e.Field != field {
			t.Errorf("%s: got %v (%+v)", field, err, e)
		}
	}
	if _, err := ipctest.Load(ctx, c, &message.LoadRequest{}); wiretest.Code(err) != fault.BadRequest {
		t.Errorf("load without a file: got %v", err)
	}
}

// expected checks forecasts of a model, which load nothing.
func expected(ctx context.Context, t *testing.T, c client.Client, ref message.ModelRef) {
	t.Helper()
	ask := func(plan string, w message.WorkloadRef) (message.Forecast, error) {
		out, err := ipctest.Load(ctx, c, &message.LoadRequest{Model: ref, Plan: plan, Forecast: &w})
		if err != nil {
			return message.Forecast{}, err
		}
		if out.Bytes != 0 || out.Forecast == nil {
			t.Fatalf("a forecast loads %d bytes and is %v", out.Bytes, out.Forecast)
		}
		return *out.Forecast, nil
	}
	small := message.WorkloadRef{Width: 256, Height: 256, Steps: 4}
	one, err := ask("", small)
	if err != nil || one.Plan != "one rank" || one.Device != "cpu" || !(one.StepSeconds > 0) ||
		!(one.Bytes > one.WeightBytes) || one.WeightBytes <= 0 || !(math.Abs(one.Seconds/one.StepSeconds-4) <= 1) {
		t.Errorf("one rank: %+v, %v", one, err)
	}
	large, err := ask("", message.WorkloadRef{Width: 512, Height: 512, Steps: 8, Batch: 2})
	if err != nil || !(large.Seconds > 8*one.Seconds) || !(large.Bytes > one.Bytes) {
		t.Errorf("a larger run: %+v, %v; the smaller one %+v", large, err, one)
	}
	two, err := ask("ranks=2", small)
	if err != nil || two.Plan == "one rank" || !(two.Seconds < one.Seconds) {
		t.Errorf("two ranks: %+v, %v", two, err)
	}
	var e *fault.Error
	if _, err := ask("pipe=64", small); !errors.As(err, &e) || e.Public() != fault.PlanRefused {
		t.Errorf("more stages than blocks: %v", err)
	}
	for field, w := range map[string]message.WorkloadRef{
		"forecast.width": {Height: 64}, "forecast.steps": {Width: 64, Height: 64, Steps: -1},
		"forecast.entries": {Width: 64, Height: 64, Entries: 1000},
	} {
		if _, err := ask("", w); !errors.As(err, &e) || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestModelsOfHosts checks that a real model file is loaded, refused under a wrong name, and freed.
func TestModelsOfHosts(t *testing.T) {
	dir, prints := goldenRoot(t, "flux-b", "qwen-a")
	c := ipctest.DialRig(t, realRig(t, dir))
	ctx := wiretest.Context(t)
	ref := message.ModelRef{File: "flux-b.safetensors", Fingerprint: strings.ToUpper(prints["flux-b"])}
	expected(ctx, t, c, ref)
	first, err := ipctest.Load(ctx, c, &message.LoadRequest{Model: ref})
	if err != nil {
		t.Fatal(err)
	}
	again, err := ipctest.Load(ctx, c, &message.LoadRequest{Model: ref})
	if err != nil {
		t.Fatal(err)
	}
	if want := (&message.LatentSpace{Channels: 16, Scale: 0.3611, Shift: 0.1159}); !reflect.DeepEqual(first.Latent, want) {
		t.Errorf("the latent space is %+v, want %+v", first.Latent, want)
	}
	if first.Bytes < 1000 || first.Seconds == 0 || again.Seconds != 0 || again.Bytes != first.Bytes || first.Workers != 1 {
		t.Errorf("got %+v, then %+v: want the second to find the weights there", first, again)
	}
	freed, err := client.Free(ctx, c, &message.FreeRequest{Models: []string{"flux-b.safetensors"}})
	if err != nil || freed.Bytes != first.Bytes {
		t.Errorf("free: got %+v, %v, want %d bytes", freed, err, first.Bytes)
	}
	if freed, err = client.Free(ctx, c, &message.FreeRequest{}); err != nil || freed.Bytes != 0 {
		t.Errorf("free twice: got %+v, %v, want 0 bytes", freed, err)
	}
	for _, row := range []struct {
		model       message.ModelRef
		code, input string
	}{
		{message.ModelRef{File: "none.safetensors"}, fault.NoModel, "model.file"},
		{message.ModelRef{File: "../x.safetensors"}, fault.BadRequest, "model.file"},
		{message.ModelRef{File: "flux-b.safetensors", Fingerprint: "00"}, fault.NoModel, "model.fingerprint"},
	} {
		var e *fault.Error
		if _, err := ipctest.Load(ctx, c, &message.LoadRequest{Model: row.model}); !errors.As(err, &e) ||
			e.Public() != row.code ||
			e.Field != row.input {
			t.Errorf("load %+v: got %v, want %s of %s", row.model, err, row.code, row.input)
		}
		if _, err := described(ctx, c, row.model); !errors.As(err, &e) || e.Public() != row.code || e.Field != row.input {
			t.Errorf("describe %+v: got %v, want %s of %s", row.model, err, row.code, row.input)
		}
	}
	if about, err := described(ctx, c, ref); err != nil || about.Family != "flux" ||
		!reflect.DeepEqual(&about.Latent, first.Latent) {
		t.Errorf("flux-b is described as %+v (%v), loaded as %+v", about, err, first.Latent)
	}
	about, err := described(ctx, c, message.ModelRef{File: "qwen-a.safetensors"})
	if l := about.Latent; err != nil || about.Family != "qwenimage" || len(l.Mean) != 16 || len(l.Std) != 16 ||
		l.Mean[0] != -0.7571 || l.Std[15] != 1.916 { // ComfyUI's latent_formats.Wan21
		t.Errorf("qwen-a is described as %+v, %v", about, err)
	}
	q := smallSample("euler")
	q.Model = ref
	var e *fault.Error
	if _, err := ipctest.Sample(ctx, c, q, nil); !errors.As(err, &e) || e.Field != "latent" ||
		!strings.Contains(e.Text, "channels") {
		t.Errorf("a latent of one channel: got %v", err)
	}
	q.Sampling = &message.SamplingRef{Bases: []string{"ModelSamplingCascade"}}
	if _, err := ipctest.Sample(ctx, c, q, nil); !errors.As(err, &e) || e.Field != "sampling.bases" {
		t.Errorf("an unknown base: got %v", err)
	}
}

// described asks for the description of a model file.
func described(ctx context.Context, c client.Client, ref message.ModelRef) (message.ModelReply, error) {
	out := message.DescribeReply{Model: &message.ModelReply{}}
	err := client.AskOne(ctx, c, message.VerbDescribe, "", message.DescribeRequest{Model: &ref}, &out)
	return *out.Model, err
}

// TestConditioningTableIsTrue checks that the keys of model_conds in docs/protocol.md are exactly those that are
// accepted.
func TestConditioningTableIsTrue(t *testing.T) {
	page, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rows, _ := strings.Cut(string(page), "How a ComfyUI conditioning becomes model_conds")
	rows, _, _ = strings.Cut(rows, "A patch: {key")
	var documented []string
	for _, row := range regexp.MustCompile(`(?m)^- ([a-z0-9_, ]+) \[`).FindAllStringSubmatch(rows, -1) {
		documented = append(documented, strings.Split(row[1], ", ")...)
	}
	refusal := func(key string, shape ...int) string {
		q := smallSample("euler")
		n := 1
		for _, d := range shape {
			n *= d
		}
		conds := q.Conds.Positive[0].ModelConds
		conds["encoder_hidden_states_t5"] = f32(make([]float32, 6), 1, 2, 3) // which has a mask
		conds[key] = f32(slices.Repeat([]float32{1}, n), shape...)
		_, err := q.Lower(message.TensorReader{})
		return fmt.Sprint(err)
	}
	_, list, _ := strings.Cut(refusal("made_up", 1), "the keys are ")
	known := strings.Split(list, ", ")
	slices.Sort(documented)
	slices.Sort(known)
	if documented = slices.Compact(documented); !slices.Equal(documented, known) {
		t.Errorf("the page tells of %v, the code of %v", documented, known)
	}
	shapes := map[string][]int{
		"c_crossattn": {1, 2, 3}, "encoder_hidden_states_t5": {1, 2, 3}, "guidance": {1}, "c_concat": {1, 1, 2, 2},
	}
	for _, key := range documented {
		shape := shapes[key]
		if shape == nil {
			shape = []int{1, 2}
		}
		if got := refusal(key, shape...); strings.Contains(got, key) {
			t.Errorf("%s %v: %s", key, shape, got)
		}
	}
}

// TestSampleInAChild checks sample in a supervised process, which may die of it.
func TestSampleInAChild(t *testing.T) {
	_, ch := ipctest.ChildRig(t, nil)
	ctx := wiretest.Context(t)
	if err := ch.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	steps, sent := 0, int64(0)
	done, err := ch.Sample(ctx, smallSample("euler"),
		func(m *message.SampleReply) { steps, sent = steps+1, m.Sent["ulysses"] })
	if err != nil || done.Evals != 1 || steps != 1 || sent != 12 {
		t.Fatalf("got %+v, %v, %d steps", done, err, steps)
	}
	if out, err := ch.Load(ctx, &message.LoadRequest{Model: message.ModelRef{File: "abc"}}); err != nil || out.Bytes != 3 {
		t.Errorf("load: got %+v, %v", out, err)
	}
	stop, cancel := context.WithCancel(ctx)
	q := smallSample("wait")
	q.ID = wire.NewID()
	if _, err := ch.Sample(stop, q, func(*message.SampleReply) { cancel() }); wiretest.Code(err) != fault.Cancelled {
		t.Errorf("cancelled: got %v", err)
	}
	if _, err := ch.Sample(ctx, smallSample("die"), nil); wiretest.Code(err) != fault.WorkerLost {
		t.Errorf("a worker that dies: got %v", err)
	}
}

// BenchmarkTensorOverSocket sends a 64 MiB latent over the unix socket into a real executor's decoder and gets the
// refusal of its shape.
func BenchmarkTensorOverSocket(b *testing.B) {
	sock, err := serve.ListenSocket(filepath.Join(b.TempDir(), "s"))
	if err != nil {
		b.Fatal(err)
	}
	svc := serve.NewService(serve.ServiceConfig{Executors: []jobs.Executor{&ipctest.Fake{Label: "fake"}}})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = sock.Serve(ctx, ctx, svc) }()
	nc, err := net.Dial("unix", filepath.Join(strings.TrimPrefix(sock.Name(), "socket ")))
	if err != nil {
		b.Fatal(err)
	}
	c := client.NewFrameClient(nc, nc, nc.Close)
	body := map[string]any{
		"class_type": "Sink",
		"inputs": pyjson.NewObject("value", &array.Tensor{
			DType: "f32", Shape: []int{16, 1024, 1024}, Data: make([]byte, 64<<20),
		}),
	}
	b.SetBytes(64 << 20)
	for b.Loop() {
		if err := client.AskOne(ctx, c, message.VerbExec, "", body, &struct{}{}); wiretest.Code(err) != fault.NoNodeType {
			b.Fatal(err)
		}
	}
	_ = c.Close()
	stop()
	<-done
	svc.Close()
}
