package qwenimage

import (
	"patchbay/models/dit"
	"patchbay/models/layers"
)

// method returns how the references of an entry are placed.
func (m *Model) method(e *dit.Entry) string {
	switch e.Method {
	case "":
		return m.cfg.Method
	case layers.UXO: // not known to this family
		return layers.Offset
	}
	return e.Method
}

// positions returns the position of every token of an entry: text, references, image, frame after frame. Rows and
// columns are counted from the middle of each.
func (m *Model) positions(e *dit.Entry, g dit.Grid) (out [][3]int) {
	for k := range e.Context.Rows {
		at := max(g.Frame().Y/2, g.X/2) + k
		out = append(out, [3]int{at, at, at})
	}
	for _, l := range layers.Place(m.Spec(), e, g, m.method(e), 1) {
		frame := l.Grid.Frame()
		for i := range l.Grid.Tokens() {
			row := i / frame.X
			out = append(out, [3]int{
				l.At[0] + row/frame.Y, l.At[1] + row%frame.Y - frame.Y/2, l.At[2] + i%frame.X - frame.X/2,
			})
		}
	}
	return out
}
