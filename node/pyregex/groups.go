package pyregex

import (
	"strings"
	"unicode"

	"patchbay/node/pyjson"
)

// reference returns the part that matches what a group matched.
func (p *parser) reference(n int, name string, f Flags) *part {
	switch {
	case n >= len(p.groups):
		p.fail("invalid group reference %s", name)
	case p.groups[n] == nil:
		p.fail("cannot refer to an open group")
	case len(p.behind) > 0 && n >= p.behind[0]:
		p.fail("cannot refer to group defined in the same lookbehind subpattern")
	}
	ref := &part{kind: kindRef, group: n}
	if f.IgnoreCase {
		ref.fold = unicode.ToLower
		if f.ASCII {
			ref.fold = func(r rune) rune {
				if r < 128 {
					return unicode.ToLower(r)
				}
				return r
			}
		}
	}
	return ref
}

// group parses what follows an opening parenthesis.
func (p *parser) group(f Flags, first bool) (*part, *Flags) {
	if !p.take("?") {
		return p.captured("", f), nil
	}
	switch {
	case !p.more():
		p.fail("unexpected end of pattern")
	case p.take("P<"):
		name := p.until('>', "group name")
		if !isName(name) {
			p.fail("bad character in group name %s", pyjson.Repr(name))
		}
		if _, twice := p.names[name]; twice {
			p.fail("redefinition of group name %s", pyjson.Repr(name))
		}
		return p.captured(name, f), nil
	case p.take("P="):
		name := p.until(')', "group name")
		n, known := p.names[name]
		if !isName(name) || !known {
			p.fail("unknown group name %s", pyjson.Repr(name))
		}
		return p.reference(n, name, f), nil
	case p.take("P"):
		p.fail("unknown extension ?P")
	case p.take(":"):
		return p.inner(f, &part{kind: kindGroup}), nil
	case p.take("#"):
		for p.more() {
			if p.next() == ')' {
				return nil, nil
			}
		}
		p.fail("missing ), unterminated comment")
	case p.take(">"):
		return p.inner(f, &part{kind: kindAtomic}), nil
	case p.take("="):
		return p.inner(f, &part{kind: kindLook}), nil
	case p.take("!"):
		return p.inner(f, &part{kind: kindLook, negated: true}), nil
	case p.take("<="):
		return p.lookBehind(f, false), nil
	case p.take("<!"):
		return p.lookBehind(f, true), nil
	case p.take("<"):
		p.fail("unknown extension ?<")
	case p.take("("):
		return p.conditional(f), nil
	}
	return p.flags(f, first)
}

// isName reports whether a text is an identifier of Python.
func isName(s string) bool {
	for i, r := range s {
		if r != '_' && !unicode.IsLetter(r) && (i == 0 || !unicode.Is(unicode.Nd, r) && !unicode.IsMark(r)) {
			return false
		}
	}
	return s != ""
}

func isDigits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

func (p *parser) captured(name string, f Flags) *part {
	n := len(p.groups)
	if p.groups = append(p.groups, nil); name != "" {
		p.names[name] = n
	}
	g := p.inner(f, &part{kind: kindGroup, group: n})
	p.groups[n] = g
	return g
}

// inner parses the contents of a group and its closing parenthesis into g.
func (p *parser) inner(f Flags, g *part) *part {
	g.parts = []*part{p.alternatives(f, false)}
	if !p.take(")") {
		p.fail("missing ), unterminated subpattern")
	}
	return g
}

func (p *parser) lookBehind(f Flags, negated bool) *part {
	p.behind = append(p.behind, len(p.groups))
	g := p.inner(f, &part{kind: kindLook, negated: negated})
	p.behind = p.behind[:len(p.behind)-1]
	lo, hi := p.width(g.parts[0])
	if lo != hi {
		p.fail("look-behind requires fixed-width pattern")
	}
	g.width = lo
	return g
}

