package tokenizer

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// Segment is a stretch of a prompt with the weight that its parentheses give it.
type Segment struct {
	Text   string
	Weight float64
}

const (
	bracketWeight = 1.1 // factor of a pair of parentheses without a number
	deepestWeight = 500 // nesting limit; ComfyUI stops at Python's recursion limit
	hiddenClose   = "\x00\x01"
	hiddenOpen    = "\x00\x02"
)

// Segments parses ComfyUI's prompt weights: (x) is 1.1 times the surrounding weight, (x:1.3) is 1.3 whatever surrounds
// it, \( and \) are literal parentheses. Unbalanced parentheses are plain text. It returns an error for weights that
// are not finite and for nesting deeper than 500.
func Segments(prompt string) ([]Segment, error) {
	out, err := weigh(hideEscapes(prompt), 1, 0, nil)
	for i := range out {
		out[i].Text = showEscapes(out[i].Text)
	}
	return out, err
}

// hideEscapes replaces escaped parentheses by marks that the parser ignores; showEscapes turns them into parentheses.
func hideEscapes(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, `\)`, hiddenClose), `\(`, hiddenOpen)
}

func showEscapes(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, hiddenClose, ")"), hiddenOpen, "(")
}

func weigh(s string, weight float64, depth int, out []Segment) ([]Segment, error) {
	if depth > deepestWeight {
		return nil, fmt.Errorf("prompt: parentheses are nested deeper than %d", deepestWeight)
	}
	for _, item := range bracketItems(s) {
		if len(item) < 2 || item[0] != '(' || item[len(item)-1] != ')' {
			out = append(out, Segment{item, weight})
			continue
		}
		inside, itemWeight := item[1:len(item)-1], weight*bracketWeight
		if colon := strings.LastIndexByte(inside, ':'); colon > 0 {
			if number, ok := pythonFloat(inside[colon+1:]); ok {
				inside, itemWeight = inside[:colon], number
			}
		}
		if math.IsNaN(itemWeight) || math.IsInf(itemWeight, 0) {
			return nil, fmt.Errorf("prompt: weight of %.40q is %v, allowed are finite numbers", item, itemWeight)
		}
		var err error
		if out, err = weigh(inside, itemWeight, depth+1, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// bracketItems splits s into outermost balanced pairs of parentheses and what is between them. The level may fall below
// zero, and a pair is recognized only when the level returns to zero, as in ComfyUI.
func bracketItems(s string) []string {
	var items []string
	start, level := 0, 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '(':
			if level == 0 && i > start {
				items = append(items, s[start:i])
				start = i
			}
			level++
		case ')':
			if level--; level == 0 {
				items = append(items, s[start:i+1])
				start = i + 1
			}
		}
	}
	if start < len(s) {
		items = append(items, s[start:])
	}
	return items
}

// pythonFloat parses a number as Python's float() does: surrounding whitespace, digits of any script, single
// underscores between digits, "inf" and "nan" in any case; no hexadecimal. Overflow gives an infinity.
func pythonFloat(s string) (float64, bool) {
	s = strings.TrimFunc(s, pythonSpace)
	if len(s) > 1000 {
		return 0, false
	}
	var clean strings.Builder
	digitBefore := false
	for i, r := range s {
		value, isDigit := digit(r)
		switch {
		case isDigit:
			clean.WriteByte('0' + byte(value))
		case r == '_':
			next, _ := digit([]rune(s[i+1:] + "x")[0])
			if !digitBefore || next < 0 {
				return 0, false
			}
		case r >= 0x80 || r == 'x' || r == 'X' || r == 'p' || r == 'P':
			return 0, false
		default:
			clean.WriteRune(r)
		}
		digitBefore = isDigit
	}
	number, err := strconv.ParseFloat(clean.String(), 64)
	if err != nil && !math.IsInf(number, 0) {
		return 0, false
	}
	return number, true
}

// digit returns the value of a decimal digit of any script, or -1. Unicode keeps each set of ten together and in order.
func digit(r rune) (int, bool) {
	if !unicode.IsDigit(r) {
		return -1, false
	}
	first := r
	for unicode.IsDigit(first - 1) {
		first--
	}
	return int(r-first) % 10, true
}
