package denoise

import (
	"slices"

	"patchbay/models/dit"
	"patchbay/parallel/request"
)

// layout maps between a latent [C, Y, X] and what samplers and networks see of one batch item.
//
// Samplers work on a vector: the elements of the latent ordered token by token and, within a token, by (channel, row,
// column). Networks read rows [Li, C*p*p]; if the sides are multiples of p, rows and vector are the same. Other latents
// are padded circularly to whole tokens, each frame by itself. Padding exists only in rows: it is read from the element
// that it repeats and never written back. Tokens that the network adds after the picture's, and what rows have behind
// their elements, read 0 and are not written back either.
//
// The elements of the sound beside a video follow those of the video in the latent, in the vector and in the rows.
type layout struct {
	grid     dit.Grid
	features int     // columns of rows
	gather   []int32 // per row element: the vector element it reads, -1: none; nil when rows are the vector
	owned    []bool  // per row element: false for padding; nil when all are true
	kept     []int32 // per token of the video: its place in the whole grid; nil: all tokens are there
	order    []int32 // per vector element: its index in the latent's item; only of whole latents
}

// newLayout makes the layout of a whole latent of c channels, whose token grid is g with p x p elements per token, and
// of the sound beside it. Tokens that are not kept are in the vector but in no row.
func newLayout(c, p int, g dit.Grid, sound dit.Sound, kept []int32) *layout {
	y, x, tall := g.LatentY, g.LatentX, g.Frame().LatentY
	l := &layout{grid: g, features: c * p * p}
	video := l.features
	if g.Sound > 0 {
		l.features = max(video, sound.Channels*sound.Patch)
	}
	n := c * y * x
	l.order = make([]int32, 0, n+sound.Channels*g.SoundY*g.SoundX)
	position := make([]int32, cap(l.order)) // latent index -> vector index
	element := func(at int) {
		position[at] = int32(len(l.order))
		l.order = append(l.order, int32(at))
	}
	l.walk(c, p, func(_, ci, top, yi, xi int) {
		if yi < tall && xi < x {
			element((ci*y+top+yi)*x + xi)
		}
	})
	l.walkSound(sound, func(_, at int) { element(n + at) })
	l.kept = kept
	if kept != nil || tall%p != 0 || x%p != 0 || g.Pad > 0 || g.Sound > 0 && sound.Channels*sound.Patch != video {
		l.index(c, p, tall, x, func(ci, yi, xi int) int32 { return position[(ci*y+yi)*x+xi] })
		l.walkSound(sound, func(k, at int) { l.gather[k], l.owned[k] = position[n+at], true })
	}
	return l
}

// tokensOf returns the tokens of latents without sound, [B*tokens, C*p*p].
func tokensOf(v request.Latent, spec *dit.Spec) dit.Array {
	l := newLayout(v.C, spec.PatchSize, v.Grid(spec), dit.Sound{}, nil)
	all := dit.Range{End: l.grid.Tokens()}
	return dit.Array{
		Rows: v.B * all.End, Cols: l.features, Data: l.read(v.B, len(l.order), all, l.toVector(v.B, v.Data)),
	}
}

// area makes the layout of a rectangle, with token grid g, of the latent that l describes. Its indices are those of l's
// vector.
func (l *layout) area(a request.Area, c, p int, g dit.Grid) *layout {
	y, x := l.grid.LatentY, l.grid.LatentX
	position := make([]int32, c*y*x)
	for at, i := range l.order {
		position[i] = int32(at)
	}
	part := &layout{grid: g, features: c * p * p}
	part.index(c, p, a.H, a.W, func(ci, yi, xi int) int32 { return position[(ci*y+a.Y+yi)*x+a.X+xi] })
	return part
}

