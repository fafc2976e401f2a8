package pyregex

import (
	"slices"
	"strconv"
	"strings"
	"unicode"

	"patchbay/node/pyjson"
)

// item parses one part that may be repeated. It returns nil for a comment, and the new flags if it set any.
func (p *parser) item(f Flags, first bool) (*part, *Flags) {
	switch r := p.next(); r {
	case '.':
		if f.DotAll {
			return &part{fits: func(rune) bool { return true }}, nil
		}
		return &part{fits: func(r rune) bool { return r != '\n' }}, nil
	case '^':
		return at(atStart(f.MultiLine)), nil
	case '$':
		return at(atEnd(f.MultiLine)), nil
	case '[':
		return p.set(f), nil
	case '(':
		return p.group(f, first)
	case '\\':
		return p.escape(f), nil
	default:
		return p.literal(r, f), nil
	}
}

func at(fits func(m *match, pos int) bool) *part { return &part{kind: kindAt, at: fits} }

func atStart(lines bool) func(*match, int) bool {
	return func(m *match, pos int) bool { return pos == 0 || lines && m.text[pos-1] == '\n' }
}

func atEnd(lines bool) func(*match, int) bool {
	return func(m *match, pos int) bool {
		n := len(m.text)
		return pos == n || m.text[pos] == '\n' && (lines || pos == n-1)
	}
}

// atBoundary fits between a character of a word and one outside.
func atBoundary(word func(rune) bool, want bool) func(*match, int) bool {
	return func(m *match, pos int) bool {
		if len(m.text) == 0 {
			return false // Python 3.11: neither \b nor \B fits an empty text
		}
		before, after := pos > 0 && word(m.text[pos-1]), pos < len(m.text) && word(m.text[pos])
		return (before != after) == want
	}
}

// literal returns the part for one character.
func (p *parser) literal(c rune, f Flags) *part {
	if f.IgnoreCase {
		return &part{fits: folded(f, func(r rune) bool { return r == c })}
	}
	return &part{fits: func(r rune) bool { return r == c }}
}

// folded returns a test that a character passes if it, or one that differs from it by case only, passes.
func folded(f Flags, fits func(rune) bool) func(rune) bool {
	if f.ASCII {
		return func(r rune) bool {
			return fits(r) || r < 128 && (fits(unicode.ToLower(r)) || fits(unicode.ToUpper(r)))
		}
	}
	return func(r rune) bool { return fits(r) || slices.ContainsFunc(variants(r), fits) }
}

// unlike lists characters of one upper case that unicode.SimpleFold does not connect, but Python does.
var unlike = [][]rune{{'i', 'I', 'ı', 'İ'}, {0x390, 0x1fd3}, {0x3b0, 0x1fe3}, {0xfb05, 0xfb06}}

// variants returns the characters that differ from r by case only.
func variants(r rune) []rune {
	for _, same := range unlike {
		if slices.Contains(same, r) {
			return same
		}
	}
	var out []rune
	for o := unicode.SimpleFold(r); o != r; o = unicode.SimpleFold(o) {
		out = append(out, o)
	}
	return out
}

// class returns the test of \d, \s, \w or their opposites; nil for other letters.
func class(r rune, f Flags) func(rune) bool {
	var fits func(rune) bool
	switch unicode.ToLower(r) {
	case 'd':
		fits = func(r rune) bool { return unicode.Is(unicode.Nd, r) }
	case 's':
		fits = pyjson.IsSpace
	case 'w':
		fits = func(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r) }
	default:
		return nil
	}
	if f.ASCII {
		wide := fits
		narrow := r == 's' || r == 'S'
		fits = func(r rune) bool { return r < 128 && wide(r) && !(narrow && r >= 0x1c && r <= 0x1f) }
	}
	if unicode.IsUpper(r) {
		plain := fits
		return func(r rune) bool { return !plain(r) }
	}
	return fits
}

// escape parses what follows a backslash outside a set.
func (p *parser) escape(f Flags) *part {
	if !p.more() {
		p.fail("bad escape (end of pattern)")
	}
	r := p.next()
	if fits := class(r, f); fits != nil {
		return &part{fits: fits}
	}
	switch r {
	case 'A':
		return at(atStart(false))
	case 'Z':
		return at(func(m *match, pos int) bool { return pos == len(m.text) })
	case 'b', 'B':
		return at(atBoundary(class('w', f), r == 'b'))
	}
	if p.pos--; r == '0' || r > '9' || r < '0' {
		p.pos++
		return p.literal(p.escaped(r), f)
	}
	if c, ok := p.octal(true); ok {
		return p.literal(c, f)
	}
	n := p.groupNumber()
	return p.reference(n, strconv.Itoa(n), f)
}

