package pyjson

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
)

// ComfyUI's messages contain Python's renderings of values, and its widgets are converted by Python's int(), float(),
// str() and bool(). Programs read those messages, so both are done the same way here (Python language reference,
// "Built-in Functions" and "Text Sequence Type").

// FormatFloat renders a float as Python's repr: shortest digits, exponent form below 1e-4 and from 1e16 on.
func FormatFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// Str is Python's str().
func Str(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	return Repr(v)
}

// Repr is Python's repr().
func Repr(v any) string {
	switch x := v.(type) {
	case nil:
		return "None"
	case bool:
		if x {
			return "True"
		}
		return "False"
	case float64:
		return FormatFloat(x)
	case string:
		return Quote(x)
	case []any:
		parts := make([]string, len(x))
		for i := range x {
			parts[i] = Repr(x[i])
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case *Object:
		parts := make([]string, len(x.keys))
		for i, k := range x.keys {
			parts[i] = Quote(k) + ": " + Repr(x.values[k])
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
	return fmt.Sprint(v)
}

// Quote is Python's repr() of a string.
func Quote(s string) string {
	q := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		q = '"'
	}
	var b strings.Builder
	b.WriteByte(q)
	for _, r := range s {
		switch {
		case r == rune(q) || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	b.WriteByte(q)
	return b.String()
}

// TypeName is the name of a value's Python type.
func TypeName(v any) string {
	python, _ := kind(v)
	return python
}

// Kind names the type of a value for people, as in "a string".
func Kind(v any) string {
	_, people := kind(v)
	return people
}

func kind(v any) (python, people string) {
	switch v.(type) {
	case nil:
		return "NoneType", "null"
	case bool:
		return "bool", "a boolean"
	case string:
		return "str", "a string"
	case float64:
		return "float", "a number"
	case []any:
		return "list", "a list"
	case *Object:
		return "dict", "an object"
	}
	return "int", "a number"
}

// Int is Python's int(): numbers are truncated towards zero, text is parsed. The result is int64, uint64 or *big.Int.
func Int(v any) (any, error) {
	switch x := v.(type) {
	case int64, uint64, *big.Int:
		return v, nil
	case bool:
		if x {
			return int64(1), nil
		}
		return int64(0), nil
	case float64:
		if math.IsNaN(x) {
			return nil, errors.New("cannot convert float NaN to integer")
		}
		if math.IsInf(x, 0) {
			return nil, errors.New("cannot convert float infinity to integer")
		}
		n, _ := new(big.Float).SetFloat64(math.Trunc(x)).Int(nil)
		return shrink(n), nil
	case string:
		s := asciiDigits(x)
		switch n := digits(s); {
		case n > maxDigits:
			return nil, tooLong(n)
		case n > 0:
			if i, ok := new(big.Int).SetString(s, 10); ok {
				return shrink(i), nil
			}
		}
		shown := []rune(Repr(x)) // Python truncates the text here, and only here
		return nil, fmt.Errorf("invalid literal for int() with base 10: %s", string(shown[:min(len(shown), 200)]))
	}
	return nil, fmt.Errorf("int() argument must be a string, a bytes-like object or a real number, not '%s'", TypeName(v))
}

// Float is Python's float().
func Float(v any) (float64, error) {
	switch x := v.(type) {
	case float64:
		return x, nil
	case int64:
		return float64(x), nil
	case uint64:
		return float64(x), nil
	case *big.Int:
		f, _ := new(big.Float).SetInt(x).Float64()
		if math.IsInf(f, 0) {
			return 0, errors.New("int too large to convert to float")
		}
		return f, nil
	case bool:
		if x {
			return 1, nil
		}
		return 0, nil
	case string:
		s := asciiDigits(x)
		if !strings.ContainsAny(s, "xXpP") {
			f, err := strconv.ParseFloat(s, 64)
			if err == nil || math.IsInf(f, 0) {
				return f, nil
			}
		}
		return 0, fmt.Errorf("could not convert string to float: %s", Repr(x))
	}
	return 0, fmt.Errorf("float() argument must be a string or a real number, not '%s'", TypeName(v))
}

// Bool is Python's truth value.
func Bool(v any) bool {
	switch x := v.(type) {
	case nil:
		return false
	case bool:
		return x
	case string:
		return x != ""
	case float64:
		return x != 0
	case int64:
		return x != 0
	case []any:
		return len(x) > 0
	case *Object:
		return x.Len() > 0
	}
	return true
}

// asciiDigits trims white space, maps the decimal digits of every script to ASCII and drops single underscores between
// digits: what int() and float() do to text first. Misplaced underscores stay, and make the parse fail.
func asciiDigits(s string) string {
	rs := []rune(strings.TrimFunc(s, IsSpace))
	var b strings.Builder
	for i, r := range rs {
		switch {
		case unicode.Is(unicode.Nd, r):
			b.WriteByte(byte('0' + digitValue(r)))
		case r == '_' && i > 0 && i+1 < len(rs) && unicode.Is(unicode.Nd, rs[i-1]) && unicode.Is(unicode.Nd, rs[i+1]):
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// digitValue is the value of a decimal digit: Unicode lays the ten digits of every script out in a row that starts at a
// range of class Nd, or at a multiple of ten from it.
func digitValue(r rune) int {
	first := r
	for unicode.Is(unicode.Nd, first-1) {
		first--
	}
	return int(r-first) % 10
}

// maxDigits is Python's limit on the digits of an integer.
const maxDigits = 4300

// digits returns the number of digits of an integer in ASCII, 0 if s is none.
func digits(s string) int {
	if s != "" && (s[0] == '+' || s[0] == '-') {
		s = s[1:]
	}
	if strings.Trim(s, "0123456789") != "" {
		return 0
	}
	return len(s)
}

func tooLong(digits int) error {
	return limitError(fmt.Sprintf("integer of %d digits: want %d at most", digits, maxDigits))
}

// shrink turns a big integer into the smallest type that a Workflow uses for it.
func shrink(n *big.Int) any {
	switch {
	case n.IsInt64():
		return n.Int64()
	case n.IsUint64():
		return n.Uint64()
	}
	return n
}

// Excerpt shortens text of a workflow for an error message, which a prompt in the wrong place must not fill. Integers
// that Python can read stay whole.
func Excerpt(s string) string {
	const most = 1000
	if n := digits(s); len(s) <= most || n > 0 && n <= maxDigits {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + fmt.Sprintf("... (%d bytes)", len(s))
}
