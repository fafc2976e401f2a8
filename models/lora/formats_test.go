package lora

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/models/family"
	"patchbay/models/flux"
	"patchbay/models/weights"
	"patchbay/tests/golden"
)

// tensor returns a stored f32 tensor.
func tensor(v []float32, shape ...int) weights.Stored {
	s := weights.Stored{DType: engine.F32, Shape: shape, Data: make([]byte, 4*len(v))}
	engine.Narrow(s.Data, v, engine.F32)
	return s
}

// piece is a range of rows of a weight that some trainers store as a separate matrix.
type piece struct {
	file string
	rows int
}

// cutUp is a weight of FLUX with diffusers' names for its pieces, in order of rows. The list was written by hand, as an
// independent check of families.go.
type cutUp struct {
	weight  string
	columns int
	pieces  []piece
	swapped bool
}

// fluxWeights lists all matrices of flux.Tiny(): width 96, MLP 384.
func fluxWeights() []cutUp {
	const e, f = 96, 384
	one := func(weight, file string, n, k int) cutUp { return cutUp{weight, k, []piece{{file, n}}, false} }
	list := []cutUp{
		one("img_in", "x_embedder", e, 64), one("txt_in", "context_embedder", e, 40),
		one("time_in.in_layer", "time_text_embed.timestep_embedder.linear_1", e, 256),
		one("time_in.out_layer", "time_text_embed.timestep_embedder.linear_2", e, e),
		one("vector_in.in_layer", "time_text_embed.text_embedder.linear_1", e, 32),
		one("vector_in.out_layer", "time_text_embed.text_embedder.linear_2", e, e),
		one("guidance_in.in_layer", "time_text_embed.guidance_embedder.linear_1", e, 256),
		one("guidance_in.out_layer", "time_text_embed.guidance_embedder.linear_2", e, e),
		one("final_layer.linear", "proj_out", 64, e),
		{"final_layer.adaLN_modulation.1", e, []piece{{"norm_out.linear", 2 * e}}, true},
	}
	for i := range 3 {
		block, file := fmt.Sprintf("double_blocks.%d.", i), fmt.Sprintf("transformer_blocks.%d.", i)
		list = append(list,
			cutUp{
				block + "img_attn.qkv", e,
				[]piece{{file + "attn.to_q", e}, {file + "attn.to_k", e}, {file + "attn.to_v", e}},
				false,
			},
			cutUp{block + "txt_attn.qkv", e, []piece{
				{file + "attn.add_q_proj", e},
				{file + "attn.add_k_proj", e},
				{file + "attn.add_v_proj", e},
			}, false},
			one(block+"img_attn.proj", file+"attn.to_out.0", e, e), one(block+"txt_attn.proj", file+"attn.to_add_out", e, e),
			one(block+"img_mlp.0", file+"ff.net.0.proj", f, e), one(block+"img_mlp.2", file+"ff.net.2", e, f),
			one(block+"txt_mlp.0", file+"ff_context.net.0.proj", f, e), one(block+"txt_mlp.2", file+"ff_context.net.2", e, f),
			one(block+"img_mod.lin", file+"norm1.linear", 6*e, e), one(block+"txt_mod.lin", file+"norm1_context.linear", 6*e, e))
	}
	for i := range 4 {
		block, file := fmt.Sprintf("single_blocks.%d.", i), fmt.Sprintf("single_transformer_blocks.%d.", i)
		list = append(list,
			cutUp{block + "linear1", e, []piece{
				{file + "attn.to_q", e},
				{file + "attn.to_k", e},
				{file + "attn.to_v", e},
				{file + "proj_mlp", f},
			}, false},
			one(block+"linear2", file+"proj_out", e, e+f), one(block+"modulation.lin", file+"norm.linear", 3*e, e))
	}
	return list
}

func (s cutUp) rows() (n int) {
	for _, p := range s.pieces {
		n += p.rows
	}
	return n
}

// format is one way to write a LoRA file.
type format struct {
	name     string
	whole    bool // fused matrices stay whole
	module   func(name string) string
	up, down string
	alpha    bool
}

