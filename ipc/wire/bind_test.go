package wire_test

import (
	"bytes"
	"math"
	"reflect"
	"strings"
	"testing"

	"patchbay/array"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

func TestBindChecksRanges(t *testing.T) {
	type target struct {
		U8  uint8   `json:"u8"`
		I32 int32   `json:"i32"`
		U64 uint64  `json:"u64"`
		I64 int64   `json:"i64"`
		F   float64 `json:"f"`
		S   string  `json:"s"`
		B   bool    `json:"b"`
		L   []int   `json:"l"`
	}
	for _, c := range []struct {
		field string
		value any
		ok    bool
	}{
		{"u8", int64(255), true},
		{"u8", int64(300), false},
		{"u8", int64(-1), false},
		{"u8", 3.0, true},
		{"u8", 3.5, false},
		{"u8", "3", false},
		{"u8", true, false},
		{"i32", int64(1 << 40), false},
		{"i32", int64(-5), true},
		{"u64", uint64(math.MaxUint64), true},
		{"u64", int64(-5), false},
		{"u64", 1e30, false},
		{"u64", 18446744073709551616.0, false},
		{"i64", uint64(math.MaxUint64), false},
		{"i64", math.NaN(), false},
		{"f", int64(3), true},
		{"f", math.NaN(), false},
		{"f", math.Inf(1), false},
		{"f", "1", false},
		{"s", []byte("x"), false},
		{"s", int64(1), false},
		{"b", int64(1), false},
		{"l", []any{int64(1), "x"}, false},
		{"l", int64(1), false},
		{"s", nil, true},
	} {
		var v target
		err := wire.Bind(pyjson.NewObject(c.field, c.value), &v)
		if (err == nil) != c.ok {
			t.Errorf("%s = %v (%T): got error %v, want ok %v", c.field, c.value, c.value, err, c.ok)
		}
		if err != nil && !strings.Contains(err.Error(), "field "+c.field) {
			t.Errorf("%s: the error does not name the field: %v", c.field, err)
		}
	}
}

func TestTensorReadsBack(t *testing.T) {
	want := &wire.Tensor{Tensor: array.Tensor{
		DType: "f32", Shape: []int{1, 2}, Data: []byte{0, 0, 128, 63, 0, 0, 0, 64},
	}}
	for _, enc := range []wire.Encoding{wire.Msgpack, wire.JSON} {
		b, err := wire.Encode(map[string]any{"x": []any{want}}, enc)
		if err != nil {
			t.Fatal(err)
		}
		// what a node returns is written as what a message holds
		if same, err := wire.Encode(map[string]any{"x": []any{&want.Tensor}}, enc); err != nil || !bytes.Equal(same, b) {
			t.Errorf("encoding %d: got %q %v for a tensor alone, want %q", enc, same, err, b)
		}
		o, err := wire.Decode(b, enc, wire.DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		l, _ := o.Get("x")
		if got := l.([]any)[0]; !reflect.DeepEqual(got, want) {
			t.Errorf("encoding %d: got %+v, want %+v", enc, got, want)
		}
	}
}

// TestTensorsByHashAreRefused checks that a tensor in msgpack that has a hash is refused, also beside its data: whoever
// sends one would later send the hash alone.
func TestTensorsByHashAreRefused(t *testing.T) {
	fields := map[string]any{"dtype": "u8", "shape": []int{2}, "data": []byte{1, 2}}
	message := func() []byte {
		inner, err := wire.EncodeMsgpack(fields)
		if err != nil {
			t.Fatal(err)
		}
		return append([]byte{0x81, 0xa1, 'a', 0xc7, byte(len(inner)), 1}, inner...)
	}
	if _, err := wire.Decode(message(), wire.Msgpack, wire.DefaultLimits()); err != nil {
		t.Fatal(err)
	}
	fields["hash"] = strings.Repeat("ab", 32)
	for _, how := range []string{"beside its data", "alone"} {
		if _, err := wire.Decode(message(), wire.Msgpack, wire.DefaultLimits()); err == nil ||
			!strings.Contains(err.Error(), "tensor: hash: tensors are no longer kept by their hash") {
			t.Errorf("%s: got %v, want that hash is refused", how, err)
		}
		delete(fields, "data")
	}
}

// TestTensorsInTwoPlacesAreRefused checks that a tensor is taken with data or a reference to as many bytes, not with
// both.
func TestTensorsInTwoPlacesAreRefused(t *testing.T) {
	const ref, data = `"ref": {"kind": "shm", "bytes": 2}`, `"data": "AQI="`
	for fields, ok := range map[string]bool{ref: true, data: true, ref + ", " + data: false} {
		message := `{"x": {"$tensor": {"dtype": "u8", "shape": [2], ` + fields + `}}}`
		_, err := wire.Decode([]byte(message), wire.JSON, wire.DefaultLimits())
		if ok && err != nil || !ok && (err == nil || !strings.Contains(err.Error(), "tensor has data and a ref")) {
			t.Errorf("%s: got %v, want it taken: %v", fields, err, ok)
		}
	}
}
