package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// longestFile bounds a vocabulary file; the largest in use (multilingual tokenizer.json) have about 20 MB.
const longestFile = 64 << 20

// FromVocabMerges reads byte-level BPE in the two-file form. config is the folder's tokenizer_config.json or nil;
// without it CLIP is recognized by its word suffix and Qwen2 by the size of its vocabulary.
func FromVocabMerges(vocab, merges, config []byte) (*Tokenizer, error) {
	var ids map[string]int32
	if err := json.Unmarshal(vocab, &ids); err != nil {
		return nil, fmt.Errorf("vocab.json: %w", err)
	}
	if len(ids) == 0 {
		return nil, errors.New("vocab.json: no pieces in it")
	}
	var pairs []mergePair
	number := -1
	for line := range bytes.SplitSeq(bytes.TrimSpace(merges), []byte("\n")) {
		number++
		text := strings.TrimSpace(string(line))
		if text == "" || number == 0 && strings.HasPrefix(text, "#version") {
			continue
		}
		var p mergePair
		if err := p.parse(text); err != nil {
			return nil, fmt.Errorf("merges.txt: line %d: %w", number+1, err)
		}
		if len(pairs) == maxMerges {
			return nil, fmt.Errorf("merges.txt: more than %d merges", maxMerges)
		}
		pairs = append(pairs, p)
	}
	class, added, err := readTokenizerConfig(config)
	if err != nil {
		return nil, err
	}
	bare := len(ids)
	if err := join(ids, added); err != nil {
		return nil, fmt.Errorf("tokenizer_config.json: %w", err)
	}
	_, suffixed := ids["!"+wordEnd]
	switch {
	case suffixed || strings.HasPrefix(class, "CLIPTokenizer"):
		return newCLIP(ids, pairs, added)
	case strings.HasPrefix(class, "Qwen2Tokenizer") || class == "" && bare == qwenVocabulary:
		if len(added) == 0 {
			for i, name := range qwenSpecials() {
				added = append(added, addedToken{ID: bare + i, Content: name})
				ids[name] = int32(bare + i)
			}
		}
		return newQwen(ids, pairs, added)
	case class != "":
		return nil, fmt.Errorf("tokenizer_config.json: tokenizer_class %.40q is not supported; known are CLIPTokenizer "+
			"and Qwen2Tokenizer", class)
	}
	return nil, fmt.Errorf("vocab.json: %d pieces without %q and no tokenizer_config.json beside it: neither CLIP nor "+
		"Qwen2", bare, wordEnd)
}

// qwenVocabulary is the number of pieces of Qwen2's vocab.json.
const qwenVocabulary = 151643

// readTokenizerConfig returns the class and the added tokens of a tokenizer_config.json, none for nil.
func readTokenizerConfig(data []byte) (class string, added []addedToken, err error) {
	if len(data) == 0 {
		return "", nil, nil
	}
	var c struct {
		Class string                `json:"tokenizer_class"`
		Added map[string]addedToken `json:"added_tokens_decoder"`
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return "", nil, fmt.Errorf("tokenizer_config.json: %w", err)
	}
	for key, a := range c.Added {
		if a.ID, err = strconv.Atoi(key); err != nil {
			return "", nil, fmt.Errorf("tokenizer_config.json: added token id: %w", err)
		}
		added = append(added, a)
	}
	return c.Class, added, nil
}

// Open reads the vocabulary at path: a tokenizer.json (any *.json but vocab.json and tekken.json), a SentencePiece
// *.model, a BERT vocab.txt, a vocab.json with merges.txt beside it, Mistral's tekken.json, or a folder that holds one
// of these (looked for in this order: tokenizer.json, vocab.json, spiece.model, tokenizer.model, vocab.txt,
// tekken.json). If a file is missing, the error is fs.ErrNotExist.
func Open(path string) (*Tokenizer, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	if info.IsDir() {
		names := []string{"tokenizer.json", "vocab.json", "spiece.model", "tokenizer.model", "vocab.txt", "tekken.json"}
		for _, name := range names {
			inner := filepath.Join(path, name)
			if _, err := os.Stat(inner); err == nil {
				return Open(inner)
			}
		}
		return nil, fmt.Errorf("tokenizer: %s holds none of %s: %w", path, strings.Join(names, ", "), fs.ErrNotExist)
	}
	data, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	var t *Tokenizer
	if name := strings.ToLower(filepath.Base(path)); name == "vocab.json" {
		t, err = openVocabMerges(data, filepath.Dir(path))
	} else {
		t, err = FromBytes(name, data)
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer %s: %w", path, err)
	}
	return t, nil
}

// FromBytes reads a one-file vocabulary. The extension of name tells the kind (tekken.json, .json, .model, .txt). With
// any other name, data that begins with { is JSON, all else a SentencePiece model (checkpoints carry those as tensors).
func FromBytes(name string, data []byte) (*Tokenizer, error) {
	switch {
	case strings.HasSuffix(name, ".txt"):
		return FromBERTVocab(data)
	case strings.HasSuffix(name, ".model"):
		return FromSentencePiece(data)
	case strings.HasSuffix(name, "tekken.json"):
		return FromTekken(data)
	case strings.HasSuffix(name, ".json") || bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")):
		return FromJSON(data)
	}
	return FromSentencePiece(data)
}

func openVocabMerges(vocab []byte, folder string) (*Tokenizer, error) {
	merges, err := readFile(filepath.Join(folder, "merges.txt"))
	if err != nil {
		return nil, err
	}
	config, err := readFile(filepath.Join(folder, "tokenizer_config.json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return FromVocabMerges(vocab, merges, config)
}

// readFile reads a whole file of at most longestFile bytes.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, longestFile+1))
	if len(data) > longestFile {
		err = fmt.Errorf("%s: more than %d MiB", path, longestFile>>20)
	}
	return data, err
}

// Find opens the first of places that has a vocabulary and also returns that place. If none has one, the error is
// fs.ErrNotExist and names them all. A vocabulary that exists but is broken is an error at once.
func Find(what string, places ...string) (*Tokenizer, string, error) {
	for _, place := range places {
		t, err := Open(place)
		if err == nil {
			return t, place, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, place, err
		}
	}
	return nil, "", fmt.Errorf("no tokenizer for %s: put its files in one of these places (none has them now):\n  %s: %w",
		what, strings.Join(places, "\n  "), fs.ErrNotExist)
}
