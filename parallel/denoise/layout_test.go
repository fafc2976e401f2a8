package denoise

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"patchbay/models/dit"
	"patchbay/parallel/request"
)

// gridOf returns the grid of a network that adds no tokens.
func gridOf(y, x, p int) dit.Grid {
	return (&dit.Spec{PatchSize: p}).Tokens(y, x)
}

// TestLayoutMatchesNaivePatchify checks that every element of the latent occurs once in the vector, and that rows read
// from the latent's padded picture exactly what a naive patchify reads.
func TestLayoutMatchesNaivePatchify(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, p := rapid.IntRange(1, 4).Draw(t, "c"), rapid.IntRange(1, 3).Draw(t, "p")
		y, x, b := rapid.IntRange(1, 9).Draw(t, "y"), rapid.IntRange(1, 9).Draw(t, "x"), rapid.IntRange(1, 2).Draw(t, "b")
		latent := make([]float32, b*c*y*x)
		for i := range latent {
			latent[i] = float32(i)
		}
		l := newLayout(c, p, gridOf(y, x, p), dit.Sound{}, nil)
		v := l.toVector(b, latent)
		if back := l.toLatent(b, v); !slices.Equal(back, latent) {
			t.Fatalf("toLatent(toVector) = %v, want %v", back, latent)
		}
		rows := l.read(b, c*y*x, dit.Range{End: l.grid.Tokens()}, v)
		k := 0
		for bi := range b {
			for ty := range (y + p - 1) / p {
				for tx := range (x + p - 1) / p {
					for ci := range c {
						for i := range p * p {
							yi, xi := (ty*p+i/p)%y, (tx*p+i%p)%x
							if want := latent[((bi*c+ci)*y+yi)*x+xi]; rows[k] != want {
								t.Fatalf("row element %d = %v, want %v", k, rows[k], want)
							}
							k++
						}
					}
				}
			}
		}
		back := make([]float32, len(v))
		l.write(b, c*y*x, 0, dit.Range{End: l.grid.Tokens()}, l.features, func(at, row int) { back[at] = rows[row] })
		if !slices.Equal(back, v) {
			t.Fatalf("write(read) = %v, want %v", back, v)
		}
	})
}

// TestLayoutOfSound checks the rows of a video and its sound against their definition: tokens of the video, then those
// of the sound, each as wide as the wider kind and filled up with zeros, and a vector in which every element occurs
// once.
func TestLayoutOfSound(t *testing.T) {
	for _, sound := range []dit.Sound{{Channels: 5, Patch: 1}, {Channels: 2, Patch: 4}, {Channels: 1, Patch: 2}} {
		const b, c, p, frames, y, x = 2, 2, 2, 3, 3, 4
		spec := &dit.Spec{PatchSize: p, Channels: c, OutChannels: c, Sound: sound, Multiple: 7}
		v := request.Latent{B: b, C: c, T: frames, Y: frames * y, X: x, Sound: request.Sound{C: sound.Channels, Y: 2, X: 8}}
		v.Data = make([]float32, v.Len())
		for i := range v.Data {
			v.Data[i] = float32(i + 1)
		}
		grid := v.Grid(spec)
		l := newLayout(c, p, grid, sound, nil)
		var want []float32
		width := max(c*p*p, sound.Channels*sound.Patch)
		for bi := range b {
			item := v.Data[bi*v.Item():][:v.Item()]
			row := func(values ...float32) {
				want = append(append(want, values...), make([]float32, width-len(values))...)
			}
			for ty := range frames * (y + 1) / p {
				for tx := range x / p {
					var token []float32
					for ci := range c {
						for k := range p * p {
							yi := ty%(y/p+1)*p + k/p
							token = append(token, item[(ci*frames*y+ty/(y/p+1)*y+yi%y)*x+tx*p+k%p])
						}
					}
					row(token...)
				}
			}
			heard := item[c*frames*y*x:]
			for at := 0; at < 2*8; at += sound.Patch {
				var token []float32
				for ci := range sound.Channels {
					token = append(token, heard[ci*16+at:][:sound.Patch]...)
				}
				row(token...)
			}
			for range grid.Pad {
				row()
			}
		}
		vector := l.toVector(b, v.Data)
		if back := l.toLatent(b, vector); !slices.Equal(back, v.Data) {
			t.Fatalf("%+v: toLatent(toVector) = %v, want %v", sound, back, v.Data)
		}
		all := dit.Range{End: grid.Tokens()}
		rows := l.read(b, v.Item(), all, vector)
		if !slices.Equal(rows, want) {
			t.Fatalf("%+v: rows %v, want %v", sound, rows, want)
		}
		back := make([]float32, len(vector))
		l.write(b, v.Item(), 0, all, spec.FeaturesOut(), func(at, row int) { back[at] = rows[row] })
		if !slices.Equal(back, vector) {
			t.Fatalf("%+v: write(read) = %v, want %v", sound, back, vector)
		}
		if spec.FeaturesIn() != width || grid.Tokens()%7 != 0 || grid.Unpadded() != frames*2*2+16/sound.Patch {
			t.Fatalf("%+v: %d columns, grid %+v", sound, spec.FeaturesIn(), grid)
		}
		video, apart := v.Parts()
		if back := request.Join(video, apart); !slices.Equal(back.Data, v.Data) || apart.Data[16*sound.Channels] !=
			v.Data[2*v.Item()-v.Sound.Len()] {
			t.Fatalf("%+v: Parts gave %v and %v", sound, video, apart)
		}
	}
}