// width returns the least and the largest number of characters of a part, up to maxRepeat.
func (p *parser) width(x *part) (lo, hi int) {
	switch x.kind {
	case kindChar:
		return 1, 1
	case kindAt, kindLook:
		return 0, 0
	case kindRef:
		return p.width(p.groups[x.group])
	case kindRepeat:
		lo, hi = p.width(x.parts[0])
		most := x.max
		if most < 0 {
			most = maxRepeat
		}
		return times(lo, x.min), times(hi, most)
	case kindAlt, kindCond:
		lo, hi = p.width(x.parts[0])
		for _, one := range x.parts[1:] {
			l, h := p.width(one)
			lo, hi = min(lo, l), max(hi, h)
		}
	default:
		for _, one := range x.parts {
			l, h := p.width(one)
			lo, hi = lo+l, hi+h
		}
	}
	return min(lo, maxRepeat), min(hi, maxRepeat)
}

// times multiplies, up to maxRepeat.
func times(a, b int) int {
	if a > 0 && b > maxRepeat/a {
		return maxRepeat
	}
	return a * b
}

// conditional parses (?(group)yes|no) after its second parenthesis.
func (p *parser) conditional(f Flags) *part {
	name := p.until(')', "group name")
	n, known := p.names[name]
	if !isName(name) {
		if !isDigits(name) {
			p.fail("bad character in group name %s", pyjson.Repr(name))
		}
		if n = p.count(name); n == 0 {
			p.fail("bad group number")
		}
	} else if !known {
		p.fail("unknown group name %s", pyjson.Repr(name))
	}
	if len(p.behind) > 0 && (n >= len(p.groups) || p.groups[n] == nil || n >= p.behind[0]) {
		p.fail("cannot refer to an open group")
	}
	c := &part{kind: kindCond, group: n}
	yes, _ := p.sequence(f, false)
	no := &part{kind: kindSeq}
	if p.take("|") {
		if no, _ = p.sequence(f, false); p.peek("|") {
			p.fail("conditional backref with more than two branches")
		}
	}
	if !p.take(")") {
		p.fail("missing ), unterminated subpattern")
	}
	c.parts = []*part{yes, no}
	p.late = append(p.late, n)
	return c
}

// flags parses (?aims-x) and (?aims-x:...) after the question mark.
func (p *parser) flags(f Flags, first bool) (*part, *Flags) {
	letters := func(allowed string) string {
		start := p.pos
		for p.more() && strings.ContainsRune("aiLmsux", p.src[p.pos]) {
			if !strings.ContainsRune(allowed, p.src[p.pos]) {
				p.fail("bad inline flags")
			}
			p.pos++
		}
		return string(p.src[start:p.pos])
	}
	on, off := letters("aimsux"), ""
	if strings.Contains(on, "a") && strings.Contains(on, "u") {
		p.fail("bad inline flags: flags 'a', 'u' and 'L' are incompatible")
	}
	if on != "" && p.take(")") {
		if !first {
			p.fail("global flags not at the start of the expression")
		}
		if strings.Contains(on, "u") && f.ASCII {
			p.fail("ASCII and UNICODE flags are incompatible")
		}
		set := f.with(on, true)
		return nil, &set
	}
	if p.take("-") {
		if off = letters("imsx"); off == "" {
			p.fail("missing flag")
		}
	} else if on == "" {
		p.fail("unknown extension ?%c", p.next())
	}
	if !p.take(":") {
		p.fail("missing :")
	}
	if strings.ContainsAny(on, off) && off != "" {
		p.fail("bad inline flags: flag turned on and off")
	}
	return p.inner(f.with(on, true).with(off, false), &part{kind: kindGroup}), nil
}

func (f Flags) with(letters string, value bool) Flags {
	for _, r := range letters {
		switch r {
		case 'i':
			f.IgnoreCase = value
		case 'm':
			f.MultiLine = value
		case 's':
			f.DotAll = value
		case 'x':
			f.Verbose = value
		case 'a':
			f.ASCII = true
		case 'u':
			f.ASCII = false
		}
	}
	return f
}
