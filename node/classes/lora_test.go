package classes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
	"patchbay/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/value"
	"patchbay/parallel"
	"patchbay/parallel/process"
	"patchbay/tests/golden"
	"patchbay/tests/scratch"
)

// loraFile writes a kohya file with pairs of rank 4 for the given modules (name -> rows, columns), with seeded values.
func loraFile(t *testing.T, path, seed string, modules map[string][2]int) {
	t.Helper()
	var entries []safetensors.Tensor
	add := func(name string, scale float64, shape ...int) {
		n := 1
		for _, d := range shape {
			n *= d
		}
		data := make([]byte, 4*n)
		engine.Narrow(data, golden.Fill(seed+name, n, scale, 0), engine.F32)
		entries = append(entries, safetensors.Tensor{Name: name, DType: engine.F32, Shape: shape, Data: datafile.Of(data)})
	}
	for name, size := range modules {
		add(name+".lora_up.weight", 2, size[0], 4)
		add(name+".lora_down.weight", 1/math.Sqrt(float64(size[1])), 4, size[1])
	}
	var b bytes.Buffer
	if err := safetensors.Write(&b, nil, entries); err != nil {
		t.Fatal(err)
	}
	scratch.Write(t, path, b.Bytes())
}

// demoModules returns some matrices of the demo's three networks.
func demoModules() map[string][2]int {
	return map[string][2]int{
		"lora_unet_double_blocks_0_img_attn_qkv": {576, 192}, "lora_unet_double_blocks_1_txt_attn_qkv": {576, 192},
		"lora_unet_single_blocks_1_linear1": {1344, 192},
		"lora_unet_img_in":                  {192, 64}, "lora_te1_text_model_encoder_layers_0_self_attn_q_proj": {128, 128},
		"lora_te2_encoder_block_1_layer_0_SelfAttention_v": {128, 128},
	}
}

// loraRoots returns the demo's models and a folder with the LoRA files one, two (for all networks), model (for the
// diffusion model only) and other (for none).
func loraRoots(t *testing.T) files.Roots {
	t.Helper()
	root := t.TempDir()
	at := func(name string) string { return filepath.Join(root, "loras", name+".safetensors") }
	loraFile(t, at("one"), "one", demoModules())
	loraFile(t, at("two"), "two", demoModules())
	loraFile(t, at("model"), "model", map[string][2]int{
		"lora_unet_img_in": {192, 64}, "lora_unet_unknown": {8, 8},
		"lora_te1_unknown": {8, 8},
	})
	loraFile(t, at("other"), "other", map[string][2]int{"lora_unet_input_blocks_1_1_proj_in": {192, 64}})
	loraFile(t, at("shape"), "shape", map[string][2]int{"lora_unet_img_in": {192, 63}})
	r := demoRoots()
	r.Models = append(r.Models, root)
	return r
}

// packs counts packed weights that are not yet freed, by address.
type packs struct {
	engine.Ops
	mu    *sync.Mutex
	held  map[*byte]int
	count *int
}

func (p packs) Pack(m engine.Matrix, c int) (*engine.Packed, error) {
	out, err := p.Ops.Pack(m, c)
	if err == nil && len(out.Buf.Host) > 0 {
		p.mu.Lock()
		p.held[&out.Buf.Host[0]] = len(out.Buf.Host)
		*p.count++
		p.mu.Unlock()
	}
	return out, err
}

func (p packs) Free(b engine.Buf) {
	if len(b.Host) > 0 {
		p.mu.Lock()
		delete(p.held, &b.Host[0])
		p.mu.Unlock()
	}
	p.Ops.Free(b)
}

func (p packs) bytes() (n int) {
	for _, b := range p.held {
		n += b
	}
	return n
}

// loraBench is a runner on the demo that counts packed weights, and the latent of its last job.
type loraBench struct {
	*graph.Runner
	engine *parallel.Pool
	packs  packs
	got    []float32
}

// models lists the diffusion models that are resident, most recently used first.
func (b *loraBench) models() []process.Resident {
	return slices.DeleteFunc(b.engine.Resident(), func(m process.Resident) bool { return m.Beside })
}

