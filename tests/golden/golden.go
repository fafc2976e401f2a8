// Package golden gives tests access to numbers recorded from ComfyUI, torch and transformers (README.md beside this
// file says how they were made).
//
// Open and JSON read a file, Path finds one that is not compressed, Value is the formula that made all weights and
// inputs, Fill applies it to a whole tensor.
package golden

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
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

// Read returns the bytes of a golden file, which may be stored compressed, with ".gz" behind its name, or one of
// tensors in byte planes, with ".planes.gz" behind it.
func Read(name string) ([]byte, error) {
	b, err := os.ReadFile(Path(name))
	if !errors.Is(err, fs.ErrNotExist) {
		return b, err
	}
	if b, err = inflated(name + ".gz"); !errors.Is(err, fs.ErrNotExist) {
		return b, err
	}
	if b, err = inflated(name + ".planes.gz"); err != nil {
		return nil, err
	}
	return joined(b)
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

// joined takes a safetensors file out of byte planes, in which signs and exponents of numbers stand together and
// compress: its header as it is, then of every four bytes of data the first, then of every four the second, the third
// and the fourth, then what is left of less than four. tests/reference/planes.py makes them.
func joined(b []byte) ([]byte, error) {
	if len(b) < 8 || binary.LittleEndian.Uint64(b) > uint64(len(b)-8) {
		return nil, errors.New("no safetensors file in byte planes")
	}
	header := 8 + int(binary.LittleEndian.Uint64(b))
	out, data, n := bytes.Clone(b), b[header:], (len(b)-header)/4
	for i := range n {
		for plane := range 4 {
			out[header+4*i+plane] = data[plane*n+i]
		}
	}
	return out, nil
}

// Open opens a golden file of tensors, however it is stored.
func Open(name string) (*safetensors.File, error) {
	f, err := safetensors.Open(Path(name))
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	b, err := Read(name)
	if err != nil {
		return nil, err
	}
	out, err := os.CreateTemp("", "golden")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(out.Name()) }() // what is open can still be read
	_, err = out.Write(b)
	if err = errors.Join(err, out.Close()); err != nil {
		return nil, err
	}
	return safetensors.Open(out.Name())
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
