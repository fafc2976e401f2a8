package gguf

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
)

func open(t *testing.T, name string) *File {
	t.Helper()
	f, err := Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// differ reports a difference in bits as a test error. All NaNs count as equal.
func differ(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: got %d values, want %d", what, len(got), len(want))
		return
	}
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) && !(got[i] != got[i] && want[i] != want[i]) {
			t.Errorf("%s: element %d is %g (%08x), want %g (%08x)", what, i, got[i], math.Float32bits(got[i]), want[i],
				math.Float32bits(want[i]))
			return
		}
	}
}

// widened returns all elements of e, encoded as d.
func widened(e Tensor, d engine.DType) ([]byte, error) {
	out := make([]byte, e.Len()*d.Size())
	return out, e.Range(out, 0, e.Len(), d)
}

// floats returns all elements of e as f32.
func floats(e Tensor) ([]float32, error) {
	b, err := widened(e, engine.F32)
	v := make([]float32, e.Len())
	engine.Widen(v, b, engine.F32)
	return v, err
}

// TestWideningEqualsTheReference compares the widened elements of every type with those that the gguf package for
// Python makes of the same blocks.
func TestWideningEqualsTheReference(t *testing.T) {
	f := open(t, "types.gguf")
	want, err := safetensors.Open("testdata/types.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer want.Close()
	if !slices.Equal(f.Names(), want.Names()) || len(f.Names()) != 19 {
		t.Fatalf("names: got %v, want %v", f.Names(), want.Names())
	}
	quantised := 0
	for _, name := range f.Names() {
		e, _ := f.Entry(name)
		w, _ := want.Entry(name)
		if !slices.Equal(e.Shape, w.Shape) || !e.Type.Widens() {
			t.Errorf("%s: shape %v type %s, want shape %v and a type that widens", name, e.Shape, e.Type, w.Shape)
		}
		if block, _ := e.Type.Block(); block > 1 {
			quantised++
			if got := strings.ToLower(e.Type.String()); got != name {
				t.Errorf("%s: type is called %s", name, got)
			}
		}
		values, err := w.F32()
		if err != nil {
			t.Fatal(err)
		}
		got, err := floats(e)
		if err != nil {
			t.Fatal(err)
		}
		differ(t, name, got, values)
		for _, d := range []engine.DType{engine.F32, engine.BF16, engine.F16} {
			b, err := widened(e, d)
			if err != nil {
				t.Fatal(err)
			}
			rounded := make([]byte, len(values)*d.Size())
			engine.Narrow(rounded, values, d)
			a, b2 := make([]float32, len(values)), make([]float32, len(values))
			engine.Widen(a, rounded, d)
			engine.Widen(b2, b, d)
			differ(t, name+" as "+d.String(), b2, a)
		}
	}
	if quantised != 10 {
		t.Errorf("%d quantised types were compared, want 10", quantised)
	}
}

func TestWhatCannotBeWidened(t *testing.T) {
	odd, _ := open(t, "types.gguf").Entry("int32")
	if _, err := widened(odd, engine.I64); err == nil || !strings.Contains(err.Error(), "allowed") {
		t.Errorf("widening to i64: got error %v, want one that names the allowed types", err)
	}
	iq := Tensor{Name: "x", Type: 20, Shape: []int{1, 32}, Data: datafile.Of(make([]byte, 18))}
	if _, err := floats(iq); err == nil || !strings.Contains(err.Error(), "IQ4_NL") {
		t.Errorf("widening IQ4_NL: got error %v, want one that names it", err)
	}
}

func TestMetadata(t *testing.T) {
	f := open(t, "metadata.gguf")
	want := map[string]any{
		"general.architecture": "flux",
		"t.u8":                 uint8(200), "t.i8": int8(-100), "t.u16": uint16(60000), "t.i16": int16(-30000),
		"t.u32": uint32(4e9), "t.i32": int32(-2e9),
		"t.u64": uint64(1 << 63), "t.i64": int64(-1 << 62), "t.f32": float32(0.1), "t.f64": 0.1, "t.yes": true, "t.no": false,
		"t.text": "grüße", "t.texts": []string{"a", "", "▁the"}, "t.ints": []int32{1, -2, 3},
		"t.floats": []float32{0.5, -1.5},
		"t.bools":  []bool{true, false}, "t.nested": []any{[]int32{1, 2}, []int32{3}},
		"comfy.gguf.orig_shape.conv": []int32{8, 2, 2, 8},
	}
	if got := f.Metadata(); !reflect.DeepEqual(got, want) {
		t.Errorf("metadata:\ngot  %#v\nwant %#v", got, want)
	}
	if len(f.HeaderHash()) != 64 || f.Size() != 992 {
		t.Errorf("hash %q, size %d", f.HeaderHash(), f.Size())
	}
	// The converter stored the convolution as one row of 256. Its metadata has the true shape.
	e, ok := f.Entry("conv")
	if !ok || !slices.Equal(e.Shape, []int{8, 2, 2, 8}) || e.Type != Q8v0 {
		t.Errorf("conv: found %v, shape %v type %s, want [8 2 2 8] of Q8_0", ok, e.Shape, e.Type)
	}
}

// builder builds well-formed and malformed files.
type builder []byte

func (b builder) u32(v ...uint32) builder {
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, x)
	}
	return b
}