// TestMaskOfSound checks that a mask without sound lets all of the sound change.
func TestMaskOfSound(t *testing.T) {
	l := request.Latent{B: 2, C: 2, Y: 1, X: 2, Sound: request.Sound{C: 1, Y: 1, X: 3}}
	m := request.Latent{B: 1, C: 1, Y: 1, X: 2, Data: []float32{0, .5}}
	if got, want := repeatMask(m, l), []float32{0, .5, 0, .5, 1, 1, 1, 0, .5, 0, .5, 1, 1, 1}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	m = request.Join(m, request.Latent{B: 1, C: 1, Y: 1, X: 3, Data: []float32{.1, .2, .3}})
	want := []float32{0, .5, 0, .5, .1, .2, .3, 0, .5, 0, .5, .1, .2, .3}
	if got := repeatMask(m, l); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAreaLayoutReadsRectangle(t *testing.T) {
	const c, y, x, p = 2, 6, 7, 2
	latent := make([]float32, c*y*x)
	for i := range latent {
		latent[i] = float32(i)
	}
	whole := newLayout(c, p, gridOf(y, x, p), dit.Sound{}, nil)
	a := request.Area{H: 3, W: 4, Y: 2, X: 3}
	part := whole.area(a, c, p, gridOf(a.H, a.W, p))
	rows := part.read(1, c*y*x, dit.Range{End: part.grid.Tokens()}, whole.toVector(1, latent))
	crop := make([]float32, 0, c*a.H*a.W)
	for ci := range c {
		for yi := range a.H {
			for xi := range a.W {
				crop = append(crop, latent[(ci*y+a.Y+yi)*x+a.X+xi])
			}
		}
	}
	areaLayout := newLayout(c, p, gridOf(a.H, a.W, p), dit.Sound{}, nil)
	want := areaLayout.read(1, c*a.H*a.W, dit.Range{End: areaLayout.grid.Tokens()}, areaLayout.toVector(1, crop))
	if !slices.Equal(rows, want) {
		t.Fatalf("rows of the area = %v, want %v", rows, want)
	}
}

func TestFeatherMatchesComfyUI(t *testing.T) {
	if testing.Short() {
		t.Skip("long: several runs of a model; the tests of node/classes have areas")
	}
	// get_area_and_mult on a 1-D strip: an area of 12 at 3 inside 20 is feathered over min(8, 12/4) = 3 at both ends.
	want := []float32{1. / 3, 2. / 3, 1, 1, 1, 1, 1, 1, 1, 1, 2. / 3, 1. / 3}
	for i, w := range want {
		got := feather(1, i, 12, 3, 20)
		if d := got - w; !(d <= 1e-6 && d >= -1e-6) {
			t.Errorf("feather at %d = %v, want %v", i, got, w)
		}
	}
	if got := feather(1, 0, 12, 0, 20); got != 1 {
		t.Errorf("an edge of the picture was feathered: %v", got)
	}
}

func TestGuiderNeedsAndMix(t *testing.T) {
	c, u, n := []float32{4}, []float32{1}, []float32{-2}
	for _, tc := range []struct {
		g      request.Guider
		needed []bool
		x0     [][]float32
		guided float32
		uncond float32
	}{
		{request.Guider{Kind: request.GuideBasic}, []bool{true}, [][]float32{c}, 4, 0},
		{request.Guider{Kind: request.GuideCFG, CFG: 3}, []bool{true, true}, [][]float32{c, u}, 10, 1},
		{request.Guider{Kind: request.GuideCFG, CFG: 1}, []bool{true, false}, [][]float32{c, nil}, 4, 0},
		{request.Guider{Kind: request.GuideCFG, CFG: 1, NoShortcut: true}, []bool{true, true}, [][]float32{c, u}, 4, 1},
		{
			request.Guider{Kind: request.GuideDual, CFG: 2, CFG2: 3},
			[]bool{true, true, true},
			[][]float32{c, u, n},
			(-2 + 3*3) + 3*2, -2,
		},
		{
			request.Guider{Kind: request.GuideDual, CFG: 2, CFG2: 3, Nested: true},
			[]bool{true, true, true},
			[][]float32{c, u, n},
			-2 + 3*((1+3*2)-(-2)), 1,
		},
		{
			request.Guider{Kind: request.GuideDual, CFG: 1, CFG2: 1},
			[]bool{true, false, false},
			[][]float32{c, nil, nil},
			4, 0,
		},
	} {
		t.Run(fmt.Sprintf("%+v", tc.g), func(t *testing.T) {
			if got := needed(tc.g, len(tc.needed), false); !slices.Equal(got, tc.needed) {
				t.Errorf("needed = %v, want %v", got, tc.needed)
			}
			guided, uncond := mix(tc.g, 1, tc.x0, lerp)
			if guided[0] != tc.guided || uncond[0] != tc.uncond {
				t.Errorf("mix = %v, %v; want %v, %v", guided[0], uncond[0], tc.guided, tc.uncond)
			}
		})
	}
}
