package pyregex

import (
	"context"
	"slices"
)

// Match is one match: begin and end of the whole and of each group, in characters; -1 for a group that took no part.
type Match struct {
	text []rune
	at   []int
}

// Group returns the text of a group, 0 for the whole; ok is false if it took no part in the match.
func (m Match) Group(n int) (text string, ok bool) {
	if m.at[2*n+1] < 0 {
		return "", false
	}
	return string(m.text[m.at[2*n]:m.at[2*n+1]]), true
}

// Groups returns the number of groups of the pattern.
func (m Match) Groups() int { return len(m.at)/2 - 1 }

// Find returns the matches of a pattern in a text from left to right, most at a time; most 0: all. After an empty match
// the next one must not be empty at the same place, but an empty one may follow another.
func (p *Pattern) Find(ctx context.Context, text string, most int) (found []Match, err error) {
	defer caught(&err)
	m := &match{
		ctx: ctx, text: []rune(text), groups: make([]int, 2*p.n), opened: make([]int, p.n), loops: make([]loop, p.loops),
		left: maxSteps, advance: -1,
	}
	for pos := 0; pos <= len(m.text) && (most == 0 || len(found) < most); pos++ {
		m.tick(1)
		for i := range m.groups {
			m.groups[i] = -1
		}
		if !p.first(m, pos) {
			m.advance = -1
			continue
		}
		at := slices.Clone(m.groups)
		at[0], at[1] = pos, m.end
		found = append(found, Match{m.text, at})
		if m.advance = -1; m.end == pos {
			m.advance = pos
		}
		pos = m.end - 1
	}
	return found, nil
}
