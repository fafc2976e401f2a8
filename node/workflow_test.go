package node

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
)

func TestJSONKeepsOrderAndDigits(t *testing.T) {
	const text = `{"z": 18446744073709551615, "a": [1.0, 1e-07, -0.5, 1e+16], "m": {"b": true, "a": null}, "big": 10000000000000000000000000000000000000000, "s": "\u72d0 \ud83e\udd8a \"\\\n\u007f"}`
	v, err := DecodeJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(DumpJSON(v)); got != text {
		t.Errorf("read and written\n got %s\nwant %s", got, text)
	}
	if n, _ := v.(*Object).Get("z"); n != uint64(math.MaxUint64) {
		t.Errorf("seed is %v (%T)", n, n)
	}
}

func TestParseWorkflowTakesDecodedMaps(t *testing.T) {
	from := map[string]any{
		"10": map[string]any{"class_type": "KSampler", "inputs": map[string]any{"seed": uint64(math.MaxUint64), "steps": int8(4), "cfg": json.Number("1.5"), "model": []any{"2", int16(0)}}},
		"2":  map[any]any{"class_type": "UNETLoader", "inputs": map[any]any{"x": float32(0.5)}},
	}
	w, failure := ParseWorkflow(from)
	if failure != nil {
		t.Fatal(failure)
	}
	if ids := w.IDs(); !reflect.DeepEqual(ids, []string{"2", "10"}) {
		t.Errorf("ids %v, want 2, 10", ids)
	}
	seed, _ := w.Input("10", "seed")
	steps, _ := w.Input("10", "steps")
	cfg, _ := w.Input("10", "cfg")
	if seed != uint64(math.MaxUint64) || steps != int64(4) || cfg != 1.5 {
		t.Errorf("seed %v, steps %v, cfg %v", seed, steps, cfg)
	}
	if err := w.SetInput("10", "seed", 7); err != nil {
		t.Fatal(err)
	}
	if err := w.SetInput("11", "seed", 7); err == nil || !strings.Contains(err.Error(), "2, 10") {
		t.Errorf("setting an input of a node that is not there: %v", err)
	}
	copied := w.Clone()
	if err := copied.SetInput("10", "seed", 8); err != nil {
		t.Fatal(err)
	}
	if seed, _ := w.Input("10", "seed"); seed != int64(7) {
		t.Errorf("changing a clone changed the original: seed %v", seed)
	}
}

func TestParseWorkflowRefuses(t *testing.T) {
	deep := strings.Repeat("[", 200) + strings.Repeat("]", 200)
	for name, c := range map[string]struct{ text, code string }{
		"editor format": {`{"nodes": [], "links": [], "version": 0.4}`, CodeWorkflowFormatUI},
		"list":          {`[1]`, CodeInvalidPrompt},
		"depth":         {`{"1": {"class_type": "A", "inputs": {"x": ` + deep + `}}}`, CodeInvalidPrompt},
		"empty":         {``, CodeInvalidPrompt},
		"trailing":      {`{} x`, CodeInvalidPrompt},
		"bad number":    {`{"1": 01}`, CodeInvalidPrompt},
		"bad string":    {"{\"a\nb\": 1}", CodeInvalidPrompt},
	} {
		if _, f := ParseWorkflowJSON([]byte(c.text)); f == nil || f.Code != c.code {
			t.Errorf("%s: got %v, want %s", name, f, c.code)
		}
	}
	if _, f := ParseWorkflow(map[string]any{"1": make(chan int)}); f == nil || f.Code != CodeTooLarge {
		t.Errorf("a channel: %v", f)
	}
}

func TestPythonText(t *testing.T) {
	for _, c := range []struct {
		v    any
		want string
	}{
		{1.0, "1.0"},
		{1e16, "1e+16"},
		{123456789012345680.0, "1.2345678901234568e+17"},
		{0.0001, "0.0001"},
		{0.00001, "1e-05"},
		{math.Inf(-1), "-inf"},
		{"it's", `"it's"`},
		{`both ' and "`, `'both \' and "'`},
		{"tab\t\x01é狐", `'tab\t\x01é狐'`},
		{[]any{nil, true, "a"}, "[None, True, 'a']"},
		{NewObject("a", int64(1), "b", []any{}), "{'a': 1, 'b': []}"},
	} {
		if got := pyRepr(c.v); got != c.want {
			t.Errorf("repr of %v is %s, want %s", c.v, got, c.want)
		}
	}
	for text, want := range map[string]any{" 12\n": int64(12), "1_2": int64(12), "-7": int64(-7), "+7": int64(7), "\u0661\u0662": int64(12), "18446744073709551615": uint64(math.MaxUint64)} {
		if got, err := pyInt(text); err != nil || got != want {
			t.Errorf("int(%q) is %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "_1", "1__2", "1_", "12.0", "0x10", "1e3"} {
		if got, err := pyInt(text); err == nil {
			t.Errorf("int(%q) is %v, want an error", text, got)
		}
	}
	for _, text := range []string{"", "1,5", "0x1p3", "1__0", "abc"} {
		if got, err := pyFloatOf(text); err == nil {
			t.Errorf("float(%q) is %v, want an error", text, got)
		}
	}
}

func FuzzWorkflowJSON(f *testing.F) { workflowTarget().Fuzz(f) }
