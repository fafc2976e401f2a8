package pyregex

import (
	"context"
	"fmt"
	"slices"
)

// Pattern is a compiled pattern. It may be used by several goroutines.
type Pattern struct {
	first step
	names map[string]int
	n     int // groups, the whole match included
	loops int
}

// Compile reads a pattern. An error that is not ErrUnsupported is one of Python's re.
func Compile(pattern string, f Flags) (p *Pattern, err error) {
	ps := &parser{src: []rune(pattern), names: map[string]int{}, groups: []*part{nil}}
	defer caught(&err)
	root := ps.alternatives(f, true)
	if ps.more() {
		ps.fail("unbalanced parenthesis")
	}
	for _, n := range ps.late {
		if n >= len(ps.groups) {
			ps.fail("invalid group reference %d", n)
		}
	}
	p = &Pattern{names: ps.names, n: len(ps.groups)}
	p.first = p.compile(root, accept)
	return p, nil
}

// step matches from a position to the end of the pattern. If it fails, it leaves the match as it found it.
type step func(m *match, pos int) bool

// match is the state of one attempt.
type match struct {
	ctx     context.Context
	text    []rune
	groups  []int // begin and end of each group, -1: took no part
	opened  []int // where each group began last
	loops   []loop
	advance int // an end that does not count; -1: all do
	end     int // where the innermost accept was reached
	left    int // steps
	depth   int
}

// loop is the state of a repetition: how often it has matched, and where its last optional round began.
type loop struct{ count, last int }

func accept(m *match, pos int) bool {
	if pos == m.advance {
		return false
	}
	m.end = pos
	return true
}

// compile returns the step that matches x and then goes on with next.
func (p *Pattern) compile(x *part, next step) step {
	switch x.kind {
	case kindChar:
		fits := x.fits
		return func(m *match, pos int) bool {
			return pos < len(m.text) && fits(m.text[pos]) && next(m, pos+1)
		}
	case kindAt:
		return func(m *match, pos int) bool { return x.at(m, pos) && next(m, pos) }
	case kindSeq:
		for i := len(x.parts) - 1; i >= 0; i-- {
			next = p.compile(x.parts[i], next)
		}
		return next
	case kindAlt:
		var ways []step
		for _, one := range x.parts {
			ways = append(ways, p.compile(one, next))
		}
		return func(m *match, pos int) bool {
			m.tick(1)
			for _, way := range ways {
				if way(m, pos) {
					return true
				}
			}
			return false
		}
	case kindGroup:
		return p.group(x, next)
	case kindRef:
		return reference(x, next)
	case kindCond:
		yes, no := p.compile(x.parts[0], next), p.compile(x.parts[1], next)
		return func(m *match, pos int) bool {
			if m.groups[2*x.group+1] >= 0 {
				return yes(m, pos)
			}
			return no(m, pos)
		}
	case kindLook, kindAtomic:
		return p.alone(x, next)
	}
	if inner := single(x.parts[0]); inner != nil {
		return p.run(x, inner, next)
	}
	return p.repeat(x, next)
}

// single returns the test of a part that is one character, nil for others.
func single(x *part) func(rune) bool {
	for x.kind == kindSeq && len(x.parts) == 1 || x.kind == kindGroup && x.group == 0 {
		x = x.parts[0]
	}
	return x.fits
}

func (p *Pattern) group(x *part, next step) step {
	g := x.group
	if g == 0 {
		return p.compile(x.parts[0], next)
	}
	inner := p.compile(x.parts[0], func(m *match, pos int) bool {
		begin, end := m.groups[2*g], m.groups[2*g+1]
		m.groups[2*g], m.groups[2*g+1] = m.opened[g], pos
		if next(m, pos) {
			return true
		}
		m.groups[2*g], m.groups[2*g+1] = begin, end
		return false
	})
	return func(m *match, pos int) bool {
		before := m.opened[g]
		m.opened[g] = pos
		if inner(m, pos) {
			return true
		}
		m.opened[g] = before
		return false
	}
}

