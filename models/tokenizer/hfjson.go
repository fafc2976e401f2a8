package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// longestMember bounds the members that describe the pipeline; T5's, with its charsmap, has 320 KB.
const longestMember = 4 << 20

// FromJSON reads a Hugging Face tokenizer.json: Unigram with Metaspace (T5), CLIP's BPE, Qwen2's or Gemma's.
// CLIP files follow the slow Python tokenizer, not the pipeline that the file describes.
func FromJSON(data []byte) (*Tokenizer, error) {
	var f struct {
		Added      []addedToken    `json:"added_tokens"`
		Normalizer json.RawMessage `json:"normalizer"`
		Pre        json.RawMessage `json:"pre_tokenizer"`
		Post       json.RawMessage `json:"post_processor"`
		Model      json.RawMessage `json:"model"`
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	for name, part := range map[string]json.RawMessage{
		"normalizer": f.Normalizer, "pre_tokenizer": f.Pre,
		"post_processor": f.Post,
	} {
		if len(part) > longestMember {
			return nil, fmt.Errorf("tokenizer.json: member %q has %d bytes, allowed are %d", name, len(part), longestMember)
		}
	}
	if isNull(f.Model) {
		return nil, errors.New("tokenizer.json: member \"model\" is missing")
	}
	var head struct {
		Type   string
		Merges json.RawMessage
	}
	if err := json.Unmarshal(f.Model, &head); err != nil {
		return nil, fmt.Errorf("tokenizer.json: model: %w", err)
	}
	if head.Type == "" && !isNull(head.Merges) {
		head.Type = "BPE"
	}
	var t *Tokenizer
	var err error
	switch head.Type {
	case "Unigram":
		t, err = unigramFromJSON(f.Model, f.Normalizer, f.Pre, f.Added)
	case "BPE":
		t, err = bpeFromJSON(f.Model, f.Normalizer, f.Pre, f.Added)
	default:
		err = fmt.Errorf("model type %.40q is not supported; known are Unigram and BPE", head.Type)
	}
	if err == nil {
		err = t.readEnds(f.Post, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	return t, nil
}

// UnmarshalJSON decodes a ["piece", score] pair of a Unigram vocabulary.
func (p *scoredPiece) UnmarshalJSON(data []byte) error {
	// Parsed by hand because a vocabulary has up to a quarter of a million pairs; data is known to be valid JSON.
	wrong := func() error { return fmt.Errorf("vocabulary entry %.40q must be a piece and a score", data) }
	if len(data) < 2 || data[0] != '[' {
		return wrong()
	}
	rest := bytes.TrimLeft(data[1:len(data)-1], " \t\r\n")
	end := 1
	for end < len(rest) && rest[end] != '"' {
		if rest[end] == '\\' {
			end++
		}
		end++
	}
	if len(rest) == 0 || rest[0] != '"' || end >= len(rest) {
		return wrong()
	}
	if err := p.setPiece(rest[:end+1]); err != nil {
		return err
	}
	number, found := bytes.CutPrefix(bytes.TrimSpace(rest[end+1:]), []byte(","))
	score, err := strconv.ParseFloat(string(bytes.TrimSpace(number)), 64)
	if !found || err != nil {
		return wrong()
	}
	p.score, p.kind = score, pieceNormal
	return nil
}

// setPiece decodes a JSON string with its quotes; only escapes and invalid UTF-8 need the full decoder.
func (p *scoredPiece) setPiece(quoted []byte) error {
	if bytes.IndexByte(quoted, '\\') >= 0 || !utf8.Valid(quoted) {
		return json.Unmarshal(quoted, &p.piece)
	}
	p.piece = string(quoted[1 : len(quoted)-1])
	return nil
}

func unigramFromJSON(data, normal, pre json.RawMessage, added []addedToken) (*Tokenizer, error) {
	var m struct {
		Unknown *int `json:"unk_id"`
		Bytes   bool `json:"byte_fallback"`
		Vocab   []scoredPiece
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if m.Unknown == nil {
		return nil, errors.New("model: unk_id is missing, text outside the vocabulary could not be encoded")
	}
	if len(m.Vocab) > maxPieces {
		return nil, fmt.Errorf("model: %d pieces, allowed are %d", len(m.Vocab), maxPieces)
	}
	ids, err := pieceIDs(m.Vocab)
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	words, err := newUnigram(m.Vocab, *m.Unknown)
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if m.Bytes {
		words.bytes = byteTable(func(s string) (int32, bool) { id, ok := ids[s]; return id, ok })
	}
	body, err := parseMetaspace(pre, words, 0)
	if err != nil {
		return nil, err
	}
	prep, err := parseNormalizer(normal, 0)
	if err != nil {
		return nil, err
	}
	cutter, err := newAddedTokens(added, prep)
	if err != nil {
		return nil, err
	}
	if err := join(ids, added); err != nil {
		return nil, err
	}
	t, err := newTokenizer("unigram", ids, body)
	if err != nil {
		return nil, err
	}
	t.added = cutter
	t.Size = max(t.Size, len(m.Vocab))
	return t, nil
}

func bpeFromJSON(data, normal, pre json.RawMessage, added []addedToken) (*Tokenizer, error) {
	var m struct {
		Vocab   map[string]int32
		Merges  mergeList
		Suffix  string  `json:"end_of_word_suffix"`
		Prefix  string  `json:"continuing_subword_prefix"`
		Unknown *string `json:"unk_token"`
		Bytes   bool    `json:"byte_fallback"`
		Whole   bool    `json:"ignore_merges"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if m.Prefix != "" {
		return nil, fmt.Errorf("model: continuing_subword_prefix is %.20q, allowed is an empty one", m.Prefix)
	}
	if m.Vocab == nil {
		return nil, errors.New("model: vocab is missing")
	}
	if err := join(m.Vocab, added); err != nil {
		return nil, err
	}
	switch {
	case m.Suffix == wordEnd:
		return newCLIP(m.Vocab, m.Merges, added)
	case m.Suffix != "":
		return nil, fmt.Errorf("model: end_of_word_suffix is %.20q, allowed are an empty one and %q", m.Suffix, wordEnd)
	case m.Bytes && m.Whole:
		return nil, errors.New("model: ignore_merges is set, it must not be for BPE with byte_fallback")
	case m.Bytes:
		return newWholeBPE(m.Vocab, m.Merges, normal, pre, added)
	case !strings.Contains(string(pre), qwenPattern()):
		return nil, errors.New("pre_tokenizer: only the word pattern of Qwen2 is known for byte-level BPE without a word " +
			"suffix")
	}
	return newQwen(m.Vocab, m.Merges, added)
}

// mergeList is a JSON array of merges. Decoding fails as soon as there are more than maxMerges.
type mergeList []mergePair

// UnmarshalJSON decodes the array; null gives an empty one.
func (l *mergeList) UnmarshalJSON(data []byte) (err error) {
	*l, err = decodeList[mergePair](data, maxMerges)
	return err
}

// mergePair is one merge, written "a b" or ["a", "b"].
type mergePair struct{ left, right string }

// UnmarshalJSON decodes either form.
func (p *mergePair) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '[' {
		pair := [2]any{&p.left, &p.right}
		if err := json.Unmarshal(data, &pair); err != nil {
			return err
		}
		if pair[0] == nil || pair[1] == nil {
			return fmt.Errorf("merge %.40q must be two pieces", data)
		}
		return nil
	}
	var line scoredPiece
	if len(data) > 1 && data[0] == '"' {
		if err := line.setPiece(data); err != nil {
			return err
		}
	} else if err := json.Unmarshal(data, &line.piece); err != nil {
		return err
	}
	return p.parse(line.piece)
}

// parse parses the form used in merges.txt.
func (p *mergePair) parse(line string) error {
	fields := strings.Fields(line)
	if len(fields) != 2 {
		return fmt.Errorf("merge %.40q has %d parts, want 2", line, len(fields))
	}
	p.left, p.right = fields[0], fields[1]
	return nil
}

// readEnds sets t.Start and t.End from the "post_processor" member.
func (t *Tokenizer) readEnds(data json.RawMessage, depth int) error {
	if isNull(data) {
		return nil
	}
	type special struct {
		Special *struct{ ID string } `json:"SpecialToken"`
	}
	var p struct {
		Type       string
		Single     []special
		Processors memberList
		Start      memberList `json:"cls"`
		End        memberList `json:"sep"`
	}
	if err := json.Unmarshal(data, &p); err != nil {
		return fmt.Errorf("post_processor: %w", err)
	}
	switch p.Type {
	case "ByteLevel":
	case "Sequence":
		if depth >= normalizerDepth {
			return fmt.Errorf("post_processor: sequences are nested deeper than %d", normalizerDepth)
		}
		for _, inner := range p.Processors {
			if err := t.readEnds(inner, depth+1); err != nil {
				return err
			}
		}
	case "TemplateProcessing":
		before := true
		for _, s := range p.Single {
			switch {
			case s.Special == nil:
				before = false
			case before:
				t.Start = t.idOr(s.Special.ID)
			default:
				t.End = t.idOr(s.Special.ID)
			}
		}
	case "RobertaProcessing", "BertProcessing":
		for at, pair := range map[*int]memberList{&t.Start: p.Start, &t.End: p.End} {
			if len(pair) != 2 {
				return fmt.Errorf("post_processor %s: cls and sep must be a token and its id", p.Type)
			}
			var name string
			if err := json.Unmarshal(pair[0], &name); err != nil {
				return fmt.Errorf("post_processor %s: %w", p.Type, err)
			}
			*at = t.idOr(name)
		}
	default:
		return fmt.Errorf("post_processor type %.40q is not supported; known are TemplateProcessing, RobertaProcessing, "+
			"BertProcessing, ByteLevel, Sequence", p.Type)
	}
	return nil
}
