package flux3

import (
	"strings"
	"testing"

	"patchbay/engine/ref"
	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/models/lora/loratest"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
)

// inDiffusers returns the tensors of a model as diffusers' Flux3Transformer2DModel saves them.
func inDiffusers(t *testing.T, set *weights.Set) *weights.Set {
	t.Helper()
	out := map[string]weights.Stored{}
	names := strings.NewReplacer("content_mode_blocks", "mode_blocks", "single_blocks", "single_transformer_blocks",
		"q_proj", "attn.to_q", "k_proj", "attn.to_k", "v_proj", "attn.to_v", "attn_out", "attn.to_out.0",
		"norm.query_norm.scale", "attn.norm_q.weight", "norm.key_norm.scale", "attn.norm_k.weight", "mlp_in", "ff.linear_in",
		"mlp_out", "ff.linear_out", ".lin.weight", ".linear.weight", "emb_in", "x_embedders", "txt_in", "context_embedder",
		"ref_time_in.in_layer", "target_timestep_embedder.linear_1", "ref_time_in.out_layer",
		"target_timestep_embedder.linear_2", "time_in.in_layer", "timestep_embedder.linear_1", "time_in.out_layer",
		"timestep_embedder.linear_2", "final_layer.image.linear", "proj_out")
	for _, name := range set.Names() {
		s, _ := set.Get(name)
		if strings.HasPrefix(name, "final_layer.image.adaLN") { // (scale, shift)
			half := s.Shape[0] / 2
			shift, err := s.Rows(0, half)
			if err != nil {
				t.Fatal(err)
			}
			scale, err := s.Rows(half, half)
			if err != nil {
				t.Fatal(err)
			}
			if s, err = weights.Concat(scale, shift); err != nil {
				t.Fatal(err)
			}
			name = "norm_out.linear.weight"
		}
		out[names.Replace(name)] = s
	}
	return weights.FromMap(out)
}

// TestOtherNamesGiveTheSameModel runs models in diffusers' form, and in the original one with what training leaves in
// files, and inside a full checkpoint.
func TestOtherNamesGiveTheSameModel(t *testing.T) {
	for _, name := range []string{"f3-c", "f3-d"} {
		set, config, err := goldenweights.Set(name)
		if err != nil {
			t.Fatal(err)
		}
		cases, err := goldenweights.Cases(name)
		if err != nil {
			t.Fatal(err)
		}
		run := func(set *weights.Set) []float32 {
			t.Helper()
			m, err := goldens().Open(ref.New(), set, map[string]string{"config": string(config)}, dit.Held{})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			env, err := goldenrun.NewEnv(ref.New(), nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := goldenrun.Whole(env, m, cases[0], nil)
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		full := map[string]weights.Stored{}
		for _, n := range set.Names() {
			full["model.diffusion_model."+n], _ = set.Get(n)
		}
		full["model.diffusion_model.repa_projectors.0.weight"] = weights.Floats(make([]float32, 4), 2, 2)
		want := run(set)
		for form, other := range map[string]*weights.Set{"diffusers": inDiffusers(t, set), "full": weights.FromMap(full)} {
			if _, err := goldenrun.Compare(run(other), want, 0); err != nil {
				t.Errorf("%s, %s: %v", name, form, err)
			}
		}
	}
}

// TestAdapterNames checks the rows and weights that names in files of adapters stand for.
func TestAdapterNames(t *testing.T) {
	c, ok := Family().Tiny.(Config)
	if !ok {
		t.Fatalf("the tiny model is a %T", Family().Tiny)
	}
	one, e := loratest.One, c.Hidden
	loratest.Check(t, Family(),
		one("diffusion_model.single_blocks.1.q_proj", e, e, "single_blocks.1.q_proj", 0),
		one("transformer.single_transformer_blocks.2.attn.to_out.0", e, e, "single_blocks.2.attn_out", 0),
		one("transformer.mode_blocks.image.1.attn.to_k", e, e, "content_mode_blocks.image.1.k_proj", 0),
		one("transformer.mode_blocks.image_cond.0.ff.linear_in", 2*c.MLPHidden, e,
			"content_mode_blocks.image_cond.0.mlp_in", 0),
		one("transformer.txt_mode_blocks.0.ff.linear_out", e, c.MLPHidden, "txt_mode_blocks.0.mlp_out", 0),
		one("lora_unet_content_mode_blocks_image_0_v_proj", e, e, "content_mode_blocks.image.0.v_proj", 0),
		one("diffusion_model.single_stream_modulations.image_cond.lin", 3*e, e,
			"single_stream_modulations.image_cond.lin", 0),
	)
}
