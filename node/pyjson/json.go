package pyjson

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Limits of a decoded value, far above what people send and far below what hurts.
const (
	maxBytes  = 16 << 20 // of text
	maxDepth  = 64       // of nested lists and objects
	maxValues = 1 << 20
)

// Decode reads one JSON value as Python's json module does: objects keep their order (*Object), integers keep all
// digits, NaN, Infinity and -Infinity are numbers. The text must be UTF-8; lone surrogates in escapes become U+FFFD.
// Nesting is limited to 64 levels and the text to 16 MiB. Errors name the byte offset.
func Decode(data []byte) (any, error) {
	if len(data) > maxBytes {
		return nil, limitError(fmt.Sprintf("text of %d bytes, the limit is %d", len(data), maxBytes))
	}
	if !utf8.Valid(data) {
		return nil, fmt.Errorf("text is not valid UTF-8")
	}
	p := &jsonParser{s: data, left: maxValues}
	p.space()
	if p.i == len(p.s) {
		return nil, fmt.Errorf("empty text")
	}
	v, err := p.value(0)
	if err != nil {
		return nil, err
	}
	p.space()
	if p.i != len(p.s) {
		return nil, p.errorf("text after the value")
	}
	return v, nil
}

// limitError says that a value is larger than this program or Python's int takes, not that its text is malformed.
type limitError string

func (e limitError) Error() string { return string(e) }

// TooLarge reports whether Decode refused a text for its size.
func TooLarge(err error) bool {
	var e limitError
	return errors.As(err, &e)
}

type jsonParser struct {
	s    []byte
	i    int
	left int
}

func (p *jsonParser) errorf(format string, args ...any) error {
	return fmt.Errorf(format+" at byte %d", append(args, p.i)...)
}

func (p *jsonParser) space() {
	for p.i < len(p.s) && strings.IndexByte(" \t\r\n", p.s[p.i]) >= 0 {
		p.i++
	}
}

func (p *jsonParser) value(depth int) (any, error) {
	if depth > maxDepth {
		return nil, p.errorf("%w", limitError(fmt.Sprintf("nested deeper than %d levels", maxDepth)))
	}
	if p.left--; p.left < 0 {
		return nil, p.errorf("%w", limitError(fmt.Sprintf("more than %d values", maxValues)))
	}
	if p.i >= len(p.s) {
		return nil, p.errorf("unexpected end")
	}
	switch c := p.s[p.i]; {
	case c == '{':
		return p.object(depth)
	case c == '[':
		return p.list(depth)
	case c == '"':
		return p.text()
	case c == '-' || (c >= '0' && c <= '9'):
		return p.number()
	}
	for _, w := range []struct {
		name  string
		value any
	}{{"true", true}, {"false", false}, {"null", nil}, {"NaN", math.NaN()}, {"Infinity", math.Inf(1)}} {
		if p.word(w.name) {
			return w.value, nil
		}
	}
	return nil, p.errorf("unexpected character %q", p.s[p.i])
}

func (p *jsonParser) word(w string) bool {
	if len(p.s)-p.i < len(w) || string(p.s[p.i:p.i+len(w)]) != w {
		return false
	}
	p.i += len(w)
	return true
}

func (p *jsonParser) object(depth int) (any, error) {
	o := NewObject()
	return o, p.parts("}", func() error {
		if p.i >= len(p.s) || p.s[p.i] != '"' {
			return p.errorf("expected a key in double quotes")
		}
		k, err := p.text()
		if err != nil {
			return err
		}
		p.space()
		if !p.word(":") {
			return p.errorf("expected ':'")
		}
		p.space()
		v, err := p.value(depth + 1)
		o.Set(k, v)
		return err
	})
}

func (p *jsonParser) list(depth int) (any, error) {
	l := []any{}
	err := p.parts("]", func() error {
		v, err := p.value(depth + 1)
		l = append(l, v)
		return err
	})
	return l, err
}

// parts reads the comma-separated parts between a bracket and its end.
func (p *jsonParser) parts(end string, part func() error) error {
	p.i++
	p.space()
	if p.word(end) {
		return nil
	}
	for {
		p.space()
		if err := part(); err != nil {
			return err
		}
		p.space()
		if p.word(end) {
			return nil
		}
		if !p.word(",") {
			return p.errorf("expected ',' or '%s'", end)
		}
	}
}

