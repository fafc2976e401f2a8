package lora

import (
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/models/weights"
)

// zeros returns a pair of zero matrices of rank r for a matrix [n, k], named by module in kohya's convention.
func zeros(module string, n, k, r int) map[string]weights.Stored {
	return map[string]weights.Stored{
		module + ".lora_up.weight":   tensor(make([]float32, n*r), n, r),
		module + ".lora_down.weight": tensor(make([]float32, r*k), r, k),
	}
}

// encoder returns an encoder of one block and width 8.
func encoder(kind string) Encoder {
	name := map[string]string{
		"clip_l": "text_model.encoder.layers.0.self_attn.q_proj.weight",
		"clip_g": "text_model.encoder.layers.0.self_attn.q_proj.weight",
		"t5":     "encoder.block.0.layer.0.SelfAttention.q.weight", "mt5": "encoder.block.0.layer.0.SelfAttention.q.weight",
		"bert": "bert.encoder.layer.0.attention.self.query.weight", "gemma3_12b": "model.layers.0.self_attn.q_proj.weight",
		"gemma4": "model.layers.0.self_attn.q_proj.weight", "gemma4_e": "model.layers.0.self_attn.q_proj.weight",
	}[kind]
	return Encoder{kind, map[string][]int{
		name: {8, 8}, "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": {8, 8},
		"text_model.embeddings.token_embedding.weight": {8, 8},
	}}
}

// TestTextNumbers checks which encoder a name refers to in which combination of encoders, against ComfyUI's table.
func TestTextNumbers(t *testing.T) {
	const clip, t5 = "text_model_encoder_layers_0_self_attn_q_proj", "encoder_block_0_layer_0_SelfAttention_q"
	for _, c := range []struct {
		kinds, module, want string
	}{
		{"clip_l t5", "lora_te_" + clip, "clip_l"},
		{"clip_l t5", "lora_te1_" + clip, "clip_l"},
		{"clip_l t5", "lora_te2_" + t5, "t5"},
		{"clip_l t5", "lora_te3_" + t5, "t5"},
		{"clip_l t5", "lora_te2_" + clip, ""},
		{"clip_l clip_g t5", "lora_te2_" + clip, "clip_g"},
		{"clip_l clip_g t5", "lora_te3_" + t5, "t5"},
		{"clip_l clip_g t5", "lora_te2_" + t5, ""},
		{"clip_g", "lora_te_" + clip, "clip_g"},
		{"clip_g t5", "lora_te2_" + t5, "t5"},
		{"t5", "lora_te1_" + t5, "t5"},
		{"clip_l", "text_encoder.text_model.encoder.layers.0.self_attn.q_proj", "clip_l"},
		{"clip_l clip_g", "text_encoder_2.text_model.encoder.layers.0.self_attn.q_proj", "clip_g"},
		{"clip_l t5", "text_encoders.clip_l.transformer.text_model.encoder.layers.0.self_attn.q_proj", "clip_l"},
		{"clip_l t5", "text_encoders.t5xxl.transformer.encoder.block.0.layer.0.SelfAttention.q", "t5"},
		{"bert mt5", "lora_te1_encoder_layer_0_attention_self_query", "bert"},
		{"bert mt5", "text_encoders.mt5xl.transformer.encoder.block.0.layer.0.SelfAttention.q", "mt5"},
		{"t5", "lora_te1_encoder_block_0_layer_0_SelfAttention_relative_attention_bias", ""},
		{
			"gemma3_12b projection", "text_encoders.gemma3_12b.transformer.model.layers.0.self_attn.q_proj",
			"gemma3_12b",
		},
		{"gemma3_12b projection", "text_encoders.transformer.model.layers.0.self_attn.q_proj", "gemma3_12b"},
		{"gemma4 projection", "text_encoders.gemma3_12b.transformer.model.layers.0.self_attn.q_proj", "gemma4"},
		{"gemma4_e", "text_encoders.gemma4.transformer.model.layers.0.self_attn.q_proj", "gemma4_e"},
		{"clip_l", "text_encoders.transformer.text_model.encoder.layers.0.self_attn.q_proj", ""},
		{"clip_l", "text_encoders.clip_l.transformer.text_model.embeddings.token_embedding", ""},
	} {
		var list []Encoder
		for kind := range strings.FieldsSeq(c.kinds) {
			list = append(list, encoder(kind))
		}
		m, err := Match(weights.FromMap(zeros(c.module, 8, 8, 2)), Text(list))
		got := ""
		if err == nil {
			got = m.Additions[0].Part
		}
		if got != c.want {
			t.Errorf("%s beside %s: part %q, %v; want %q", c.module, c.kinds, got, err, c.want)
		}
	}
}

