package models_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/gguf"
	"patchbay/engine/gguf/ggufwrite"
	"patchbay/engine/ref"
	"patchbay/engine/safetensors"
	"patchbay/models"
	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/models/tiny"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
)

// predict opens a diffusion model from a set and evaluates the first recorded case of the golden model flux-a.
func predict(t *testing.T, set *weights.Set, meta map[string]string) []float32 {
	t.Helper()
	d, err := models.OpenDiffusion(set, meta)
	if err != nil {
		t.Fatal(err)
	}
	m, err := d.Load(ref.New(), dit.Held{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	cases, err := goldenweights.Cases("flux-a")
	if err != nil {
		t.Fatal(err)
	}
	env, err := goldenrun.NewEnv(ref.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	out, err := goldenrun.Whole(env, m, cases[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func tinyFlux(t *testing.T) (*weights.Set, map[string]string) {
	t.Helper()
	set, meta, err := tiny.Checkpoint("flux-a")
	if err != nil {
		t.Fatal(err)
	}
	return set, meta
}

// quantised returns a set as a GGUF file like those of converters of image models: matrices in blocks, vectors as f32.
func quantised(t *testing.T, set *weights.Set, meta map[string]string, kind gguf.Type) *gguf.File {
	t.Helper()
	words := map[string]any{"general.architecture": "flux"}
	for key, v := range meta {
		words[key] = v
	}
	var tensors []ggufwrite.Tensor
	inBlocks := 0
	for _, name := range set.Names() {
		s, _ := set.Get(name)
		as := gguf.F32
		if block, _ := kind.Block(); len(s.Shape) == 2 && s.Len()%block == 0 {
			as = kind
			inBlocks++
		}
		tensors = append(tensors, ggufwrite.Tensor{
			Name: name, Type: as, Shape: s.Shape,
			Data: ggufwrite.Quantise(as, s.F32()),
		})
	}
	if inBlocks < 30 {
		t.Fatalf("only %d matrices are quantised", inBlocks)
	}
	f, err := gguf.OpenBytes(ggufwrite.File(words, tensors))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestQuantisedFluxEqualsItsWidenedWeights checks that tiny FLUX gives the same bits from GGUF files of every common
// type as from the same weights widened beforehand, and differs from f32 weights only by the quantization error. The
// bounds are relative to the largest value and a little above what was measured. Uniformly distributed test weights
// are the worst case for 4 bits.
func TestQuantisedFluxEqualsItsWidenedWeights(t *testing.T) {
	if testing.Short() {
		t.Skip("long: every type of a GGUF file; TestPlansOfInt8Weights has one")
	}
	set, meta := tinyFlux(t)
	exact := predict(t, set, meta)
	for _, c := range []struct {
		kind  gguf.Type
		bound float64
	}{{gguf.BF16, 1e-2}, {gguf.Q8v0, 2e-2}, {gguf.Q6K, 6e-2}, {gguf.Q5K, 1e-1}, {gguf.Q4K, 2.5e-1}, {gguf.Q4v0, 3e-1}} {
		if testing.Short() && c.kind != gguf.Q8v0 && c.kind != gguf.Q4K {
			continue
		}
		t.Run(c.kind.String(), func(t *testing.T) {
			f := quantised(t, set, meta, c.kind)
			for _, form := range []engine.DType{engine.BF16, engine.F32} {
				lazy, err := weights.FromGGUF(f, form)
				if err != nil {
					t.Fatal(err)
				}
				beforehand := map[string]weights.Stored{}
				for _, name := range f.Names() {
					e, _ := f.Entry(name)
					d, plain := e.DType()
					data := e.Data.Bytes()
					if !plain {
						d, data = form, ggufwrite.Widen(e, form)
					}
					beforehand[name] = weights.Stored{DType: d, Shape: e.Shape, Data: data}
				}
				got, want := predict(t, lazy, meta), predict(t, weights.FromMap(beforehand), meta)
				if _, err := goldenrun.Compare(got, want, 0); err != nil {
					t.Errorf("widened to %s at load against beforehand: %v", form, err)
				}
				worst, err := goldenrun.Compare(got, exact, c.bound)
				if err != nil {
					t.Errorf("widened to %s against f32 weights: %v", form, err)
				}
				t.Logf("%s widened to %s: error %.2g, bound %.2g", c.kind, form, worst, c.bound)
			}
		})
	}
}

// split is a tensor of the original FLUX checkpoint and the names that diffusers gives to its pieces, top to bottom,
// with their rows. It was written by hand from diffusers' FluxTransformer2DModel, as an independent check of
// flux.FromDiffusers.
type split struct {
	original string
	pieces   []string
	rows     []int
}

// splits lists every matrix of a FLUX of width e and MLP width f.
func splits(e, f, double, single int, guidance bool) []split {
	all := []split{
		{"img_in", []string{"x_embedder"}, []int{e}},
		{"txt_in", []string{"context_embedder"}, []int{e}},
		{"time_in.in_layer", []string{"time_text_embed.timestep_embedder.linear_1"}, []int{e}},
		{"time_in.out_layer", []string{"time_text_embed.timestep_embedder.linear_2"}, []int{e}},
		{"vector_in.in_layer", []string{"time_text_embed.text_embedder.linear_1"}, []int{e}},
		{"vector_in.out_layer", []string{"time_text_embed.text_embedder.linear_2"}, []int{e}},
		{"final_layer.linear", []string{"proj_out"}, []int{64}},
	}
	if guidance {
		all = append(all, split{"guidance_in.in_layer", []string{"time_text_embed.guidance_embedder.linear_1"}, []int{e}},
			split{"guidance_in.out_layer", []string{"time_text_embed.guidance_embedder.linear_2"}, []int{e}})
	}
	for i := range double {
		o, d := fmt.Sprintf("double_blocks.%d.", i), fmt.Sprintf("transformer_blocks.%d.", i)
		for _, s := range []split{
			{"img_mod.lin", []string{"norm1.linear"}, []int{6 * e}},
			{"txt_mod.lin", []string{"norm1_context.linear"}, []int{6 * e}},
			{"img_attn.qkv", []string{"attn.to_q", "attn.to_k", "attn.to_v"}, []int{e, e, e}},
			{"txt_attn.qkv", []string{"attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"}, []int{e, e, e}},
			{"img_attn.proj", []string{"attn.to_out.0"}, []int{e}},
			{"txt_attn.proj", []string{"attn.to_add_out"}, []int{e}},
			{"img_mlp.0", []string{"ff.net.0.proj"}, []int{f}},
			{"img_mlp.2", []string{"ff.net.2"}, []int{e}},
			{"txt_mlp.0", []string{"ff_context.net.0.proj"}, []int{f}},
			{"txt_mlp.2", []string{"ff_context.net.2"}, []int{e}},
		} {
			all = append(all, s.under(o, d))
		}
	}
	for i := range single {
		o, d := fmt.Sprintf("single_blocks.%d.", i), fmt.Sprintf("single_transformer_blocks.%d.", i)
		for _, s := range []split{
			{"modulation.lin", []string{"norm.linear"}, []int{3 * e}},
			{"linear2", []string{"proj_out"}, []int{e}},
			{"linear1", []string{"attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"}, []int{e, e, e, f}},
		} {
			all = append(all, s.under(o, d))
		}
	}
	return all
}

func (s split) under(original, diffusers string) split {
	out := split{original: original + s.original, rows: s.rows}
	for _, p := range s.pieces {
		out.pieces = append(out.pieces, diffusers+p)
	}
	return out
}

// asDiffusers converts a FLUX set to diffusers' names and pieces.
func asDiffusers(t *testing.T, set *weights.Set) map[string]weights.Stored {
	t.Helper()
	e, f := set.Dim("img_in.weight", 0), set.Dim("double_blocks.0.img_mlp.0.weight", 0)
	out, used := map[string]weights.Stored{}, 0
	for _, s := range splits(e, f, set.Count("double_blocks"), set.Count("single_blocks"),
		set.Has("guidance_in.in_layer.weight")) {
		for _, kind := range []string{".weight", ".bias"} {
			whole, ok := set.Get(s.original + kind)
			if !ok {
				t.Fatalf("no tensor %s", s.original+kind)
			}
			used++
			at := 0
			for i, p := range s.pieces {
				row := whole.Len() / whole.Shape[0]
				out[p+kind] = weights.Stored{
					DType: engine.F32, Shape: append([]int{s.rows[i]}, whole.Shape[1:]...),
					Data: whole.Data[4*at*row : 4*(at+s.rows[i])*row],
				}
				at += s.rows[i]
			}
		}
	}
	for _, kind := range []string{".weight", ".bias"} { // (shift, scale) -> (scale, shift)
		whole, _ := set.Get("final_layer.adaLN_modulation.1" + kind)
		half := len(whole.Data) / 2
		whole.Data = slices.Concat(whole.Data[half:], whole.Data[:half])
		out["norm_out.linear"+kind] = whole
		used++
	}
	for _, name := range set.Names() {
		if !strings.HasSuffix(name, "_norm.scale") {
			continue
		}
		used++
		as := strings.NewReplacer("double_blocks", "transformer_blocks", "single_blocks", "single_transformer_blocks",
			"img_attn.norm.query_norm.scale", "attn.norm_q.weight",
			"img_attn.norm.key_norm.scale", "attn.norm_k.weight", "txt_attn.norm.query_norm.scale", "attn.norm_added_q.weight",
			"txt_attn.norm.key_norm.scale", "attn.norm_added_k.weight",
			"norm.query_norm.scale", "attn.norm_q.weight", "norm.key_norm.scale", "attn.norm_k.weight").Replace(name)
		s, _ := set.Get(name)
		out[as] = s
	}
	if used != len(set.Names()) {
		t.Fatalf("%d of %d tensors were renamed", used, len(set.Names()))
	}
	return out
}

// diffusersConfig returns the config.json that diffusers would write for a set.
func diffusersConfig(t *testing.T, meta map[string]string) string {
	t.Helper()
	var c struct {
		Axes []int `json:"axes_dim"`
	}
	if err := json.Unmarshal([]byte(meta["config"]), &c); err != nil || len(c.Axes) != 3 {
		t.Fatalf("config %q: %v", meta["config"], err)
	}
	text, err := json.Marshal(map[string]any{
		"_class_name": "FluxTransformer2DModel", "axes_dims_rope": c.Axes, "in_channels": 64, "patch_size": 1,
		"guidance_embeds": true, "out_channels": nil,
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestDiffusersNamesEqualOriginalNames(t *testing.T) {
	set, meta := tinyFlux(t)
	want := predict(t, set, meta)
	theirs := map[string]string{"config": diffusersConfig(t, meta)}
	got := predict(t, weights.FromMap(asDiffusers(t, set)), theirs)
	if _, err := goldenrun.Compare(got, want, 0); err != nil {
		t.Error(err)
	}
}

// TestShardedFolderEqualsOneFile checks that a diffusers transformer folder of three shards equals a single file.
func TestShardedFolderEqualsOneFile(t *testing.T) {
	set, meta := tinyFlux(t)
	dir := t.TempDir()
	writeFolder(t, dir, asDiffusers(t, set), diffusersConfig(t, meta))
	f, err := weights.Open(dir, engine.BF16)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := goldenrun.Compare(predict(t, f.Set(), f.Metadata()), predict(t, set, meta), 0); err != nil {
		t.Error(err)
	}
}

// writeFolder writes tensors in three shards, their index and a config.json.
func writeFolder(t *testing.T, dir string, tensors map[string]weights.Stored, config string) {
	t.Helper()
	names := weights.FromMap(tensors).Names()
	shards, listed := make([][]safetensors.Tensor, 3), map[string]string{}
	file := func(i int) string { return fmt.Sprintf("diffusion_pytorch_model-%05d-of-00003.safetensors", i+1) }
	for i, name := range names {
		s := tensors[name]
		shards[i%3] = append(shards[i%3], safetensors.Tensor{
			Name: name, DType: s.DType, FileType: "F32",
			Shape: s.Shape, Data: datafile.Of(s.Data),
		})
		listed[name] = file(i % 3)
	}
	index, err := json.Marshal(map[string]any{"metadata": map[string]any{"total_size": 1}, "weight_map": listed})
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{"diffusion_pytorch_model.safetensors.index.json": index, "config.json": []byte(config)}
	for i, entries := range shards {
		var b bytes.Buffer
		if err := safetensors.Write(&b, nil, entries); err != nil {
			t.Fatal(err)
		}
		files[file(i)] = b.Bytes()
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDiffusersRefusesWithReasons(t *testing.T) {
	set, meta := tinyFlux(t)
	config := map[string]string{"config": diffusersConfig(t, meta)}
	for _, c := range []struct {
		name   string
		config map[string]string
		want   string
		change func(m map[string]weights.Stored)
	}{
		{
			"k is missing", config, "part 2 of 3 is missing",
			func(m map[string]weights.Stored) { delete(m, "transformer_blocks.0.attn.to_k.weight") },
		},
		{"wrong width", config, "do not fit", func(m map[string]weights.Stored) {
			m["transformer_blocks.0.attn.to_k.weight"] = weights.Stored{Shape: []int{1, 1}, Data: make([]byte, 4)}
		}},
		{"odd modulation", config, "two halves", func(m map[string]weights.Stored) {
			m["norm_out.linear.bias"] = weights.Stored{Shape: []int{3}, Data: make([]byte, 12)}
		}},
		{"patches", map[string]string{"config": `{"patch_size": 2}`}, "patch_size is 2", func(map[string]weights.Stored) {}},
		{"config", map[string]string{"config": `{`}, "config of a diffusers model", func(map[string]weights.Stored) {}},
		{"axes", map[string]string{"config": `{"axes_dims_rope": [1, 2]}`}, "axes_dim", func(map[string]weights.Stored) {}},
	} {
		tensors := asDiffusers(t, set)
		c.change(tensors)
		if _, err := models.OpenDiffusion(weights.FromMap(tensors), c.config); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want one with %q", c.name, err, c.want)
		}
	}
	tensors := asDiffusers(t, set)
	tensors["transformer_blocks.0.stranger.weight"] = weights.Stored{Shape: []int{1}, Data: make([]byte, 4)}
	d, err := models.OpenDiffusion(weights.FromMap(tensors), config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Load(ref.New(), dit.Held{}); err != nil ||
		!slices.Equal(d.Unused, []string{"transformer_blocks.0.stranger.weight"}) {
		t.Errorf("a tensor that nobody knows: unused %q, error %v", d.Unused, err)
	}
	tensors["img_in_patch.weight"] = tensors["transformer_blocks.0.stranger.weight"]
	if _, err = models.OpenDiffusion(weights.FromMap(tensors), config); err == nil ||
		!strings.Contains(err.Error(), "looks like chroma radiance") {
		t.Errorf("a relative that is not supported: got error %v", err)
	}
}
