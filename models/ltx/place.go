package ltx

import (
	"cmp"
	"math"
	"slices"

	"patchbay/models/dit"
	"patchbay/models/layers"
)

// The autoencoders' factors: pictures to a frame of the latent and pixels to one of its pixels; rows of a spectrogram
// to a row of sound, and samples to such a row, of so many a second.
const (
	cellFrames, cellPixels = 8, 32
	soundRows              = 4
	soundHop, soundRate    = 160, 16000
	theta                  = 10000
)

// axis is a coordinate of tokens.
type axis struct {
	at []float32           // the places on it, from -1 to 1
	of func(token int) int // the place of a token
}

// place uploads the rotation tables: p.RoPE [Li, (E+A)/2], for the video's attention to itself and, behind that, for
// those between video and sound, and p.SoundRoPE [Ls, (A+A)/2] likewise. All arithmetic is f32, as torch's is.
func (m *Model) place(env dit.Env, p *dit.Prepared) {
	c, g, frame := &m.cfg, p.Grid, p.Grid.Frame()
	video, sound := c.Hidden/2, c.Sound/2
	inverse := float32(1 / cmp.Or(p.Entries[0].FrameRate, frameRate))
	longest := max(c.MaxPos[0], c.SoundMaxPos[0])
	line := func(n, most int, middles bool, span func(int) (start, end float32), of func(token int) int) axis {
		a := axis{of: of}
		for i := range n {
			at, end := span(i)
			if middles {
				at = (at + end) / 2
			}
			a.at = append(a.at, at/float32(most)*2-1)
		}
		return a
	}
	between := func(start func(int) float32) func(int) (start, end float32) {
		return func(i int) (float32, float32) { return start(i), start(i + 1) }
	}
	var given [][2]float32
	var kinds []int                               // of frames
	kept, every := p.Entries[0].Kept(g), []int{1} // sides of what tokens stand for: of the video, then of each keyframe
	for i, k := range p.Entries[0].Keyframes {
		every = append(every, max(1, k.Every))
		given = append(given, k.Spans...)
		kinds = append(kinds, slices.Repeat([]int{1 + i}, len(k.Spans))...)
	}
	first := max(1, g.T) - len(given) // the first keyframe
	kinds = append(make([]int, first), kinds...)
	whole := func(token int) int {
		if kept == nil {
			return token
		}
		return int(kept[token])
	}
	second := func(i int) (start, end float32) {
		if i >= first {
			return given[i-first][0] * inverse, given[i-first][1] * inverse
		}
		return between(func(i int) float32 {
			if c.Causal { // the first frame is one picture
				return float32(max(0, cellFrames*i+1-cellFrames)) * inverse
			}
			return float32(cellFrames*i) * inverse
		})(i)
	}
	seconds := func(most int, middles bool) axis {
		return line(max(1, g.T), most, middles, second, func(token int) int { return whole(token) / (frame.Y * frame.X) })
	}
	pixels := func(n, most int, of func(token int) int) axis {
		return line(n*len(every), most, c.Middles, func(i int) (start, end float32) {
			return float32(cellPixels * (i % n)), float32(cellPixels * (i%n + every[i/n]))
		}, func(token int) int {
			token = whole(token)
			return of(token) + n*kinds[token/(frame.Y*frame.X)]
		})
	}
	p.RoPE = layers.UploadRotation(env, g.Video(), video+sound, func() layers.Rotation {
		return c.tables(g.Video(), video, []axis{
			seconds(c.MaxPos[0], c.Middles),
			pixels(frame.Y, c.MaxPos[1], func(token int) int { return token / frame.X % frame.Y }),
			pixels(frame.X, c.MaxPos[2], func(token int) int { return token % frame.X }),
		}, sound, []axis{seconds(longest, true)})
	})
	if g.Sound == 0 {
		return
	}
	reference := p.Entries[0].SoundReference.Rows
	moment := func(i int) float32 { return float32(max(0, soundRows*i+1-soundRows)) * soundHop / soundRate }
	earlier := float32(float64(moment(reference)) + 1./soundRate*soundRows*soundHop) // it ends a row before the sound
	at := func(i int) (start, end float32) {
		if i < reference {
			return moment(i) - earlier, moment(i+1) - earlier
		}
		return moment(i - reference), moment(i - reference + 1)
	}
	n := reference + g.Sound
	rows := func(most int, middles bool) axis {
		return line(n, most, middles, at, func(token int) int { return token })
	}
	p.SoundRoPE = layers.UploadRotation(env, n, sound+sound, func() layers.Rotation {
		return c.tables(n, sound, []axis{rows(c.SoundMaxPos[0], c.Middles)}, sound, []axis{rows(longest, true)})
	})
}

// tables returns two tables of n tokens side by side, of so many pairs each.
func (c *Config) tables(n, pairs int, axes []axis, more int, beside []axis) layers.Rotation {
	r := layers.Rotation{Pairs: pairs + more}
	r.Cos, r.Sin = make([]float32, n*r.Pairs), make([]float32, n*r.Pairs)
	fill(r, n, 0, pairs, axes, c.frequencies)
	fill(r, n, pairs, more, beside, c.frequencies)
	return r
}

// fill sets some columns of a table. Frequencies ascend, and each turns one pair for every axis; pairs in front that
// are left over do not turn.
func fill(r layers.Rotation, n, from, pairs int, axes []axis, frequencies func(n int) []float32) {
	f := frequencies(pairs / len(axes))
	cos, sin := make([][]float32, len(axes)), make([][]float32, len(axes)) // by axis: [places, frequencies]
	for a, x := range axes {
		for _, at := range x.at {
			for _, f := range f {
				s, c := math.Sincos(float64(f * at))
				cos[a], sin[a] = append(cos[a], float32(c)), append(sin[a], float32(s))
			}
		}
	}
	left := pairs - len(f)*len(axes)
	for token := range n {
		at := token*r.Pairs + from
		for i := range left {
			r.Cos[at+i] = 1
		}
		for a, x := range axes {
			row := x.of(token) * len(f)
			for i := range f {
				to := at + left + i*len(axes) + a
				r.Cos[to], r.Sin[to] = cos[a][row+i], sin[a][row+i]
			}
		}
	}
}

// frequencies returns n of them, from pi/2 to 10000 times that.
func (c *Config) frequencies(n int) []float32 {
	if c.Precision == "float64" {
		return doubles(n)
	}
	out := make([]float32, n)
	for i := range out {
		part := float32(0)
		if n > 1 {
			part = float32(i) / float32(n-1)
		}
		out[i] = float32(math.Pow(theta, float64(part))) * math.Pi / 2
	}
	return out
}

// doubles is frequencies in double precision, which connectors always have.
func doubles(n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(math.Pow(theta, float64(i)/float64(max(1, n-1))) * math.Pi / 2)
	}
	return out
}