// walkSound visits the row elements of tokens of sound in order, with their index in the sound's latent.
func (l *layout) walkSound(sound dit.Sound, visit func(k, at int)) {
	for t := range l.grid.Sound {
		k := (l.grid.Video() + t) * l.features
		for ci := range sound.Channels {
			for px := range sound.Patch {
				visit(k, ci*l.grid.SoundY*l.grid.SoundX+t*sound.Patch+px)
				k++
			}
		}
	}
}

// walk visits the row elements of the video in order, with the latent row at which their frame begins and their
// position in the padded frame.
func (l *layout) walk(c, p int, visit func(k, ci, top, yi, xi int)) {
	frame, n := l.grid.Frame(), l.grid.Y*l.grid.X
	if l.kept != nil {
		n = len(l.kept)
	}
	for token := range n {
		k, at := token*l.features, token
		if l.kept != nil {
			at = int(l.kept[token])
		}
		ty, tx := at/l.grid.X, at%l.grid.X
		for ci := range c {
			for py := range p {
				for px := range p {
					visit(k, ci, ty/frame.Y*frame.LatentY, ty%frame.Y*p+py, tx*p+px)
					k++
				}
			}
		}
	}
}

// index fills gather and owned for a rectangle of y rows and x columns in each frame; at returns the vector index of an
// element.
func (l *layout) index(c, p, y, x int, at func(ci, yi, xi int) int32) {
	n := l.grid.Tokens() * l.features
	l.gather, l.owned = slices.Repeat([]int32{-1}, n), make([]bool, n)
	l.walk(c, p, func(k, ci, top, yi, xi int) {
		l.owned[k] = yi < y && xi < x
		l.gather[k] = at(ci, top+yi%y, xi%x)
	})
}

// toVector reorders a latent of b items into the sampler's vector.
func (l *layout) toVector(b int, latent []float32) []float32 {
	n := len(l.order)
	out := make([]float32, b*n)
	for i := range b {
		for k, at := range l.order {
			out[i*n+k] = latent[i*n+int(at)]
		}
	}
	return out
}

// toLatent is the inverse of toVector.
func (l *layout) toLatent(b int, vector []float32) []float32 {
	n := len(l.order)
	out := make([]float32, b*n)
	for i := range b {
		for k, at := range l.order {
			out[i*n+int(at)] = vector[i*n+k]
		}
	}
	return out
}

// read gathers the rows of some tokens from a vector of b items with n elements each. The result may be the vector
// itself.
func (l *layout) read(b, n int, tokens dit.Range, vector []float32) []float32 {
	if l.gather == nil && tokens.Len() == l.grid.Tokens() {
		return vector
	}
	lo, m := tokens.Start*l.features, tokens.Len()*l.features
	out := make([]float32, b*m)
	for i := range b {
		item := vector[i*n : (i+1)*n]
		if l.gather == nil {
			copy(out[i*m:(i+1)*m], item[lo:])
			continue
		}
		for k, at := range l.gather[lo : lo+m] {
			if at >= 0 {
				out[i*m+k] = item[at]
			}
		}
	}
	return out
}

// first returns the vector index of the first element that a token owns; for the token after the last one, the length
// of the vector.
func (l *layout) first(token int) int {
	if l.gather == nil {
		return token * l.features
	}
	if token == l.grid.Tokens() {
		return len(l.order) // also elements that no row has
	}
	n := 0
	for k := range token * l.features {
		if l.owned[k] {
			n++
		}
	}
	return n
}

// write calls set for every owned element of tokens. at is its index in a vector of b items of n elements that starts
// at element from; row is its index in rows [b, tokens, features], where features is at least that of the layout.
func (l *layout) write(b, n, from int, tokens dit.Range, features int, set func(at, row int)) {
	for i := range b {
		for t := tokens.Start; t < tokens.End; t++ {
			row := (i*tokens.Len() + t - tokens.Start) * features
			for f := range l.features {
				k := t*l.features + f
				at := k
				if l.gather != nil {
					if !l.owned[k] {
						continue
					}
					at = int(l.gather[k])
				}
				set(i*n+at-from, row+f)
			}
		}
	}
}
