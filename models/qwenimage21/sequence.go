package qwenimage21

import "patchbay/models/dit"

// run is some rows of the preface that follow one another: text, or the tokens of one reference.
type run struct {
	rows int
	grid dit.Grid // of a reference
}

func (r run) picture() bool { return r.grid.Y > 0 }

// runsOf returns the runs of an entry's preface in order. References whose slot is not given follow the text.
func runsOf(spec *dit.Spec, e *dit.Entry) (out []run) {
	text := 0
	until := func(row int) {
		if row > text {
			out = append(out, run{rows: row - text})
			text = row
		}
	}
	for i, r := range e.References {
		slot := e.Context.Rows
		if i < len(e.Slots) {
			slot = e.Slots[i]
		}
		until(slot)
		grid := spec.Tokens(r.Y, r.X)
		out = append(out, run{grid.Tokens(), grid})
	}
	until(e.Context.Rows)
	return out
}

// positions returns the position of every token, those of the preface first.
func positions(runs []run, image dit.Grid) (out [][3]float64) {
	at := 0
	for _, r := range append(runs, run{grid: image}) {
		if !r.picture() {
			for range r.rows {
				out = append(out, [3]float64{float64(at), float64(at), float64(at)})
				at++
			}
			continue
		}
		for i := range r.grid.Tokens() {
			out = append(out, [3]float64{
				float64(at), centred(i/r.grid.X, r.grid.Y, image.Y), centred(i%r.grid.X, r.grid.X, image.X),
			})
		}
		at += max(r.grid.Y, r.grid.X)
	}
	return out
}

// centred returns the position of row i of n on an axis on which the image has all rows.
func centred(i, n, all int) float64 { return float64(i-(n-n/2)) + float64(n%2-all%2)/2 }
