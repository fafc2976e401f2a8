// Package golden gives tests access to numbers recorded from ComfyUI, torch and transformers (README.md beside this
// file says how they were made).
//
// Open and JSON read a file, Path finds one that is not compressed, Value is the formula that made all weights and inputs, Fill applies it to a whole tensor.
package golden

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"patchbay/engine/safetensors"
)

// Path returns the path of a golden file, e.g. "samplers.json" or "server/object_info.json".
func Path(name string) string {
	_, file, _, _ := runtime.Caller(0)
	if filepath.IsAbs(file) {
		return filepath.Join(filepath.Dir(file), name)
	}
	// Built with -trimpath: tests run in the folder of their package, the module's root is above it.
	dir, err := os.Getwd()
	if err != nil {
		return name
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil || dir == filepath.Dir(dir) {
			return filepath.Join(dir, "tests", "golden", name)
		}
		dir = filepath.Dir(dir)
	}
}

// Read returns the bytes of a golden file, which may be stored compressed: with ".gz" behind its name, or ".planes.gz"
// (see joined).
func Read(name string) ([]byte, error) {
	b, err := os.ReadFile(Path(name))
	if !errors.Is(err, fs.ErrNotExist) {
		return b, err
	}
	if b, err := inflated(name + ".planes.gz"); !errors.Is(err, fs.ErrNotExist) {
		if err != nil {
			return nil, err
		}
		if b, err = joined(b); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return b, nil
	}
	return inflated(name + ".gz")
}

func inflated(name string) ([]byte, error) {
	f, err := os.Open(Path(name))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	r, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// joined returns the safetensors file whose data, which is what follows the header, was stored in four planes: of every
// four bytes the first, then of every four the second, and so on; what is left of less than four bytes is at the end.
// Signs and exponents, which compress, stand together that way, apart from mantissas, which do not.
func joined(b []byte) ([]byte, error) {
	if len(b) < 8 || binary.LittleEndian.Uint64(b) > uint64(len(b)-8) {
		return nil, errors.New("planes of a file without the header of safetensors")
	}
	header := 8 + int(binary.LittleEndian.Uint64(b))
	out := bytes.Clone(b)
	n := (len(b) - header) / 4
	for plane := range 4 {
		for i, v := range b[header+plane*n : header+(plane+1)*n] {
			out[header+4*i+plane] = v
		}
	}
	return out, nil
}

// Open opens a golden file of tensors, wherever it is stored.
func Open(name string) (*safetensors.File, error) {
	b, err := Read(name)
	if err != nil {
		return nil, err
	}
	return safetensors.OpenBytes(b)
}

// JSON decodes a golden JSON file into v.
func JSON(name string, v any) error {
	b, err := Read(name)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// Value is element i of the tensor called name: offset + scale*v with v in [-0.5, 0.5) from splitmix64 over
// fnv1a64(name) (README.md section 1).
func Value(name string, i uint64, scale, offset float64) float32 {
	return value(hash(name), i, scale, offset)
}

// Fill returns n elements of the tensor called name.
func Fill(name string, n int, scale, offset float64) []float32 {
	h := hash(name)
	out := make([]float32, n)
	for i := range out {
		out[i] = value(h, uint64(i), scale, offset)
	}
	return out
}

// InputScale gives inputs unit variance: 2*sqrt(3).
const InputScale = 3.4641016151377544

// Input returns n elements of the input called name with unit variance.
func Input(name string, n int) []float32 { return Fill("input:"+name, n, InputScale, 0) }

func hash(name string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 0x100000001b3
	}
	return h
}

func value(h, i uint64, scale, offset float64) float32 {
	z := h + i + 0x9e3779b97f4a7c15
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	u := z ^ (z >> 31)
	v := (float64(u>>40) - 1<<23) / (1 << 24)
	return float32(offset + float64(scale*v))
}
