package dit

import "slices"

// Keyframes are frames of a latent that guide a video.
type Keyframes struct {
	// Spans has, for each of these frames, the first picture of the video that it stands for, and the one after the last.
	Spans [][2]float32
	// Weight is the factor of attention, finite and at least 0, that tokens of the video pay to them and they to those.
	Weight float32
	// Mask has a further factor for each token of these frames, finite and at least 0; nil: 1 for all.
	Mask []float32
	// Every: of these frames only every so many-th row and column of the grid have tokens, each of which stands for a
	// square with sides of so many; below 2: all. The sides of a frame are multiples of it.
	Every int
}

// Tokens returns how many tokens these frames have, of which one without Every has the given grid.
func (k *Keyframes) Tokens(frame Grid) int {
	by := max(1, k.Every)
	return len(k.Spans) * (frame.Y / by) * (frame.X / by)
}

// thins reports whether keyframes leave out tokens of a grid. Grids without frames for them are refused elsewhere.
func (e *Entry) thins(g Grid) bool {
	return e.KeyframesOf() < max(1, g.T) &&
		slices.ContainsFunc(e.Keyframes, func(k Keyframes) bool { return k.Every > 1 })
}

// Kept returns which tokens of a grid, row by row over all frames, there are; nil: all.
func (e *Entry) Kept(g Grid) (kept []int32) {
	if !e.thins(g) {
		return nil
	}
	frame, at := g.Frame(), max(1, g.T)-e.KeyframesOf()
	for token := range at * frame.Y * g.X {
		kept = append(kept, int32(token))
	}
	for _, k := range e.Keyframes {
		for range k.Spans {
			for y := 0; y < frame.Y; y += max(1, k.Every) {
				for x := 0; x < g.X; x += max(1, k.Every) {
					kept = append(kept, int32((at*frame.Y+y)*g.X+x))
				}
			}
			at++
		}
	}
	return kept
}

// FrameRows returns the first token of each frame of a grid, and behind the last frame the number of tokens.
func (e *Entry) FrameRows(g Grid) func(frame int) int {
	of, at := g.Frame(), max(1, g.T)-e.KeyframesOf()
	starts := make([]int, 0, max(1, g.T)+1)
	for i := range at {
		starts = append(starts, i*of.Y*of.X)
	}
	n := at * of.Y * of.X
	for i := range e.Keyframes {
		k := &e.Keyframes[i]
		for range k.Spans {
			starts = append(starts, n)
			n += k.Tokens(of) / len(k.Spans)
		}
	}
	starts = append(starts, n)
	return func(frame int) int { return starts[frame] }
}

// Thinned returns a grid without the tokens that an entry's keyframes leave out.
func (e *Entry) Thinned(g Grid) Grid {
	if g.Left = 0; !e.thins(g) {
		return g
	}
	for i := range e.Keyframes {
		k, frame := &e.Keyframes[i], g.Frame()
		g.Left += len(k.Spans)*frame.Y*frame.X - k.Tokens(frame)
	}
	return g
}

// KeyframesOf returns how many frames of the latent are keyframes.
func (e *Entry) KeyframesOf() (frames int) {
	for _, k := range e.Keyframes {
		frames += len(k.Spans)
	}
	return frames
}

// SameKeyframes reports whether two entries have the same keyframes.
func (e *Entry) SameKeyframes(other *Entry) bool {
	return slices.EqualFunc(e.Keyframes, other.Keyframes, func(a, b Keyframes) bool {
		return a.Weight == b.Weight && a.Every == b.Every && slices.Equal(a.Spans, b.Spans) && slices.Equal(a.Mask, b.Mask)
	})
}
