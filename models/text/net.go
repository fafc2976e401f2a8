package text

import (
	"fmt"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// Net is a loaded text encoder. It holds only weights and may be shared.
type Net interface {
	// Encode encodes the chunks of one prompt. It returns an error if a token id is outside the vocabulary or a chunk
	// is too long, and errors of Check and of the device.
	Encode(env Env, chunks [][]tokenizer.Token, f Form) (Encoding, error)
	// Adapt returns an encoder that uses the same weights plus additions, whose names are those of OpenParts's set
	// without the prefix. It shares the weights' memory: closing it frees only the additions, and the original must
	// stay open while it is in use. Errors are those of weights.Adapt.
	Adapt(ops engine.Ops, additions []weights.LowRank) (Net, error)
	// Bytes returns the bytes of the weights as far as the backend reports them.
	Bytes() int64
	// Unused names the tensors in the file that the encoder does not know.
	Unused() []string
	// Brings reports whether layers are read from the file before each use, so that it must stay open.
	Brings() bool
	// Close frees the weights.
	Close()
}

// Form says how a model family uses an encoder and which of its states it reads.
type Form struct {
	// Layer selects the states: 0 the last layer's with the final norm, -1 the last layer's, -2 the second to last's
	// ... (CLIPSetLastLayer).
	Layer int
	// Norm applies the final norm to the states of an inner layer of CLIP. T5 always applies it.
	Norm bool
	// Project multiplies the pooled state of CLIP by text_projection if the file has it.
	Project bool
	// Masked hides padding after the end token from T5's attention. BERT always does so.
	Masked bool
	// Zeroed zeroes T5's states of padding after the end token. It takes effect only with Masked.
	Zeroed bool
	// PadReference makes T5's reference for prompt weights all pads, without an end token.
	PadReference bool
	// Taps lists, in ascending order, the numbers of layers after which a language model's states are taken and
	// concatenated per token. Layer is ignored if it is set.
	Taps []int
	// All takes all states of a language model: the embeddings, those behind every layer, and the last with its norm.
	All bool
	// Behind is the length to which ComfyUI pads a language model's prompt in front. No token sees these pads, so they
	// are left out, but the tokens of a shorter prompt have the rotation positions behind them.
	Behind int
	// States is how many states of a language model a projection reads for every token.
	States int
	// PadsAtOne puts the pads of a language model's prompt at rotation position 1, instead of counting on.
	PadsAtOne bool
	// Chat drops the states of a chat's first turn and of the header of the second (LM.Encode), KeepHeader those of the
	// first turn alone.
	Chat       bool
	KeepHeader bool
	// Pictures holds the rows and columns of each run of picture tokens (VisionTower.See) in a language model's prompt.
	Pictures [][2]int
}

// Kind is one kind of text encoder.
type Kind struct {
	Name   string // "clip_l", "t5" ...
	Prompt string // name of its prompt in node inputs
	// Vocabularies are the names that its vocabulary may have in the folder tokenizers; ComfyUI is its path in
	// ComfyUI's own comfy folder, empty: none.
	Vocabularies []string
	ComfyUI      string
	// Unit is the number of pixels that the sides of a Picture must be multiples of; 0: the encoder reads no pictures.
	Unit int
	// layers is the number of language model layers that any family reads; later ones are not loaded. 0: all.
	layers int
	// Of are the kinds of language models of one of which the encoder reads the states, all of them (Form.All) as
	// vectors, in place of a prompt's tokens; empty: it reads a prompt.
	Of []string
	// Chat says how it is asked to write a text; nil: it only reads.
	Chat   *Chat
	lm     bool   // a language model, which can be split over several Ops
	anchor string // tensor name by which it is recognized
	is     func(set *weights.Set, prefix string) bool
	// open loads the encoder split over ops, or whole on the first of them if it cannot be split. Parts whose Ops is
	// nil are not loaded. room is that of OpenParts.
	open func(ops []engine.Ops, set *weights.Set, config []byte, room int64) ([]Net, error)
}

// kinds lists the encoders; among several with the same anchor the first match counts.
func kinds() []Kind {
	const (
		clip = "text_model.embeddings.token_embedding.weight"
		t5   = "encoder.block.0.layer.0.SelfAttention.q.weight"
		// for language models
		queryNorm, keyBias = "model.layers.0.self_attn.q_norm.weight", "model.layers.0.self_attn.k_proj.bias"
		sandwich           = lmSandwichKey
	)
	return []Kind{
		{
			Name: "clip_g", Prompt: "clip_g", Vocabularies: []string{"clip_g", "clip_l", "clip"}, ComfyUI: "sd1_tokenizer",
			anchor: clip, open: opener(openCLIP), is: func(set *weights.Set, p string) bool {
				return set.Has(p + "text_model.encoder.layers.30.mlp.fc1.weight")
			},
		},
		{
			Name: "clip_l", Prompt: "clip_l", Vocabularies: []string{"clip_l", "clip"}, ComfyUI: "sd1_tokenizer",
			anchor: clip, open: opener(openCLIP),
		},
		{
			Name: "bert", Prompt: "bert", Vocabularies: []string{"bert"}, ComfyUI: "text_encoders/hydit_clip_tokenizer",
			anchor: "bert.embeddings.word_embeddings.weight", open: opener(openBERT),
		},
		{
			Name: "mt5", Prompt: "mt5xl", Vocabularies: []string{"mt5"}, anchor: t5, open: opener(openT5),
			is: func(set *weights.Set, p string) bool { return multilingual(set, p) && !biased(set, p) },
		},
		{
			Name: "umt5", Prompt: "umt5xxl", Vocabularies: []string{"umt5xxl", "umt5"}, anchor: t5, open: opener(openT5),
			is: isUMT5,
		},
		{
			Name: "pile_t5xl", Prompt: "pile_t5xl", Vocabularies: []string{"pile_t5xl", "pile_t5"},
			ComfyUI: "text_encoders/t5_pile_tokenizer", anchor: t5, open: opener(openT5),
			is: biased,
		},
		{
			Name: "t5", Prompt: "t5xxl", Vocabularies: []string{"t5xxl", "t5"}, ComfyUI: "text_encoders/t5_tokenizer",
			anchor: t5, open: opener(openT5),
		},
		{
			Name: "qwen35", Prompt: "qwen35", Vocabularies: []string{"qwen35", "qwen3.5"},
			ComfyUI: "text_encoders/qwen35_tokenizer", anchor: deltaKey, open: openLM, lm: true,
			Unit: deepPatch * visionMerge, Chat: qwen35Chat(),
		},
		{
			Name: "gemma3_12b", Prompt: "gemma3_12b", Vocabularies: []string{"gemma3"}, anchor: queryNorm, open: openLM,
			lm: true, is: isGemma3, Chat: gemmaChat(),
		},
		{
			Name: "gemma4", Prompt: "gemma4", Vocabularies: []string{"gemma4"}, anchor: queryNorm, open: openLM, lm: true,
			is: isGemma4(false), Chat: gemma4Chat(true),
		},
		{
			Name: "gemma4_e", Prompt: "gemma4", Vocabularies: []string{"gemma4"}, anchor: queryNorm, open: openLM, lm: true,
			is: isGemma4(true), Chat: gemma4Chat(false),
		},
		{Name: "projection", Of: projected(), anchor: oneProjection, open: opener(kept(openProjection))},
		{Name: "projection", Of: projected(), anchor: twoProjections, open: opener(kept(openProjection))},
		{
			Name: "qwen3vl_32b", Prompt: "qwen3vl_32b", Vocabularies: []string{"qwen3vl", "qwen3", "qwen2.5", "qwen25"},
			ComfyUI: "text_encoders/qwen25_tokenizer", anchor: queryNorm, open: openLM, lm: true, layers: 50,
			Unit: deepPatch * visionMerge, is: isCutQwen,
		},
		{
			Name: "qwen3vl_4b", Prompt: "qwen3vl_4b", Vocabularies: []string{"qwen3vl", "qwen3", "qwen2.5", "qwen25"},
			ComfyUI: "text_encoders/qwen25_tokenizer", anchor: queryNorm, open: openLM, lm: true,
			Unit: deepPatch * visionMerge, Chat: qwenChat(),
			is: func(set *weights.Set, p string) bool {
				return set.Has(p+deepKey) && set.Dim(p+"model.embed_tokens.weight", 1) != 4096
			},
		},
		{
			Name: "qwen3vl_8b", Prompt: "qwen3vl_8b", Vocabularies: []string{"qwen3vl", "qwen3", "qwen2.5", "qwen25"},
			ComfyUI: "text_encoders/qwen25_tokenizer", anchor: queryNorm, open: openLM, lm: true,
			Unit: deepPatch * visionMerge,
			is:   func(set *weights.Set, p string) bool { return set.Has(p + deepKey) },
		},
		{
			Name: "qwen3_8b", Prompt: "qwen3_8b", Vocabularies: []string{"qwen3_8b", "qwen3", "qwen2.5", "qwen25"},
			ComfyUI: "text_encoders/qwen25_tokenizer", anchor: queryNorm, open: openLM, lm: true, layers: 27,
			is: func(set *weights.Set, p string) bool { return set.Dim(p+"model.embed_tokens.weight", 1) == 4096 },
		},
		{
			Name: "qwen3", Prompt: "qwen3", Vocabularies: []string{"qwen3", "qwen3_4b", "qwen2.5", "qwen25"},
			ComfyUI: "text_encoders/qwen25_tokenizer", anchor: queryNorm, open: openLM, lm: true,
			is: func(set *weights.Set, p string) bool { return !set.Has(p + sandwich) }, // not another Gemma
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
				return !set.Has(p+queryNorm) && !set.Has(p+keyBias) && !set.Has(p+sandwich) && !set.Has(p+deltaKey)
			},
		},
		{
			Name: "gemma2_2b", Prompt: "gemma2_2b", Vocabularies: []string{"gemma2", "gemma"},
			anchor: sandwich, open: openLM, lm: true,
			is: func(set *weights.Set, p string) bool { return !set.Has(p + queryNorm) },
		},
	}
}

