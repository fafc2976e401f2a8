package flux

import (
	"encoding/json"
	"fmt"
	"strings"

	"patchbay/models/weights"
)

// FromDiffusers returns the set of a FLUX model in the names of diffusers (FluxTransformer2DModel of diffusers 0.39) in
// the original names, and metadata whose "config" says what the diffusers config.json under meta["config"] says.
// Nothing is read: queries, keys and values (and the first MLP layer of single blocks) become row ranges of the fused
// matrices, and the two halves of the last modulation, which diffusers stores as (scale, shift), change places. Names
// that it does not know stay and are reported by Load. Errors: parts of one matrix that do not fit, a broken config.
func FromDiffusers(set *weights.Set, meta map[string]string) (*weights.Set, map[string]string, error) {
	parts := map[string][]string{} // original name -> diffusers names, top to bottom
	for _, name := range set.Names() {
		as, at, of := original(name)
		if parts[as] == nil {
			parts[as] = make([]string, of)
		}
		if len(parts[as]) != of || parts[as][at] != "" {
			return nil, nil, fmt.Errorf("flux: tensors %q and %q are the same part of %s", name,
				strings.Join(parts[as], " "), as)
		}
		parts[as][at] = name
	}
	out := make(map[string]weights.Stored, len(parts))
	for as, names := range parts {
		t, err := fuse(set, names)
		if err == nil && strings.HasPrefix(as, "final_layer.adaLN_modulation.1.") {
			t, err = halvesSwapped(t)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("flux: %s of %s: %w", as, strings.Join(names, ", "), err)
		}
		out[as] = t
	}
	meta, err := originalConfig(meta)
	return weights.FromMap(out), meta, err
}

// fuse joins the parts of one matrix or bias.
func fuse(set *weights.Set, names []string) (weights.Stored, error) {
	pieces := make([]weights.Stored, len(names))
	for i, name := range names {
		t, ok := set.Get(name)
		if !ok {
			return t, fmt.Errorf("part %d of %d is missing", i+1, len(names))
		}
		pieces[i] = t
	}
	if len(pieces) == 1 {
		return pieces[0], nil
	}
	return weights.Concat(pieces...)
}

// halvesSwapped puts the lower half of the rows above the upper half.
func halvesSwapped(t weights.Stored) (weights.Stored, error) {
	if len(t.Shape) == 0 || t.Shape[0]%2 != 0 {
		return t, fmt.Errorf("shape %v has no two halves", t.Shape)
	}
	half := t.Shape[0] / 2
	upper, err := t.Rows(0, half)
	if err != nil {
		return t, err
	}
	lower, err := t.Rows(half, half)
	if err != nil {
		return t, err
	}
	return weights.Concat(lower, upper)
}

// original maps one diffusers name to the original one and tells which of how many parts it is.
func original(name string) (as string, at, of int) {
	stem, kind := name, ""
	if dot := strings.LastIndexByte(name, '.'); dot > 0 {
		stem, kind = name[:dot], name[dot:] // kind is .weight or .bias
	}
	if as, ok := outside()[stem]; ok {
		return as + kind, 0, 1
	}
	for list, table := range map[string]map[string]part{
		"transformer_blocks.":        doubleParts(),
		"single_transformer_blocks.": singleParts(),
	} {
		rest, ok := strings.CutPrefix(stem, list)
		if !ok {
			continue
		}
		number, inner, _ := strings.Cut(rest, ".")
		p, known := table[inner]
		if !known {
			break
		}
		as := map[bool]string{true: "double_blocks.", false: "single_blocks."}[list == "transformer_blocks."] +
			number + "." + p.name
		if strings.HasSuffix(p.name, ".scale") { // a norm's weight
			return as, 0, 1
		}
		return as + kind, p.at, p.of
	}
	return name, 0, 1
}

// part is a place in an original matrix: number at of of.
type part struct {
	name   string
	at, of int
}

