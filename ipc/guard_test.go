package ipc

import (
	"bytes"
	"encoding/binary"
	"math"
	"runtime"
	"strings"
	"testing"

	"patchbay/node/pyjson"
)

// bombs are bodies that make a plain decoder allocate gigabytes, overflow its stack, or read past the end.
func bombs() map[string][]byte {
	deep := func(open byte, n int) []byte { return append(bytes.Repeat([]byte{open}, n), 0xc0) }
	u32 := func(kind byte, n uint32, rest ...byte) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{kind}, n), rest...)
	}
	in := func(v []byte) []byte { return append([]byte{0x81, 0xa1, 'k'}, v...) }
	return map[string][]byte{
		"array32 of 4G":         in(u32(0xdd, math.MaxUint32, 1)),
		"map32 of 4G":           in(u32(0xdf, math.MaxUint32)),
		"bare map32 of 4G":      u32(0xdf, math.MaxUint32),
		"bin32 of 4G":           in(u32(0xc6, math.MaxUint32)),
		"str32 of 4G":           in(u32(0xdb, math.MaxUint32, 'a')),
		"ext32 of 4G":           in(u32(0xc9, math.MaxUint32, 1)),
		"map16 of 65535":        in([]byte{0xde, 0xff, 0xff}),
		"depth 1e7":             in(deep(0x91, 1e7)),
		"depth 65":              in(deep(0x91, 65)),
		"maps in maps":          bytes.Repeat([]byte{0x81, 0xa1, 'k'}, 100),
		"0xc1":                  in([]byte{0xc1}),
		"cut off in a length":   in([]byte{0xdd, 0xff}),
		"cut off in a number":   in([]byte{0xcf, 1, 2}),
		"trailing byte":         {0x80, 0xc0},
		"two maps":              {0x80, 0x80},
		"array as a message":    {0x90},
		"more values than fit":  in(append(u32(0xdd, 300000), bytes.Repeat([]byte{0xc0}, 300000)...)),
		"duplicate key":         {0x82, 0xa1, 'k', 1, 0xa1, 'k', 2},
		"integer key":           {0x81, 1, 1},
		"broken UTF-8":          in([]byte{0xa1, 0xff}),
		"unknown extension":     in([]byte{0xd4, 99, 0}),
		"tensor without fields": in([]byte{0xd4, 1, 0x80}),
		"tensor with a bomb":    in([]byte{0xc7, 5, 1, 0xdd, 0xff, 0xff, 0xff, 0xff}),
	}
}

func TestGuardRefusesBombsCheaply(t *testing.T) {
	for name, body := range bombs() {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Decode(body, Msgpack, DefaultLimits())
		runtime.ReadMemStats(&after)
		if err == nil {
			t.Errorf("%s: decoded", name)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 {
			t.Errorf("%s: got %d bytes allocated, want less than 1 MiB", name, used)
		}
	}
}

func TestGuardJSON(t *testing.T) {
	for name, body := range map[string]string{
		"depth 1e7":        strings.Repeat("[", 1e7),
		"depth 1e7 closed": `{"a":` + strings.Repeat("[", 5e6) + strings.Repeat("]", 5e6) + "}",
		"many values":      `{"a":[` + strings.Repeat("1,", 300000) + "1]}",
		"not UTF-8":        "{\"a\":\"\xff\"}",
		"list":             `[1]`,
		"trailing":         `{} {}`,
		"cut off":          `{"a":`,
		"bad tensor":       `{"a":{"$tensor":{"dtype":"f32","shape":[3],"data":"AAAA"}}}`,
		"huge shape":       `{"a":{"$tensor":{"dtype":"f32","shape":[4611686018427387904,4],"data":""}}}`,
	} {
		if _, err := Decode([]byte(body), JSON, DefaultLimits()); err == nil {
			t.Errorf("%s: decoded", name)
		}
	}
	if _, err := Decode([]byte(`{"a":"[[[[`+strings.Repeat("[", 200)+`"}`), JSON, DefaultLimits()); err != nil {
		t.Errorf("brackets inside a string: %v", err)
	}
}

func TestGuardAcceptsWhatItShould(t *testing.T) {
	big := make([]byte, 16<<20)
	body, err := encodeMsgpack(map[string]any{"a": []any{1, -1, 1.5, nil, true, "x", big}, "b": map[string]any{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := Guard(body, Msgpack, DefaultLimits()); err != nil {
		t.Error(err)
	}
	if err := Guard(body, Msgpack, Limits{Bytes: 1 << 20, Depth: 64, Items: 100}); err == nil {
		t.Error("a body over the limit of bytes was accepted")
	}
}

func TestDecodeKeepsNumbersAndOrder(t *testing.T) {
	for _, enc := range []Encoding{Msgpack, JSON} {
		in := pyjson.NewObject("z", uint64(math.MaxUint64), "a", int64(math.MinInt64), "m", 1.5, "s", "é", "n", nil, "l", []any{true, int64(3)})
		body, err := Encode(in, enc)
		if err != nil {
			t.Fatal(err)
		}
		out, err := Decode(body, enc, DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		if got, want := strings.Join(out.Keys(), ""), "zamsnl"; got != want {
			t.Errorf("encoding %d: got keys %s, want %s", enc, got, want)
		}
		for _, k := range []string{"z", "a", "m", "s", "n"} {
			got, _ := out.Get(k)
			want, _ := in.Get(k)
			if got != want {
				t.Errorf("encoding %d, %s: got %v (%T), want %v (%T)", enc, k, got, got, want, want)
			}
		}
	}
}

func FuzzGuard(f *testing.F) { guardTarget(f).Fuzz(f) }

func BenchmarkGuardTensor16MiB(b *testing.B) {
	body, err := encodeMsgpack(map[string]any{"x": make([]byte, 16<<20)})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := Guard(body, Msgpack, DefaultLimits()); err != nil {
			b.Fatal(err)
		}
	}
}
