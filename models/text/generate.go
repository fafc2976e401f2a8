package text

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/models/sampling"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// Sampling says how Generate samples tokens.
type Sampling struct {
	MaxTokens int  // maximum number of tokens
	Greedy    bool // always the likeliest token; the fields from TopK to Seed are ignored
	// TopK keeps only the K likeliest tokens, 0: all. MinP drops tokens less likely than MinP times the likeliest one,
	// TopP those past this cumulative probability (nucleus sampling, arXiv:1904.09751, sec. 3.1).
	TopK        int
	Temperature float64 // of the softmax
	MinP, TopP  float64
	Repetition  float64 // divides positive logits of tokens generated so far, multiplies the others; 1: off
	Presence    float64 // subtracted from the logits of tokens generated so far
	Seed        uint64
	Stop        []int             // tokens that end the text
	OnToken     func(n int) error // called with the number of tokens so far; an error ends Generate; may be nil
}

// Head turns the last states of a language model into logits.
type Head struct{ loaded[headWeights] }

type headWeights struct {
	Rows *engine.Weight `weight:"lm_head,nobias,alt=model.embed_tokens" shape:"V,E"`
}

// OpenHead loads the output matrix of the language model in set: lm_head, or its embedding table if the file has none
// (tied embeddings). The caller must close the result.
func OpenHead(ops engine.Ops, set *weights.Set) (*Head, error) {
	var writers []string
	for _, k := range kinds() {
		if k.Chat != nil {
			writers = append(writers, k.Name)
		}
	}
	part, set, err := findPart(set, writers...)
	if err != nil {
		return nil, err
	}
	const table = "model.embed_tokens.weight"
	h := &Head{}
	return h, h.load(ops, set, weights.Options{
		Model: part.Kind, Ignore: []string{""}, // the rest of the file is the model's
		Dims: map[string]int{"V": set.Dim(table, 0), "E": set.Dim(table, 1)},
	})
}

// Chat says how a language model is asked to write a text.
type Chat struct {
	Turn     string   // a turn begins with it; words that do are the whole prompt
	Template string   // is put around other words, in place of "{}"; empty: the template of the family
	Pictures string   // Template for words about pictures, each of which is one PictureInText in place of "[]"
	System   string   // stands in front of a template and has what the model is told in place of "[]"; empty: it has none
	Always   bool     // the template is used even for words that are to be the whole prompt
	Thinking string   // begins a prompt in a template for a model that is to think first
	Quiet    string   // ends a prompt in a template for a model that is not to
	Stop     []string // tokens that end the text
	StopIDs  []int    // others, as ComfyUI knows them
	// Layout is that of its prompts if no family reads its states.
	Layout tokenizer.Layout
	// Told returns the prompt that tells the model what to do with words; nil: there is none of its own.
	Told func(system, words string, thinking bool) string
	// Clean makes the text of what was written with the marks of turns; nil: there are none.
	Clean func(written string) string
}

// PictureInText is the placeholder of a picture in a prompt of Qwen.
const PictureInText = "<|vision_start|><|image_pad|><|vision_end|>"

// qwenChat returns how Qwen3-VL is asked.
func qwenChat() *Chat {
	return &Chat{
		Turn: "<|im_start|>", Pictures: "<|im_start|>user\n[]{}<|im_end|>\n<|im_start|>assistant\n",
		Quiet: "<think>\n\n</think>\n\n", Stop: []string{"<|endoftext|>", "<|im_end|>"},
	}
}

// qwen35Chat returns how Qwen3.5 is asked.
func qwen35Chat() *Chat {
	c := qwenChat()
	c.Template, c.System = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n", "<|im_start|>system\n[]<|im_end|>\n"
	c.Quiet, c.Always = "<think>\n</think>\n", true
	c.Layout = tokenizer.Chat("qwen35", c.Template, 248044)
	return c
}

// gemmaChat returns how Gemma 3 is asked, about words alone.
func gemmaChat() *Chat {
	return &Chat{
		Turn: "<start_of_turn>", Stop: []string{"<end_of_turn>"}, Told: func(system, words string, _ bool) string {
			return "<start_of_turn>system\n" + system + "<end_of_turn>\n<start_of_turn>user\n" + words +
				"<end_of_turn>\n<start_of_turn>model\n"
		},
		Template: "<start_of_turn>system\nYou are a helpful assistant.<end_of_turn>\n<start_of_turn>user\n{}" +
			"<end_of_turn>\n<start_of_turn>model\n",
	}
}