// outside are the names outside the blocks.
func outside() map[string]string {
	return map[string]string{
		"x_embedder": "img_in", "context_embedder": "txt_in", "norm_out.linear": "final_layer.adaLN_modulation.1",
		"proj_out": "final_layer.linear",
		"time_text_embed.timestep_embedder.linear_1": "time_in.in_layer",
		"time_text_embed.timestep_embedder.linear_2": "time_in.out_layer",
		"time_text_embed.text_embedder.linear_1":     "vector_in.in_layer",
		"time_text_embed.text_embedder.linear_2":     "vector_in.out_layer",
		"time_text_embed.guidance_embedder.linear_1": "guidance_in.in_layer",
		"time_text_embed.guidance_embedder.linear_2": "guidance_in.out_layer",
	}
}

// doubleParts are the names inside a double block.
func doubleParts() map[string]part {
	return map[string]part{
		"norm1.linear": {"img_mod.lin", 0, 1}, "norm1_context.linear": {"txt_mod.lin", 0, 1},
		"attn.to_q": {"img_attn.qkv", 0, 3}, "attn.to_k": {"img_attn.qkv", 1, 3}, "attn.to_v": {"img_attn.qkv", 2, 3},
		"attn.add_q_proj": {"txt_attn.qkv", 0, 3}, "attn.add_k_proj": {"txt_attn.qkv", 1, 3},
		"attn.add_v_proj": {"txt_attn.qkv", 2, 3},
		"attn.norm_q":     {"img_attn.norm.query_norm.scale", 0, 1}, "attn.norm_k": {"img_attn.norm.key_norm.scale", 0, 1},
		"attn.norm_added_q": {"txt_attn.norm.query_norm.scale", 0, 1},
		"attn.norm_added_k": {"txt_attn.norm.key_norm.scale", 0, 1},
		"attn.to_out.0":     {"img_attn.proj", 0, 1}, "attn.to_add_out": {"txt_attn.proj", 0, 1},
		"ff.net.0.proj": {"img_mlp.0", 0, 1}, "ff.net.2": {"img_mlp.2", 0, 1},
		"ff_context.net.0.proj": {"txt_mlp.0", 0, 1}, "ff_context.net.2": {"txt_mlp.2", 0, 1},
	}
}

// singleParts are the names inside a single block.
func singleParts() map[string]part {
	return map[string]part{
		"norm.linear": {"modulation.lin", 0, 1}, "proj_out": {"linear2", 0, 1},
		"attn.to_q": {"linear1", 0, 4}, "attn.to_k": {"linear1", 1, 4}, "attn.to_v": {"linear1", 2, 4},
		"proj_mlp":    {"linear1", 3, 4},
		"attn.norm_q": {"norm.query_norm.scale", 0, 1}, "attn.norm_k": {"norm.key_norm.scale", 0, 1},
	}
}

// originalConfig replaces a diffusers config.json by the members of Config that it decides. in_channels counts a packed
// patch of 2 x 2, which the original config calls patch_size 2 and diffusers 1; widths and depths are in the shapes.
func originalConfig(meta map[string]string) (map[string]string, error) {
	text, ok := meta["config"]
	if !ok {
		return meta, nil
	}
	var members map[string]json.RawMessage
	var theirs struct {
		Axes  []int `json:"axes_dims_rope"`
		Patch *int  `json:"patch_size"`
		Heads *int  `json:"num_attention_heads"`
	}
	err := json.Unmarshal([]byte(text), &members)
	if err == nil {
		err = json.Unmarshal([]byte(text), &theirs)
	}
	if err != nil {
		return nil, fmt.Errorf("flux: config of a diffusers model: %w", err)
	}
	if theirs.Patch != nil && *theirs.Patch != 1 {
		return nil, fmt.Errorf("flux: config of a diffusers model: patch_size is %d, only 1 is supported", *theirs.Patch)
	}
	delete(members, "patch_size")
	if theirs.Axes != nil {
		members["axes_dim"], _ = json.Marshal(theirs.Axes) // integers
	}
	all, err := json.Marshal(members)
	if err != nil {
		return nil, fmt.Errorf("flux: config of a diffusers model: %w", err)
	}
	out := map[string]string{}
	for key, v := range meta {
		out[key] = v
	}
	out["config"] = string(all)
	return out, nil
}
