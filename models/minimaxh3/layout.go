package minimaxh3

import (
	"math"
	"slices"

	"patchbay/models/dit"
)

// Modalities, in the order in which modulations have them.
const (
	video = iota
	text
	sound
)

// moment is how far rows are from noise: at the time of their stream, or nearer.
type moment struct {
	clean float32 // the least time; 0: none
}

// at returns the time of rows whose stream has a sigma.
func (m moment) at(sigma float32) float32 { return max(1-sigma, m.clean) }

// run is rows of the text with its conditions, or of the image, that share a modulation.
type run struct {
	image    bool
	rows     dit.Range
	modality int
	moment   moment
}

// runs returns the rows of an entry: text, conditions, video, sound.
func runs(spec *dit.Spec, e *dit.Entry, g dit.Grid) (out []run) {
	at := 0
	add := func(n, modality int, m moment) {
		if n > 0 {
			out = append(out, run{rows: dit.Range{Start: at, End: at + n}, modality: modality, moment: m})
		}
		at += n
	}
	for _, p := range e.Pictures {
		add(p.Start-at, text, moment{})
		add(p.Len(), video, moment{})
	}
	add(e.Context.Rows-at, text, moment{})
	for i := range e.References {
		r, modality, clean := &e.References[i], video, e.References[i].Clean
		if r.Sound {
			modality = sound
		}
		if clean == 0 {
			clean = 1
		}
		add(spec.ReferenceGrid(r).Tokens(), modality, moment{clean})
	}
	n, all := g.Y*g.X, g.Tokens()
	out = append(out, run{image: true, rows: dit.Range{End: n}, modality: video})
	return append(out, run{image: true, rows: dit.Range{Start: n, End: all}, modality: sound})
}

// moments returns the different moments of each modality, that of its stream first, equally many of each: short lists
// repeat their first.
func moments(all []run) (out [modalities][]moment) {
	most := 0
	for m := range out {
		out[m] = []moment{{}}
		for _, r := range all {
			if r.modality == m && !slices.Contains(out[m], r.moment) {
				out[m] = append(out[m], r.moment)
			}
		}
		most = max(most, len(out[m]))
	}
	for m := range out {
		for len(out[m]) < most {
			out[m] = append(out[m], out[m][0])
		}
	}
	return out
}

// lasts is how many pictures a latent frame has, by its number modulo their count.
var lasts = [...]float64{1, 4, 4, 4, 4}

// picture is how long a picture lasts, in columns of the sound.
const picture = 5. / 3

// frames returns when each of n latent frames begins, and the last one ends.
func frames(n int) []float64 {
	out := make([]float64, n+1)
	for i := range n {
		out[i+1] = out[i] + picture*lasts[i%len(lasts)]
	}
	return out
}

// spot is a position: time, row, column.
type spot [axes]float64

// axis returns the coordinates of n tokens on a side of a frame of that area.
func axis(n int, area float64) []float64 {
	out := make([]float64, n)
	ratio := float64(patch*n) / math.Sqrt(area)
	for i := range out {
		out[i] = (float64(i)*(ratio/float64(n)) + (1-ratio)/2) * 32
	}
	return out
}

// sides returns the coordinates of the rows and columns of a frame.
func sides(g dit.Grid) (y, x []float64) {
	f := g.Frame()
	area := float64(patch * f.Y * patch * f.X)
	return axis(f.Y, area), axis(f.X, area)
}

// pictures returns the positions of the tokens of a video that begins at a time.
func pictures(g dit.Grid, at float64) (out []spot) {
	y, x := sides(g)
	for _, t := range frames(max(1, g.T))[:max(1, g.T)] {
		for _, row := range y {
			for _, column := range x {
				out = append(out, spot{at + t, row, column})
			}
		}
	}
	return out
}

// sounds returns the positions of the tokens of a sound that begins at a time, beside a video of that grid.
func sounds(g, beside dit.Grid, at float64) (out []spot) {
	_, x := sides(beside)
	ends := [2]float64{x[0], x[len(x)-1]}
	for row := range g.SoundY {
		for t := range g.SoundX {
			out = append(out, spot{at + float64(t), 0, ends[min(row, 1)]})
		}
	}
	return out
}

// spots returns the position of every token of an entry, in the order of runs.
func spots(spec *dit.Spec, e *dit.Entry, g dit.Grid) (out []spot) {
	for k := range e.Context.Rows {
		out = append(out, spot{float64(k)})
	}
	list, began, now := e.References, make([]float64, len(e.References)), float64(e.Context.Rows)
	for i, lasted := 0, 0.; i < len(list); i++ { // those that precede the video
		if began[i] = now; list[i].Frame == 0 {
			if lasted = max(lasted, span(&list[i])); !list[i].Joined {
				now, lasted = now+lasted, 0
			}
		}
	}
	for i := range list {
		r, at, target := &list[i], began[i], g
		if r.Frame > 0 {
			at = now + picture*float64(r.Frame-1)
		}
		of := spec.ReferenceGrid(r)
		if r.Joined && i+1 < len(list) {
			target = spec.ReferenceGrid(&list[i+1])
		}
		if r.Sound {
			out = append(out, sounds(of, target, at)...)
		} else {
			out = append(out, pictures(of, at)...)
		}
	}
	return append(append(out, pictures(g, now)...), sounds(g, g, now)...)
}

// span returns how long a reference lasts. A single picture lasts 1.
func span(r *dit.Reference) float64 {
	switch {
	case r.Sound:
		return float64(r.X)
	case r.T < 2:
		return 1
	}
	return frames(r.T)[r.T]
}
