package plan

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"

	"patchbay/parallel/forecast"
)

type timeline struct{ *forecast.Simulation }

// text draws who does what when, with one row for each stage and one for the samplers' handover, columns characters
// wide. A column shows the patch that is worked on longest in it (0-9, a-z, then +), # for a synchronous evaluation, >
// for a transfer that keeps the stage from working, or a dot where the stage waits for more than half of the time. The
// header marks where evaluations begin on the first stage.
func (s timeline) text(columns int) string {
	if s.Seconds <= 0 || columns < 1 {
		return ""
	}
	width := 0
	for _, a := range s.Actors {
		width = max(width, len(a))
	}
	step := s.Seconds / float64(columns)
	var b strings.Builder
	fmt.Fprintf(&b, "%*s %s\n", width, "", s.header(columns, step))
	stages := s.stages()
	for a, name := range s.Actors[:stages] {
		fmt.Fprintf(&b, "%-*s %s\n", width, name, s.row(a, columns, step))
	}
	samplers := []byte(strings.Repeat(" ", columns))
	for _, sp := range s.Spans {
		if sp.Actor >= stages {
			samplers[column(sp.Start, step, columns)] = '|'
		}
	}
	fmt.Fprintf(&b, "%s\n", strings.TrimRight(fmt.Sprintf("%-*s %s", width, "samplers", samplers), " "))
	fmt.Fprintf(&b, "%*s one column is %s, %s in all\n", width, "", duration(step), duration(s.Seconds))
	return b.String()
}

// stages returns how many actors are stages; the others are samplers.
func (s timeline) stages() int {
	return slices.IndexFunc(s.Actors, func(name string) bool { return strings.HasPrefix(name, "sampler") })
}

func column(at, step float64, columns int) int { return min(int(at/step), columns-1) }

// header marks the starts of evaluations on the first actor.
func (s timeline) header(columns int, step float64) string {
	line := []byte(strings.Repeat(" ", columns))
	seen := map[int]bool{}
	until := 0
	for _, sp := range s.Spans {
		if sp.Actor != 0 || sp.Kind != forecast.Working || seen[sp.Micro.Evaluation] {
			continue
		}
		seen[sp.Micro.Evaluation] = true
		mark := fmt.Sprintf("e%d", sp.Micro.Evaluation)
		if at := column(sp.Start, step, columns); at >= until && at+len(mark) <= columns {
			copy(line[at:], mark)
			until = at + len(mark) + 1
		}
	}
	return strings.TrimRight(string(line), " ")
}

// row draws one stage.
func (s timeline) row(a, columns int, step float64) string {
	longest, busy := make([]float64, columns), make([]float64, columns)
	line := []byte(strings.Repeat(".", columns))
	for _, sp := range s.Spans {
		if sp.Actor != a {
			continue
		}
		for c := column(sp.Start, step, columns); c < columns && float64(c)*step < sp.End; c++ {
			part := math.Min(sp.End, float64(c+1)*step) - math.Max(sp.Start, float64(c)*step)
			busy[c] += part
			if part > longest[c] {
				longest[c], line[c] = part, glyph(sp)
			}
		}
	}
	for c := range line {
		if busy[c] < step/2 {
			line[c] = '.'
		}
	}
	return string(line)
}

// glyph returns the character of a span.
func glyph(sp forecast.Span) byte {
	const digits = "0123456789abcdefghijklmnopqrstuvwxyz"
	switch {
	case sp.Kind != forecast.Working:
		return '>'
	case sp.Micro.Whole:
		return '#'
	case sp.Micro.Patch < len(digits):
		return digits[sp.Micro.Patch]
	}
	return '+'
}

// svg draws the same as an image: one lane for each stage, one color for each patch, paler in every second evaluation,
// gray for synchronous evaluations, thin dark bars for transfers that keep a stage from working. A sampler's handover
// is a tick in the last lane. Every box has a title.
func (s timeline) svg() string {
	const left, top, lane, gap, width = 120, 40, 26, 6, 1400
	scale := float64(width) / math.Max(s.Seconds, 1e-12)
	stages := s.stages()
	height := top + (stages+1)*(lane+gap) + 30
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" `+
		`font-size="12">`+"\n", left+width+20, height)
	fmt.Fprintf(&b, `<text x="10" y="20">%s: %s</text>`+"\n", html.EscapeString(s.Plan.String()), duration(s.Seconds))
	for i := range stages {
		fmt.Fprintf(&b, `<text x="10" y="%d">%s</text>`+"\n", top+i*(lane+gap)+lane/2+4, html.EscapeString(s.Actors[i]))
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%d" fill="#f2f2f2"/>`+"\n", left,
			top+i*(lane+gap), width, lane)
	}
	fmt.Fprintf(&b, `<text x="10" y="%d">samplers</text>`+"\n", top+stages*(lane+gap)+lane/2+4)
	for _, sp := range s.Spans {
		x, w := float64(left)+sp.Start*scale, math.Max((sp.End-sp.Start)*scale, 0.3)
		y, h := top+min(sp.Actor, stages)*(lane+gap), lane
		if sp.Kind != forecast.Working {
			y, h = y+lane/2-2, 4
		}
		fmt.Fprintf(&b, `<rect x="%.2f" y="%d" width="%.2f" height="%d" fill="%s">`+
			`<title>%s, %s: %s from %s</title></rect>`+"\n", x, y, w, h,
			colour(sp, sp.Actor >= stages), html.EscapeString(s.Actors[sp.Actor]), sp.Micro, duration(sp.End-sp.Start),
			duration(sp.Start))
	}
	for i := range 11 {
		x := left + i*width/10
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", x, height-10,
			duration(s.Seconds*float64(i)/10))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// colour returns the fill of a span.
func colour(sp forecast.Span, sampler bool) string {
	switch {
	case sampler:
		return "#333333"
	case sp.Kind != forecast.Working:
		return "#222222"
	case sp.Micro.Whole:
		return []string{"#9a9a9a", "#b8b8b8"}[sp.Micro.Evaluation%2]
	}
	return fmt.Sprintf("hsl(%d,60%%,%d%%)", sp.Micro.Patch*47%360, []int{55, 72}[sp.Micro.Evaluation%2])
}
