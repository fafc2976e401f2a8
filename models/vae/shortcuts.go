package vae

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/weights"
)

// Qwen-Image-2.1's autoencoder has the layout of Wan 2.2's (arXiv:2503.20314, code of the 5B model) without its
// squares of pixels: levels are lists of their own, and around every level but the decoder's last goes a shortcut that
// only moves and averages channels. Downwards the pixels of a 2 x 2 square count as channels, ordered (channel, frame,
// row, column), of which groups are averaged; upwards channels are repeated and read in that order. Levels that also
// halve the frames have two of them, of which a single picture is the second and the first is zeros. What remains is a
// matrix, which is made here.

// nestedAnchor is a name that only this layout has.
const nestedAnchor = "decoder.upsamples.0.upsamples.0.residual.2.weight"

// direction is what a level does to the size of the picture.
type direction int

const (
	flat direction = iota
	downwards
	upwards
)

// shortcut is the matrix around a level. Its positions are ordered (position, channel), as eachPosition orders them.
type shortcut struct {
	out  int // channels
	way  direction
	Conv *engine.Weight `weight:"shortcut,nobias"`
}

// addShortcuts adds the matrices of all levels to out.
func addShortcuts(out map[string]weights.Stored, set *weights.Set, levels int) error {
	for i := range levels {
		for _, side := range []struct {
			list, level string
			way         direction
		}{
			{fmt.Sprintf("encoder.downsamples.%d.downsamples.", i), fmt.Sprintf("encoder.down.%d", i), downwards},
			{fmt.Sprintf("decoder.upsamples.%d.upsamples.", i), fmt.Sprintf("decoder.up.%d", levels-1-i), upwards},
		} {
			first := side.list + "0.residual.2.weight"
			if !set.Has(first) || i == levels-1 && side.way == upwards {
				continue
			}
			way, frames := side.way, 1
			if i == levels-1 {
				way = flat
			}
			for k := range set.Count(side.list[:len(side.list)-1]) {
				if set.Has(fmt.Sprintf("%s%d.time_conv.weight", side.list, k)) {
					frames = 2
				}
			}
			m, err := shortcutMatrix(set.Dim(first, 1), set.Dim(first, 0), frames, way)
			if err != nil {
				return fmt.Errorf("%s: %w", first, err)
			}
			out[side.level+".shortcut.weight"] = m
		}
	}
	return nil
}

// shortcutMatrix returns the matrix of a level with so many channels before and after it.
func shortcutMatrix(in, out, frames int, way direction) (weights.Stored, error) {
	rows, cols, positions, more := out, in, square, in*frames*square
	switch way {
	case downwards:
		cols *= square
	case upwards:
		rows, more, in, out = rows*square, out*frames*square, out, in // as downwards, with rows and columns exchanged
	default:
		positions, frames, more = 1, 1, in
	}
	if out == 0 || more%out != 0 {
		return weights.Stored{}, fmt.Errorf("a shortcut between %d and %d channels is not known", in, out)
	}
	group, m := more/out, make([]float32, rows*cols)
	for c := range in {
		for at := range positions {
			o := ((c*frames+frames-1)*positions + at) / group
			if way == upwards {
				m[(at*in+c)*cols+o] = 1
			} else {
				m[o*cols+at*in+c] = 1 / float32(group)
			}
		}
	}
	return weights.Floats(m, rows, cols), nil
}

// level runs f, the layers of a level, and adds what the level's shortcut makes of its input; nil: there is none. The
// smaller of input and shortcut is kept meanwhile.
func (w *walk) level(s *shortcut, f func() error) error {
	if s == nil {
		return f()
	}
	var kept engine.Tensor
	err := w.steps(func() { kept = w.kept(s) })
	if err == nil {
		err = f()
	}
	if err != nil {
		return err
	}
	return w.steps(func() { w.addKept(s, kept) })
}

func (w *walk) kept(s *shortcut) engine.Tensor {
	y, x, c := w.x.Dim(1), w.x.Dim(2), w.x.Dim(3)
	switch s.way {
	case upwards:
		k := w.in(beside, y, x, c)
		w.env.Ops.Copy(k, w.x)
		return k
	case flat:
		k := w.in(beside, y, x, s.out)
		w.env.Ops.Linear(pixels(k), pixels(w.x), s.Conv, engine.Epilogue{})
		return k
	}
	k := w.in(beside, y/2, x/2, s.out)
	strip := w.stripRows(x, c)
	for lo := 0; lo < y; lo += strip {
		hi := min(lo+strip, y)
		mark := w.env.Arena.Mark()
		t := w.alloc((hi-lo)/2, x/2, square*c)
		eachPosition(w.x.Slice(1, lo, hi), t, func(part, packed engine.Tensor) { w.env.Ops.Copy(packed, part) })
		w.env.Ops.Linear(pixels(k.Slice(1, lo/2, hi/2)), pixels(t), s.Conv, engine.Epilogue{})
		w.env.Arena.Release(mark)
	}
	return k
}

func (w *walk) addKept(s *shortcut, kept engine.Tensor) {
	if s.way != upwards {
		w.env.Ops.Add(pixels(w.x), pixels(w.x), pixels(kept))
		return
	}
	y, x := kept.Dim(1), kept.Dim(2)
	strip := w.stripRows(x, 2*square*s.out)
	for lo := 0; lo < y; lo += strip {
		hi := min(lo+strip, y)
		mark := w.env.Arena.Mark()
		packed, rows := w.alloc(hi-lo, x, square*s.out), w.alloc(2*(hi-lo), 2*x, s.out)
		w.env.Ops.Linear(pixels(packed), pixels(kept.Slice(1, lo, hi)), s.Conv, engine.Epilogue{})
		eachPosition(rows, packed, w.env.Ops.Copy)
		to := pixels(w.x.Slice(1, 2*lo, 2*hi))
		w.env.Ops.Add(to, to, pixels(rows))
		w.env.Arena.Release(mark)
	}
}