func flat(prefix string) func(string) string {
	return func(name string) string { return prefix + strings.ReplaceAll(name, ".", "_") }
}

func dotted(prefix string) func(string) string {
	return func(name string) string { return prefix + name }
}

func formats() []format {
	return []format{
		{"kohya", true, flat("lora_unet_"), ".lora_up.weight", ".lora_down.weight", true},
		{"kohya without alpha", true, flat("lora_unet_"), ".lora_up.weight", ".lora_down.weight", false},
		{"original", true, dotted(""), ".lora_B.weight", ".lora_A.weight", false},
		{"original with prefix", true, dotted("diffusion_model."), ".lora_up.weight", ".lora_down.weight", true},
		{"original in PEFT", true, dotted("base_model.model."), ".lora_B.default.weight", ".lora_A.default.weight", false},
		{"diffusers", false, dotted("transformer."), ".lora_B.weight", ".lora_A.weight", false},
		{"older diffusers", false, dotted("transformer."), ".lora.up.weight", ".lora.down.weight", false},
		{"processors", false, dotted("transformer."), "_lora.up.weight", "_lora.down.weight", false},
		{
			"transformers", false, dotted("transformer."), ".lora_linear_layer.up.weight",
			".lora_linear_layer.down.weight", false,
		},
		{"short", false, dotted("transformer."), ".lora_B", ".lora_A", false},
		{"PEFT", false, dotted("base_model.model."), ".lora_B.default.weight", ".lora_A.default.weight", false},
		{"PEFT of a pipeline", false, dotted("base_model.model.transformer."), ".lora_B.weight", ".lora_A.weight", false},
		{"OneTrainer", false, flat("lora_transformer_"), ".lora_up.weight", ".lora_down.weight", true},
		{"SimpleTuner", false, flat("lycoris_"), ".lora_up.weight", ".lora_down.weight", true},
	}
}

// file returns the same adapters in this format. Ranks differ between weights, and the pieces of a weight share their
// down matrix.
func (f format) file(list []cutUp) *weights.Set {
	set := map[string]weights.Stored{}
	put := func(name string, rank int, up, down []float32) {
		set[f.module(name)+f.up] = tensor(up, len(up)/rank, rank)
		set[f.module(name)+f.down] = tensor(down, rank, len(down)/rank)
		if f.alpha {
			set[f.module(name)+".alpha"] = tensor([]float32{float32(rank)})
		}
	}
	for i, w := range list {
		rank := 1 + i%4
		up, down := golden.Input("up "+w.weight, w.rows()*rank), golden.Input("down "+w.weight, rank*w.columns)
		if f.whole {
			put(w.weight, rank, up, down)
			continue
		}
		if w.swapped { // diffusers stores the halves in reverse order
			up = append(slices.Clone(up[len(up)/2:]), up[:len(up)/2]...)
		}
		for _, p := range w.pieces {
			put(p.file, rank, up[:p.rows*rank], down)
			up = up[p.rows*rank:]
		}
	}
	return weights.FromMap(set)
}

// dense sums the additions to every weight, in every eighth column: own name -> [rows, columns].
func dense(t *testing.T, list []weights.LowRank, sizes map[string]cutUp) map[string][]float32 {
	t.Helper()
	out := map[string][]float32{}
	for _, a := range list {
		size, ok := sizes[a.Name]
		if !ok {
			t.Fatalf("an addition to %q", a.Name)
		}
		if out[a.Name] == nil {
			out[a.Name] = make([]float32, size.rows()*size.columns)
		}
		up, down, r, k := a.Up.F32(), a.Down.F32(), a.Down.Shape[0], size.columns
		for n := range a.Up.Shape[0] {
			for q := range r {
				for c := 7; c < k; c += 8 {
					out[a.Name][(a.First+n)*k+c] += a.Scale * up[n*r+q] * down[q*k+c]
				}
			}
		}
	}
	return out
}

func fluxKeys(t testing.TB) *Keys {
	t.Helper()
	return familyKeys(t, flux.Family())
}