func newLoraBench(t *testing.T, roots files.Roots, cfg parallel.Config) *loraBench {
	t.Helper()
	b := &loraBench{packs: packs{mu: &sync.Mutex{}, held: map[*byte]int{}, count: new(int)}}
	cfg.NewOps = func(rank, ranks int) (engine.Ops, error) {
		ops, err := fastOps(rank, ranks)
		p := b.packs
		p.Ops = ops
		return p, err
	}
	e, err := parallel.NewPool(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	keep := graph.Class{
		Name: "Keep", Output: true, Inputs: []graph.Input{graph.Bare("latent", "LATENT")},
		Run: func(c *graph.Call) ([]any, error) {
			b.got = graph.Arg[*value.Latent](c, "latent").Samples.Data
			return nil, nil
		},
	}
	b.engine = e
	if b.Runner, err = graph.NewRunner(graph.Config{
		Engine: e, Roots: roots, Catalogue: All(keep),
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// draw samples an image of 64 x 64 pixels for one step with the LoRA files in list ("one*0.8 two*1"), on a plan.
func (b *loraBench) draw(t *testing.T, list string, seed int, plan string) ([]float32, *graph.Result) {
	t.Helper()
	nodes, m, c := "", `["m", 0]`, `["c", 0]`
	for i, use := range strings.Fields(list) {
		name, strength, _ := strings.Cut(use, "*")
		nodes += fmt.Sprintf(`"lora%d": {"class_type": "LoraLoader", "inputs": {"model": %s, "clip": %s, "lora_name": `+
			`"%s.safetensors", "strength_model": %s, "strength_clip": %s}},`, i, m, c, name, strength, strength)
		m, c = fmt.Sprintf(`["lora%d", 0]`, i), fmt.Sprintf(`["lora%d", 1]`, i)
	}
	w := graphOf(t, fmt.Sprintf(`{"m": {"class_type": "UNETLoader", "inputs":
			{"unet_name": "demo_flux.safetensors", "weight_dtype": "default"}},
		"c": {"class_type": "DualCLIPLoader", "inputs":
			{"clip_name1": "demo_clip.safetensors", "clip_name2": "demo_t5.safetensors", "type": "flux",
			"device": "default"}}, %s
		"l": {"class_type": "EmptySD3LatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
		"p": {"class_type": "CLIPTextEncode", "inputs": {"text": "a big red heart", "clip": %s}},
		"s": {"class_type": "KSampler", "inputs": {"seed": %d, "steps": 1, "cfg": 1.0,
			"sampler_name": "euler", "scheduler": "simple", "denoise": 1.0, "model": %s,
			"positive": ["p", 0], "negative": ["p", 0], "latent_image": ["l", 0]}},
		"k": {"class_type": "Keep", "inputs": {"latent": ["s", 0]}}}`, nodes, c, seed, m))
	b.got = nil
	result, err := b.Run(context.Background(), graph.Job{Workflow: w, Plan: plan}, nil)
	if err != nil {
		t.Fatalf("%q: %v", list, err)
	}
	return b.got, result
}

// TestLorasShareTheBase lets models with different adapters take turns on one runner. Each must give exactly the
// numbers of a fresh runner, the base of all three networks must be packed once, and everything must be freed in the
// end. If the device has room for one model only, evicting a model must not free the base that it shares with the
// next. The third form has room for hardly anything, so that encoders are evicted too.
func TestLorasShareTheBase(t *testing.T) {
	roots := loraRoots(t)
	turns := []string{"", "one*0.8", "two*-0.5", "one*0.8", "", "one*0.8 two*1", "one*0.4"}
	fresh := map[string][]float32{}
	for i, list := range turns {
		fresh[fmt.Sprint(list, i)], _ = newLoraBench(t, roots, parallel.Config{}).draw(t, list, i, "")
	}
	if slices.Equal(fresh["one*0.81"], fresh["two*-0.52"]) {
		t.Fatal("two files give the same latent")
	}
	for form, bytes := range map[string]int64{"much room": 0, "a small device": 16 << 20, "little room": 12 << 20} {
		b := newLoraBench(t, roots, parallel.Config{MemoryBytes: bytes})
		plain, most := 0, 0
		for i, list := range turns {
			before := *b.packs.count // linear1 is two weights, so there is one pair more than modules
			got, _ := b.draw(t, list, i, "")
			if n := *b.packs.count - before; i > 0 && n > 2*(len(demoModules())+1) && form != "little room" {
				t.Errorf("%s, turn %d with %q: %d matrices were packed, want those of the adapters at most", form, i, list, n)
			}
			if n := len(b.models()); (form == "much room") != (n > 1) && i > 0 {
				t.Errorf("%s, turn %d: %d models are resident", form, i, n)
			}
			if !slices.Equal(got, fresh[fmt.Sprint(list, i)]) {
				t.Fatalf("%s, turn %d with %q: differs from a fresh runner", form, i, list)
			}
			if i == 0 {
				plain = b.packs.bytes()
			}
			most = max(most, b.packs.bytes())
		}
		if form == "much room" {
			if most > plain+plain/8 {
				t.Errorf("%s: at most %d bytes packed, %d by the plain model: the base is there more than once", form, most, plain)
			}
			t.Logf("%s: the plain networks take %d bytes, with all adapters %d, in %d matrices", form, plain,
				most, *b.packs.count)
		}
		b.Free()
		if left := b.packs.bytes(); left != 0 {
			t.Errorf("%s: %d bytes are left after Free", form, left)
		}
	}
}

// TestBaseOutlivesItsHandle evicts the plain model while an adapted one uses its base, and vice versa.
func TestBaseOutlivesItsHandle(t *testing.T) {
	b := newLoraBench(t, loraRoots(t), parallel.Config{})
	first, _ := b.draw(t, "", 1, "")
	adapted, _ := b.draw(t, "one*1", 1, "")
	list := b.models()
	if len(list) != 2 {
		t.Fatalf("resident: %v, want the plain and the adapted model", list)
	}
	count := *b.packs.count
	b.ShedValues()
	b.engine.Evict(list[1].Key)
	if again, _ := b.draw(t, "one*1", 1, ""); !slices.Equal(again, adapted) {
		t.Error("the adapted model changed when the plain one went")
	}
	if again, _ := b.draw(t, "", 1, ""); !slices.Equal(again, first) {
		t.Error("the plain model changed when it came back")
	}
	if *b.packs.count != count {
		t.Errorf("%d matrices were packed again", *b.packs.count-count)
	}
}

// TestLoraOnPlans compares LoRAs on plans of several ranks with one rank.
func TestLoraOnPlans(t *testing.T) {
	roots := loraRoots(t)
	want, _ := newLoraBench(t, roots, parallel.Config{}).draw(t, "one*0.8", 1, "")
	b := newLoraBench(t, roots, parallel.Config{})
	for _, plan := range []string{"tensor=2", "ulysses=2", "tensor=3", "pipe=2,warmup=1"} {
		got, _ := b.draw(t, "one*0.8", 1, plan)
		worst, top := 0.0, 0.0
		for i := range want {
			worst, top = max(worst, math.Abs(float64(got[i]-want[i]))), max(top, math.Abs(float64(want[i])))
		}
		if !(worst <= 1e-4*top) {
			t.Errorf("%s: error %.3g relative to the largest value, bound 1e-4", plan, worst/top)
		}
		b.ShedValues()
	}
}

func TestLoraNodes(t *testing.T) {
	roots := loraRoots(t)
	b := newLoraBench(t, roots, parallel.Config{})
	m, ok := exec(t, b.Runner, "UNETLoader",
		map[string]any{"unet_name": "demo_flux.safetensors", "weight_dtype": "default"}).(graph.Handle)
	if !ok {
		t.Fatal("no MODEL handle")
	}
	clip := exec(t, b.Runner, "DualCLIPLoader",
		map[string]any{
			"clip_name1": "demo_clip.safetensors", "clip_name2": "demo_t5.safetensors",
			"type": "flux",
		}).(graph.Handle)
	load := func(name string, onModel, onClip float64) (*value.Model, *value.Clip, []string, error) {
		out, err := b.Exec(context.Background(),
			graph.ExecRequest{
				Class: "LoraLoader",
				Inputs: map[string]any{
					"model": m, "clip": clip, "lora_name": name + ".safetensors", "strength_model": onModel,
					"strength_clip": onClip,
				},
			}, nil)
		if err != nil {
			return nil, nil, nil, err
		}
		a, _ := b.Value(out.Outputs[0].(graph.Handle).ID)
		c, _ := b.Value(out.Outputs[1].(graph.Handle).ID)
		return a.(*value.Model), c.(*value.Clip), out.Warnings, nil
	}
	for _, c := range []struct {
		name            string
		onModel, onClip float64
		model, clip     int // adapters afterwards
		warns           string
	}{
		{"one", 1, 1, 1, 1, ""},
		{"one", 0, 1, 0, 1, ""},
		{"one", 1, 0, 1, 0, ""},
		{"one", -2, 0.5, 1, 1, ""},
		{"other", 0, 0, 0, 0, ""}, // not even read
		{"model", 1, 1, 1, 0, "2 of 6 tensors of model.safetensors fit; 4 fit nothing here"},
	} {
		gotModel, gotClip, warnings, err := load(c.name, c.onModel, c.onClip)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if len(gotModel.Loras) != c.model || len(gotClip.Loras) != c.clip {
			t.Errorf("%s at %v and %v: %d adapters on the model and %d on the text encoders, want %d and %d", c.name, c.onModel,
				c.onClip, len(gotModel.Loras), len(gotClip.Loras), c.model, c.clip)
		}
		if got := strings.Join(warnings, "; "); !strings.Contains(got, c.warns) || (c.warns == "") != (got == "") {
			t.Errorf("%s: warnings %q, want %q", c.name, got, c.warns)
		}
	}
	out, err := b.Exec(context.Background(),
		graph.ExecRequest{
			Class:  "LoraLoaderModelOnly",
			Inputs: map[string]any{"model": m, "lora_name": "model.safetensors", "strength_model": 1.0},
		}, nil)
	if err != nil || len(out.Warnings) != 1 || !strings.Contains(out.Warnings[0], "; 2 fit nothing") {
		t.Errorf("model only: %v, %v, want a warning of the 2 tensors that are no text encoder's", out, err)
	}
	for name, want := range map[string]string{
		"other": "begins with lora_unet_input_blocks_1_1_proj_in.lora_down.weight",
		"shape": "lora_unet_img_in.lora_down.weight: got shape [4 63], want [4, 64]",
	} {
		var f *fault.Error
		if _, _, _, err := load(name, 1, 1); !errors.As(err, &f) || f.Code != fault.WrongFamily ||
			f.Field != "lora_name" || !strings.Contains(f.Text, want) {
			t.Errorf("%s: got %v, want wrong_family at lora_name that says %q", name, err, want)
		}
	}
	if _, _, _, err := load("absent", 1, 1); err == nil || !strings.Contains(err.Error(), "absent.safetensors") {
		t.Errorf("a file that is not there: %v", err)
	}
	if base, _ := b.Value(m.ID); len(base.(*value.Model).Loras) != 0 {
		t.Error("the handle that was given has adapters now")
	}
}

// TestLoraSignature checks which nodes run again: none for the same strengths, the loader and its dependents for other
// strengths or a replaced file.
func TestLoraSignature(t *testing.T) {
	roots := loraRoots(t)
	b := newLoraBench(t, roots, parallel.Config{})
	first, _ := b.draw(t, "one*1", 1, "")
	if _, r := b.draw(t, "one*1.0", 1, ""); len(r.Executed) != 0 {
		t.Errorf("the same again: executed %v", r.Executed)
	}
	if _, r := b.draw(t, "one*0.5", 1, ""); !slices.Contains(r.Executed, "lora0") || !slices.Contains(r.Executed, "p") ||
		slices.Contains(r.Executed, "m") {
		t.Errorf("another strength: executed %v, want lora0, p, s and k", r.Executed)
	}
	loraFile(t, filepath.Join(roots.Models[1], "loras/one.safetensors"), "replaced", demoModules())
	if second, r := b.draw(t, "one*1", 1, ""); !slices.Contains(r.Executed, "lora0") || slices.Equal(first, second) {
		t.Errorf("a replaced file: executed %v, want lora0 and another latent", r.Executed)
	}
}
