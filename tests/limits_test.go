package tests

import (
	"context"
	"errors"
	"strings"
	"testing"

	"patchbay/array"
	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
	"patchbay/tests/harness"
)

// TestLimits checks limits from flags and environment in the real program, on both carriers: what a workflow names in
// plain numbers is refused before it is queued, what comes over links when its node would run, and what a host asks for
// in either way.
func TestLimits(t *testing.T) {
	t.Parallel()
	program := harness.Build(t)
	s := harness.Start(t, program, `PATCHBAY_MAX_STEPS=5 exec "$@"`, "--max-pixels", "16K", "--max-message", "64K",
		"--max-queue", "1", "--max-client-jobs", "2")
	c := s.Client()
	sock, err := client.DialSocket(s.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sock.Close() }()
	ctx, stop := context.WithTimeout(context.Background(), harness.Patience)
	defer stop()
	linked := strings.Replace(harness.DemoFlow(t, 4), `"steps": 4`, `"steps": ["90", 0]`, 1)
	linked = strings.TrimSuffix(strings.TrimSpace(linked), "}") +
		`,"90":{"class_type":"PrimitiveInt","inputs":{"value":6}}}`
	wide := `{"1":{"class_type":"EmptyLatentImage","inputs":{"width":["3",0],"height":128,"batch_size":1}},
		"3":{"class_type":"PrimitiveInt","inputs":{"value":256}},
		"2":{"class_type":"SaveLatent","inputs":{"samples":["1",0],"filename_prefix":"wide"}}}`
	grown := `{"1":{"class_type":"EmptyLatentImage","inputs":{"width":128,"height":128,"batch_size":1}},
		"4":{"class_type":"LatentUpscaleBy","inputs":{"samples":["1",0],"upscale_method":"nearest-exact","scale_by":1.5}},
		"2":{"class_type":"SaveLatent","inputs":{"samples":["4",0],"filename_prefix":"grown"}}}`
	for _, row := range []struct {
		name, flow, node, says string
	}{
		{"steps", harness.DemoFlow(t, 6), "", "steps: 6 steps, at most 5"},
		{
			"pixels", strings.Replace(strings.Replace(harness.Quick, `"width":64`, `"width":256`, 1), `"height":64`,
				`"height":128`, 1),
			"1", "at most 16384",
		},
		{"linked steps", linked, "", "steps: 6 steps, at most 5"},
		{"linked pixels", wide, "1", "width: 32768 pixels, at most 16384"},
		{"pixels that a node makes", grown, "4", "at most 16384"},
		{"bytes", strings.Replace(harness.Quick, "quick", strings.Repeat("q", 70000), 1), "", "the limit is 65536"},
	} {
		for name, c := range map[string]client.Client{"nats": c, "socket": sock} {
			end, err := client.Run(ctx, c, &message.RunRequest{Workflow: row.flow}, &client.Collector{})
			var e *fault.Error
			if !errors.As(err, &e) && end != nil {
				e = end.Error
			}
			if e == nil || e.Public() != fault.TooLarge || e.Status() != 413 || !strings.Contains(e.Error(), row.says) ||
				row.node != "" && e.Node != row.node {
				t.Errorf("%s over %s: got %v, %+v; want too_large with %q", row.name, name, err, end, row.says)
			}
		}
	}
	if end, err := client.Run(ctx, c, &message.RunRequest{Workflow: strings.Replace(harness.Quick,
		`"width":64,"height":64`,
		`"width":128,"height":128`, 1)}, &client.Collector{}); err != nil || end.Type != message.EventSuccess {
		t.Errorf("a picture of 16384 pixels: %v, %+v", err, end)
	}
	r, err := sock.Ask(ctx, message.VerbExec, "",
		&message.ExecRequest{
			Class:  "EmptyLatentImage",
			Inputs: pyjson.NewObject("width", 256, "height", 128, "batch_size", 1),
		})
	if err == nil {
		_, err = r.One(ctx)
	}
	var e *fault.Error
	if !errors.As(err, &e) || e.Status() != 413 || e.Field != "width" {
		t.Errorf("exec of a picture of 32768 pixels: %v", err)
	}
	harness.Submit(t, c, "runs", strings.Replace(harness.DemoFlow(t, 5), `"euler"`, `"dpm_adaptive"`, 1))
	for _, c := range []client.Client{c, sock} {
		if b, err := client.LimitsOf(ctx, c); err != nil || b.Steps != 5 || b.Pixels != 16384 || b.MessageBytes != 65536 ||
			b.FrameBytes != 65536 || b.Queue != 1 || b.ClientJobs != 2 || b.Depth != 64 {
			t.Errorf("describe tells %+v, %v", b, err)
		}
	}
	if _, out := harness.Try(t, program, nil, "doctor", "--nats", s.URL); !strings.Contains(out,
		"messages of 64 KiB on NATS and 64 KiB elsewhere, 64 levels deep; "+
			"1 waiting jobs, 2 jobs a client; 16384 pixels, 5 steps") {
		t.Errorf("doctor prints\n%s", out)
	}
	for _, args := range [][]string{
		{"--max-depth", "100"},
		{"--max-message", "x"},
		{"--max-pixels", "-1"},
		{"--max-steps", "0"},
		{"--max-queue", "0"},
		{"--max-client-jobs", "-1"},
	} {
		if code, out := harness.Try(t, program, nil, append([]string{"serve", "--store", t.TempDir()},
			args...)...); code != 2 ||
			!strings.Contains(out, args[0]) {
			t.Errorf("serve %v ended with %d:\n%s", args, code, out)
		}
	}
	if code, out := harness.Try(t, program, []string{"PATCHBAY_MAX_QUEUE=many"}, "serve", "--store",
		t.TempDir()); code != 2 ||
		!strings.Contains(out, `PATCHBAY_MAX_QUEUE: "many"`) {
		t.Errorf("with a bad variable it ended with %d:\n%s", code, out)
	}
}

