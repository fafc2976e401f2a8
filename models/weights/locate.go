package weights

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"patchbay/engine/safetensors"
)

// location is the set of files that belong to one checkpoint on disk.
type location struct {
	weights string // the only file with tensors; "" if there is an index
	index   string
	shards  []string // beside the index
	tensors Index
	config  string // config.json; "" if there is none
}

func (p location) files() []string {
	all := append([]string{p.weights, p.index, p.config}, p.shards...)
	return slices.DeleteFunc(all, func(name string) bool { return name == "" })
}

// find returns the files to open for path; see Open.
func find(path string) (location, error) {
	info, err := os.Stat(path)
	if err != nil {
		return location{}, fmt.Errorf("open checkpoint: %w", err) // the os error names the path
	}
	folder := info.IsDir()
	if folder {
		name, err := inFolder(path)
		if err != nil {
			return location{}, err
		}
		path = filepath.Join(path, name)
	}
	p := location{}
	switch index, shard := Shard(path); {
	case strings.HasSuffix(path, indexSuffix):
		if p, err = readIndex(path); err != nil {
			return location{}, err
		}
	case shard:
		return location{}, fmt.Errorf("open checkpoint %s: is one of several files; name their index %s instead, which must "+
			"lie beside them", path, index)
	default:
		p.weights = path
	}
	if config := filepath.Join(filepath.Dir(path), "config.json"); folder || p.index != "" {
		if _, err := os.Stat(config); err == nil {
			p.config = config
		}
	}
	return p, nil
}

// inFolder chooses the checkpoint file of a folder: one with a name that the libraries write, else the only one there.
func inFolder(folder string) (string, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return "", fmt.Errorf("open checkpoint: %w", err)
	}
	var found []string
	for _, e := range entries {
		name := e.Name()
		_, shard := Shard(name)
		if !e.IsDir() && (strings.HasSuffix(name, indexSuffix) || strings.HasSuffix(name, ".gguf") ||
			strings.HasSuffix(name, ".safetensors") && !shard) {
			found = append(found, name)
		}
	}
	for _, stem := range []string{"diffusion_pytorch_model", "model"} {
		for _, suffix := range []string{indexSuffix, ".safetensors"} {
			if slices.Contains(found, stem+suffix) {
				return stem + suffix, nil
			}
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("open checkpoint %s: the folder holds no *.safetensors, *%s or *.gguf", folder, indexSuffix)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("open checkpoint %s: the folder holds several checkpoints, name one of them: %s", folder,
		strings.Join(found, ", "))
}

// readIndex reads an index and checks that every shard exists.
func readIndex(path string) (location, error) {
	text, err := readSmall(path, maxIndex)
	if err != nil {
		return location{}, fmt.Errorf("read checkpoint %s: %w", path, err)
	}
	index, err := ParseIndex(text)
	if err != nil {
		return location{}, fmt.Errorf("read checkpoint %s: %w", path, err)
	}
	p := location{index: path, tensors: index}
	var missing []string
	for _, name := range index.Files() {
		file := filepath.Join(filepath.Dir(path), name)
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, name)
		}
		p.shards = append(p.shards, file)
	}
	if len(missing) > 0 {
		return location{}, fmt.Errorf("read checkpoint %s: %d of its %d files are missing: %s", path, len(missing),
			len(p.shards), strings.Join(missing[:min(len(missing), listed)], ", "))
	}
	return p, nil
}

// openShards opens every shard and checks that it holds exactly the tensors that the index lists for it.
func (f *File) openShards(p location) error {
	f.set = &Set{tensors: make(map[string]Stored, len(p.tensors))}
	hash := ""
	for _, path := range p.shards {
		file, err := safetensors.Open(path)
		if err != nil {
			return err
		}
		f.close = append(f.close, file.Close)
		f.size += file.Size()
		hash = hashOf(hash, filepath.Base(path), file.HeaderHash())
		maps.Copy(f.metadata, file.Metadata())
		if err := f.addShard(p, filepath.Base(path), file); err != nil {
			return fmt.Errorf("read checkpoint %s: %w", p.index, err)
		}
	}
	var absent []string
	for name, file := range p.tensors {
		if _, ok := f.set.tensors[name]; !ok {
			absent = append(absent, fmt.Sprintf("%q is listed for %s", name, file))
		}
	}
	if slices.Sort(absent); len(absent) > 0 {
		return fmt.Errorf("read checkpoint %s: %d tensors are not in the file that the index lists for them: %s", p.index,
			len(absent), strings.Join(absent[:min(len(absent), listed)], "; "))
	}
	f.set.join(f.metadata[metadataKey])
	if f.set.refused != nil {
		return fmt.Errorf("read checkpoint %s: %w", p.index, f.set.refused)
	}
	f.set.index()
	f.hash = hash
	return nil
}

// addShard adds the tensors of one shard to the set.
func (f *File) addShard(p location, shard string, file *safetensors.File) error {
	for _, name := range file.Names() {
		home, known := p.tensors[name]
		switch {
		case !known:
			return fmt.Errorf("%s holds tensor %q, which the index does not list", shard, name)
		case home != shard:
			return fmt.Errorf("%s holds tensor %q, which the index lists for %s", shard, name, home)
		}
		e, _ := file.Entry(name)
		f.set.tensors[name] = storedAs(e.DType, e.Shape, e.Data)
	}
	return nil
}

// hashOf hashes several texts together.
func hashOf(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		_, _ = fmt.Fprintf(h, "%d %s\n", len(p), p) // a hash never fails
	}
	return hex.EncodeToString(h.Sum(nil))
}
