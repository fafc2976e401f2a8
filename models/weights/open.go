package weights

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"

	"patchbay/engine"
	"patchbay/engine/gguf"
	"patchbay/engine/safetensors"
	"patchbay/engine/torchfile"
)

// File is an open checkpoint in any of the forms that Open reads. It is safe for concurrent use except for Close, after
// which no tensor of its Set may be read.
type File struct {
	set      *Set
	metadata map[string]string
	words    map[string]any
	hash     string
	size     int64
	paths    []string
	close    []func() error
}

// Open reads the headers of the checkpoint at path, which is one of:
//
//   - a safetensors file;
//   - a GGUF file, recognized by its first bytes, whatever its name; see FromGGUF for form;
//   - the index of a sharded checkpoint, "*.safetensors.index.json", with the shards beside it;
//   - a folder as diffusers and transformers write it, with one of these in it, preferably
//     "diffusion_pytorch_model" or "model".
//
// The config.json beside an index or in a folder becomes the metadata entry "config". No tensor data is read. form is
// the type of widened weights, bf16 or f32. Errors name the file and what is wrong with it.
func Open(path string, form engine.DType) (_ *File, err error) {
	p, err := find(path)
	if err != nil {
		return nil, err
	}
	f := &File{metadata: map[string]string{}, paths: p.files()}
	switch {
	case p.index != "":
		err = f.openShards(p)
	case begins(p.weights, "GGUF"):
		err = f.openGGUF(p.weights, form)
	default:
		err = f.openPlain(p.weights)
	}
	if err == nil && p.config != "" {
		err = f.readConfig(p.config)
	}
	if err != nil {
		_ = f.Close() // the first error is the one to report
		return nil, err
	}
	return f, nil
}

// OpenTorch is Open for files of upscale models, which may also be in torch.save's format (package torchfile).
func OpenTorch(path string) (*File, error) {
	if !begins(path, "PK\x03\x04") {
		return Open(path, engine.F32)
	}
	file, err := torchfile.Open(path)
	if err != nil {
		return nil, err
	}
	tensors := map[string]Stored{}
	for _, name := range file.Names() {
		e, _ := file.Entry(name)
		tensors[name] = storedAs(e.DType, e.Shape, e.Data)
	}
	f := &File{set: FromMap(tensors), hash: file.HeaderHash(), paths: []string{path}, close: []func() error{file.Close}}
	f.size = f.set.Bytes()
	return f, nil
}

// Paths returns the files that Open would read for path, without opening them, so that callers can check each of them
// against the places where files may be. It returns the errors of Open about missing and ambiguous files.
func Paths(path string) ([]string, error) {
	p, err := find(path)
	if err != nil {
		return nil, err
	}
	return p.files(), nil
}

func (f *File) Set() *Set { return f.set }

// Metadata returns the strings that the checkpoint carries about itself. The map must not be changed.
func (f *File) Metadata() map[string]string { return f.metadata }

// Words returns all metadata of a GGUF file, which has values of other types than strings too (vocabularies); nil for
// other forms.
func (f *File) Words() map[string]any { return f.words }

// HeaderHash returns a hash of names, shapes and metadata: the SHA-256 in hex of the headers that were read. It also
// depends on the form to which a GGUF file is widened.
func (f *File) HeaderHash() string { return f.hash }

// Size returns the bytes that the weights need when loaded unchanged: the size of the files, or of the widened tensors.
func (f *File) Size() int64 { return f.size }

// Round makes the set that of rounded tensors (Set.Rounded), and Size theirs.
func (f *File) Round(d engine.DType) {
	f.set = f.set.Rounded(d)
	f.size = f.set.Bytes()
}

// Paths returns the files that belong to the checkpoint.
func (f *File) Paths() []string { return f.paths }

// Close closes all files. A second Close does nothing.
func (f *File) Close() error {
	var errs []error
	for _, c := range f.close {
		errs = append(errs, c())
	}
	f.close = nil
	return errors.Join(errs...)
}

func (f *File) openPlain(path string) error {
	file, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	f.close = append(f.close, file.Close)
	f.set, f.metadata, f.hash, f.size = FromFile(file), maps.Clone(file.Metadata()), file.HeaderHash(), file.Size()
	if f.set.refused != nil {
		return fmt.Errorf("read checkpoint %s: %w", path, f.set.refused)
	}
	return nil
}

func (f *File) openGGUF(path string, form engine.DType) error {
	file, err := gguf.Open(path)
	if err != nil {
		return err
	}
	f.close = append(f.close, file.Close)
	if f.set, err = FromGGUF(file, form); err != nil {
		return fmt.Errorf("read checkpoint %s: %w", path, err)
	}
	f.hash, f.words = file.HeaderHash()+"/"+form.String(), file.Metadata()
	f.size = f.set.Bytes()
	for key, v := range file.Metadata() {
		if text, ok := v.(string); ok {
			f.metadata[key] = text
		}
	}
	return nil
}

// maxConfig bounds a config.json; real ones have about a kilobyte.
const maxConfig = 1 << 20

func (f *File) readConfig(path string) error {
	text, err := readSmall(path, maxConfig)
	if err != nil {
		return fmt.Errorf("read checkpoint %s: %w", path, err)
	}
	f.metadata["config"] = string(text)
	f.hash = hashOf(f.hash, string(text))
	return nil
}

// readSmall reads a file of at most limit bytes.
func readSmall(path string, limit int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read from
	text, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("more than %d bytes", limit)
	}
	return text, err
}

// begins reports whether a file can be read and starts with these four bytes. A file that cannot be read is left to the
// safetensors reader, whose error says why.
func begins(path, with string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }() // only read from
	var magic [4]byte
	_, err = io.ReadFull(file, magic[:])
	return err == nil && string(magic[:]) == with
}
