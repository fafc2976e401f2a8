package safetensors

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/datafile"
)

// file returns a file with the given header text and data.
func file(header string, data ...byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

func TestOpenReadsWhatTheFormatSays(t *testing.T) {
	header := `{"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]},` +
		`"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},` +
		`"e":{"dtype":"F32","shape":[0,3],"data_offsets":[8,8]},"i":{"dtype":"I16","shape":[1],"data_offsets":[8,10]}}   `
	data := file(header, 0, 0, 0x80, 0x3f, 0x40, 0xc0, 0x00, 0x40, 0xfe, 0xff)
	path := filepath.Join(t.TempDir(), "x.safetensors")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"a", "b", "e", "i"}; !slices.Equal(f.Names(), want) {
		t.Errorf("names: got %v, want %v", f.Names(), want)
	}
	if got := f.Metadata()["format"]; got != "pt" {
		t.Errorf("metadata format: got %q, want pt", got)
	}
	for name, want := range map[string][]float32{"a": {1}, "b": {-3, 2}, "e": {}, "i": {-2}} {
		e, ok := f.Entry(name)
		got, err := e.F32()
		if !ok || err != nil || !slices.Equal(got, want) {
			t.Errorf("entry %s: got %v (found %v, error %v), want %v", name, got, ok, err, want)
		}
	}
	if e, _ := f.Entry("i"); e.DType != Other || e.FileType != "I16" {
		t.Errorf("entry i: got dtype %v file type %s, want Other and I16", e.DType, e.FileType)
	}
	other, err := OpenBytes(data)
	if err != nil || other.HeaderHash() != f.HeaderHash() || len(f.HeaderHash()) != 64 {
		t.Errorf("header hash: got %q from the mapped file, %q from bytes (%v)", f.HeaderHash(), other.HeaderHash(), err)
	}
	if err := f.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}