func merge(maps ...map[string]weights.Stored) map[string]weights.Stored {
	out := map[string]weights.Stored{}
	for _, m := range maps {
		for k, v := range m {
			out[k] = v
		}
	}
	return out
}

func TestAlphaAndRank(t *testing.T) {
	const a, b = "lora_unet_double_blocks_0_img_attn_proj", "lora_unet_double_blocks_0_txt_attn_proj"
	set := weights.FromMap(merge(zeros(a, 96, 96, 4), zeros(b, 96, 96, 7), map[string]weights.Stored{
		a + ".alpha": tensor([]float32{6}), "lora_te1_something.lora_up.weight": tensor([]float32{1}, 1, 1),
		"lora_te1_something.alpha": tensor([]float32{1}), "emb_params": tensor([]float32{1}, 1),
	}))
	m, err := Match(set, fluxKeys(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Additions) != 2 || m.Additions[0].Scale != 1.5 || m.Additions[1].Scale != 1 {
		t.Errorf("scales of alpha 6 at rank 4 and of no alpha at rank 7: got %+v, want 1.5 and 1", m.Additions)
	}
	if want := []string{
		"emb_params", "lora_te1_something.alpha",
		"lora_te1_something.lora_up.weight",
	}; !slices.Equal(m.Unused, want) {
		t.Errorf("unused: got %v, want %v", m.Unused, want)
	}
}

func TestMatchRefusesWithReasons(t *testing.T) {
	const name = "lora_unet_double_blocks_0_img_attn_proj"
	keys, good := Join(fluxKeys(t), Text([]Encoder{encoder("clip_l")})), zeros(name, 96, 96, 4)
	with := func(extra string, s weights.Stored) map[string]weights.Stored {
		return merge(good, map[string]weights.Stored{extra: s})
	}
	number := tensor([]float32{1})
	up, down := name+".lora_up.weight", name+".lora_down.weight"
	for want, file := range map[string]map[string]weights.Stored{
		"begins with lora_unet_blocks_0_attn.alpha": {
			"lora_unet_blocks_0_attn.alpha": number,
			"x.lora_up.weight":              number,
		},
		"lora_unet_double_blocks_0_img_attn_proj.lora_":              {"x.lora_up.weight": number},
		"the text encoder clip_l":                                    {"lora_te3_a.lora_up.weight": number},
		"has no tensors":                                             {},
		up + ": got shape [96 3], want [96, 4]":                      with(up, tensor(make([]float32, 288), 96, 3)),
		up + ": got shape [94 4], want [96, 4]":                      with(up, tensor(make([]float32, 376), 94, 4)),
		down + ": got shape [4 95], want [4, 96]":                    with(down, tensor(make([]float32, 380), 4, 95)),
		down + ": got shape [384], want up [96, R] and down [R, 96]": with(down, tensor(make([]float32, 384), 384)),
		down + ": got shape [0 96]":                                  with(down, tensor(nil, 0, 96)),
		up + " has no partner":                                       {up: good[up]},
		down + " has no partner":                                     {down: good[down]},
		name + ".alpha: got shape [2]":                               with(name+".alpha", tensor([]float32{1, 2}, 2)),
		name + ".alpha is NaN":                                       with(name+".alpha", tensor([]float32{float32nan()})),
		"element type i64": with(up,
			weights.Stored{DType: engine.I64, Shape: []int{96, 4}, Data: make([]byte, 96*4*8)}),
		"both stand for double_blocks.0.img_attn.proj": merge(good,
			zeros("double_blocks.0.img_attn.proj", 96, 96, 1)),
		"are the same tensor of one module":      with(name+".lora_B.weight", good[up]),
		"dora_scale (DoRA)":                      with(name+".dora_scale", number),
		"hada_w1_a (LoHa)":                       with(name+".hada_w1_a", number),
		"lokr_w1 (LoKr)":                         with(name+".lokr_w1", number),
		"oft_blocks (OFT)":                       with(name+".oft_blocks", number),
		"diff (a full difference)":               with(name+".diff", number),
		"diff_b: got shape [] of f32, want [96]": with(name+".diff_b", number),
		"lora_B.bias changes a bias without a pair beside it": with("double_blocks.0.img_attn.proj.lora_B.bias",
			tensor(make([]float32, 96), 96)),
		"key_norm.scale: got shape [2] of f32, want [16]": with("single_blocks.0.norm.key_norm.scale",
			tensor([]float32{1, 2}, 2)),
		"both stand for single_blocks.0.norm.key_norm.scale": merge(good, map[string]weights.Stored{
			"single_blocks.0.norm.key_norm.scale":                      tensor(make([]float32, 16), 16),
			"diffusion_model.single_blocks.0.norm.key_norm.set_weight": tensor(make([]float32, 16), 16),
		}),
		"other_norm.scale replaces a tensor": with("single_blocks.0.norm.other_norm.scale", number),
		"changes a bias of text_model.encoder.layers.0.self_attn.q_proj, of which only": merge(
			zeros("lora_te1_text_model_encoder_layers_0_self_attn_q_proj", 64, 64, 1), map[string]weights.Stored{
				"lora_te1_text_model_encoder_layers_0_self_attn_q_proj.diff_b": tensor(make([]float32, 64), 64),
			}),
		"lora_mid.weight (a pair with a middle matrix)": with(name+".lora_mid.weight", number),
		"b2.weight (GLoRA)":                             with(name+".b2.weight", number),
	} {
		if _, err := Match(weights.FromMap(file), keys); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v\nwant one that says %q", err, want)
		}
	}
	m, err := Match(weights.FromMap(good), keys)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Gather(weights.FromMap(zeros("other", 4, 4, 1)), m.Additions, 1); err == nil ||
		!strings.Contains(err.Error(), "no longer has") {
		t.Errorf("another file: got error %v", err)
	}
}

