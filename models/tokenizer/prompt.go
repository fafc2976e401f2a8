package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Token is one position of a chunk.
type Token struct {
	ID     int     // row of the embedding table; None when Vector is set
	Weight float32 // 1 = as trained
	Vector []float32
}

// Prompt is a prompt as a text encoder takes it: chunks that are encoded one by one and joined on the token axis.
type Prompt struct {
	Chunks [][]Token
	// Missing names the embeddings that the prompt refers to and that were not found. As in ComfyUI, the rest of the
	// prompt is used without them, and the caller must tell the user.
	Missing []string
}

// Weighted reports whether any weight differs from 1, in which case the empty prompt must be encoded too.
func (p Prompt) Weighted() bool {
	return slices.ContainsFunc(slices.Concat(p.Chunks...), func(t Token) bool { return t.Weight != 1 })
}

// Fit leaves out the rows of embeddings of another width than the encoder's. Pads follow at the end instead, and
// weights keep their places (ComfyUI comfy/sd1_clip.py, process_tokens). It returns the width of the rows left out, 0
// if none were.
func (p Prompt) Fit(width, pad int) (other int) {
	for i, chunk := range p.Chunks {
		var fitted []Token
		for _, t := range chunk {
			if t.Vector != nil && len(t.Vector) != width {
				other = len(t.Vector)
				continue
			}
			fitted = append(fitted, t)
		}
		for len(fitted) < len(chunk) {
			fitted = append(fitted, Token{ID: pad})
		}
		for k := range fitted {
			fitted[k].Weight = chunk[k].Weight
		}
		p.Chunks[i] = fitted
	}
	return other
}

// Embedding looks up a textual-inversion embedding by name: [vectors][E] in float32, nil if there is none. The vectors
// are shared with the prompt and must not be changed.
type Embedding func(name string) ([][]float32, error)

const (
	embeddingMark = "embedding:"
	wordLength    = 8 // a group of fewer tokens is not split across chunks
	longestPrompt = 1 << 20
)

// Prompt tokenizes text for this layout. lookup may be nil: then every embedding is missing. It returns an error for
// text above 1 MiB, a bare "embedding:", weights that Segments rejects and a layout whose chunks have no room, and the
// errors of lookup.
func (l Layout) Prompt(t *Tokenizer, text string, lookup Embedding) (Prompt, error) {
	var p Prompt
	if len(text) > longestPrompt {
		return p, fmt.Errorf("prompt: %d bytes, allowed are %d", len(text), longestPrompt)
	}
	if err := l.resolve(t); err != nil {
		return p, err
	}
	if l.Template != "" && (l.Bare == "" || !strings.HasPrefix(text, l.Bare)) {
		text = strings.Replace(l.Template, "{}", text, 1)
	}
	segments := []Segment{{showEscapes(hideEscapes(text)), 1}}
	if l.Weights {
		var err error
		if segments, err = Segments(text); err != nil {
			return p, err
		}
	}
	groups, err := l.groups(t, segments, lookup, &p)
	if err != nil {
		return p, err
	}
	p.Chunks = l.chunk(groups)
	return p, nil
}

// Pieces is Prompt for texts that are tokenized apart and follow each other in one chunk, without a template. Empty
// ones leave nothing; if all are, the prompt is that of an empty text.
func (l Layout) Pieces(t *Tokenizer, texts []string, lookup Embedding) (Prompt, error) {
	l.Template = ""
	out := Prompt{Chunks: make([][]Token, 1)}
	for _, text := range texts {
		if text == "" {
			continue
		}
		p, err := l.Prompt(t, text, lookup)
		if err != nil {
			return Prompt{}, err
		}
		out.Chunks[0], out.Missing = append(out.Chunks[0], slices.Concat(p.Chunks...)...), append(out.Missing, p.Missing...)
	}
	if len(out.Chunks[0]) == 0 {
		return l.Prompt(t, "", lookup)
	}
	return out, nil
}

// resolve replaces FromVocabulary by ids and checks the lengths.
func (l *Layout) resolve(t *Tokenizer) error {
	if l.Start == FromVocabulary {
		l.Start = t.Start
	}
	if l.End == FromVocabulary {
		l.End = t.End
	}
	if l.Pad == FromVocabulary {
		l.Pad = l.End
	}
	switch ends := len(edge(l.Start)) + len(edge(l.End)); {
	case l.MaxLength <= ends:
		return fmt.Errorf("layout %s: max length is %d, must be above %d (start and end token)", l.Key, l.MaxLength, ends)
	case l.MinLength < 0 || l.MinLength > longestPrompt || l.MinPadding < 0 || l.MinPadding > longestPrompt:
		return fmt.Errorf("layout %s: min length %d and min padding %d must be in 0..%d", l.Key, l.MinLength,
			l.MinPadding, longestPrompt)
	case l.Fill && l.MaxLength > longestPrompt:
		return fmt.Errorf("layout %s: filled chunks of %d tokens, allowed are %d", l.Key, l.MaxLength, longestPrompt)
	case l.Pad == None:
		return fmt.Errorf("layout %s: no pad token, and the vocabulary has no end token to take instead", l.Key)
	}
	return nil
}

