// Package text turns token ids into what diffusion models read of a prompt: CLIP-L and CLIP-G, T5 and mT5, BERT, and
// language models (Qwen3, Qwen2.5-VL, Qwen3-VL, Mistral Small 3, Gemma 2) whose states are read.
//
// Read encode.go (chunks and prompt weights, the same for all encoders), then clip.go, t5.go, bert.go and lm.go (a
// network each, from its weights to its states), net.go (the table of kinds) and find.go (which encoders a file holds,
// by names as ComfyUI does). What a family makes of the encodings is in its own folder. Tokens come from
// models/tokenizer; a prompt is a list of chunks that are encoded one by one and joined on the token axis.
//
// Results follow ComfyUI, not diffusers, where they differ. Facts that have caused bugs elsewhere: CLIP is pooled at
// the FIRST end token, because its pad is the end token too; hidden states of CLIP for SD3 are the last but one layer's
// without the final norm; T5 does not scale its scores and attends to padding in FLUX, SD3 and PixArt; a prompt weight
// moves a state away from that of the empty prompt, it does not scale it; PixArt's empty prompt is all pads.
package text

import (
	"encoding/json"
	"fmt"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/tokenizer"
)

// Env is what an encoder gets besides weights and tokens. It belongs to one rank and one stream.
type Env struct {
	Ops engine.Ops
	// Arena holds the activations. nil: Take gives an arena of the bytes that a batch of chunks needs, which the next call
	// may give away again; without Take the encoder takes them from Ops and gives them back.
	Arena *engine.Arena
	Take  func(bytes int) (*engine.Arena, error)
	DType engine.DType // of activations: F32 (the zero value) or BF16
	// Check is called before every layer; an error stops the encoder and is returned as it is. nil: nobody asks.
	Check func() error
	// Sum adds a contiguous tensor of DType over all parts of an encoder in place. nil: the encoder is whole.
	Sum func(engine.Tensor)
}

// Encoding is what one encoder makes of one prompt.
type Encoding struct {
	Context dit.Array // [L, E] states of all chunks, joined on the token axis
	Pooled  []float32 // [E] of the first chunk; nil for encoders without
	// Valid is 1 for tokens up to and including the end token of their chunk and 0 for padding, [L].
	Valid []int
}

// ValidLen returns the number of valid tokens at the start of the context.
func (e Encoding) ValidLen() int {
	n := 0
	for n < len(e.Valid) && e.Valid[n] == 1 {
		n++
	}
	return n
}

// Special names the tokens that an encoder treats specially; tokenizer.None where there is none.
type Special struct {
	Start, End, Pad int
}

// empty returns the prompt without text that weights are measured from.
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

// valid returns the number of tokens up to and including the first end token, all if there is none.
func (s Special) valid(chunk []tokenizer.Token) int {
	for i, t := range chunk {
		if t.Vector == nil && t.ID == s.End {
			return i + 1
		}
	}
	return len(chunk)
}

// lengths is valid of every chunk.
func (s Special) lengths(chunks [][]tokenizer.Token) (out []int) {
	for _, chunk := range chunks {
		out = append(out, s.valid(chunk))
	}
	return out
}

// override lets config, the JSON of a file's metadata "config" that may be empty, replace members of c.
func override(config []byte, c any) error {
	if len(config) == 0 {
		return nil
	}
	if err := json.Unmarshal(config, c); err != nil {
		return fmt.Errorf("text encoder config: %w", err)
	}
	return nil
}

// size is one that a config says and that a file has.
type size struct {
	name         string
	said, stored int
}

// checkConfig refuses sizes that are not those of the file, and what no file can mean.
func checkConfig(layers string, n int, epsilon string, eps float32, sizes ...size) error {
	for _, s := range sizes {
		if s.said != s.stored || s.stored < 1 {
			return fmt.Errorf("text encoder config: %s is %d, the file has %d", s.name, s.said, s.stored)
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

// act translates the names that configs use for activations.
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
