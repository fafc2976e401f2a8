package qwenimage

import (
	"patchbay/models/dit"
	"patchbay/models/layers"
)

// method is where the references of an entry sit.
func (m *Model) method(e *dit.Entry) string {
	switch e.Method {
	case "":
		return m.cfg.Method
	case layers.UXO: // not known to this family
		return layers.Offset
	}
	return e.Method
}

// positions lists where every token of an entry sits: own of text, those of the references, those of the picture, frame
// after frame. Rows and columns are counted from the middle of each.
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