func (b builder) u64(v ...uint64) builder {
	for _, x := range v {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return b
}

func (b builder) text(s string) builder { return append(b.u64(uint64(len(s))), s...) }

// tensor appends a tensor info.
func (b builder) tensor(name string, kind uint32, offset uint64, dims ...uint64) builder {
	return b.text(name).u32(uint32(len(dims))).u64(dims...).u32(kind).u64(offset)
}

// data pads b to 32 bytes and appends n zeros.
func (b builder) data(n int) builder { return append(b, make([]byte, -len(b)&31+n)...) }

func start(version uint32, tensors, pairs uint64) builder {
	return builder("GGUF").u32(version).u64(tensors, pairs)
}

func TestMalformedFilesAreRefusedWithTheReason(t *testing.T) {
	pair := func(kind uint32) builder { return start(3, 0, 1).text("k").u32(kind) }
	align := func(kind, n uint32) builder { return start(3, 0, 1).text("general.alignment").u32(kind, n) }
	shaped := func(dims ...uint32) builder {
		return start(3, 1, 1).text("comfy.gguf.orig_shape.t").u32(9,
			4).u64(uint64(len(dims))).u32(dims...).tensor("t", 0, 0, 4).data(16)
	}
	for _, c := range []struct {
		name, want string
		file       []byte
	}{
		{"empty", "not a GGUF file", nil},
		{"other format", `starts with "PK`, []byte("PK\x03\x04")},
		{"no version", "truncated", []byte("GGUF\x03")},
		{"version 1", "version 1 is not read (allowed: 2, 3)", start(1, 0, 0)},
		{"big-endian", "big-endian GGUF file (version 3)", start(3<<24, 0, 0)},
		{"no counts", "8 bytes are missing", builder("GGUF").u32(3)},
		{"tensor count", "at most 100000", start(3, 1<<60, 0)},
		{"pair count", "at most 100000", start(3, 0, 1<<60)},
		{"pairs missing", "metadata pair 0 of 2", start(3, 0, 2)},
		{"key empty", "1 to 65535", start(3, 0, 1).text("").u32(0)},
		{"key not text", "UTF-8", start(3, 0, 1).text("\xff").u32(0)},
		{"key too long", "truncated", start(3, 0, 1).u64(1 << 63)},
		{"key twice", `"k" occurs twice`, append(start(3, 0, 2).text("k").u32(0),
			append([]byte{1}, builder(nil).text("k").u32(0)...)...)},
		{"value type", "unknown value type 13", pair(13)},
		{"value cut", "truncated", pair(10).u32(1)},
		{"string cut", "truncated", pair(8).u64(1 << 40)},
		{"bool", "must be 0 or 1", append(pair(7), 2)},
		{"array cut", "array of 1152921504606846976 elements", pair(9).u32(0).u64(1 << 60)},
		{"array type", "unknown array type 99", pair(9).u32(99).u64(1)},
		{"array element", "element 1", pair(9).u32(8).u64(2).text("aaaaaaaaa").u64(1 << 40)},
		{"nested arrays", "nested deeper", pair(9).u32(9).u64(1).u32(9).u64(1).
			u32(9).u64(1).u32(9).u64(1).u32(9).u64(1).u32(9).u64(1)},
		{"alignment type", "general.alignment", align(5, 32)},
		{"alignment zero", "power of two", align(4, 0)},
		{"alignment odd", "power of two", align(4, 24)},
		{"alignment huge", "power of two", align(4, 1<<31)},
		{"tensor cut", "tensor 0 of 1", start(3, 1, 0)},
		{"tensor twice", `"t" occurs twice`, start(3, 2, 0).tensor("t", 0, 0, 1).tensor("t", 0, 32, 1).data(64)},
		{"dimensions", "at most 8", start(3, 1, 0).tensor("t", 0, 0, make([]uint64, 9)...)},
		{"dimension count", "at most 8", start(3, 1, 0).text("t").u32(1 << 31)},
		{"size overflows", "overflows", start(3, 1, 0).tensor("t", 0, 0, 1<<40, 1<<40)},
		{"size hidden by zero", "overflows", start(3, 1, 0).tensor("t", 0, 0, 0, 1<<63)},
		{"type removed", "unknown element type 4", start(3, 1, 0).tensor("t", 4, 0, 32)},
		{"row not blocks", "multiples of 32", start(3, 1, 0).tensor("t", 8, 0, 33, 32).data(4096)},
		{"scalar not blocks", "multiples of 256", start(3, 1, 0).tensor("t", 12, 0).data(4096)},
		{"offset odd", "not a multiple of the alignment 32", start(3, 1, 0).tensor("t", 0, 4, 1).data(64)},
		{"offset outside", "truncated", start(3, 1, 0).tensor("t", 0, 1<<63, 1).data(64)},
		{"data cut", "truncated", start(3, 1, 0).tensor("t", 0, 0, 4).data(15)},
		{"no data", "data begins at byte", start(3, 1, 0).tensor("t", 0, 0, 4)},
		{"overlap", `"t" and "u" overlap`, start(3, 2, 0).tensor("u", 0, 32, 4).tensor("t", 0, 0, 9).data(64)},
		{"true shape wrong", "does not fit", shaped(3)},
		{"true shape zero", "does not fit", shaped(0, 4)},
		{"true shape short", "does not fit", shaped(2)},
	} {
		if _, err := OpenBytes(c.file); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want one with %q", c.name, err, c.want)
		}
	}
	path := filepath.Join(t.TempDir(), "cut.gguf")
	if err := os.WriteFile(path, start(3, 1, 0), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error of a broken file on disk must name it: %v", err)
	}
	if _, err := Open(t.TempDir()); err == nil {
		t.Error("opening a folder must fail")
	}
}

