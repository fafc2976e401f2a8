package dit

// Reference is a latent [C, Y, X] in model space. Read-only.
type Reference struct {
	Y, X int
	Condition
	Seed uint64 // of the noise in it, over its tokens in order
	Data Floats
}

// Condition is what a reference is beside its size. The zero Condition is a picture.
type Condition struct {
	T     int  // frames, one below the other; 0: one
	Sound bool // a latent of sound, with the channels of Spec.Sound
	// Frame says that it is part of the video: 1 plus the number of the picture at which it begins. 0: it precedes the
	// video.
	Frame int
	// Joined: it begins together with the next one, of which it is the sound.
	Joined bool
	// Clean is the part of it that is not noise, in networks that are told (MiniMax-H3); 0: all.
	Clean float32
}

// Like reports whether two references differ in their values alone.
func (r *Reference) Like(o *Reference) bool {
	return r.Y == o.Y && r.X == o.X && r.Condition == o.Condition
}

// ReferenceTokens returns the number of tokens of the references of an entry that the network reads.
func (s *Spec) ReferenceTokens(e *Entry) (n int) {
	if s.NeedsMethod && e.Method == "" {
		return 0
	}
	for i := range e.References {
		n += s.ReferenceGrid(&e.References[i]).Tokens()
	}
	return n
}

// ReferenceGrid returns the grid of a reference. That of a sound has no tokens of a video.
func (s *Spec) ReferenceGrid(r *Reference) Grid {
	if r.Sound {
		return s.WithSound(Grid{}, r.Y, r.X)
	}
	return s.FrameTokens(r.T, r.Y, r.X)
}

// ReferenceChannels returns the channels of a reference.
func (s *Spec) ReferenceChannels(r *Reference) int {
	if r.Sound {
		return s.Sound.Channels
	}
	return s.Channels
}
