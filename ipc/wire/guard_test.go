package wire_test

import (
	"math"
	"runtime"
	"strings"
	"testing"

	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
	"patchbay/node/pyjson"
)

func TestGuardRefusesBombsCheaply(t *testing.T) {
	for name, body := range wiretest.Bombs() {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := wire.Decode(body, wire.Msgpack, wire.DefaultLimits())
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
		if _, err := wire.Decode([]byte(body), wire.JSON, wire.DefaultLimits()); err == nil {
			t.Errorf("%s: decoded", name)
		}
	}
	if _, err := wire.Decode([]byte(`{"a":"[[[[`+strings.Repeat("[", 200)+`"}`), wire.JSON,
		wire.DefaultLimits()); err != nil {
		t.Errorf("brackets inside a string: %v", err)
	}
}

func TestGuardAcceptsWhatItShould(t *testing.T) {
	big := make([]byte, 16<<20)
	body, err := wire.EncodeMsgpack(map[string]any{"a": []any{1, -1, 1.5, nil, true, "x", big}, "b": map[string]any{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := wire.Guard(body, wire.Msgpack, wire.DefaultLimits()); err != nil {
		t.Error(err)
	}
	if err := wire.Guard(body, wire.Msgpack, wire.Limits{Bytes: 1 << 20, Depth: 64, Items: 100}); err == nil {
		t.Error("a body over the limit of bytes was accepted")
	}
}

func TestDecodeKeepsNumbersAndOrder(t *testing.T) {
	for _, enc := range []wire.Encoding{wire.Msgpack, wire.JSON} {
		in := pyjson.NewObject("z", uint64(math.MaxUint64), "a", int64(math.MinInt64), "m", 1.5, "s", "é", "n", nil, "l",
			[]any{true, int64(3)})
		body, err := wire.Encode(in, enc)
		if err != nil {
			t.Fatal(err)
		}
		out, err := wire.Decode(body, enc, wire.DefaultLimits())
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

func BenchmarkGuardTensor16MiB(b *testing.B) {
	body, err := wire.EncodeMsgpack(map[string]any{"x": make([]byte, 16<<20)})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := wire.Guard(body, wire.Msgpack, wire.DefaultLimits()); err != nil {
			b.Fatal(err)
		}
	}
}