// projected lists the language models whose states LTX-2's projections read.
func projected() []string { return []string{"gemma3_12b", "gemma4"} }

// opener returns the Kind.open of an encoder that cannot be split.
func opener[T Net](open func(ops engine.Ops, set *weights.Set, config []byte, room int64) (T, error),
) func([]engine.Ops, *weights.Set, []byte, int64) ([]Net, error) {
	return func(ops []engine.Ops, set *weights.Set, config []byte, room int64) ([]Net, error) {
		n, err := open(ops[0], set, config, room)
		if err != nil {
			return nil, err
		}
		return []Net{n}, nil
	}
}

// kept returns the function that opens an encoder which keeps all layers, whatever the room.
func kept[T any](open func(engine.Ops, *weights.Set, []byte) (T, error),
) func(engine.Ops, *weights.Set, []byte, int64) (T, error) {
	return func(ops engine.Ops, set *weights.Set, config []byte, _ int64) (T, error) {
		return open(ops, set, config)
	}
}

// KindOf returns the kind of that name, or the zero Kind.
func KindOf(name string) Kind {
	for _, k := range kinds() {
		if k.Name == name {
			return k
		}
	}
	return Kind{}
}

// OpenParts loads an encoder of a kind from set, whose names may have one of the usual prefixes (see Find). config is
// the JSON of the file's metadata entry "config", empty if there is none; it overrides what names and shapes imply.
//
// A language model is split over ops, at most into as many parts as it has key heads: each part has its share of the
// heads and MLP columns of every layer (arXiv:1909.08053, sec. 3) and computes partial sums. All parts encode a prompt
// together, with Env.Sum, and get the same result. Encoders of other kinds are one part, on ops[0]. The caller must
// close the parts.
//
// If the weights of a part would take more than room bytes (0: any number), as few layers as necessary are not kept,
// but read from the file before each use (Net.Brings, Env.Bring). If not even two layers fit beside what is outside of
// them, the error has code OutOfMemory.
func OpenParts(ops []engine.Ops, kind string, set *weights.Set, config []byte, room int64) ([]Net, error) {
	k := KindOf(kind)
	if k.open == nil {
		return nil, fmt.Errorf("text encoder: kind %q is unknown", kind)
	}
	return k.open(ops, set, config, room)
}

