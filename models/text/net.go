package text

import (
	"fmt"
	"strings"

	"patchbay/engine"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// Net is a loaded text encoder. It holds weights only and may be shared.
type Net interface {
	// Encode encodes the chunks of one prompt. Errors: token ids outside the vocabulary, chunks that are too long, Check's
	// error, device errors.
	Encode(env Env, chunks [][]tokenizer.Token, f Form) (Encoding, error)
	// Adapt returns an encoder that computes with the same weights plus additions (names as in Open's set without prefix)
	// and shares their memory. Closing it frees the additions alone; the first one must stay open as long as it is used.
	// Errors are those of weights.Adapt.
	Adapt(ops engine.Ops, additions []weights.LowRank) (Net, error)
	// Bytes returns the memory of the weights where the backend tells it.
	Bytes() int64
	// Close gives the memory of the weights back.
	Close()
}

// Form says how a family uses an encoder and which of its states it reads.
type Form struct {
	// Layer selects the states: 0 the last layer with final norm, -1 the last, -2 the last but one ... (CLIPSetLastLayer).
	Layer int
	// Norm applies the final norm to the states of an inner layer of CLIP; those of T5 always get it.
	Norm bool
	// Project multiplies the pooled state of CLIP with text_projection where the file has it.
	Project bool
	// Masked hides padding behind the end token from T5's attention; BERT's never sees it.
	Masked bool
	// Zeroed makes the states of padding behind T5's end token zeros.
	Zeroed bool
	// PadReference measures prompt weights of T5 from pads alone, without an end token.
	PadReference bool
	// Taps say behind how many layers of a language model the states are taken, in ascending order; they lie side by side.
	// With them Layer says nothing.
	Taps []int
	// Chat leaves out the states of a chat's first turn and of the head of its second one (LM.Encode).
	Chat bool
	// Pictures are rows and columns of each run of tokens that a language model sees in place of words (Vision.See), in
	// their order.
	Pictures [][2]int
}

// Kind is one kind of text encoder.
type Kind struct {
	Name   string // "clip_l", "t5" ...
	Prompt string // what node inputs call its prompt
	// Vocabularies are the names of its vocabulary in the folder tokenizers, ComfyUI the path in ComfyUI's own comfy
	// folder; empty: it has none.
	Vocabularies []string
	ComfyUI      string
	// Unit is the pixels that the sides of a Picture are multiples of, for those with eyes.
	Unit int
	// layers is how many layers of a language model any family reads; those behind them stay on disk. 0: all.
	layers int
	lm     bool   // a language model, which is cut over Ops
	anchor string // a name by which it is recognised
	is     func(set *weights.Set, prefix string) bool
	// open loads the encoder cut over ops, or whole by the first of them where it cannot be cut. Parts of nil Ops are left
	// out.
	open func(ops []engine.Ops, set *weights.Set, config []byte) ([]Net, error)
}

// kinds lists the encoders; of several with one anchor the first that fits counts.
func kinds() []Kind {
	const (
		clip = "text_model.embeddings.token_embedding.weight"
		t5   = "encoder.block.0.layer.0.SelfAttention.q.weight"
		// of language models
		queryNorm, keyBias = "model.layers.0.self_attn.q_norm.weight", "model.layers.0.self_attn.k_proj.bias"
		sandwich           = lmSandwichKey
	)
	return []Kind{
		{
			Name: "clip_g", Prompt: "clip_g", Vocabularies: []string{"clip_g", "clip_l", "clip"}, ComfyUI: "sd1_tokenizer",
			anchor: clip, open: opener(OpenCLIP), is: func(set *weights.Set, p string) bool {
				return set.Has(p + "text_model.encoder.layers.30.mlp.fc1.weight")
			},
		},
		{
			Name: "clip_l", Prompt: "clip_l", Vocabularies: []string{"clip_l", "clip"}, ComfyUI: "sd1_tokenizer",
			anchor: clip, open: opener(OpenCLIP),
		},
		{
			Name: "bert", Prompt: "bert", Vocabularies: []string{"bert"}, ComfyUI: "text_encoders/hydit_clip_tokenizer",
			anchor: "bert.embeddings.word_embeddings.weight", open: opener(OpenBERT),
		},
		{
			Name: "mt5", Prompt: "mt5xl", Vocabularies: []string{"mt5"}, anchor: t5, open: opener(OpenT5),
			is: func(set *weights.Set, p string) bool {
				return max(set.Dim(p+"shared.weight", 0), set.Dim(p+"encoder.embed_tokens.weight", 0)) > 200000
			},
		},
		{
			Name: "pile_t5xl", Prompt: "pile_t5xl", Vocabularies: []string{"pile_t5xl", "pile_t5"},
			ComfyUI: "text_encoders/t5_pile_tokenizer", anchor: t5, open: opener(OpenT5),
			is: func(set *weights.Set, p string) bool { return set.Has(p + strings.Replace(t5Bias, ".0.", ".1.", 1)) },
		},
		{
			Name: "t5", Prompt: "t5xxl", Vocabularies: []string{"t5xxl", "t5"}, ComfyUI: "text_encoders/t5_tokenizer",
			anchor: t5, open: opener(OpenT5),
		},
		{
			Name: "qwen3vl_4b", Prompt: "qwen3vl_4b", Vocabularies: []string{"qwen3vl", "qwen3", "qwen2.5", "qwen25"},
			ComfyUI: "text_encoders/qwen25_tokenizer", anchor: queryNorm, open: openLM, lm: true,
			Unit: deepPatch * visionMerge,
			is: func(set *weights.Set, p string) bool {
				return set.Has(p+"visual.deepstack_merger_list.0.norm.weight") && set.Dim(p+"model.embed_tokens.weight", 1) != 4096
			},
		},
		{
			Name: "qwen3_8b", Prompt: "qwen3_8b", Vocabularies: []string{"qwen3_8b", "qwen3", "qwen2.5", "qwen25"},
			ComfyUI: "text_encoders/qwen25_tokenizer", anchor: queryNorm, open: openLM, lm: true, layers: 27,
			is: func(set *weights.Set, p string) bool { return set.Dim(p+"model.embed_tokens.weight", 1) == 4096 },
		},
		{
			Name: "qwen3", Prompt: "qwen3", Vocabularies: []string{"qwen3", "qwen3_4b", "qwen2.5", "qwen25"},
			ComfyUI: "text_encoders/qwen25_tokenizer", anchor: queryNorm, open: openLM, lm: true,
			is: func(set *weights.Set, p string) bool { return !set.Has(p + sandwich) }, // Gemma 3
		},
		{
			Name: "qwen25_7b", Prompt: "qwen25_7b", Vocabularies: []string{"qwen2.5", "qwen25", "qwen3"},
			ComfyUI: "text_encoders/qwen25_tokenizer", anchor: keyBias, open: openLM, lm: true,
			Unit: visionPatch * visionMerge,
		},
		{
			Name: "mistral3", Prompt: "mistral3", Vocabularies: []string{"mistral3", "mistral"},
			anchor: "model.layers.0.post_attention_layernorm.weight", open: openLM, lm: true, layers: 30,
			is: func(set *weights.Set, p string) bool {
				return !set.Has(p+queryNorm) && !set.Has(p+keyBias) && !set.Has(p+sandwich)
			},
		},
		{
			Name: "gemma2_2b", Prompt: "gemma2_2b", Vocabularies: []string{"gemma2", "gemma"},
			anchor: sandwich, open: openLM, lm: true,
			is: func(set *weights.Set, p string) bool { return !set.Has(p + queryNorm) },
		},
	}
}

// opener is the Kind.open of an encoder that is not cut.
func opener[T Net](open func(engine.Ops, *weights.Set, []byte) (T, error),
) func([]engine.Ops, *weights.Set, []byte) ([]Net, error) {
	return func(ops []engine.Ops, set *weights.Set, config []byte) ([]Net, error) {
		n, err := open(ops[0], set, config)
		if err != nil {
			return nil, err
		}
		return []Net{n}, nil
	}
}

// KindOf returns the kind of that name, the zero Kind where there is none.
func KindOf(name string) Kind {
	for _, k := range kinds() {
		if k.Name == name {
			return k
		}
	}
	return Kind{}
}

// OpenParts loads an encoder of a kind from set, whose names may have one of the usual prefixes (see Find). config is
// the JSON of the file's metadata "config", empty when there is none; it overrides what names and shapes say. There are
// at most len(ops) parts, each loaded by one of ops: of a language model a part has its share of the heads and MLP
// columns of every layer (arXiv:1909.08053, sec. 3) and makes partial sums. All parts encode a prompt together, with
// Env.Sum, and get the same result. There are no more parts than heads of keys, and one of encoders of other kinds. The
// caller closes them.
func OpenParts(ops []engine.Ops, kind string, set *weights.Set, config []byte) ([]Net, error) {
	k := KindOf(kind)
	if k.open == nil {
		return nil, fmt.Errorf("text encoder: kind %q is unknown", kind)
	}
	return k.open(ops, set, config)
}

// Parts is how many parts OpenParts makes of an encoder for so many Ops. Nothing is loaded.
func Parts(kind string, set *weights.Set, config []byte, ops int) (int, error) {
	if !KindOf(kind).lm {
		return 1, nil
	}
	_, c, _, err := describeLM(set, config)
	return min(ops, c.KVHeads), err
}

// OpenPart is part i of the n that OpenParts makes for n Ops. An encoder that is not cut into so many is refused.
func OpenPart(ops engine.Ops, kind string, set *weights.Set, config []byte, i, n int) (Net, error) {
	if can, err := Parts(kind, set, config, n); err != nil {
		return nil, err
	} else if can != n || i < 0 || i >= n {
		return nil, fmt.Errorf("text encoder: part %d of %d of a %s, which has %d", i, n, kind, can)
	}
	all := make([]engine.Ops, n)
	all[i] = ops
	parts, err := OpenParts(all, kind, set, config)
	if err != nil {
		return nil, err
	}
	return parts[i], nil
}

// loaded is what every encoder holds: its weights in a W, a struct with weight tags.
type loaded[W any] struct {
	weights W
	memory  *weights.Loaded
	options weights.Options
}

// load fills the weights. Those of 8 bits are widened: encoders multiply them with activations that are not rounded, as
// ComfyUI does.
func (l *loaded[W]) load(ops engine.Ops, set *weights.Set, opt weights.Options) (err error) {
	l.options = opt
	l.memory, err = weights.Load(ops, set.Widened(engine.BF16), &l.weights, opt)
	return err
}

// adapt returns the weights plus additions.
func (l *loaded[W]) adapt(ops engine.Ops, additions []weights.LowRank) (loaded[W], error) {
	w, memory, err := weights.Adapt(ops, &l.weights, l.options, additions)
	if err != nil {
		return loaded[W]{}, err
	}
	return loaded[W]{*w, memory, l.options}, nil
}

// Bytes returns the memory of the weights where the backend tells it.
func (l *loaded[W]) Bytes() int64 { return l.memory.Bytes() }

// Close gives the memory of the weights back.
func (l *loaded[W]) Close() { l.memory.Close() }
