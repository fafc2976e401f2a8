package dit

// Sound describes the sound beside a video: a latent [Channels, Y, X], of which a token is Patch columns of one row
// with features ordered (channel, column). The zero Sound is none.
type Sound struct {
	Channels, Patch int
	// Width is that of the rows of sound where they are a stream of their own, small enough for every rank of a sequence
	// to compute all of it (ADR 47); 0: tokens of sound are image rows.
	Width int
	// Heads is the number of heads of the attention between such a stream and the video.
	Heads int
}

// WithSound returns a grid with a sound latent of y rows and x columns, a multiple of Sound.Patch, beside it.
func (s *Spec) WithSound(g Grid, y, x int) Grid {
	g.SoundY, g.SoundX, g.Sound = y, x, y*x/s.Sound.Patch
	g.Pad = s.pads(g.Unpadded())
	return g
}

// Alike returns how many tokens of g every rank of a sequence computes: those of sound that is a stream of its own.
func (s *Spec) Alike(g Grid) int {
	if s.Sound.Width == 0 {
		return 0
	}
	return g.Sound
}

// AlikeOf is Alike with the rows of Entry.SoundReference, of which all entries have equally many.
func (s *Spec) AlikeOf(g Grid, entries []Entry) int {
	n := s.Alike(g)
	if n > 0 {
		n += entries[0].SoundReference.Rows
	}
	return n
}

// Split returns how many tokens of g plans split over ranks.
func (s *Spec) Split(g Grid) int { return g.Tokens() - s.Alike(g) }

// FeaturesIn returns the columns of the rows that Embed reads: a token's elements of the latent, or of its sound if
// those are more. Rows with fewer elements end with zeros.
func (s *Spec) FeaturesIn() int {
	return max(s.Channels*s.PatchSize*s.PatchSize, s.Sound.Channels*s.Sound.Patch)
}

// FeaturesOut returns the columns of the rows that Head writes. What follows a token's elements is not read.
func (s *Spec) FeaturesOut() int {
	return max(s.OutChannels*s.PatchSize*s.PatchSize, s.Sound.Channels*s.Sound.Patch)
}
