package flux2

import (
	"fmt"
	"strings"
	"testing"

	"patchbay/engine/ref"
	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
)

// inDiffusers returns the tensors of a model as diffusers' Flux2Transformer2DModel saves them.
func inDiffusers(t *testing.T, set *weights.Set) *weights.Set {
	t.Helper()
	out := map[string]weights.Stored{}
	part := func(s weights.Stored, i, of int) weights.Stored {
		n := s.Shape[0] / of
		p, err := s.Rows(i*n, n)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	names := strings.NewReplacer("double_blocks", "transformer_blocks", "single_blocks", "single_transformer_blocks",
		"linear1", "attn.to_qkv_mlp_proj", "linear2", "attn.to_out", ".norm.query_norm.scale", ".attn.norm_q.weight",
		".norm.key_norm.scale", ".attn.norm_k.weight", "img_attn.proj", "attn.to_out.0", "txt_attn.proj", "attn.to_add_out",
		"img_attn.norm.query_norm.scale", "attn.norm_q.weight", "img_attn.norm.key_norm.scale", "attn.norm_k.weight",
		"txt_attn.norm.query_norm.scale", "attn.norm_added_q.weight", "txt_attn.norm.key_norm.scale",
		"attn.norm_added_k.weight", "img_mlp.0", "ff.linear_in", "img_mlp.2", "ff.linear_out", "txt_mlp.0",
		"ff_context.linear_in", "txt_mlp.2", "ff_context.linear_out", "img_in", "x_embedder", "txt_in", "context_embedder",
		"modulation_img.lin", "modulation_img.linear", "modulation_txt.lin", "modulation_txt.linear", "stream_modulation.lin",
		"stream_modulation.linear", "final_layer.linear", "proj_out", "time_in.in_layer",
		"time_guidance_embed.timestep_embedder.linear_1", "time_in.out_layer",
		"time_guidance_embed.timestep_embedder.linear_2", "guidance_in.in_layer",
		"time_guidance_embed.guidance_embedder.linear_1", "guidance_in.out_layer",
		"time_guidance_embed.guidance_embedder.linear_2")
	for _, name := range set.Names() {
		s, _ := set.Get(name)
		block, rest, _ := strings.Cut(strings.TrimPrefix(name, "double_blocks."), ".")
		switch {
		case strings.HasSuffix(name, "_attn.qkv.weight"):
			as := []string{"to_q", "to_k", "to_v"}
			if strings.HasPrefix(rest, "txt") {
				as = []string{"add_q_proj", "add_k_proj", "add_v_proj"}
			}
			for i, n := range as {
				out[fmt.Sprintf("transformer_blocks.%s.attn.%s.weight", block, n)] = part(s, i, 3)
			}
		case strings.HasPrefix(name, "final_layer.adaLN"): // (scale, shift)
			both, err := weights.Concat(part(s, 1, 2), part(s, 0, 2))
			if err != nil {
				t.Fatal(err)
			}
			out["norm_out.linear.weight"] = both
		default:
			out[names.Replace(name)] = s
		}
	}
	return weights.FromMap(out)
}

// TestDiffusersNames checks that a model with diffusers' names gives ComfyUI's results, as it does with its own names.
func TestDiffusersNames(t *testing.T) {
	set, config, err := goldenweights.Set("flux2-a")
	if err != nil {
		t.Fatal(err)
	}
	file, err := goldenweights.OpenResults()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	cases, err := goldenweights.Cases("flux2-a")
	if err != nil {
		t.Fatal(err)
	}
	meta := map[string]string{"config": string(config)}
	m, err := goldenrun.Of(Family())(ref.New(), inDiffusers(t, set), meta, dit.Held{})
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
	want, _, err := file.Get(cases[0].Name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := goldenrun.Compare(got, want, goldenrun.Rel); err != nil {
		t.Error(err)
	}
}