// octal consumes up to three octal digits, with whole all three.
func (p *parser) octal(whole bool) (r rune, ok bool) {
	n := 0
	for n < 3 && p.pos+n < len(p.src) && p.src[p.pos+n] >= '0' && p.src[p.pos+n] <= '7' {
		n++
	}
	if n == 0 || whole && n < 3 {
		return 0, false
	}
	v, _ := strconv.ParseUint(string(p.src[p.pos:p.pos+n]), 8, 32)
	if p.pos += n; v > 0o377 {
		p.fail("octal escape value outside of range 0-0o377")
	}
	return rune(v), true
}

// groupNumber consumes one or two digits.
func (p *parser) groupNumber() int {
	n := int(p.next() - '0')
	if p.more() && p.src[p.pos] >= '0' && p.src[p.pos] <= '9' {
		n = 10*n + int(p.next()-'0')
	}
	return n
}

// escaped returns the character that an escape stands for, in a set or outside.
func (p *parser) escaped(r rune) rune {
	if i := strings.IndexRune("abfnrtv\\", r); i >= 0 && r != 'b' {
		return rune("\a\b\f\n\r\t\v\\"[i])
	}
	switch {
	case r == '0':
		p.pos--
		c, _ := p.octal(false)
		return c
	case r == 'x' || r == 'u' || r == 'U':
		want := map[rune]int{'x': 2, 'u': 4, 'U': 8}[r]
		s := string(p.src[p.pos:min(len(p.src), p.pos+want)])
		n, err := strconv.ParseUint(s, 16, 32)
		if err != nil || len(s) != want || n > unicode.MaxRune {
			p.fail("bad escape \\%c%s", r, s)
		}
		p.pos += want
		return rune(n)
	case r == 'N':
		p.refuse("characters by name")
	case r < 128 && (unicode.IsLetter(r) || unicode.IsDigit(r)):
		p.fail("bad escape \\%c", r)
	}
	return r
}

// set parses a set after its opening bracket.
func (p *parser) set(f Flags) *part {
	type span struct{ lo, hi rune }
	var spans []span
	var classes []func(rune) bool
	negated := p.take("^")
	one := func() (r rune, fits func(rune) bool) {
		if !p.more() {
			p.fail("unterminated character set")
		}
		if r = p.next(); r != '\\' {
			return r, nil
		}
		if !p.more() {
			p.fail("bad escape (end of pattern)")
		}
		switch r = p.next(); {
		case r == 'b':
			return '\b', nil
		case r >= '1' && r <= '7':
			p.pos--
			r, _ = p.octal(false)
			return r, nil
		}
		if fits = class(r, f); fits != nil {
			return 0, fits
		}
		return p.escaped(r), nil
	}
	for first := true; first || !p.peek("]"); first = false {
		lo, fits := one()
		if !p.peek("-") {
			if fits != nil {
				classes = append(classes, fits)
			} else {
				spans = append(spans, span{lo, lo})
			}
			continue
		}
		p.pos++
		if !p.more() {
			p.fail("unterminated character set")
		}
		if p.peek("]") {
			if fits != nil {
				classes = append(classes, fits)
			} else {
				spans = append(spans, span{lo, lo})
			}
			spans = append(spans, span{'-', '-'})
			break
		}
		hi, other := one()
		if fits != nil || other != nil || hi < lo {
			p.fail("bad character range")
		}
		spans = append(spans, span{lo, hi})
	}
	p.pos++
	inSpan := func(r rune) bool {
		return slices.ContainsFunc(spans, func(s span) bool { return s.lo <= r && r <= s.hi })
	}
	if f.IgnoreCase {
		inSpan = folded(f, inSpan)
	}
	return &part{fits: func(r rune) bool {
		in := inSpan(r)
		if f.IgnoreCase && !f.ASCII {
			r = unicode.ToLower(r)
		}
		return (in || slices.ContainsFunc(classes, func(c func(rune) bool) bool { return c(r) })) != negated
	}}
}
