package parallel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models"
	"patchbay/models/control"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/parallel/rank"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
	"patchbay/tests/race"
)

func bytesOf(v []float32) (out []byte) {
	for _, x := range v {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(x))
	}
	return out
}

// openNet opens a control net of a set, active at all sigmas. config is that of the base model.
func openNet(t *testing.T, name string, set *weights.Set, config []byte) request.Control {
	t.Helper()
	n, err := control.Open(models.Families(), set, map[string]string{"config": string(config)})
	if err != nil {
		t.Fatal(err)
	}
	return request.Control{
		Net:   request.Model{Key: "net " + name, Spec: &n.Spec, Weights: request.LoadFunc(n.Load)},
		Feeds: n.Feeds, Strength: 0.4, SigmaStart: 1e9, Hint: request.Latent{C: n.Hint},
	}
}

// netOf returns a control net of the first blocks of a golden model and random layers: two blocks, and for FLUX one
// single block too.
func netOf(t *testing.T, base, name string, hint int) request.Control {
	t.Helper()
	set, config, err := goldenweights.Set(base)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]weights.Stored{}
	for _, key := range set.Names() {
		part := strings.SplitN(key, ".", 3)
		list := slices.Contains([]string{"double_blocks", "single_blocks", "joint_blocks", "transformer_blocks"}, part[0])
		tail := slices.Contains([]string{"final_layer", "norm_out", "proj_out"}, part[0])
		if !tail && (!list || part[1] == "0" || part[1] == "1" && part[0] != "single_blocks") {
			all[key], _ = set.Get(key)
		}
	}
	e := max(set.Dim("img_in.weight", 0), set.Dim("x_embedder.proj.weight", 0))
	add := func(key string, shape ...int) {
		n := 1
		for _, s := range shape {
			n *= s
		}
		scale := math.Sqrt(12 / float64(n/shape[0]))
		all[key] = weights.Stored{DType: engine.F32, Shape: shape, Data: bytesOf(golden.Fill(name+key, n, scale, 0))}
	}
	layer := func(key string, shape ...int) { add(key+".weight", shape...); add(key+".bias", shape[0]) }
	layer("controlnet_blocks.0", e, e)
	layer("controlnet_blocks.1", e, e)
	switch {
	case set.Has("joint_blocks.0.x_block.attn.qkv.weight"):
		layer("pos_embed_input.proj", e, hint, 2, 2)
	case set.Has("single_blocks.0.linear1.weight"):
		layer("controlnet_single_blocks.0", e, e)
		layer("controlnet_x_embedder", e, 4*hint)
		add("controlnet_mode_embedder.weight", 4, e)
	default:
		layer("controlnet_x_embedder", e, 4*hint)
	}
	c := openNet(t, name, weights.FromMap(all), config)
	c.Net.Weights = packedOnce("net of "+base+" "+name, c.Net.Weights.(request.LoadFunc))
	return c
}

// netted adds control nets to the entries of a request: one on both branches, and on the positive one another with a
// mask for a part of the run and a hint for each picture of the batch.
func netted(t *testing.T, r *request.Request, base string) {
	t.Helper()
	on := func(name string, hint, pictures int) request.Control {
		return shown(r, netOf(t, base, name, hint), name, pictures)
	}
	both, second := on("one", 16, 1), on("two", 17, r.Latent.B)
	second.SigmaEnd, second.Strength = r.Sigmas[0]-1e-6, -0.3
	r.Branches[1].Entries[0].Control = []request.Control{both}
	if r.Model.Spec.Family == "flux" {
		both.Mode = 3
	}
	r.Branches[0].Entries[0].Control = []request.Control{both, second, both}
}

// shown gives a net that many hints.
func shown(r *request.Request, c request.Control, name string, pictures int) request.Control {
	c.Hint.B = pictures
	c.Hint.Y, c.Hint.X = c.Net.Spec.HintSize(r.Latent.Y, r.Latent.X)
	c.Hint.Data = golden.Input(name, c.Hint.Len())
	return c
}