// gemma4Chat returns how Gemma 4 is asked, about words alone. The larger ones are told that they have thought.
func gemma4Chat(large bool) *Chat {
	c := &Chat{
		Turn: "<|turn>", Template: "<|turn>user\n{}<turn|>\n<|turn>model\n", StopIDs: []int{1, 50, 106},
		Thinking: "<|turn>system\n<|think|>\n<turn|>\n", Clean: cleaned,
		Told: func(system, words string, thinking bool) string {
			first, last := "", "<|channel>final\n"
			if thinking {
				first, last = "<|think|>\n", ""
			}
			return "<|turn>system\n" + first + system + "<turn|>\n<|turn>user\n" + words + "<turn|>\n<|turn>model\n" + last
		},
	}
	if large {
		c.Quiet = "<|channel>thought\n<channel|>"
	}
	return c
}

// What Gemma 4 writes beside its text: what it thinks, channels and turns.
var (
	thought = regexp.MustCompile(`(?s)<\|channel>thought\n(.*?)<channel\|>`)
	marks   = regexp.MustCompile(`<\|channel>[\pL\pN_]*\n?|<channel\|>|<\|turn>[\pL\pN_]*\n?|<turn\|>`)
)

// cleaned puts what a Gemma 4 thinks between <think> and </think> and leaves out its other marks (ComfyUI's
// Gemma4SDTokenizer.decode).
func cleaned(written string) string {
	written = thought.ReplaceAllString(written, "<think>\n$1</think>")
	written = strings.ReplaceAll(written, "<|channel>thought\n", "<think>\n")
	return strings.TrimSpace(strings.ReplaceAll(marks.ReplaceAllString(written, ""), "<eos>", ""))
}

// past is the KV cache of one layer, [1, capacity, K*D] each, or what its delta rule keeps; at is the number of tokens
// in it.
type past struct {
	k, v engine.Tensor
	rule *recurrence
	at   int
}

// Generate continues the tokens of chunk as d says; f.Pictures describes the pictures in chunk. Keys and values are
// cached, so every new token costs one row. The returned tokens include the one that stopped generation. It returns the
// errors of Encode and of d.OnToken, and an error if the file lacks the final norm.
func (m *LM) Generate(env Env, h *Head, chunk []tokenizer.Token, f Form, d Sampling) ([]int, error) {
	n := network{
		name: "language model", width: m.Config.Width, vocab: m.Config.Vocab, deep: len(f.Pictures) > 0,
	}
	if err := n.check(0, chunk); err != nil {
		return nil, err
	}
	view, env, end, err := m.brought(env)
	if err != nil {
		return nil, err
	}
	defer end()
	m = &LM{view, m.Config}
	if m.weights.Final == nil && m.weights.Last == nil {
		return nil, fmt.Errorf("the file lacks %s: it encodes, and writes no texts", lastNorm)
	}
	env, free, err := env.holding("generate text", func(a *engine.Arena) {
		m.room(a, env.DType, len(chunk), d.MaxTokens, f)
	})
	if err != nil {
		return nil, err
	}
	defer free()
	w, step, cache, logits := m.room(env.Arena, env.DType, len(chunk), d.MaxTokens, f)
	at := positions(chunk, f.Pictures)
	next := 0
	for _, p := range at {
		next = max(next, p[0]+1, p[1]+1, p[2]+1)
	}
	var out []int
	random := sampling.NewGenerator(d.Seed)
	row := make([]float32, m.Config.Vocab)
	var told []int
	if m.Config.four != nil { // tokens of the prompt count as drawn ones
		for _, t := range chunk {
			told = append(told, t.ID)
		}
	}
	for len(out) < d.MaxTokens {
		if _, err := m.run(env, w, [][]tokenizer.Token{chunk}, at, nil, cache, f); err != nil {
			return nil, err
		}
		last := w.x.Dim(1) - 1
		env.Ops.Linear(logits, w.x.Slice(1, last, last+1).Merge(0), h.weights.Rows, engine.Epilogue{})
		if err := env.Ops.Download(row, logits).Wait(); err != nil {
			return nil, err
		}
		if m.Config.four != nil {
			m.Config.finish4(row)
		}
		id := d.choose(row, append(slices.Clip(told), out...), random)
		if out = append(out, id); slices.Contains(d.Stop, id) {
			break
		}
		if d.OnToken != nil {
			if err := d.OnToken(len(out)); err != nil {
				return nil, err
			}
		}
		for i := range cache {
			cache[i].at += len(chunk)
		}
		w, chunk, at, f = step, []tokenizer.Token{{ID: id, Weight: 1}}, [][3]int{{next, next, next}}, Form{}
		next++
	}
	return out, nil
}