func TestUnusualFilesThatAreRight(t *testing.T) {
	f, err := OpenBytes(start(2, 0, 0))
	if err != nil || len(f.Names()) != 0 {
		t.Errorf("empty file of version 2: %v", err)
	}
	b := start(2, 3, 0).tensor("none", 8, 0, 0, 5).tensor("scalar", 0, 32).tensor("late", 0, 96, 2, 1).data(104)
	binary.LittleEndian.PutUint32(b[len(b)-8:], math.Float32bits(7))
	if f, err = OpenBytes(b); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]float32{"none": {}, "scalar": {0}, "late": {7, 0}} {
		e, ok := f.Entry(name)
		got, err := floats(e)
		if !ok || err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %v (found %v, error %v), want %v", name, got, ok, err, want)
		}
	}
	if e, _ := f.Entry("none"); !slices.Equal(e.Shape, []int{5, 0}) {
		t.Errorf("shape of none: got %v, want [5 0]", e.Shape)
	}
}

func BenchmarkBytesBF16(b *testing.B) {
	for _, kind := range []Type{Q8v0, Q4v0, Q4K, Q5K, Q6K} {
		b.Run(kind.String(), func(b *testing.B) {
			block, size := kind.Block()
			data := make([]byte, 1024*1024/block*size)
			for i := range data {
				data[i] = byte(i * 37)
			}
			e := Tensor{Name: "w", Type: kind, Shape: []int{1024, 1024}, Data: datafile.Of(data)}
			b.SetBytes(1024 * 1024)
			for b.Loop() {
				if _, err := widened(e, engine.BF16); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
