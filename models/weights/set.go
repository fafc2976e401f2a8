// Package weights loads checkpoint tensors into model structs.
//
// Open reads the forms in which checkpoints come: a safetensors file, shards with their index, a diffusers folder, a
// GGUF file (open.go, locate.go, gguf.go). All become a Set, a bag of named stored tensors (set.go, stored.go). A model
// is a struct whose fields carry `weight:"name"` tags equal to the checkpoint's names (tag.go says what tags can
// express). Load fills it (load.go) after checking every name and shape, so that users see everything that is wrong
// with a file in one message (mismatch.go). Declare lists what a struct declares without loading anything: it is used
// to count parameters and to seed test models.
//
// Facts that have caused bugs elsewhere: mapped files have data at any byte alignment; fp8 files carry scales in extra
// tensors (`X.scale_weight`, `X.weight_scale`) that belong to X.weight and are no tensors of the model; a missing bias
// must be an error, not a zero.
package weights

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
)

// Set is a set of named stored tensors from one or more files, or a view of one. It is immutable.
type Set struct {
	tensors map[string]Stored
	names   []string // sorted
	refused error    // error about a quantization that cannot be read
}

// FromMap makes a Set of m. Scales of quantized weights are joined to their weights (quantised.go).
func FromMap(m map[string]Stored) *Set {
	s := &Set{tensors: make(map[string]Stored, len(m))}
	maps.Copy(s.tensors, m)
	s.join("")
	s.index()
	return s
}

// FromFile makes a Set of all tensors of f, which must stay open while the Set is loaded from.
func FromFile(f *safetensors.File) *Set {
	s := &Set{tensors: make(map[string]Stored, len(f.Names()))}
	for _, name := range f.Names() {
		e, _ := f.Entry(name)
		s.tensors[name] = storedAs(e.DType, e.Shape, e.Data)
	}
	s.join(f.Metadata()[metadataKey])
	s.index()
	return s
}

// Prefix returns the tensors whose names start with p, with p removed, and those named beside as they are. An empty p
// returns s itself.
func (s *Set) Prefix(p string, beside ...string) *Set {
	if p == "" {
		return s
	}
	return s.view(func(name string, t Stored) (string, Stored, bool) {
		rest, ok := strings.CutPrefix(name, p)
		return rest, t, ok || slices.Contains(beside, name)
	})
}

// Mapped returns the same tensors under other names.
func (s *Set) Mapped(name func(string) string) *Set {
	return s.view(func(old string, t Stored) (string, Stored, bool) { return name(old), t, true })
}

// view returns the tensors that f keeps, under the names and with the contents that f returns.
func (s *Set) view(f func(name string, t Stored) (as string, made Stored, keep bool)) *Set {
	out := &Set{tensors: make(map[string]Stored, len(s.tensors)), refused: s.refused}
	for name, t := range s.tensors {
		if as, made, keep := f(name, t); keep {
			out.tensors[as] = made
		}
	}
	out.index()
	return out
}

// Names returns all names in sorted order. The slice must not be changed.
func (s *Set) Names() []string { return s.names }

// files returns the files that tensors are in, in any order.
func (s *Set) files() []*datafile.File {
	files := map[*datafile.File]bool{}
	for _, t := range s.tensors {
		if t.file != nil {
			files[t.file] = true
		}
	}
	return slices.Collect(maps.Keys(files))
}

func (s *Set) Has(name string) bool {
	_, ok := s.tensors[name]
	return ok
}

func (s *Set) Get(name string) (Stored, bool) {
	t, ok := s.tensors[name]
	return t, ok
}

// Shape returns the shape of a tensor, nil if there is none. The slice must not be changed.
func (s *Set) Shape(name string) []int { return s.tensors[name].Shape }

// Dim returns dimension i of a tensor, 0 if there is no such tensor or dimension.
func (s *Set) Dim(name string, i int) int {
	if shape := s.tensors[name].Shape; i < len(shape) {
		return shape[i]
	}
	return 0
}

// Count returns the smallest n such that no name starts with "<list>.<n>.": the length of a list of blocks.
func (s *Set) Count(list string) int {
	for n := 0; ; n++ {
		p := fmt.Sprintf("%s.%d.", list, n)
		if at, _ := slices.BinarySearch(s.names, p); at == len(s.names) || !strings.HasPrefix(s.names[at], p) {
			return n
		}
	}
}

// Bytes returns the size of all tensors in their element types, or in the blocks of the file.
func (s *Set) Bytes() int64 {
	n := int64(0)
	for _, t := range s.tensors {
		n += t.Bytes()
	}
	return n
}