// Unused names the tensors in set that the encoder that OpenParts makes of it does not know. Nothing is loaded; if
// OpenParts would fail, there are none.
func Unused(kind string, set *weights.Set, config []byte) []string {
	parts, err := OpenParts([]engine.Ops{weights.Shapes()}, kind, set, config, 0)
	if err != nil {
		return nil
	}
	return parts[0].Unused()
}

// Parts returns the number of parts that OpenParts makes of an encoder for that many Ops, without loading anything.
func Parts(kind string, set *weights.Set, config []byte, ops int) (int, error) {
	if !KindOf(kind).lm {
		return 1, nil
	}
	_, c, _, err := describeLM(set, config)
	return c.parts(ops), err
}

// OpenPart loads part i of the n that OpenParts makes for n Ops, within room bytes. It returns an error if the encoder
// cannot be split into n.
func OpenPart(ops engine.Ops, kind string, set *weights.Set, config []byte, i, n int, room int64) (Net, error) {
	if can, err := Parts(kind, set, config, n); err != nil {
		return nil, err
	} else if can != n || i < 0 || i >= n {
		return nil, fmt.Errorf("text encoder: part %d of %d of a %s, which has %d", i, n, kind, can)
	}
	all := make([]engine.Ops, n)
	all[i] = ops
	parts, err := OpenParts(all, kind, set, config, room)
	if err != nil {
		return nil, err
	}
	return parts[i], nil
}

