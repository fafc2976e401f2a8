package control_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
	"patchbay/engine/safetensors"
	"patchbay/models"
	"patchbay/models/control"
	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// run is a recorded evaluation of a control net (tests/golden/modern/README.md, section 8).
type run struct {
	X         []int            `json:"x"`
	Hint      []int            `json:"hint"`
	Context   []int            `json:"context"`
	Y         []int            `json:"y"`
	Timesteps []float32        `json:"timesteps"`
	Guidance  []float32        `json:"guidance"`
	Type      []int            `json:"control_type"`
	Feeds     map[string][]int `json:"which_output_each_main_block_gets"`
	Qwen      []int            `json:"which_output_each_of_60_main_blocks_gets"`
}

// open opens a recorded net; meta is the config that the file carries.
func open(t *testing.T, name string) *control.Net {
	t.Helper()
	set, config, err := goldenweights.Set(name)
	if err != nil {
		t.Fatal(err)
	}
	var c map[string]any
	if err := json.Unmarshal(config, &c); err != nil {
		t.Fatal(err)
	}
	// what names and shapes do not tell of the tiny nets, as the base models have it
	c["axes_dim"], c["axes_dims_rope"] = []int{8, 16, 16}, []int{8, 16, 16}
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	n, err := control.Open(models.Families(), set, map[string]string{"config": string(text)})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// item is row i of a recorded input, as tokens of p x p where it is a latent.
func item(name string, shape []int, i int) []float32 {
	size := 1
	for _, s := range shape {
		size *= s
	}
	return golden.Input(name, size)[i*size/shape[0] : (i+1)*size/shape[0]]
}

// tokens are those of a latent [C, Y, X], odd sides padded circularly.
func tokens(v []float32, c, y, x int) []float32 {
	var out []float32
	for ty := range (y + 1) / 2 {
		for tx := range (x + 1) / 2 {
			for ci := range c {
				for k := range 4 {
					out = append(out, v[(ci*y+(2*ty+k/2)%y)*x+(2*tx+k%2)%x])
				}
			}
		}
	}
	return out
}

func TestOutputsMatchGolden(t *testing.T) {
	for file, names := range map[string][]string{
		"control": {"cn-union-a/0", "cn-union-a/1"}, "control_qwen": {"cn-qwen-a/0", "cn-qwen-inpaint-a/0"},
	} {
		var runs map[string]run
		if err := golden.JSON("modern/"+file+".json", &runs); err != nil {
			t.Fatal(err)
		}
		results, err := safetensors.Open(golden.Path("modern/" + file + ".safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = results.Close() }()
		for _, name := range names {
			for _, ops := range []engine.Ops{ref.New(), goldenrun.NewOps()} {
				t.Run(name+"/"+ops.Name(), func(t *testing.T) { compare(t, ops, name, runs[name], results) })
			}
		}
	}
}

func compare(t *testing.T, ops engine.Ops, name string, r run, results *safetensors.File) {
	t.Helper()
	n := open(t, name[:len(name)-2])
	loaded, err := n.Load(ops, dit.Held{})
	if err != nil {
		t.Fatal(err)
	}
	defer loaded.Close()
	m := loaded.(dit.Control)
	env, err := goldenrun.NewEnv(ops, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, c, y, x := r.X[0], r.X[1], r.X[len(r.X)-2], r.X[len(r.X)-1]
	grid := n.Spec.Tokens(y, x)
	var entries []dit.Entry
	var latents []float32
	for i := range b {
		e := dit.Entry{Context: dit.Array{Rows: r.Context[1], Cols: r.Context[2], Data: item(name+"/context", r.Context, i)}}
		hint := tokens(item(name+"/hint", r.Hint, i), r.Hint[1], y, x)
		e.Hint = dit.Array{Rows: grid.Tokens(), Cols: 4 * r.Hint[1], Data: hint}
		if r.Y != nil {
			e.Pooled = item(name+"/y", r.Y, i)
		}
		if r.Guidance != nil {
			e.Guidance = &r.Guidance[i]
		}
		if len(r.Type) > 0 {
			e.Mode = r.Type[0] + 1
		}
		entries, latents = append(entries, e), append(latents, tokens(item(name+"/x", r.X, i), c, y, x)...)
	}
	p, err := goldenrun.Prepare(env, m, entries, grid)
	if err != nil {
		t.Fatal(err)
	}
	mod := goldenrun.Modulate(env, m, p, r.Timesteps)
	s := dit.NewState(env, &n.Spec, p, mod, 0, b, dit.Rows{
		Text: dit.Range{End: p.Lt}, Image: dit.Range{End: grid.Tokens()},
	})
	in := env.Arena.Alloc(env.DType, b, grid.Tokens(), 4*c)
	ops.Upload(in, latents)
	m.Embed(env, s, in)
	gate := env.Arena.Alloc(engine.F32, 1, n.Spec.Width)
	ops.Upload(gate, slices.Repeat([]float32{1}, n.Spec.Width))
	double := 0
	for k := range n.Spec.Blocks {
		m.Block(env, k, s, engine.Tensor{})
		out := env.Arena.Alloc(env.DType, b, grid.Tokens(), n.Spec.Width)
		m.Output(env, k, s, out, gate)
		got := make([]float32, out.Len())
		if err := ops.Download(got, out).Wait(); err != nil {
			t.Fatal(err)
		}
		part := fmt.Sprintf("%s#input.%d", name, k)
		if n.Spec.Blocks[k].Kind == dit.Single {
			part = fmt.Sprintf("%s#output.%d", name, k-double)
		} else {
			double++
		}
		e, ok := results.Entry(part)
		if !ok {
			t.Fatalf("nothing is recorded as %s", part)
		}
		want, err := e.F32()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := goldenrun.Compare(got, want, goldenrun.Rel); err != nil {
			t.Errorf("%s: %v", part, err)
		}
	}
}

// TestFeedsAreComfyUIs: the outputs of a net go to the blocks of the released models as ComfyUI gives them out.
func TestFeedsAreComfyUIs(t *testing.T) {
	blocks := func(kind dit.BlockKind, n int) []dit.BlockSpec {
		return slices.Repeat([]dit.BlockSpec{{Kind: kind}}, n)
	}
	check := func(name string, base *dit.Spec, want map[int]int) {
		t.Helper()
		got := map[int]int{}
		for k, list := range open(t, name).Feeds(base) {
			for _, b := range list {
				got[b] = k
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s feeds %v, want %v", name, got, want)
		}
	}
	var flux, qwen map[string]run
	for file, into := range map[string]*map[string]run{"control": &flux, "control_qwen": &qwen} {
		if err := golden.JSON("modern/"+file+".json", into); err != nil {
			t.Fatal(err)
		}
	}
	want := map[int]int{}
	for b, k := range flux["cn-union-a/0"].Feeds["input"] {
		want[b] = k
	}
	for b, k := range flux["cn-union-a/0"].Feeds["output"] {
		want[19+b] = 2 + k
	}
	check("cn-union-a", &dit.Spec{Blocks: append(blocks(dit.Double, 19), blocks(dit.Single, 38)...)}, want)
	for _, name := range []string{"cn-qwen-a", "cn-qwen-inpaint-a"} {
		want := map[int]int{}
		for b, k := range qwen[name+"/0"].Qwen {
			want[b] = k
		}
		check(name, &dit.Spec{Blocks: blocks(dit.Double, 60)}, want)
	}
}

// TestOtherNetsAreNamed: kinds that are not supported are refused by what they look like.
func TestOtherNetsAreNamed(t *testing.T) {
	for name, want := range map[string]string{
		"cn-xlabs-a": "XLabs", "cn-mistoline-a": "MistoLine", "qwen-a": "not a control net",
	} {
		set, _, err := goldenweights.Set(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := control.Open(models.Families(), set, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", name, err, want)
		}
	}
	for key, want := range map[string]string{
		"control_blocks.0.after_proj.weight": "Fun net for Qwen-Image", "after_proj_list.18.bias": "HunyuanDiT",
		"transformer_blocks.0.adaLN_modulation.1.bias": "Stability AI", "zero_convs.0.0.weight": "Stable Diffusion 1",
		"other": "an unknown kind",
	} {
		one := weights.Stored{DType: engine.F32, Shape: []int{1}}
		set := map[string]weights.Stored{key: one}
		if key == "other" || want == "Stability AI" {
			set["controlnet_blocks.0.weight"] = one
		}
		_, err := control.Open(models.Families(), weights.FromMap(set), nil)
		supported := "flux (InstantX, union, inpaint), sd3 (diffusers), qwenimage (InstantX, inpaint)"
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasSuffix(err.Error(), supported) {
			t.Errorf("%s: %v, want an error with %q that ends with %q", key, err, want, supported)
		}
	}
}
