package weights

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"

	"patchbay/engine"
	"patchbay/engine/gguf"
)

// FromGGUF makes a Set of all tensors of f, which must stay open while the Set is loaded from. Tensors stored as f32,
// f16 or bf16 keep their type. Quantized ones appear as form (bf16 or f32) and are widened by
// Elements, only in the requested range, so that loading holds one widened matrix at a time. Matrices whose form is
// bf16 reach the device in the file's blocks if backends can multiply these (engine.Blocks.Form) and the selected rows
// and columns are whole blocks. Text encoders that llama.cpp converted get Hugging Face's names and values back. It
// returns an error for their architectures that are not known, for tensors whose types cannot be widened, counted by
// type, and for two names that become the same.
func FromGGUF(f *gguf.File, form engine.DType) (*Set, error) {
	if form != engine.BF16 && form != engine.F32 {
		return nil, fmt.Errorf("quantised weights cannot be widened to %s (allowed: bf16, f32)", form)
	}
	if err := widens(f); err != nil {
		return nil, err
	}
	c, err := conversionOf(f)
	if err != nil {
		return nil, err
	}
	s := &Set{tensors: make(map[string]Stored, len(f.Names()))}
	for _, name := range f.Names() {
		e, _ := f.Entry(name)
		as := c.names.hugging(name)
		if _, twice := s.tensors[as]; twice {
			return nil, fmt.Errorf("two tensors are called %q, one of them %q in the file", as, name)
		}
		if s.tensors[as], err = c.undone(name, storedGGUF(e, form)); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if _, has := s.tensors[c.mark]; c.mark != "" && !has {
		s.tensors[c.mark] = Stored{DType: engine.F32, Shape: []int{0}}
	}
	s.index()
	return s, nil
}

// widens returns an error if tensors have types that cannot be widened.
func widens(f *gguf.File) error {
	count, first := map[string]int{}, ""
	for _, name := range f.Names() {
		if e, _ := f.Entry(name); !e.Type.Widens() {
			count[e.Type.String()]++
			if first == "" {
				first = name
			}
		}
	}
	if len(count) == 0 {
		return nil
	}
	var kinds []string
	for kind, n := range count {
		kinds = append(kinds, fmt.Sprintf("%d of %s", n, kind))
	}
	slices.Sort(kinds)
	return fmt.Errorf("tensors cannot be widened: %s, the first is %q (allowed: F32, F16, BF16, Q8_0, Q4_0, Q4_1, "+
		"Q5_0, Q5_1, Q2_K to Q6_K)", strings.Join(kinds, ", "), first)
}

// storedGGUF returns one tensor as a view of the file, or as one that is widened on demand.
func storedGGUF(e gguf.Tensor, form engine.DType) Stored {
	if dtype, ok := e.DType(); ok {
		return storedAs(dtype, e.Shape, e.Data)
	}
	s := Stored{
		DType: form, Shape: e.Shape,
		make: func(dst []byte, lo, hi int) { widen(e, dst, lo, hi, form) }, file: e.Data.File(),
	}
	if b := e.Type.Blocks(); form == engine.BF16 && b.Form() > 0 && len(e.Shape) == 2 && e.Shape[1]%b.Elements == 0 {
		s.packed = &blocks{form: b, k: e.Shape[1], pieces: []lines{linesOf(e.Data, e.Data.Len()/max(e.Shape[0], 1))}}
	}
	return s
}

// widenAlone is the number of elements up to which one goroutine is as fast as several.
const widenAlone = 1 << 18

// widen fills dst on all processors. Types, ranges and lengths were checked on opening the file, so an error is a bug.
func widen(e gguf.Tensor, dst []byte, lo, hi int, form engine.DType) {
	parts := min(runtime.GOMAXPROCS(0), (hi-lo+widenAlone-1)/widenAlone)
	faults := make([]any, max(parts, 1))
	part := func(i int) {
		defer func() { faults[i] = recover() }()
		a, b := lo+(hi-lo)*i/max(parts, 1), lo+(hi-lo)*(i+1)/max(parts, 1)
		if err := e.Range(dst[(a-lo)*form.Size():(b-lo)*form.Size()], a, b, form); err != nil {
			panic(err)
		}
	}
	var others sync.WaitGroup
	for i := 1; i < parts; i++ {
		others.Go(func() { part(i) })
	}
	part(0)
	others.Wait()
	for _, fault := range faults {
		if fault != nil {
			panic(fault) // on the calling goroutine, where a job's panics are recovered
		}
	}
}

// conversion is what llama.cpp's convert_hf_to_gguf.py does to the text encoders of an architecture.
type conversion struct {
	names naming
	// turned: rows of queries and keys are reordered for rotary pairs that lie side by side (LlamaModel.permute). heads
	// and keyHeads are their numbers.
	turned          bool
	heads, keyHeads int
	// shifted: weights of norms are stored plus 1 (Gemma2Model.modify_tensors, Gemma3Model's too).
	shifted bool
	// mark is a tensor by which the encoder is recognized and which the converter puts into another file, with the
	// vision tower. The set gets it without values; empty: none.
	mark string
}

// conversions lists the architectures that are read, by their name in the metadata.
func conversions() map[string]conversion {
	decoder := conversion{names: decoderNaming(false)}
	return map[string]conversion{
		"t5": {names: t5Naming()}, "t5encoder": {names: t5Naming()},
		"qwen2": decoder, "qwen2vl": decoder, "qwen3": decoder,
		"qwen3vl": {names: decoder.names, mark: "visual.deepstack_merger_list.0.norm.weight"},
		"llama":   {names: decoder.names, turned: true},
		"gemma2":  {names: decoderNaming(true), shifted: true},
		"gemma3":  {names: decoderNaming(true), shifted: true},
	}
}

// conversionOf returns what was done to the tensors of a file: nothing if its names are not llama.cpp's. Files of
// another architecture with such names are refused: the same names may hold other values.
func conversionOf(f *gguf.File) (conversion, error) {
	if !slices.ContainsFunc(f.Names(), func(name string) bool {
		return strings.HasPrefix(name, "blk.0.") || strings.HasPrefix(name, "enc.blk.0.")
	}) {
		return conversion{}, nil
	}
	arch, _ := f.Metadata()["general.architecture"].(string)
	known := conversions()
	c, ok := known[arch]
	if !ok {
		return c, fmt.Errorf("text encoders of the GGUF architecture %q are not read (allowed: %s): use a safetensors file",
			arch, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
	}
	if c.turned {
		count := func(key string) int {
			n, _ := f.Metadata()[arch+".attention."+key].(uint32)
			return int(n)
		}
		if c.heads, c.keyHeads = count("head_count"), count("head_count_kv"); c.keyHeads == 0 {
			c.keyHeads = c.heads
		}
		if c.heads == 0 {
			return c, fmt.Errorf("the metadata has no %s.attention.head_count, without which the rows of queries and keys "+
				"cannot be put in order", arch)
		}
	}
	return c, nil
}

// undone returns the tensor called name in the file as it was before the conversion.
func (c conversion) undone(name string, s Stored) (Stored, error) {
	switch {
	case c.turned && strings.Contains(name, ".attn_q."):
		return s.halved(c.heads)
	case c.turned && strings.Contains(name, ".attn_k."):
		return s.halved(c.keyHeads)
	case c.shifted && strings.HasSuffix(name, "norm.weight"):
		v := s.F32()
		for i := range v {
			v[i]--
		}
		return Floats(v, s.Shape...), nil
	}
	return s, nil
}

// naming maps llama.cpp's tensor names of an architecture (gguf-py's tensor_mapping.py) to those of Hugging Face.
type naming struct {
	heads         map[string]string // prefixes of names outside of blocks
	block, target string            // prefixes of names in blocks, before the block number
	inner         map[string]string // modules within a block
}

// hugging returns Hugging Face's name of a tensor, or name itself if it is not known.
func (n naming) hugging(name string) string {
	for head, target := range n.heads {
		if rest, ok := strings.CutPrefix(name, head); ok {
			return target + rest
		}
	}
	rest, ok := strings.CutPrefix(name, n.block)
	parts := strings.SplitN(rest, ".", 3) // block number, module, "weight"
	if !ok || len(parts) != 3 || n.inner[parts[1]] == "" {
		return name
	}
	return n.target + parts[0] + "." + n.inner[parts[1]] + "." + parts[2]
}

// t5Naming returns the naming of T5 and T5ENCODER. Names of the decoder get the prefix that T5 encoders ignore.
func t5Naming() naming {
	return naming{
		heads: map[string]string{
			"token_embd.": "shared.", "enc.output_norm.": "encoder.final_layer_norm.", "dec.": "decoder.", "output.": "lm_head.",
		},
		block: "enc.blk.", target: "encoder.block.",
		inner: map[string]string{
			"attn_norm": "layer.0.layer_norm", "attn_q": "layer.0.SelfAttention.q", "attn_k": "layer.0.SelfAttention.k",
			"attn_v": "layer.0.SelfAttention.v", "attn_o": "layer.0.SelfAttention.o",
			"attn_rel_b": "layer.0.SelfAttention.relative_attention_bias", "ffn_norm": "layer.1.layer_norm",
			"ffn_gate": "layer.1.DenseReluDense.wi_0", "ffn_up": "layer.1.DenseReluDense.wi_1",
			"ffn_down": "layer.1.DenseReluDense.wo",
		},
	}
}

// decoderNaming returns the naming of LLAMA, QWEN3 and similar architectures; with two more norms a layer that of
// GEMMA2 and GEMMA3.
func decoderNaming(sandwich bool) naming {
	n := naming{
		heads: map[string]string{
			"token_embd.": "model.embed_tokens.", "output_norm.": "model.norm.", "output.": "lm_head.",
		},
		block: "blk.", target: "model.layers.",
		inner: map[string]string{
			"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
			"attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
			"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
			"ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
		},
	}
	if sandwich {
		n.inner["post_attention_norm"], n.inner["ffn_norm"] = "post_attention_layernorm", "pre_feedforward_layernorm"
		n.inner["post_ffw_norm"] = "post_feedforward_layernorm"
	}
	return n
}