// TestNetsSayWhatComfyUIsDo checks that a run with a control net of ComfyUI equals a run with its recorded output.
func TestNetsSayWhatComfyUIsDo(t *testing.T) {
	e, g := newEngine(t), openGolden(t, "qwen-a")
	_, config, err := goldenweights.Set("qwen-a")
	if err != nil {
		t.Fatal(err)
	}
	f, err := golden.Open("modern/control_qwen.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, run := range controlRuns(t, "control_qwen", "qwen-a", g.model.Spec) {
		name, _, _ := strings.Cut(run.name, "/")
		set, _, err := goldenweights.Set(name)
		if err != nil {
			t.Fatal(err)
		}
		net := openNet(t, name, set, config)
		first, ok := f.Entry(run.name + "#input.0")
		if !ok {
			t.Fatal("nothing recorded")
		}
		rows, err := first.F32()
		if err != nil {
			t.Fatal(err)
		}
		for i := range rows {
			rows[i] *= 0.7
		}
		for i, n := 0, run.X[0]; i < n; i++ {
			r, _ := run.request(g, i)
			entry := &r.Branches[0].Entries[0]
			entry.Residuals = []rank.Residual{{Blocks: []int{0, 1, 2}, Rows: rows[i*len(rows)/n : (i+1)*len(rows)/n]}}
			want, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			hint := set.Dim("controlnet_x_embedder.weight", 1)
			y, x := r.Latent.Y, r.Latent.X
			all := golden.Input(run.name+"/hint", n*hint/4*y*x)
			entry.Residuals = nil
			entry.Control = []request.Control{{
				Net: net.Net, Strength: 0.7, SigmaStart: 1,
				Hint: request.Latent{B: 1, C: hint / 4, Y: y, X: x, Data: all[i*len(all)/n : (i+1)*len(all)/n]},
			}}
			late := *r // before its net begins
			late.Branches = []request.Branch{{Entries: []request.Entry{*entry}}}
			late.Branches[0].Entries[0].Control = slices.Clone(entry.Control)
			late.Branches[0].Entries[0].Control[0].SigmaStart = r.Sigmas[0] - 0.01
			got, err := e.Sample(context.Background(), &late, nil)
			if err != nil {
				t.Fatal(err)
			}
			late.Branches[0].Entries[0].Control = nil
			none, err := e.Sample(context.Background(), &late, nil)
			if err != nil {
				t.Fatal(err)
			}
			if rel := relative(got.Latent.Data, none.Latent.Data); rel != 0 {
				t.Errorf("a net that has not begun moves the picture by %.3g", rel)
			}
			for _, plan := range []string{"", "ulysses=3", "pipe=2,patches=2,warmup=1"} {
				r.Plan = plan
				got, err := e.Sample(context.Background(), r, nil)
				if err != nil {
					t.Fatal(err)
				}
				if rel := relative(got.Latent.Data, want.Latent.Data); !(rel <= 2e-5) {
					t.Errorf("%s item %d %s: relative difference %.3g, bound 2e-5", run.name, i, plan, rel)
				}
			}
		}
	}
}

// TestExactPlansRunNetsAsOneRank checks that control nets run on the ranks of the model, whatever the plan.
func TestExactPlansRunNetsAsOneRank(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansEqualOneRank has the same goroutines")
	}
	for k, c := range []struct {
		name   string
		y, x   int
		engine *Pool
	}{
		{"flux-c", 5, 13, newEngine(t)}, // 21 tokens: one more text row moves the cut of the picture
		{"sd3-b", 5, 7, newDeferredEngine(t, 7)},
		{"qwen-a", 7, 9, newEngine(t)},
	} {
		g := openGolden(t, c.name)
		r := parityRequest(t, g, c.name, 2, c.y, c.x, 2)
		plain, err := c.engine.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		netted(t, r, c.name)
		want, err := c.engine.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if rel := relative(want.Latent.Data, plain.Latent.Data); !(rel > 1e-2) {
			t.Fatalf("control nets move the picture of %s by %.3g", c.name, rel)
		}
		some := append(somePlans(kinds(exactPlans()), k, 8), "ring=2,ulysses=2,deterministic=on",
			"pipe=2,deterministic=on")
		for _, plan := range some {
			plan = planFor(g.model.Spec, plan)
			t.Run(fmt.Sprintf("%s/%s", c.name, plan), func(t *testing.T) {
				r := *r
				r.Plan = plan
				got, err := c.engine.Sample(context.Background(), &r, nil)
				if err != nil {
					t.Fatal(err)
				}
				bound := 1e-5
				if strings.HasSuffix(plan, "deterministic=on") {
					bound = 0
				}
				if rel := relative(got.Latent.Data, want.Latent.Data); !(rel <= bound) {
					t.Errorf("relative difference to one rank %.3g, bound %g", rel, bound)
				}
			})
		}
	}
}

// TestBadNetsAreRefused checks that the error says what is wrong.
func TestBadNetsAreRefused(t *testing.T) {
	e := newEngine(t)
	for want, spoil := range map[string]func(*request.Request, *request.Entry){
		"not for a flux model": func(_ *request.Request, e *request.Entry) {
			e.Control[0].Net = netOf(t, "sd3-b",
				"other", 16).Net
		},
		"strength NaN": func(_ *request.Request,
			e *request.Entry,
		) {
			e.Control[0].Strength = float32(math.NaN())
		},
		"want [1, channels, 4, 6]": func(_ *request.Request, e *request.Entry) { e.Control[0].Hint.Y-- },
		"the hint is [6, 64]":      func(_ *request.Request, e *request.Entry) { e.Control[1].Hint = e.Control[0].Hint },
		"or of a net [1, ...]": func(_ *request.Request, e *request.Entry) {
			e.Control[0].Hint = request.NewLatent(2,
				16, 4, 6)
		},
		"type 5, want 0 to 4":   func(_ *request.Request, e *request.Entry) { e.Control[0].Mode = 5 },
		"and an area":           func(_ *request.Request, e *request.Entry) { e.Area = request.Area{H: 4, W: 4} },
		"are not kept in parts": func(r *request.Request, _ *request.Entry) { r.Plan = "ulysses=2,shard=on" },
	} {
		g := openGolden(t, "flux-c")
		r := parityRequest(t, g, "flux-c", 1, 4, 6, 1)
		netted(t, r, "flux-c")
		spoil(r, &r.Branches[0].Entries[0])
		_, err := e.Sample(context.Background(), r, nil)
		var f *fault.Error
		if !errors.As(err, &f) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want a refusal with %q", err, want)
		}
	}
}
