package tokenizer

import (
	"encoding/json"
	"fmt"
)

// Layout says how the tokens of a prompt are laid out for one text encoder. Start from one of the functions below and
// change fields as needed; the zero value is not useful.
type Layout struct {
	Key        string // prefix of the options "<Key>_min_length" and "<Key>_min_padding", and the key of embedding files
	MaxLength  int    // tokens per chunk, including start and end token
	MinLength  int    // the last chunk is padded to at least this many tokens; 0 = no rule
	MinPadding int    // minimum number of pads after the end token of the last chunk
	Multiple   int    // the last chunk is padded to a multiple of this, but not beyond MaxLength; 0 = no rule
	Fill       bool   // pad every chunk to MaxLength
	Truncate   bool   // keep the first chunk only
	Start, End int    // token before and after the text of a chunk; None = none; FromVocabulary = the vocabulary's own
	Pad        int    // FromVocabulary = the end token
	Weights    bool   // parse (x:1.3); otherwise parentheses are text
	Embeddings bool   // parse embedding:name
	Template   string // text around the prompt, which replaces "{}"; "" = none
	Bare       string // prompts with this prefix are used without the template; "" = none are
	// Marks are texts that ComfyUI splits off before the vocabulary sees the rest, and their tokens. A text that has one
	// loses its first token: no start token is put in front of it there, but one is taken away.
	Marks map[string]int
}

// FromVocabulary in Layout.Start, End or Pad stands for the vocabulary's own token; for Pad it means the end token.
const FromVocabulary = -2

// unlimited is ComfyUI's length limit for encoders without one.
const unlimited = 99999999

// CLIPL returns the layout of CLIP-L: chunks of 77, padded with the end token.
func CLIPL() Layout {
	return Layout{
		Key: "clip_l", MaxLength: 77, Fill: true, Start: FromVocabulary, End: FromVocabulary,
		Pad: FromVocabulary, Weights: true, Embeddings: true,
	}
}

// CLIPG returns the layout of OpenCLIP bigG: CLIPL padded with 0.
func CLIPG() Layout {
	l := CLIPL()
	l.Key, l.Pad = "clip_g", 0
	return l
}

// T5 returns the layout of a T5: one chunk of any length, padded with 0 to at least minLength tokens, no start token.
func T5(key string, minLength int) Layout {
	return Layout{
		Key: key, MaxLength: unlimited, MinLength: minLength, Start: None, End: FromVocabulary, Pad: 0,
		Weights: true, Embeddings: true,
	}
}

// Gemma2 returns the layout of a Gemma 2, which reads the plain prompt after its start token; embedding:name is text.
func Gemma2(key string) Layout {
	l := T5(key, 1)
	l.Start, l.End, l.Embeddings, l.Marks = 2, None, false, map[string]int{"<end_of_turn>": 107}
	return l
}

// Gemma3 returns the layout of a Gemma 3: Gemma2's, but parentheses are text.
func Gemma3(key string) Layout {
	l := Gemma2(key)
	l.Weights, l.Marks = false, map[string]int{"<end_of_turn>": 106, "<image_soft_token>": 262144}
	return l
}

// Gemma4 returns the layout of a Gemma 4, which reads the plain prompt after its start token; parentheses and
// embedding:name are text.
func Gemma4(key string) Layout {
	l := T5(key, 1)
	l.Start, l.End, l.Embeddings, l.Weights = 2, None, false, false
	return l
}

// PileT5 returns the layout of a Pile-T5: at least 256 tokens, padded with token 1; embedding:name is text.
func PileT5(key string) Layout {
	l := T5(key, 256)
	l.Pad, l.Embeddings = 1, false
	return l
}

// BERT returns the layout of a BERT: chunks of at most 512 tokens, the last one padded with 0 to at least 77;
// embedding:name is text.
func BERT(key string) Layout {
	return Layout{
		Key: key, MaxLength: 512, MinLength: 77, Start: FromVocabulary, End: FromVocabulary,
		Pad: 0, Weights: true,
	}
}

// Chat returns the layout of a language model that reads a chat: the prompt is put into a template, weights are text.
func Chat(key, template string, pad int) Layout {
	return Layout{
		Key: key, MaxLength: unlimited, MinLength: 1, Start: None, End: None, Pad: pad, Template: template, Embeddings: true,
	}
}

// Describing returns the layout of a chat in which the model is told to describe a picture and the prompt is the user's
// turn. Prompts that are already chats are left as they are.
func Describing(key string) Layout {
	l := Chat(key, "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, "+
		"text, spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n"+
		"<|im_start|>assistant\n", 151643)
	l.Bare = "<|im_start|>"
	return l
}

// Analysing returns the layout of a chat in which the model is told to analyse the prompt, which is the user's turn.
// Prompts that are already chats are left as they are.
func Analysing(key string) Layout {
	l := Chat(key, "<|im_start|>system\nComprehend and analyze the provided prompt.<|im_end|>\n<|im_start|>user\n{}"+
		"<|im_end|>\n<|im_start|>assistant\n", 151643)
	l.Bare = "<|im_start|>"
	return l
}

// WithOptions returns l with ComfyUI's T5TokenizerOptions applied: "<Key>_min_length" and "<Key>_min_padding" in
// options replace the fields. Other keys are ignored, since they belong to other encoders.
func (l Layout) WithOptions(options map[string]int) Layout {
	if n, ok := options[l.Key+"_min_length"]; ok {
		l.MinLength = n
	}
	if n, ok := options[l.Key+"_min_padding"]; ok {
		l.MinPadding = n
	}
	return l
}

// WithConfig returns l changed by the "config" in a checkpoint's metadata: max_length (which then truncates encoders
// that do not fill their chunks), min_length, bos_token_id, eos_token_id and pad_token_id. Absent members change
// nothing, and tokens that are None in l stay None.
func (l Layout) WithConfig(config []byte) (Layout, error) {
	var c struct {
		Max   *int `json:"max_length"`
		Min   *int `json:"min_length"`
		Start *int `json:"bos_token_id"`
		End   *int `json:"eos_token_id"`
		Pad   *int `json:"pad_token_id"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return l, fmt.Errorf("text encoder config: %w", err)
	}
	for _, m := range []struct {
		name      string
		value, to *int
		low, high int
	}{
		{"max_length", c.Max, &l.MaxLength, 1, longestPrompt},
		{"min_length", c.Min, &l.MinLength, 1, longestPrompt},
		{"bos_token_id", c.Start, &l.Start, 0, maxID - 1},
		{"eos_token_id", c.End, &l.End, 0, maxID - 1},
		{"pad_token_id", c.Pad, &l.Pad, 0, maxID - 1},
	} {
		switch {
		case m.value == nil:
		case *m.value < m.low || *m.value > m.high:
			return l, fmt.Errorf("text encoder config: %s is %d, allowed are %d..%d", m.name, *m.value, m.low, m.high)
		case *m.to != None:
			*m.to = *m.value
		}
	}
	l.Truncate = l.Truncate || c.Max != nil && !l.Fill
	return l, nil
}
