package weights

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// indexSuffix ends the names of index files, as in "model.safetensors.index.json".
const indexSuffix = ".safetensors.index.json"

// Limits against hostile index files.
const (
	maxIndex  = 64 << 20 // bytes
	maxShards = 4096
	maxListed = 1 << 20 // tensors
)

// Shard reports whether name is that of one of several shards, in the usual form "model-00001-of-00003.safetensors",
// and returns the name of the index beside them. The only file of a set (00001-of-00001) is not a shard.
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

// Index is the content of a sharded checkpoint's index: tensor name -> file name. File names are plain names of files
// in the folder of the index.
type Index map[string]string

// ParseIndex parses an index ({"metadata": ..., "weight_map": {tensor: file}}, the format of the Hugging Face
// libraries). It returns an error for invalid JSON, a missing weight_map, a tensor that is listed twice, and a file
// name that is not the plain name of a .safetensors file in the same folder.
func ParseIndex(data []byte) (Index, error) {
	if len(data) > maxIndex {
		return nil, fmt.Errorf("index of %d bytes, at most %d are allowed", len(data), maxIndex)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	var index Index
	err := members(d, "the index", func(key string) error {
		if key != "weight_map" {
			var skipped json.RawMessage
			if err := d.Decode(&skipped); err != nil {
				return fmt.Errorf("index JSON: %v: %w", key, err)
			}
			return nil
		}
		if index != nil {
			return errors.New("index JSON: weight_map occurs twice")
		}
		index = Index{}
		return members(d, "weight_map", func(name string) error { return index.add(d, name) })
	})
	if err != nil {
		return nil, err
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

// members reads an object and calls read before the value of every member. encoding/json itself would silently keep the
// last of two equal keys.
func members(d *json.Decoder, what string, read func(key string) error) error {
	tok, err := d.Token()
	if err == nil && tok != json.Delim('{') {
		return fmt.Errorf("index JSON: %s is not an object", what)
	}
	for err == nil && d.More() {
		if tok, err = d.Token(); err == nil {
			key, _ := tok.(string) // the decoder allows only strings as keys
			if err := read(key); err != nil {
				return err
			}
		}
	}
	if err == nil {
		_, err = d.Token() // the closing brace, or an unexpected end
	}
	if err != nil {
		return fmt.Errorf("index JSON at byte %d: %w", d.InputOffset(), err)
	}
	return nil
}

// add reads the file name of a tensor.
func (x Index) add(d *json.Decoder, name string) error {
	if _, twice := x[name]; twice {
		return fmt.Errorf("index lists tensor %q twice", name)
	}
	var file *string
	if err := d.Decode(&file); err != nil || file == nil {
		return fmt.Errorf("index: tensor %q must have the name of a file (%w)", name, err)
	}
	if err := checkShard(*file); err != nil {
		return fmt.Errorf("index: tensor %q: %w", name, err)
	}
	if x[name] = *file; len(x) > maxListed {
		return fmt.Errorf("index lists more than %d tensors", maxListed)
	}
	return nil
}

// checkShard returns an error unless file is a plain name of a safetensors file, by the rules of every platform.
func checkShard(file string) error {
	if strings.ContainsAny(file, "/\\:\x00") || strings.HasPrefix(file, ".") || !strings.HasSuffix(file, ".safetensors") {
		return fmt.Errorf("file %q: shards are .safetensors files in the folder of the index, named without a path", file)
	}
	return nil
}

// Files returns the names of the shards, sorted.
func (x Index) Files() []string { return slices.Compact(slices.Sorted(maps.Values(x))) }