// loaded is embedded in every encoder. W is a struct with weight tags.
type loaded[W any] struct {
	weights W
	memory  *weights.Loaded
	parts   *weights.Parts // layers that are brought; nil: none
	options weights.Options
}

// load fills the weights. Like ComfyUI, encoders multiply those of 8 bits by unquantized activations.
func (l *loaded[W]) load(ops engine.Ops, set *weights.Set, opt weights.Options) (err error) {
	l.options = opt
	if l.memory, err = weights.Load(ops, set.Unrounded(), &l.weights, opt); err == nil {
		l.parts = l.memory.Parts()
	}
	return err
}

// within makes opt bring as few of n layers of a list as necessary for the weights of a part to take at most room
// bytes of a device, 0: any number, with two places to which they are brought. It returns an error if they do not fit
// although all layers are brought.
func within(ops engine.Ops, opt *weights.Options, set *weights.Set, list string, n int, room int64) error {
	if room <= 0 {
		return nil
	}
	wide := set.Unrounded()
	outside, layer := int64(0), map[string]int64{}
	for _, name := range wide.Names() {
		t, _ := wide.Get(name)
		used := !slices.ContainsFunc(opt.Ignore, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		if in, ok := strings.CutPrefix(name, list+"."); ok && used {
			i, _, _ := strings.Cut(in, ".")
			layer[i] += t.Bytes()
		} else if used {
			outside += t.Bytes()
		}
	}
	largest, all := int64(0), outside
	for _, bytes := range layer {
		largest, all = max(largest, bytes), all+bytes
	}
	// devices widen some forms, and the parts of a tensor group share most
	scale := max(1, float64(wide.WideBytes())/float64(max(wide.Bytes(), 1))) / float64(max(opt.Ranks, 1))
	takes := func(streamed int) int64 {
		bytes := all - int64(streamed-2)*largest
		return int64(scale * float64(max(bytes, outside+2*largest)))
	}
	if int64(scale*float64(all)) <= room {
		return nil
	}
	if least := takes(max(n, 2)); least > room {
		return lacking(ops, opt.Model, least, room)
	}
	count := 2
	for count < n && takes(count) > room {
		count += 2
	}
	streamed := dit.Held{Stream: count}.Streamed(n)
	opt.Streams = func(i int) bool { return streamed[i] }
	opt.Block = func(of string, i int) int {
		if of == list {
			return i
		}
		return -1
	}
	return nil
}

// lacking returns the error for a network of which two layers, and what is outside of layers, take more bytes than
// there are.
func lacking(ops engine.Ops, name string, least, room int64) error {
	where, change := "", "raise --memory"
	if device, ok := ops.(engine.Located); ok {
		where, change = " on "+device.Location(), "raise --device-memory, lower --reserve or take another GPU"
	}
	return fault.New(fault.OutOfMemory, "%s takes %d MB with no more than two of its layers in memory, %d MB are there%s "+
		"for it: %s", name, (least+1<<20-1)>>20, room>>20, where, change)
}

// brought returns l with the layers that env brings before their use, and the environment in which they are. end must
// be called after the last use.
func (l *loaded[W]) brought(env Env) (_ loaded[W], _ Env, end func(), err error) {
	view := *l
	if l.parts == nil {
		return view, env, func() {}, nil
	}
	if env.Bring == nil {
		return view, env, nil, fmt.Errorf("text encoder: it keeps some layers in its file, and nothing brings them")
	}
	env.use, end, err = env.Bring(l.parts.Shards(func(slots [2]engine.Buf) (dit.Model, func(unit int, yes bool)) {
		w, open := weights.View(l.parts, &l.weights, l.options, slots)
		view.weights = *w
		return nil, open
	}))
	return view, env, end, err
}

func (l *loaded[W]) adapt(ops engine.Ops, additions []weights.LowRank) (loaded[W], error) {
	w, memory, err := weights.Adapt(ops, &l.weights, l.options, additions)
	if err != nil {
		return loaded[W]{}, err
	}
	return loaded[W]{*w, memory, l.parts, l.options}, nil
}

// Bytes returns the bytes of the weights as far as the backend reports them.
func (l *loaded[W]) Bytes() int64 { return l.memory.Bytes() }

// Unused names the tensors in the file that the encoder does not know.
func (l *loaded[W]) Unused() []string { return l.memory.Unused }

// Brings reports whether layers are read from the file before each use, so that it must stay open.
func (l *loaded[W]) Brings() bool { return l.parts != nil }

// Close frees the weights.
func (l *loaded[W]) Close() { l.memory.Close() }