// groups tokenizes the segments. A group is what ComfyUI tries to keep in one chunk. Text is split before every
// "embedding:" after white space, which stays, even in layouts that do not parse embeddings.
func (l Layout) groups(t *Tokenizer, segments []Segment, lookup Embedding, p *Prompt) ([][]Token, error) {
	var groups [][]Token
	for _, s := range segments {
		weight := float32(s.Weight)
		for _, word := range beforeEmbeddings(s.Text) {
			if name, ok := strings.CutPrefix(word, embeddingMark); ok && l.Embeddings {
				vectors, rest, err := findEmbedding(strings.Trim(name, "\n"), lookup, p)
				if err != nil {
					return nil, err
				}
				if vectors != nil {
					group := make([]Token, len(vectors))
					for k, v := range vectors {
						group[k] = Token{ID: None, Weight: weight, Vector: v}
					}
					groups = append(groups, group)
				}
				word = rest
			}
			if word == "" {
				continue
			}
			ids := l.encode(t, word)
			group := make([]Token, len(ids))
			for k, id := range ids {
				group[k] = Token{ID: id, Weight: weight}
			}
			groups = append(groups, group)
		}
	}
	return groups, nil
}

// encode returns the ids of a text, split at marks.
func (l Layout) encode(t *Tokenizer, text string) (ids []int) {
	found := false
	for from := 0; ; {
		at, mark := len(text), ""
		for m := range l.Marks {
			if i := strings.Index(text[from:], m); i >= 0 && from+i < at {
				at, mark = from+i, m
			}
		}
		if at > from {
			ids = append(ids, t.Encode(text[from:at])...)
		}
		if mark == "" {
			break
		}
		ids, from, found = append(ids, l.Marks[mark]), at+len(mark), true
	}
	if found {
		ids = ids[1:]
	}
	return ids
}

// beforeEmbeddings splits text before every "embedding:" that follows white space.
func beforeEmbeddings(text string) (words []string) {
	from := 0
	for at := 0; ; {
		i := strings.Index(text[at:], embeddingMark)
		if i < 0 {
			return append(words, text[from:])
		}
		i += at
		if last, _ := utf8.DecodeLastRuneInString(text[:i]); i > 0 && pythonSpace(last) {
			words, from = append(words, text[from:i]), i
		}
		at = i + len(embeddingMark)
	}
}

// findEmbedding parses "name rest of the text" and returns the vectors (nil if missing) and the remaining text, its
// words separated by single spaces. A name also ends before "<" and "[", and one that is not found is tried again
// without commas at its ends (ComfyUI comfy/sd1_clip.py, SDTokenizer._try_get_embedding).
func findEmbedding(text string, lookup Embedding, p *Prompt) (vectors [][]float32, rest string, err error) {
	words := strings.FieldsFunc(text, pythonSpace)
	if len(words) == 0 {
		return nil, "", fmt.Errorf("prompt: %q is not followed by the name of an embedding", embeddingMark)
	}
	name, rest := words[0], strings.Join(words[1:], " ")
	if i := strings.IndexAny(name, "<["); i >= 0 {
		rest = strings.TrimSuffix(name[i:]+" "+rest, " ")
		name = name[:i]
	}
	find := func(name string) ([][]float32, error) {
		if lookup == nil || name == "" {
			return nil, nil
		}
		found, err := lookup(name)
		if err != nil {
			return nil, fmt.Errorf("prompt: embedding %.80q: %w", name, err)
		}
		return found, nil
	}
	if vectors, err = find(name); err != nil || vectors != nil {
		return vectors, rest, err
	}
	if bare := strings.Trim(name, ","); len(bare) < len(name) {
		vectors, err = find(bare)
		rest = name[len(bare):] + " " + rest
		name = bare
	}
	if vectors == nil && err == nil {
		p.Missing = append(p.Missing, name)
	}
	return vectors, rest, err
}

// edge returns the start or end of a chunk: one token, or none for None.
func edge(id int) []Token {
	if id == None {
		return nil
	}
	return []Token{{ID: id, Weight: 1}}
}

// chunk packs the groups into chunks with start and end token. A group of fewer than 8 tokens that does not fit begins
// the next chunk, a longer one is split (ComfyUI comfy/sd1_clip.py, SDTokenizer.tokenize_with_weights).
func (l Layout) chunk(groups [][]Token) [][]Token {
	start, end := edge(l.Start), edge(l.End)
	room := l.MaxLength - len(end)
	var chunks [][]Token
	current := slices.Clone(start)
	for _, group := range groups {
		breakable := len(group) >= wordLength || len(group) > room-len(start)
		for len(group) > 0 {
			if len(current)+len(group) <= room {
				current = append(current, group...)
				break
			}
			left := room - len(current)
			if breakable {
				current = slices.Concat(current, group[:left], end)
				group = group[left:]
			} else {
				current = append(current, end...)
				if l.Fill {
					current = l.pad(current, left)
				}
			}
			chunks = append(chunks, current)
			current = slices.Clone(start)
		}
	}
	current = l.pad(append(current, end...), l.MinPadding)
	if l.Truncate && len(chunks) > 0 {
		current = chunks[0]
	}
	if l.Fill {
		current = l.pad(current, l.MaxLength-len(current))
	}
	current = l.pad(current, l.MinLength-len(current))
	if over := len(current); l.Multiple > 0 {
		current = l.pad(current, min((over+l.Multiple-1)/l.Multiple*l.Multiple, l.MaxLength)-over)
	}
	if l.Truncate {
		return [][]Token{current}
	}
	return append(chunks, current)
}

// pad appends n pad tokens, none if n is not positive.
func (l Layout) pad(chunk []Token, n int) []Token {
	for range n {
		chunk = append(chunk, Token{ID: l.Pad, Weight: 1})
	}
	return chunk
}