// room allocates the memory of Generate: the work memory of the prompt's run and of a single token's, the KV caches,
// and the logits [1, V].
func (m *LM) room(a *engine.Arena, dtype engine.DType, l, most int, f Form) (prompt, step lmWork, cache []past,
	logits engine.Tensor,
) {
	prompt, step = m.work(a, dtype, 1, l, f), m.work(a, dtype, 1, 1, Form{})
	for i := range m.Config.Layers {
		n := m.Config.KVHeads * m.Config.HeadDim
		switch {
		case m.Config.four != nil:
			keys := m.weights.Four[i].keys()
			if keys == nil {
				cache = append(cache, past{})
				continue
			}
			n = keys.K.N()
		case m.weights.Layer[i].Delta != nil:
			cache = append(cache, past{rule: &recurrence{}})
			continue
		}
		row := func() engine.Tensor { return a.Alloc(dtype, 1, l+most, n) }
		cache = append(cache, past{k: row(), v: row()})
	}
	return prompt, step, cache, a.Alloc(dtype, 1, m.Config.Vocab)
}

// choose samples a token as ComfyUI does (comfy/text_encoders/llama.py) with torch's multinomial on a CPU: the largest
// of p/e, where e is exponentially distributed. It changes logits.
func (d Sampling) choose(logits []float32, drawn []int, random *sampling.Generator) int {
	if d.Greedy {
		best := 0
		for i, v := range logits {
			if v > logits[best] {
				best = i
			}
		}
		return best
	}
	for _, id := range slices.Compact(slices.Sorted(slices.Values(drawn))) {
		by := float32(d.Repetition)
		if logits[id] > 0 {
			by = 1 / by
		}
		logits[id] = logits[id]*by - float32(d.Presence)
	}
	order := d.likeliest(logits)
	top := logits[order[0]]
	for _, id := range order {
		top = max(top, logits[id])
	}
	p, all, best := make([]float64, len(order)), 0.0, 0
	for i, id := range order {
		p[i] = math.Exp(float64(logits[id]-top) / d.Temperature) // 1 for the likeliest
		if p[i] < d.MinP {
			p[i] = 0
		}
		all += p[i]
	}
	if d.TopP < 1 {
		d.nucleus(p, all)
	}
	most := -1.0
	for i := range order {
		if v := p[i] / -math.Log1p(-random.Float64()); v > most {
			best, most = order[i], v
		}
	}
	return best
}

// likeliest returns the candidate tokens in torch's order: by falling logit if TopK is set, else by id.
func (d Sampling) likeliest(logits []float32) (ids []int) {
	least := float32(math.Inf(-1))
	if d.TopK > 0 && d.TopK < len(logits) {
		least = slices.Sorted(slices.Values(logits))[len(logits)-d.TopK]
	}
	for i, v := range logits {
		if v >= least {
			ids = append(ids, i)
		}
	}
	if d.TopK > 0 {
		slices.SortStableFunc(ids, func(a, b int) int { return cmp.Compare(logits[b], logits[a]) })
		ids = ids[:min(d.TopK, len(ids))]
	}
	return ids
}

// nucleus zeroes the probabilities past TopP of their sum, except the largest one.
func (d Sampling) nucleus(p []float64, all float64) {
	order := make([]int, 0, len(p))
	for i := range p {
		if p[i] > 0 {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(p[b], p[a]) })
	sum := 0.0
	for n, i := range order {
		if sum += p[i]; n > 0 && sum > d.TopP*all {
			p[i] = 0
		}
	}
}
