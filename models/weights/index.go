package weights

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
)

// indexSuffix ends the names of index files: "model.safetensors.index.json".
const indexSuffix = ".safetensors.index.json"

// The limits on hostile index files.
const (
	maxIndex  = 64 << 20 // bytes
	maxShards = 4096
	maxListed = 1 << 20 // tensors
)

// Shard tells whether name is that of one file of several, as writers of sharded files call them
// ("model-00001-of-00003.safetensors"), and the name that the index beside it has.
func Shard(name string) (index string, ok bool) {
	stem, ok := strings.CutSuffix(filepath.Base(name), ".safetensors")
	const tail = "-00001-of-00003"
	at := len(stem) - len(tail)
	if !ok || at < 0 {
		return "", false
	}
	for i, c := range []byte(stem[at:]) {
		digit := tail[i] >= '0' && tail[i] <= '9'
		if digit != (c >= '0' && c <= '9') || !digit && c != tail[i] {
			return "", false
		}
	}
	return stem[:at] + indexSuffix, stem[len(stem)-5:] > "00001"
}

// Index is what the index of a sharded checkpoint says: tensor name -> file name. File names are plain names of files
// beside the index.
type Index map[string]string

// ParseIndex reads the JSON of an index ({"metadata": ..., "weight_map": {tensor: file}}, the format of the Hugging
// Face libraries). Errors: no JSON, no weight_map, a tensor listed twice, and file names that are more than the name of
// a .safetensors file in the same folder.
func ParseIndex(data []byte) (Index, error) {
	if len(data) > maxIndex {
		return nil, fmt.Errorf("index of %d bytes, at most %d are allowed", len(data), maxIndex)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if err := opening(d, "the index"); err != nil {
		return nil, err
	}
	var index Index
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("index JSON at byte %d: %w", d.InputOffset(), err)
		}
		if key != "weight_map" {
			var skipped json.RawMessage
			if err := d.Decode(&skipped); err != nil {
				return nil, fmt.Errorf("index JSON: %v: %w", key, err)
			}
			continue
		}
		if index != nil {
			return nil, errors.New("index JSON: weight_map occurs twice")
		}
		if index, err = weightMap(d); err != nil {
			return nil, err
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("index JSON at byte %d: %w", d.InputOffset(), err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("index JSON: something follows the closing brace at byte %d", d.InputOffset())
	}
	if len(index) == 0 {
		return nil, errors.New(`index JSON: "weight_map" is missing or empty; it must map tensor names to file names`)
	}
	if n := len(index.Files()); n > maxShards {
		return nil, fmt.Errorf("index lists %d files, at most %d are allowed", n, maxShards)
	}
	return index, nil
}

// opening reads the brace that begins an object.
func opening(d *json.Decoder, what string) error {
	tok, err := d.Token()
	if err != nil {
		return fmt.Errorf("index JSON at byte %d: %w", d.InputOffset(), err)
	}
	if tok != json.Delim('{') {
		return fmt.Errorf("index JSON: %s is not an object", what)
	}
	return nil
}

// weightMap reads the object under "weight_map" key by key: encoding/json would keep the last of two equal keys without
// a word.
func weightMap(d *json.Decoder) (Index, error) {
	if err := opening(d, "weight_map"); err != nil {
		return nil, err
	}
	index := Index{}
	for d.More() {
		tok, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("index JSON at byte %d: %w", d.InputOffset(), err)
		}
		name, _ := tok.(string) // the decoder lets only strings pass as keys
		if _, twice := index[name]; twice {
			return nil, fmt.Errorf("index lists tensor %q twice", name)
		}
		var file *string
		if err := d.Decode(&file); err != nil || file == nil {
			return nil, fmt.Errorf("index: tensor %q must have the name of a file (%w)", name, err)
		}
		if err := checkShard(*file); err != nil {
			return nil, fmt.Errorf("index: tensor %q: %w", name, err)
		}
		if index[name] = *file; len(index) > maxListed {
			return nil, fmt.Errorf("index lists more than %d tensors", maxListed)
		}
	}
	_, err := d.Token() // the closing brace, or where the text ends too early
	if err != nil {
		return nil, fmt.Errorf("index JSON at byte %d: %w", d.InputOffset(), err)
	}
	return index, nil
}

// checkShard lets only plain names of safetensors files pass, on every system alike.
func checkShard(file string) error {
	if strings.ContainsAny(file, "/\\:\x00") || strings.HasPrefix(file, ".") || !strings.HasSuffix(file, ".safetensors") {
		return fmt.Errorf("file %q: shards are .safetensors files in the folder of the index, named without a path", file)
	}
	return nil
}

// Files returns the names of the shards, sorted.
func (x Index) Files() []string {
	seen := map[string]bool{}
	var files []string
	for _, f := range x {
		if !seen[f] {
			seen[f] = true
			files = append(files, f)
		}
	}
	slices.Sort(files)
	return files
}
