package text_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/gguf"
	"patchbay/engine/gguf/ggufwrite"
	"patchbay/engine/ref"
	"patchbay/models/text"
	"patchbay/models/weights"
)

// llamaNames maps Hugging Face's names for a T5 with that many layers to llama.cpp's. It was written by hand from
// gguf-py's tables, as an independent check of weights.FromGGUF.
func llamaNames(layers int) map[string]string {
	out := map[string]string{
		"shared.weight": "token_embd.weight", "encoder.final_layer_norm.weight": "enc.output_norm.weight",
		"encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": "enc.blk.0.attn_rel_b.weight",
	}
	for i := range layers {
		hf, llama := fmt.Sprintf("encoder.block.%d.layer.", i), fmt.Sprintf("enc.blk.%d.", i)
		for _, pair := range [][2]string{
			{"0.SelfAttention.q", "attn_q"},
			{"0.SelfAttention.k", "attn_k"},
			{"0.SelfAttention.v", "attn_v"},
			{"0.SelfAttention.o", "attn_o"},
			{"0.layer_norm", "attn_norm"},
			{"1.layer_norm", "ffn_norm"},
			{"1.DenseReluDense.wi_0", "ffn_gate"},
			{"1.DenseReluDense.wi_1", "ffn_up"},
			{"1.DenseReluDense.wo", "ffn_down"},
		} {
			out[hf+pair[0]+".weight"] = llama + pair[1] + ".weight"
		}
	}
	return out
}

// TestT5FromGGUF runs the tiny mT5 from files in llama.cpp's form and checks that f32 files give the same bits, and
// that quantized files differ by no more than the quantization error.
func TestT5FromGGUF(t *testing.T) {
	golden := load(t, "mt5-tiny")
	names := llamaNames(2)
	if len(names) != len(golden.set.Names()) {
		t.Fatalf("%d names are mapped, the encoder has %d tensors", len(names), len(golden.set.Names()))
	}
	ops := ref.New()
	run := func(set *weights.Set) []float32 {
		m, err := text.OpenT5(ops, set, golden.config)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		got, err := m.Encode(env(t, ops), tokens([]float32{5, 900, 33, 412, 1, 0, 0}), text.Form{})
		if err != nil {
			t.Fatal(err)
		}
		return got.Context.Data
	}
	want := run(golden.set)
	for kind, bound := range map[gguf.Type]float64{gguf.F32: 0, gguf.Q8v0: 3e-2, gguf.Q4v0: 0.4} {
		// complete T5 files have a decoder too
		tensors := []ggufwrite.Tensor{{
			Name: "dec.blk.0.attn_q.weight", Type: gguf.F32, Shape: []int{1},
			Data: make([]byte, 4),
		}}
		for _, name := range golden.set.Names() {
			s, _ := golden.set.Get(name)
			as := gguf.F32
			if len(s.Shape) == 2 && s.Shape[1]%16 == 0 {
				as = kind
			}
			tensors = append(tensors, ggufwrite.Tensor{
				Name: names[name], Type: as, Shape: s.Shape,
				Data: ggufwrite.Quantise(as, s.F32()),
			})
		}
		f, err := gguf.OpenBytes(ggufwrite.File(map[string]any{"general.architecture": "t5encoder"}, tensors))
		if err != nil {
			t.Fatal(err)
		}
		set, err := weights.FromGGUF(f, engine.BF16)
		if err != nil {
			t.Fatal(err)
		}
		if found := text.Find(set); len(found) != 1 || found[0].Kind != "t5" {
			t.Errorf("%s: found %v, want one t5", kind, found)
		}
		compare(t, kind.String(), run(set), want, bound)
	}
}

func TestNamesThatLlamaDoesNotHaveStay(t *testing.T) {
	zero := make([]byte, 4)
	f, err := gguf.OpenBytes(ggufwrite.File(map[string]any{"general.architecture": "t5"}, []ggufwrite.Tensor{
		{Name: "enc.blk.0.attn_q.weight", Type: gguf.F32, Shape: []int{1}, Data: zero},
		{Name: "enc.blk.0.other.weight", Type: gguf.F32, Shape: []int{1}, Data: zero},
		{Name: "enc.blk.0", Type: gguf.F32, Shape: []int{1}, Data: zero},
		{Name: "strange", Type: gguf.F32, Shape: []int{1}, Data: zero},
		{Name: "output.weight", Type: gguf.F32, Shape: []int{1}, Data: zero},
	}))
	if err != nil {
		t.Fatal(err)
	}
	set, err := weights.FromGGUF(f, engine.BF16)
	want := []string{
		"enc.blk.0", "enc.blk.0.other.weight", "encoder.block.0.layer.0.SelfAttention.q.weight",
		"lm_head.weight", "strange",
	}
	if err != nil || !slices.Equal(set.Names(), want) {
		t.Errorf("got %s, error %v; want %s", strings.Join(set.Names(), " "), err, strings.Join(want, " "))
	}
}