func reference(x *part, next step) step {
	return func(m *match, pos int) bool {
		begin, end := m.groups[2*x.group], m.groups[2*x.group+1]
		if end < 0 || pos+end-begin > len(m.text) {
			return false
		}
		m.tick(end - begin)
		for i := begin; i < end; i++ {
			a, b := m.text[i], m.text[pos+i-begin]
			if a != b && (x.fold == nil || x.fold(a) != x.fold(b)) {
				return false
			}
		}
		return next(m, pos+end-begin)
	}
}

// alone compiles what matches once and is not tried again: look-around, atomic groups, possessive repetitions.
func (p *Pattern) alone(x *part, next step) step {
	inner := p.compile(x.parts[0], accept)
	return func(m *match, pos int) bool {
		start := pos - x.width
		if x.kind == kindLook && start < 0 {
			return x.negated && next(m, pos)
		}
		groups, advance := slices.Clone(m.groups), m.advance
		m.advance = -1
		fits := inner(m, start)
		m.advance = advance
		end := m.end
		if x.kind == kindLook {
			if fits == x.negated {
				copy(m.groups, groups)
				return false
			}
			if end = pos; x.negated {
				copy(m.groups, groups)
			}
		}
		if (fits || x.kind == kindLook) && next(m, end) {
			return true
		}
		copy(m.groups, groups)
		return false
	}
}

// run compiles the repetition of one character, which needs no stack.
func (p *Pattern) run(x *part, fits func(rune) bool, next step) step {
	return func(m *match, pos int) bool {
		most := len(m.text) - pos
		if x.max >= 0 {
			most = min(most, x.max)
		}
		if x.min > most {
			return false
		}
		n, want := 0, most
		if x.lazy {
			want = x.min
		}
		for n < want && fits(m.text[pos+n]) {
			n++
		}
		m.tick(n)
		if n < x.min {
			return false
		}
		for {
			m.tick(1)
			switch {
			case next(m, pos+n):
				return true
			case !x.lazy && n > x.min:
				n--
			case x.lazy && n < most && fits(m.text[pos+n]):
				n++
			default:
				return false
			}
		}
	}
}

// repeat compiles any other repetition. A round beyond the least number must not begin where the one before began.
func (p *Pattern) repeat(x *part, next step) step {
	at := p.loops
	p.loops++
	var body step
	again := func(m *match, pos int) bool {
		m.tick(1)
		l := &m.loops[at]
		saved := *l
		round := func(last int) bool {
			*l = loop{saved.count + 1, last}
			m.deepen(1)
			fits := body(m, pos)
			m.deepen(-1)
			if !fits {
				*l = saved
			}
			return fits
		}
		if saved.count < x.min {
			return round(saved.last)
		}
		more := (x.max < 0 || saved.count < x.max) && pos != saved.last
		if x.lazy {
			return next(m, pos) || more && round(pos)
		}
		return more && round(pos) || next(m, pos)
	}
	body = p.compile(x.parts[0], again)
	return func(m *match, pos int) bool {
		saved := m.loops[at]
		m.loops[at] = loop{0, -1}
		if again(m, pos) {
			return true
		}
		m.loops[at] = saved
		return false
	}
}

// Bounds of one call: steps, and rounds of repetitions inside each other, which take stack. Python has neither, and
// can take years over a short text.
const (
	maxSteps = 1 << 26
	maxDepth = 1 << 17
)

// tick counts steps.
func (m *match) tick(n int) {
	before := m.left
	if m.left -= n; m.left < 0 {
		panic(parseError{fmt.Errorf("%w: the pattern needs more than %d steps on this text", ErrUnsupported, maxSteps)})
	}
	if before>>16 != m.left>>16 && m.ctx.Err() != nil {
		panic(parseError{m.ctx.Err()})
	}
}

func (m *match) deepen(n int) {
	if m.depth += n; m.depth > maxDepth {
		panic(parseError{fmt.Errorf("%w: more than %d rounds of a repetition", ErrUnsupported, maxDepth)})
	}
}