// familyKeys returns the keys for the tiny model of a family.
func familyKeys(t testing.TB, f family.Family) *Keys {
	t.Helper()
	d, err := f.Tiny.Describe(nil)
	if err != nil {
		t.Fatal(err)
	}
	declared, err := d.Declare()
	if err != nil {
		t.Fatal(err)
	}
	return Diffusion(f.Name, f.Names, declared)
}

// TestAllFormatsSayTheSame writes one set of adapters for every matrix of a FLUX model in every format. All formats
// must add exactly the same numbers to the same rows.
func TestAllFormatsSayTheSame(t *testing.T) {
	list, keys, sizes := fluxWeights(), fluxKeys(t), map[string]cutUp{}
	for _, w := range list {
		sizes[w.weight] = w
	}
	var want map[string][]float32
	for _, f := range formats() {
		set := f.file(list)
		m, err := Match(set, keys)
		if err != nil {
			t.Fatalf("%s: %v", f.name, err)
		}
		if len(m.Unused) > 0 {
			t.Errorf("%s: unused %v", f.name, m.Unused)
		}
		additions, err := Gather(set, ForPart("", m.Additions), 0.5)
		if err != nil {
			t.Fatal(err)
		}
		got := dense(t, additions, sizes)
		if want == nil {
			want = got
			if len(want) != len(list) {
				t.Fatalf("%s: %d weights are added to, want all %d", f.name, len(want), len(list))
			}
			w := list[10] // the first fused matrix, against the formula itself
			up, down := golden.Input("up "+w.weight, w.rows()*3), golden.Input("down "+w.weight, 3*w.columns)
			if at, sum := 200*w.columns+7, 0.5*(up[600]*down[7]+up[601]*down[w.columns+7]+
				up[602]*down[2*w.columns+7]); absolute(want[w.weight][at]-sum) > 1e-6 {
				t.Fatalf("%s row 200 column 7: got %v, want %v", w.weight, want[w.weight][at], sum)
			}
		}
		for name := range want {
			if i := firstDifference(got[name], want[name]); i >= 0 {
				t.Fatalf("%s: %s element %d of %d differs from kohya's", f.name, name, i, len(want[name]))
			}
		}
	}
}

func absolute(x float32) float32 { return max(x, -x) }

// firstDifference returns the first index where two slices differ, -1 if they are equal.
func firstDifference(a, b []float32) int {
	if len(a) != len(b) {
		return min(len(a), len(b))
	}
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

// TestOriginalExtras checks names in use besides the original ones, with rows and weights determined by hand.
func TestOriginalExtras(t *testing.T) {
	keys := fluxKeys(t)
	for name, want := range map[string]Addition{
		"diffusion_model.single_blocks.2.linear1_qkv.lora_%s.weight":     {Name: "single_blocks.2.linear1", Rows: 288},
		"single_blocks.1.processor.qkv_lora.%s.weight":                   {Name: "single_blocks.1.linear1", Rows: 288},
		"single_blocks.1.processor.proj_lora.%s.weight":                  {Name: "single_blocks.1.linear2", Rows: 96},
		"double_blocks.0.processor.qkv_lora1.%s.weight":                  {Name: "double_blocks.0.img_attn.qkv", Rows: 288},
		"double_blocks.0.processor.qkv_lora2.%s.weight":                  {Name: "double_blocks.0.txt_attn.qkv", Rows: 288},
		"diffusion_model.double_blocks.2.processor.proj_lora1.%s.weight": {Name: "double_blocks.2.img_attn.proj", Rows: 96},
		"double_blocks.2.processor.proj_lora2.%s.weight":                 {Name: "double_blocks.2.txt_attn.proj", Rows: 96},
	} {
		k := 96
		if strings.HasSuffix(want.Name, "linear2") {
			k = 480
		}
		want.Up, want.Down, want.Scale = fmt.Sprintf(name, "up"), fmt.Sprintf(name, "down"), 1
		set := weights.FromMap(map[string]weights.Stored{
			want.Up:   tensor(make([]float32, want.Rows*2), want.Rows, 2),
			want.Down: tensor(make([]float32, 2*k), 2, k),
		})
		m, err := Match(set, keys)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(m.Additions) != 1 || m.Additions[0] != want {
			t.Errorf("%s: got %+v, want %+v", name, m.Additions, want)
		}
	}
}
