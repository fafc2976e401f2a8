package flux2

import (
	"patchbay/models/dit"
	"patchbay/models/layers"
)

// step is from one reference to the next on the first axis.
const step = 10

// method is where the references of an entry sit.
func method(e *dit.Entry) string {
	if e.Method != "" {
		return e.Method
	}
	return layers.ByIndex
}

// positions lists where every token of an entry sits: own of text, those of the references, those of the picture.
func (m *Model) positions(e *dit.Entry, g dit.Grid) [][4]int {
	return layers.Positions(m.Spec(), e, g, method(e), step, func(k int) [4]int { return [4]int{0, 0, 0, k} })
}