// FuzzNames checks that Match handles any name, alone and beside a valid pair, and never counts a tensor as both used
// and unused.
func FuzzNames(f *testing.F) {
	for _, name := range []string{
		"lora_unet_double_blocks_0_img_attn_proj.lora_up.weight", "transformer.transformer_blocks.0.attn.to_q.lora_A.weight",
		"single_blocks.1.processor.qkv_lora.up.weight", ".alpha",
		"diffusion_model.single_blocks.99999999999999999999.linear1.lora_B", "_lora.up.weight", "a..lora_up.weight",
		"x.dora_scale", "\xff.lora_A.default.weight", "", "img_in.lora_A",
	} {
		f.Add(name, uint8(3), uint8(5))
	}
	keys := fluxKeys(f)
	f.Fuzz(func(t *testing.T, name string, n, k uint8) {
		odd := tensor(make([]float32, int(n)*int(k)), int(n), int(k))
		for _, file := range []map[string]weights.Stored{
			{name: odd},
			merge(zeros("img_in", 96, 64, 2), map[string]weights.Stored{name: odd}),
		} {
			m, err := Match(weights.FromMap(file), keys)
			if err != nil {
				if !strings.HasPrefix(err.Error(), "lora: ") ||
					strings.Contains(err.Error(), "\n") && !strings.Contains(name, "\n") {
					t.Fatalf("error %q", err)
				}
				continue
			}
			for _, a := range m.Additions {
				if slices.Contains(m.Unused, a.Up) || slices.Contains(m.Unused, a.Down) {
					t.Fatalf("%+v is used and unused", a)
				}
			}
			if _, err := Gather(weights.FromMap(file), m.Additions, 1); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func float32nan() float32 {
	zero := float32(0)
	return zero / zero
}

// TestBiasesOfPartsGoToTheirRows checks that a bias for the keys alone, or one with its halves in reverse order, goes
// to the right rows of the fused bias.
func TestBiasesOfPartsGoToTheirRows(t *testing.T) {
	const keys, last = "transformer.transformer_blocks.1.attn.to_k", "transformer.norm_out.linear"
	m, err := Match(weights.FromMap(merge(zeros(keys, 96, 96, 2), zeros(last, 192, 96, 2), map[string]weights.Stored{
		keys + ".diff_b": tensor(make([]float32, 96), 96), last + ".diff_b": tensor(make([]float32, 192), 192),
	})), fluxKeys(t))
	if err != nil {
		t.Fatal(err)
	}
	want := []Change{
		{Name: "final_layer.adaLN_modulation.1.bias", Tensor: last + ".diff_b", Rows: 96, Row: 96},
		{Name: "final_layer.adaLN_modulation.1.bias", Tensor: last + ".diff_b", First: 96, Rows: 96},
		{Name: "double_blocks.1.img_attn.qkv.bias", Tensor: keys + ".diff_b", First: 96, Rows: 96},
	}
	if !slices.Equal(m.Changes, want) {
		t.Errorf("got %+v\nwant %+v", m.Changes, want)
	}
}

// TestBiasesCountWithTheStrength applies a file to a model's tensors and compares with the formula: a bias gets
// strength times what the file adds, a norm becomes that of the file at any strength.
func TestBiasesCountWithTheStrength(t *testing.T) {
	const keys, last = "transformer.transformer_blocks.1.attn.to_k", "transformer.norm_out.linear"
	const norm = "single_blocks.0.norm.key_norm.scale"
	counting := func(n int, first float32) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = first + float32(i)
		}
		return v
	}
	file := weights.FromMap(merge(zeros(keys, 96, 96, 2), zeros(last, 192, 96, 2), map[string]weights.Stored{
		keys + ".diff_b": tensor(counting(96, 1000), 96), keys + ".alpha": tensor([]float32{8}),
		last + ".diff_b": tensor(counting(192, 2000), 192), norm: tensor(counting(16, 3000), 16),
	}))
	m, err := Match(file, fluxKeys(t))
	if err != nil {
		t.Fatal(err)
	}
	model := weights.FromMap(map[string]weights.Stored{
		"double_blocks.1.img_attn.qkv.bias":     tensor(counting(288, 0), 288),
		"final_layer.adaLN_modulation.1.bias":   tensor(counting(192, 0), 192),
		"single_blocks.0.norm.key_norm.scale":   tensor(counting(16, 0), 16),
		"double_blocks.0.img_attn.qkv.bias":     tensor(counting(288, 0), 288),
		"single_blocks.0.norm.query_norm.scale": tensor(counting(16, 0), 16),
	})
	for _, strength := range []float32{1, 0.25, -0.5, 0} {
		changes, err := GatherChanges(file, m.Changes, strength)
		if err != nil {
			t.Fatal(err)
		}
		changed, err := model.Changed(changes)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range model.Names() {
			s, _ := changed.Get(name)
			for i, got := range s.F32() {
				want := float32(i)
				switch {
				case name == norm:
					want = 3000 + float32(i)
				case name == "double_blocks.1.img_attn.qkv.bias" && i >= 96 && i < 192: // the rows of the keys
					want += strength * float32(1000+i-96)
				case name == "final_layer.adaLN_modulation.1.bias": // its halves change places
					want += strength * float32(2000+(i+96)%192)
				}
				if got != want {
					t.Fatalf("strength %v: element %d of %s is %v, want %v", strength, i, name, got, want)
				}
			}
		}
	}
}
