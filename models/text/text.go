// Package text turns token ids into the text states that diffusion models read: those of CLIP-L and CLIP-G, T5 and mT5,
// BERT, and language models (Qwen3, Qwen2.5-VL, Qwen3-VL, Mistral Small 3, Gemma 2, 3 and 4). Some of these, and
// Qwen3.5, also write texts (generate.go).
//
// Read encode.go first (chunks and prompt weights, the same for all encoders), then clip.go, t5.go, bert.go and lm.go
// (one network each, from weights to states), net.go (the table of kinds) and find.go (which encoders a file holds, by
// tensor names, as in ComfyUI). What a model family makes of the encodings is in its own folder. Tokens come from
// models/tokenizer; a prompt is a list of chunks that are encoded one by one and joined on the token axis.
//
// Where ComfyUI and diffusers differ, results follow ComfyUI. Facts that have caused bugs elsewhere: CLIP is pooled at
// the FIRST end token, because its pad is the end token too; SD3 reads the hidden states of CLIP's second to last layer
// without the final norm; T5 does not scale its scores and attends to padding in FLUX, SD3 and PixArt; a prompt weight
// does not scale a state but moves it away from that of the empty prompt; PixArt's empty prompt is all pads.
package text

import (
	"encoding/json"
	"fmt"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/tokenizer"
)

// Env is what an encoder runs with besides weights and tokens. It belongs to one rank and one stream.
type Env struct {
	Ops engine.Ops
	// Arena holds the activations. If it is nil, Take must return an arena of the given size for each batch of chunks;
	// the next call of Take may reuse its memory. Without Take, the encoder allocates from Ops and frees.
	Arena *engine.Arena
	Take  func(bytes int) (*engine.Arena, error)
	DType engine.DType // of the activations: F32 (the zero value) or BF16
	// Check, if not nil, is called before every layer. Its error stops the encoder and is returned unchanged.
	Check func() error
	// Sum adds a contiguous tensor of DType over all parts of an encoder, in place. nil: the encoder is not split.
	Sum func(engine.Tensor)
	// Bring makes room for the layers that an encoder does not keep (OpenParts) and returns what brings one before its
	// use. end must be called after the last use.
	Bring func(*dit.Shards) (use func(layer int) error, end func(), err error)

	use func(layer int) error // of Bring; nil: all layers are in place
}

// Encoding is one encoder's result for one prompt.
type Encoding struct {
	Context dit.Array // [L, E] states of all chunks, joined on the token axis
	Pooled  []float32 // [E] pooled state of the first chunk; nil if the encoder has none
	// Valid is 1 for tokens up to and including the end token of their chunk and 0 for padding, [L].
	Valid  []int
	States int   // that a row of Context has side by side (Form.All); else 0
	Slots  []int // rows before each picture whose rows were left out (WithoutPictures)
	// Tags is 0 for rows of pictures and of the tokens around them, and 1 for words; nil: all are words (Tagged).
	Tags []int
}

// Tokens returns the rows as the tokens of an encoder that reads another one's states (Kind.Of).
func (e Encoding) Tokens() []tokenizer.Token {
	out := make([]tokenizer.Token, e.Context.Rows)
	for i := range out {
		row := e.Context.Data[i*e.Context.Cols:]
		out[i] = tokenizer.Token{ID: tokenizer.None, Weight: 1, Vector: row[:e.Context.Cols]}
	}
	return out
}

// ValidLen returns the number of valid tokens at the start of the context.
func (e Encoding) ValidLen() int {
	n := 0
	for n < len(e.Valid) && e.Valid[n] == 1 {
		n++
	}
	return n
}

// Special holds the ids of an encoder's special tokens; tokenizer.None if it has no such token.
type Special struct {
	Start, End, Pad int
}

// empty returns a prompt without text, padded to length: the reference for prompt weights.
func (s Special) empty(length int) []tokenizer.Token {
	var chunk []tokenizer.Token
	for _, id := range []int{s.Start, s.End} {
		if id != tokenizer.None {
			chunk = append(chunk, tokenizer.Token{ID: id, Weight: 1})
		}
	}
	for len(chunk) < length {
		chunk = append(chunk, tokenizer.Token{ID: s.Pad, Weight: 1})
	}
	return chunk
}

// valid returns the number of tokens up to and including the first end token, all of them if there is none.
func (s Special) valid(chunk []tokenizer.Token) int {
	for i, t := range chunk {
		if t.Vector == nil && t.ID == s.End {
			return i + 1
		}
	}
	return len(chunk)
}

// lengths returns valid of every chunk.
func (s Special) lengths(chunks [][]tokenizer.Token) (out []int) {
	for _, chunk := range chunks {
		out = append(out, s.valid(chunk))
	}
	return out
}

// override lets config, the JSON of a file's metadata entry "config" or empty, replace members of c.
func override(config []byte, c any) error {
	if len(config) == 0 {
		return nil
	}
	if err := json.Unmarshal(config, c); err != nil {
		return fmt.Errorf("text encoder config: %w", err)
	}
	return nil
}

// size is one size as a config says it and as the file has it.
type size struct {
	name               string
	configured, stored int
}

// checkConfig returns an error if a size differs from the file's, or if the layer count or epsilon makes no sense.
func checkConfig(layers string, n int, epsilon string, eps float32, sizes ...size) error {
	for _, s := range sizes {
		if s.configured != s.stored || s.stored < 1 {
			return fmt.Errorf("text encoder config: %s is %d, the file has %d", s.name, s.configured, s.stored)
		}
	}
	if n < 1 || n > 1<<10 {
		return fmt.Errorf("text encoder config: %s is %d, allowed are 1..1024", layers, n)
	}
	if !(eps > 0) {
		return fmt.Errorf("text encoder config: %s is %g, must be above 0", epsilon, eps)
	}
	return nil
}

// act maps the names that configs use for activations.
func act(name string) (engine.Act, error) {
	if a, ok := map[string]engine.Act{
		"quick_gelu": engine.QuickGELU, "gelu": engine.GELUErf, "gelu_pytorch_tanh": engine.GELUTanh,
		"gelu_new": engine.GELUTanh, "relu": engine.ReLU, "silu": engine.SiLU,
	}[name]; ok {
		return a, nil
	}
	return 0, fmt.Errorf("text encoder config: activation %q, allowed are quick_gelu, gelu, gelu_new, "+
		"gelu_pytorch_tanh, relu, silu", name)
}