// number reads a number by the grammar of RFC 8259 section 6, or Python's -Infinity.
func (p *jsonParser) number() (any, error) {
	start := p.i
	if p.word("-") && p.word("Infinity") {
		return math.Inf(-1), nil
	}
	digits := func() bool {
		n := p.i
		for p.i < len(p.s) && p.s[p.i] >= '0' && p.s[p.i] <= '9' {
			p.i++
		}
		return p.i > n
	}
	if !p.word("0") && !digits() {
		return nil, p.errorf("bad number")
	}
	if p.word(".") && !digits() {
		return nil, p.errorf("bad number")
	}
	if p.word("e") || p.word("E") {
		if !p.word("+") {
			p.word("-")
		}
		if !digits() {
			return nil, p.errorf("bad number")
		}
	}
	v, err := parseNumber(string(p.s[start:p.i]))
	if err != nil {
		return nil, p.errorf("%w", err)
	}
	return v, nil
}

// text reads a string; encoding/json resolves the escapes.
func (p *jsonParser) text() (s string, err error) {
	start, plain := p.i, true
	for p.i++; p.i < len(p.s) && p.s[p.i] != '"'; p.i++ {
		if c := p.s[p.i]; c < 0x20 {
			return "", p.errorf("control character in a string")
		} else if c == '\\' {
			plain = false
			p.i++
		}
	}
	if p.i++; p.i > len(p.s) {
		p.i = len(p.s)
		return "", p.errorf("string without an end")
	}
	if plain {
		return string(p.s[start+1 : p.i-1]), nil
	}
	if err = json.Unmarshal(p.s[start:p.i], &s); err != nil {
		return "", p.errorf("%v in the string that ends", err)
	}
	return s, nil
}

// Dump writes a value as Python's json.dumps with default settings does: separators ", " and ": ", everything outside
// printable ASCII escaped, floats in repr form. It takes what Decode returns, and everything that encoding/json can
// marshal.
func Dump(v any) []byte {
	var b strings.Builder
	dumpValue(&b, v)
	return []byte(b.String())
}

func dumpValue(b *strings.Builder, v any) {
	switch x := v.(type) {
	case nil:
		b.WriteString("null")
	case bool:
		b.WriteString(strconv.FormatBool(x))
	case string:
		dumpText(b, x)
	case int64, uint64, *big.Int:
		fmt.Fprint(b, x)
	case float64:
		switch {
		case math.IsNaN(x):
			b.WriteString("NaN")
		case math.IsInf(x, 0):
			b.WriteString(strings.Replace(FormatFloat(x), "inf", "Infinity", 1))
		default:
			b.WriteString(FormatFloat(x))
		}
	case *Object:
		b.WriteByte('{')
		for i, k := range x.keys {
			if i > 0 {
				b.WriteString(", ")
			}
			dumpText(b, k)
			b.WriteString(": ")
			dumpValue(b, x.values[k])
		}
		b.WriteByte('}')
	case []any:
		b.WriteByte('[')
		for i, e := range x {
			if i > 0 {
				b.WriteString(", ")
			}
			dumpValue(b, e)
		}
		b.WriteByte(']')
	default:
		dumpOther(b, v)
	}
}

// dumpOther writes maps, small numbers and foreign values.
func dumpOther(b *strings.Builder, v any) {
	if n, err := Normalize(v); err == nil {
		dumpValue(b, n)
		return
	}
	text, err := json.Marshal(v)
	if err != nil {
		b.WriteString("null")
		return
	}
	if back, err := Decode(text); err == nil {
		dumpValue(b, back)
	}
}

func dumpText(b *strings.Builder, s string) {
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case strings.ContainsRune("\"\\\b\f\n\r\t", r):
			b.WriteByte('\\')
			b.WriteByte("\"\\bfnrt"[strings.IndexRune("\"\\\b\f\n\r\t", r)])
		case r >= 0x20 && r < 0x7f:
			b.WriteRune(r)
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(b, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(b, `\u%04x`, r)
		}
	}
	b.WriteByte('"')
}
