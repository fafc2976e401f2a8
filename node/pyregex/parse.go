package pyregex

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ErrUnsupported says that this package does not take a pattern or a text that Python does; every other error is one
// of Python's re.error.
var ErrUnsupported = errors.New("not supported")

// Flags of a pattern, those of Python's re.
type Flags struct{ IgnoreCase, MultiLine, DotAll, Verbose, ASCII bool }

// kind is the kind of a part of a pattern.
type kind uint8

const (
	kindChar kind = iota // one character that fits
	kindSeq
	kindAlt
	kindRepeat
	kindGroup
	kindRef
	kindAt
	kindLook
	kindAtomic
	kindCond
)

// part is a node of the parsed pattern.
type part struct {
	kind     kind
	fits     func(r rune) bool // kindChar
	parts    []*part
	min, max int  // kindRepeat; max < 0: no limit
	lazy     bool // kindRepeat
	keeps    bool // kindAtomic: a possessive repetition
	group    int  // kindGroup (0: none is captured), kindRef, kindCond
	at       func(m *match, pos int) bool
	negated  bool // kindLook
	width    int  // kindLook: of what is behind
	fold     func(r rune) rune
}

// parser reads a pattern. Errors travel as panics of type parseError.
type parser struct {
	src    []rune
	pos    int
	names  map[string]int
	groups []*part // by number; nil while one is open
	behind []int   // number of groups at the beginning of each open look-behind
	late   []int   // groups that conditions name
	depth  int
}

type parseError struct{ err error }

// caught turns a panic with a parseError into the error of the function that defers it.
func caught(err *error) {
	if p := recover(); p != nil {
		failure, ok := p.(parseError)
		if !ok {
			panic(p)
		}
		*err = failure.err
	}
}

// fail gives up with an error of Python's re.
func (p *parser) fail(format string, args ...any) {
	panic(parseError{fmt.Errorf(format+" at position %d", append(args, p.pos)...)})
}

func (p *parser) refuse(format string, args ...any) {
	panic(parseError{fmt.Errorf("%w: %s at position %d", ErrUnsupported, fmt.Sprintf(format, args...), p.pos)})
}

func (p *parser) more() bool { return p.pos < len(p.src) }

func (p *parser) peek(s string) bool {
	return strings.HasPrefix(string(p.src[p.pos:min(len(p.src), p.pos+len(s))]), s)
}

// take consumes s if it comes next.
func (p *parser) take(s string) bool {
	if !p.peek(s) {
		return false
	}
	p.pos += len([]rune(s))
	return true
}

func (p *parser) next() rune {
	if !p.more() {
		p.fail("unexpected end of pattern")
	}
	p.pos++
	return p.src[p.pos-1]
}

// until consumes the text up to end, and end.
func (p *parser) until(end rune, what string) string {
	n := slices.Index(p.src[p.pos:], end)
	switch {
	case n < 0 && !p.more():
		p.fail("missing %s", what)
	case n < 0:
		p.fail("missing %c, unterminated name", end)
	case n == 0:
		p.fail("missing %s", what)
	}
	s := string(p.src[p.pos : p.pos+n])
	p.pos += n + 1
	return s
}

// maxNesting bounds the nesting of groups, and with it the stack of the parser.
const maxNesting = 200

// alternatives parses up to a closing parenthesis or the end.
func (p *parser) alternatives(f Flags, top bool) *part {
	if p.depth++; p.depth > maxNesting {
		p.refuse("groups nested deeper than %d", maxNesting)
	}
	defer func() { p.depth-- }()
	alt := &part{kind: kindAlt}
	for {
		seq, used := p.sequence(f, top && len(alt.parts) == 0)
		alt.parts, f = append(alt.parts, seq), used
		if !p.take("|") {
			break
		}
	}
	if len(alt.parts) == 1 {
		return alt.parts[0]
	}
	return alt
}

// sequence parses one alternative. Flags for the whole pattern may stand at its very beginning: used has them.
func (p *parser) sequence(f Flags, first bool) (seq *part, used Flags) {
	seq = &part{kind: kindSeq}
	for p.more() && !p.peek("|") && !p.peek(")") {
		if f.Verbose && p.blank() {
			continue
		}
		at := p.pos
		if r := p.next(); strings.ContainsRune("*+?{", r) {
			p.repeat(seq, r, f)
			continue
		}
		p.pos = at
		if one, set := p.item(f, first && len(seq.parts) == 0); one != nil {
			seq.parts = append(seq.parts, one)
		} else if set != nil {
			f = *set
		}
	}
	return seq, f
}

// blank skips white space and comments of a verbose pattern.
func (p *parser) blank() bool {
	switch r := p.src[p.pos]; {
	case strings.ContainsRune(" \t\n\r\v\f", r):
		p.pos++
	case r == '#':
		n := slices.Index(p.src[p.pos:], '\n')
		if n < 0 {
			n = len(p.src) - p.pos - 1
		}
		p.pos += n + 1
	default:
		return false
	}
	return true
}

// maxRepeat is one more than the largest count of a repetition.
const maxRepeat = 1<<32 - 1

// repeat parses the rest of a repetition and applies it to the last part.
func (p *parser) repeat(seq *part, sign rune, f Flags) {
	start := p.pos
	rep := &part{kind: kindRepeat, max: -1}
	switch sign {
	case '+':
		rep.min = 1
	case '?':
		rep.max = 1
	case '{':
		literal := func() {
			p.pos = start
			seq.parts = append(seq.parts, p.literal('{', f))
		}
		if p.peek("}") {
			literal()
			return
		}
		low, high := p.digits(), ""
		if high = low; p.take(",") {
			high = p.digits()
		}
		if !p.take("}") {
			literal()
			return
		}
		rep.min = max(p.count(low), 0)
		if rep.max = p.count(high); rep.max >= 0 && rep.max < rep.min {
			p.fail("min repeat greater than max repeat")
		}
	}
	if len(seq.parts) == 0 {
		p.fail("nothing to repeat")
	}
	last := seq.parts[len(seq.parts)-1]
	if last.kind == kindAt {
		p.fail("nothing to repeat")
	}
	if last.kind == kindRepeat || last.keeps {
		p.fail("multiple repeat")
	}
	rep.parts = []*part{last}
	switch {
	case p.take("?"):
		rep.lazy = true
	case p.take("+"):
		rep = &part{kind: kindAtomic, parts: []*part{rep}, keeps: true}
	}
	seq.parts[len(seq.parts)-1] = rep
}

// digits consumes ASCII digits.
func (p *parser) digits() string {
	start := p.pos
	for p.more() && p.src[p.pos] >= '0' && p.src[p.pos] <= '9' {
		p.pos++
	}
	return string(p.src[start:p.pos])
}

// count returns the number that digits are, -1 if there are none.
func (p *parser) count(digits string) int {
	if digits == "" {
		return -1
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n >= maxRepeat {
		p.refuse("a repetition number of %s", digits)
	}
	return int(n)
}
