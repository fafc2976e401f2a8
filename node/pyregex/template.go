package pyregex

import (
	"context"
	"fmt"
	"strings"
	"unicode"
)

// Replace replaces the first most matches in a text, all with most 0, by a template: \1 and \g<name> stand for
// groups. More than limit bytes are refused.
func (p *Pattern) Replace(ctx context.Context, text, template string, most, limit int) (string, error) {
	pieces, err := p.template(template)
	if err != nil {
		return "", err
	}
	found, err := p.Find(ctx, text, most)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	runes, at := []rune(text), 0
	for _, m := range found {
		b.WriteString(string(runes[at:m.at[0]]))
		for _, piece := range pieces {
			s := piece.text
			if piece.group >= 0 {
				s, _ = m.Group(piece.group)
			}
			if b.WriteString(s); b.Len() > limit {
				return "", fmt.Errorf("%w: a result of more than %d bytes", ErrUnsupported, limit)
			}
		}
		at = m.at[1]
	}
	b.WriteString(string(runes[at:]))
	return b.String(), nil
}

// piece is a part of a template: a text, or a group if that is not negative.
type piece struct {
	text  string
	group int
}

// template reads a template as Python's re does.
func (p *Pattern) template(text string) (out []piece, err error) {
	ps := &parser{src: []rune(text), names: p.names}
	defer caught(&err)
	for ps.more() {
		r := ps.next()
		if r != '\\' {
			out = append(out, piece{string(r), -1})
			continue
		}
		if !ps.more() {
			ps.fail("bad escape (end of pattern)")
		}
		switch r = ps.next(); {
		case r == 'g':
			if !ps.take("<") {
				ps.fail("missing <")
			}
			name := ps.until('>', "group name")
			n, known := p.names[name]
			if !known && isDigits(name) {
				n, known = ps.count(name), true
			}
			if !known || n >= p.n {
				ps.fail("invalid group reference %s", name)
			}
			out = append(out, piece{"", n})
		case r >= '0' && r <= '9':
			ps.pos--
			if c, ok := ps.octal(r != '0'); ok {
				out = append(out, piece{string(c), -1})
				continue
			}
			n := ps.groupNumber()
			if n >= p.n {
				ps.fail("invalid group reference %d", n)
			}
			out = append(out, piece{"", n})
		case r == 'b':
			out = append(out, piece{"\b", -1})
		case strings.ContainsRune("xuUN", r):
			ps.fail("bad escape \\%c", r)
		case r != '\\' && (r >= 128 || !unicode.IsLetter(r)): // any other sign keeps its backslash
			out = append(out, piece{"\\" + string(r), -1})
		default:
			out = append(out, piece{string(ps.escaped(r)), -1})
		}
	}
	return out, nil
}