func TestMalformedFilesAreRefusedWithTheReason(t *testing.T) {
	one := func(info string) string { return `{"t":` + info + `}` }
	for _, c := range []struct {
		name, want string
		file       []byte
	}{
		{"empty", "8 missing", nil},
		{"short length", "5 missing", []byte{1, 2, 3}},
		{"huge header", "at most 100000000", binary.LittleEndian.AppendUint64(nil, 1<<60)},
		{"truncated header", "7 bytes are missing", append(binary.LittleEndian.AppendUint64(nil, 9), "{}"...)},
		{"not json", "starts with", file("hello world")},
		{"bad utf-8", "UTF-8", file("{\"\xff\":1}")},
		{"broken json", "expected colon", file(`{"a" 1}`)},
		{"json not closed", "header JSON", file(`{"__metadata__":{}`)},
		{"text behind json", "follows the closing brace", file(`{}{}`)},
		{"metadata not strings", "__metadata__", file(`{"__metadata__":{"a":1}}`)},
		{"duplicate", "occurs twice", file(`{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},`+
			`"t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 1, 2)},
		{"dtype unknown", `unknown dtype "Q4"`, file(one(`{"dtype":"Q4","shape":[1],"data_offsets":[0,1]}`), 1)},
		{"dtype missing", "dtype is missing", file(one(`{"shape":[1],"data_offsets":[0,1]}`), 1)},
		{"shape missing", "shape is missing", file(one(`{"dtype":"U8","data_offsets":[0,1]}`), 1)},
		{"offsets missing", "data_offsets", file(one(`{"dtype":"U8","shape":[1]}`), 1)},
		{"three offsets", "data_offsets", file(one(`{"dtype":"U8","shape":[1],"data_offsets":[0,1,1]}`), 1)},
		{"negative offset", "not a range", file(one(`{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}`), 1)},
		{"backward range", "not a range", file(one(`{"dtype":"U8","shape":[1],"data_offsets":[1,0]}`), 1)},
		{"negative dimension", "out of range", file(one(`{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}`), 1)},
		{"overflow", "overflows", file(one(`{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}`))},
		{"size wrong", "needs 8 bytes", file(one(`{"dtype":"F32","shape":[2],"data_offsets":[0,4]}`), 1, 2, 3, 4)},
		{"truncated data", "3 bytes are missing", file(one(`{"dtype":"F32","shape":[1],"data_offsets":[0,4]}`), 1)},
		{
			"trailing data", "2 bytes behind the last tensor",
			file(one(`{"dtype":"U8","shape":[1],"data_offsets":[0,1]}`), 1, 2, 3),
		},
		{"hole", "hole of 1 bytes", file(one(`{"dtype":"U8","shape":[1],"data_offsets":[1,2]}`), 1, 2)},
		{"overlap", "overlaps", file(`{"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},`+
			`"u":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 1, 2, 3)},
		{"half bytes", "needs 1 bytes", file(one(`{"dtype":"F4","shape":[1],"data_offsets":[0,0]}`))},
	} {
		if _, err := OpenBytes(c.file); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want one with %q", c.name, err, c.want)
		}
	}
	path := filepath.Join(t.TempDir(), "cut.safetensors")
	if err := os.WriteFile(path, file(one(`{"dtype":"F32","shape":[1],"data_offsets":[0,4]}`), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error of a broken file on disk must name it: %v", err)
	}
	if _, err := Open(t.TempDir()); err == nil {
		t.Error("opening a folder must fail")
	}
}

func fromF32(name string, v []float32, shape ...int) Tensor {
	data := make([]byte, 4*len(v))
	engine.Narrow(data, v, engine.F32)
	return Tensor{Name: name, DType: engine.F32, Shape: shape, Data: datafile.Of(data)}
}

func TestWriteIsDeterministicAndReadsBack(t *testing.T) {
	entries := []Tensor{
		{Name: "latent_format_version_0", FileType: "F32", Shape: []int{0}},
		{Name: "mask", FileType: "BOOL", Shape: []int{3}, Data: datafile.Of([]byte{1, 0, 1})},
		{Name: "half", DType: engine.F16, Shape: []int{1}, Data: datafile.Of([]byte{0, 0x3c})},
		fromF32("latent_tensor", []float32{1, -2.5, 3, 4}, 1, 2, 2),
	}
	metadata := map[string]string{"prompt": `{"a":"<b> & \"c\""}`, "extra": "x"}
	var first, second bytes.Buffer
	if err := Write(&first, metadata, entries); err != nil {
		t.Fatal(err)
	}
	slices.Reverse(entries)
	if err := Write(&second, metadata, entries); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Errorf("two orders of the same tensors give different files:\n%q\n%q", first.Bytes(), second.Bytes())
	}
	wantHeader := `{"__metadata__":{"extra":"x","prompt":"{\"a\":\"<b> & \\\"c\\\"\"}"},` +
		`"latent_format_version_0":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},` +
		`"latent_tensor":{"dtype":"F32","shape":[1,2,2],"data_offsets":[0,16]},` +
		`"half":{"dtype":"F16","shape":[1],"data_offsets":[16,18]},` +
		`"mask":{"dtype":"BOOL","shape":[3],"data_offsets":[18,21]}}`
	n := binary.LittleEndian.Uint64(first.Bytes())
	if got := strings.TrimRight(string(first.Bytes()[8:8+n]), " "); got != wantHeader || n%8 != 0 {
		t.Errorf("header of %d bytes:\ngot  %s\nwant %s", n, got, wantHeader)
	}
	f, err := OpenBytes(first.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if f.Metadata()["prompt"] != metadata["prompt"] {
		t.Errorf("metadata: got %q, want %q", f.Metadata()["prompt"], metadata["prompt"])
	}
	e, _ := f.Entry("latent_tensor")
	if v, err := e.F32(); err != nil || !slices.Equal(v, []float32{1, -2.5, 3, 4}) {
		t.Errorf("latent_tensor: got %v (%v)", v, err)
	}
	for _, bad := range [][]Tensor{
		{fromF32("a", []float32{1}, 2)},
		{fromF32("a", []float32{1}, 1), fromF32("a", []float32{1}, 1)},
		{{Name: "a", DType: Other, Shape: []int{1}, Data: datafile.Of([]byte{1})}},
		{fromF32("__metadata__", []float32{1}, 1)},
	} {
		if err := Write(&bytes.Buffer{}, nil, bad); err == nil {
			t.Errorf("writing %v must fail", bad)
		}
	}
}