// TestNamesStayInTheirRoots sends paths that lead outside wherever a message names a file, over all doors, and checks
// that none is opened and nothing is written outside.
func TestNamesStayInTheirRoots(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Build(t), "")
	sock, err := client.DialSocket(s.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sock.Close() }()
	ctx, stop := context.WithTimeout(context.Background(), harness.Patience)
	defer stop()
	tensor := &wire.Tensor{Tensor: array.Tensor{DType: "f32", Shape: []int{2}, Data: make([]byte, 8)}}
	latent := &wire.Tensor{Tensor: array.Tensor{DType: "f32", Shape: []int{1, 1, 2, 2}, Data: make([]byte, 16)}}
	for name, c := range map[string]client.Client{"nats": s.Client(), "socket": sock} {
		for _, path := range []string{
			"/etc/passwd", "../../etc/passwd", "..", "a/../../../etc/passwd", "..\\..\\etc\\passwd",
			"\x00", "/proc/self/environ", "~/x",
		} {
			save := func(prefix string) *pyjson.Object {
				return pyjson.NewObject("1", pyjson.NewObject("class_type", "EmptyLatentImage", "inputs",
					pyjson.NewObject("width", 64, "height", 64, "batch_size", 1)),
					"2", pyjson.NewObject("class_type", "SaveLatent", "inputs",
						pyjson.NewObject("samples", []any{"1", 0}, "filename_prefix", prefix)))
			}
			load := func(class, input string) *pyjson.Object {
				return pyjson.NewObject("1", pyjson.NewObject("class_type", class, "inputs",
					pyjson.NewObject(input, path, "weight_dtype", "default")),
					"2", pyjson.NewObject("class_type", "PreviewImage", "inputs", pyjson.NewObject("images", []any{"1", 0})),
					"3", pyjson.NewObject("class_type", "SaveLatent", "inputs",
						pyjson.NewObject("samples", []any{"1", 0}, "filename_prefix", "x")))
			}
			for _, row := range []struct {
				verb string
				body any
			}{
				{message.VerbRun, &message.RunRequest{Workflow: save(path + "/../../../out")}},
				{message.VerbRun, &message.RunRequest{Workflow: load("LoadImage", "image")}},
				{message.VerbRun, &message.RunRequest{Workflow: load("LoadLatent", "latent")}},
				{message.VerbRun, &message.RunRequest{Workflow: save("x"), ID: path}},
				{message.VerbExec, &message.ExecRequest{
					Class:  "UNETLoader",
					Inputs: pyjson.NewObject("unet_name", path, "weight_dtype", "default"),
				}},
				{message.VerbExec, &message.ExecRequest{Class: "VAELoader", Inputs: pyjson.NewObject("vae_name", path)}},
				{message.VerbExec, &message.ExecRequest{Class: "LoadImage", Inputs: pyjson.NewObject("image", path)}},
				{message.VerbLoad, &message.LoadRequest{Model: message.ModelRef{File: path}}},
				{message.VerbFree, &message.FreeRequest{Models: []string{path}}},
				{message.VerbSample, &message.SampleRequest{
					Model:   message.ModelRef{File: path},
					Sampler: message.SamplerRef{Name: "euler"}, Sigmas: tensor, Latent: latent,
				}},
			} {
				refused := answerOf(ctx, c, row.verb, row.body)
				if refused == nil || refused.Status() < 400 || refused.Status() >= 500 {
					t.Errorf("%s over %s with %q: got %v, want a refusal", row.verb, name, path, refused)
				}
			}
			for _, verb := range []string{message.VerbStatus, message.VerbCancel} {
				if name == "socket" {
					if r, err := c.Ask(ctx, verb, path, nil); err == nil {
						if _, err := r.One(ctx); err == nil {
							t.Errorf("%s of a job %q was answered", verb, path)
						}
					}
				}
			}
		}
	}
}

// answerOf returns the error that a request ends with, be it a reply or the last message of a stream.
func answerOf(ctx context.Context, c client.Client, verb string, body any) *fault.Error {
	ctx, stop := context.WithTimeout(ctx, harness.Patience)
	defer stop()
	r, err := c.Ask(ctx, verb, "", body)
	if err != nil {
		return fault.New(fault.Internal, "%v", err)
	}
	defer r.Close()
	for {
		o, err := r.Next(ctx)
		var e *fault.Error
		if errors.As(err, &e) {
			return e
		}
		if err != nil {
			return fault.New(fault.Internal, "no refusal: %v", err)
		}
		if v, _ := o.Get("error"); v != nil {
			var f fault.Form
			if eo, ok := v.(*pyjson.Object); ok && wire.Bind(eo, &f) == nil {
				return f.Fault()
			}
		}
	}
}
