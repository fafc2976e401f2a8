package pyjson

import (
	"math"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
)

func TestJSONKeepsOrderAndDigits(t *testing.T) {
	const text = `{"z": 18446744073709551615, "a": [1.0, 1e-07, -0.5, 1e+16], "m": {"b": true, "a": null}, "big": ` +
		`10000000000000000000000000000000000000000, "s": "\u72d0 \ud83e\udd8a \"\\\n\u007f"}`
	v, err := Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(Dump(v)); got != text {
		t.Errorf("read and written\n got %s\nwant %s", got, text)
	}
	if n, _ := v.(*Object).Get("z"); n != uint64(math.MaxUint64) {
		t.Errorf("seed is %v (%T)", n, n)
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
		if got := Repr(c.v); got != c.want {
			t.Errorf("repr of %v is %s, want %s", c.v, got, c.want)
		}
	}
	for text, want := range map[string]any{
		" 12\n": int64(12), "1_2": int64(12), "-7": int64(-7), "+7": int64(7),
		"\u0661\u0662": int64(12), "18446744073709551615": uint64(math.MaxUint64),
	} {
		if got, err := Int(text); err != nil || got != want {
			t.Errorf("int(%q) is %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "_1", "1__2", "1_", "12.0", "0x10", "1e3"} {
		if got, err := Int(text); err == nil {
			t.Errorf("int(%q) is %v, want an error", text, got)
		}
	}
	for _, text := range []string{"", "1,5", "0x1p3", "1__0", "abc"} {
		if got, err := Float(text); err == nil {
			t.Errorf("float(%q) is %v, want an error", text, got)
		}
	}
}

// TestDigitsOfIntegers checks Python's limit of 4300 digits, whatever surrounds them, in text and in JSON.
func TestDigitsOfIntegers(t *testing.T) {
	nines, apart := strings.Repeat("9", 4300), strings.Repeat("9_", 4299)+"9"
	for _, text := range []string{nines, "-" + nines, "+" + nines, " " + nines + "\n", apart} {
		if _, err := Int(text); err != nil {
			t.Errorf("int(%.3q...) of %d bytes: %v", text, len(text), err)
		}
	}
	if _, err := Decode([]byte("-" + nines)); err != nil {
		t.Errorf("a number of 4300 digits and a sign: %v", err)
	}
	for _, text := range []string{nines + "9", "-9" + nines} {
		_, asText := Int(text)
		_, asNumber := Decode([]byte(text))
		for _, err := range []error{asText, asNumber} {
			if want := "integer of 4301 digits: want 4300 at most"; err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%.3q... of %d bytes: got %v, want %s", text, len(text), err, want)
			}
		}
	}
}

func TestObjectEncodesAsMsgpack(t *testing.T) {
	data, err := msgpack.Marshal(NewObject("b", int64(1), "a", []any{NewObject("x", nil)}))
	if err != nil {
		t.Fatal(err)
	}
	if want := "\x82\xa1b\xd3\x00\x00\x00\x00\x00\x00\x00\x01\xa1a\x91\x81\xa1x\xc0"; string(data) != want {
		t.Errorf("got %q, want %q", data, want)
	}
}
