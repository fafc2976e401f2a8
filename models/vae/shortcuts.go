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
	time bool           // the level halves or doubles the frames of a clip
	Conv *engine.Weight `weight:"shortcut,nobias"`
	// First is the matrix of the first of two frames that become one or come from one, Conv that of the second.
	First *engine.Weight `weight:"shortcut.first,nobias,optional"`
}

// addShortcuts adds the matrices of all levels to out.
func addShortcuts(out map[string]weights.Stored, set *weights.Set, levels int, video bool) error {
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
			for frame, name := range []string{".shortcut.first.weight", ".shortcut.weight"} {
				m, err := shortcutMatrix(set.Dim(first, 1), set.Dim(first, 0), frames, frame, way)
				if err != nil {
					return fmt.Errorf("%s: %w", first, err)
				}
				if frame == 1 || frames == 2 && video {
					out[side.level+name] = m
				}
			}
		}
	}
	return nil
}

// shortcutMatrix returns the matrix of a level with so many channels before and after it, for frame 0 or 1 of two, or
// for the only one.
func shortcutMatrix(in, out, frames, frame int, way direction) (weights.Stored, error) {
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
			o := ((c*frames+min(frame, frames-1))*positions + at) / group
			if way == upwards {
				m[(at*in+c)*cols+o] = 1
			} else {
				m[o*cols+at*in+c] = 1 / float32(group)
			}
		}
	}
	return weights.Floats(m, rows, cols), nil
}

// keep returns what the shortcut around a level keeps of its input, nothing if there is none. It is in memory of the
// arena if frames of a clip pass through later levels before all of it is used.
func (w *walk) keep(s *shortcut) (kept engine.Tensor, err error) {
	if s == nil {
		return kept, nil
	}
	if s.way == upwards && w.clip && s.time {
		kept = w.alloc(w.x.Dim(1), w.x.Dim(2), w.x.Dim(3))
		return kept, w.steps(func() { w.env.Ops.Copy(kept, w.x) })
	}
	err = w.steps(func() { kept = w.kept(s) })
	return kept, err
}

// kept returns the smaller of the input of a level and of what its shortcut makes of that. Where the level halves the
// frames, the first of two is added to the second.
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
	half, second, conv := (*history)(nil), true, s.Conv
	if w.clip && s.time {
		if half = w.history(s, k); half.n%2 == 1 {
			second, conv = false, s.First
		}
	}
	strip := w.stripRows(x, c)
	for lo := 0; lo < y; lo += strip {
		hi := min(lo+strip, y)
		mark := w.env.Arena.Mark()
		t := w.alloc((hi-lo)/2, x/2, square*c)
		eachPosition(w.x.Slice(1, lo, hi), t, func(part, packed engine.Tensor) { w.env.Ops.Copy(packed, part) })
		w.env.Ops.Linear(pixels(k.Slice(1, lo/2, hi/2)), pixels(t), conv, engine.Epilogue{})
		w.env.Arena.Release(mark)
	}
	if half != nil {
		if first, ok := half.frame(1); ok && second {
			w.env.Ops.Add(pixels(k), pixels(k), pixels(first))
		}
		half.push(w, k)
	}
	return k
}

// addKept adds what the shortcut of a level makes of kept, for the first of two frames or for the last one.
func (w *walk) addKept(s *shortcut, kept engine.Tensor, first bool) {
	conv := s.Conv
	if first {
		conv = s.First
	}
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
		w.env.Ops.Linear(pixels(packed), pixels(kept.Slice(1, lo, hi)), conv, engine.Epilogue{})
		eachPosition(rows, packed, w.env.Ops.Copy)
		to := pixels(w.x.Slice(1, 2*lo, 2*hi))
		w.env.Ops.Add(to, to, pixels(rows))
		w.env.Arena.Release(mark)
	}
}