// WideBytes returns the size of all tensors on GPUs, which compute with i8, blocks, fp8, bf16, f16 and f32. There i8,
// fp8 and blocks with factors have 16 more bytes per row, rows of blocks are padded to 16 bytes, other narrow types
// become bf16, and so does i8 that was rotated if it is multiplied unrounded; f16 with a scale becomes f32.
func (s *Set) WideBytes() int64 {
	n := int64(0)
	for _, t := range s.tensors {
		size := t.DType.Size()
		switch {
		case t.packed != nil && t.packed.form.OnGPUs() && t.inputs == nil:
			n += int64(t.Shape[0] * ((t.packed.rowBytes() + 15) / 16 * 16))
			if t.packed.form.Factors() {
				n += int64(16 * t.Shape[0])
			}
			continue
		case t.narrow() && (t.Rotated == 0 || !t.unrounded):
			n += int64(16 * t.Shape[0])
		case size == 1:
			size = engine.BF16.Size()
		case t.DType == engine.F16 && t.Scale != 0 && t.Scale != 1:
			size = engine.F32.Size()
		}
		n += int64(t.Len()) * int64(size)
	}
	return n
}

// narrow reports whether s is a matrix in a type narrower than bf16 that devices keep as it is.
func (s Stored) narrow() bool {
	return len(s.Shape) == 2 && (s.DType == engine.I8 && !s.unrounded ||
		engine.StaysNarrow(s.DType, s.Shape[1], s.Rotated))
}

// HasBlocks reports whether any tensor is stored in blocks or fp8, which a device widens as it multiplies.
func (s *Set) HasBlocks() bool {
	for _, t := range s.tensors {
		if t.packed != nil || t.narrow() && (t.DType != engine.I8 || t.unrounded) {
			return true
		}
	}
	return false
}

// Form returns the form of most of the set's bytes: a type, "int8", "rotated int8", or the form of blocks. quantised
// reports whether most bytes are in forms narrower than bf16 that backends keep as they are.
func (s *Set) Form() (name string, quantised bool) {
	count := map[string]int64{}
	narrow := int64(0)
	for _, t := range s.tensors {
		form := t.DType.String()
		switch {
		case t.packed != nil:
			form = t.packed.form.Name
		case t.DType == engine.I8 && t.Rotated > 0:
			form = "rotated int8"
		case t.DType == engine.I8:
			form = "int8"
		}
		if count[form] += t.Bytes(); t.packed != nil || t.DType == engine.I8 || t.narrow() {
			narrow += t.Bytes()
		}
	}
	for form, n := range count {
		if n > count[name] || n == count[name] && form < name {
			name = form
		}
	}
	return name, 2*narrow > s.Bytes()
}

func (s *Set) index() { s.names = slices.Sorted(maps.Keys(s.tensors)) }

// joinOldFP8 moves the scales of scaled fp8 files into their weights, in the spellings in use: `X.scale_weight` with
// `X.scale_input` and the marker `scaled_fp8`, `X.weight_scale` with `X.input_scale` (ComfyUI QUANTIZATION.md), and
// `X.weight_scale_inv`, which in spite of its name is multiplied with too (transformers, FineGrainedFP8Config). It
// returns an error for 8-bit weights whose scales are not those of scaledFP8.
func (s *Set) joinOldFP8() error {
	for _, name := range slices.Sorted(maps.Keys(s.tensors)) {
		t := s.tensors[name]
		stem, isScale := strings.CutSuffix(name, ".scale_weight")
		for _, end := range []string{".weight_scale", ".weight_scale_inv"} {
			if !isScale {
				stem, isScale = strings.CutSuffix(name, end)
			}
		}
		if !isScale {
			if marksFP8(name) {
				delete(s.tensors, name)
			}
			continue
		}
		w, ok := s.tensors[stem+".weight"]
		switch {
		case ok && t.Len() != 1 && w.DType.Size() == 1 && len(w.Shape) == 2:
			if w, ok = w.scaledFP8(t); !ok {
				return notRead(stem, fmt.Sprintf("%s %v with scales of %s %v", w.DType, w.Shape, t.DType, t.Shape))
			}
			s.tensors[stem+".weight"] = w
			delete(s.tensors, name)
			continue
		case !ok || t.Len() != 1 || t.DType > engine.F64:
			continue // reported as unexpected by Load
		}
		w.Scale = t.F32()[0]
		s.tensors[stem+".weight"] = w
		delete(s.tensors, name)
	}
	return nil
}

// marksFP8 reports whether a tensor only says how weights are stored, or how their inputs are to be rounded for a
// product in fp8.
func marksFP8(name string) bool {
	return name == "scaled_fp8" || slices.ContainsFunc([]string{".scaled_fp8", ".scale_input", ".input_scale"},
		func(end string) bool { return strings.HasSuffix(name, end) })
}
