package family

// Video says which latents the videos of a family have: the first First pictures become Lead latent frames, and every
// Step pictures after them Frames more. The zero Video is that of families that make no videos.
type Video struct {
	First, Lead, Step, Frames int
	// Sound returns the rows and columns of the sound's latent that lies beside so many pictures; nil: there is none.
	Sound func(pictures int) (y, x int)
}

// Makes reports whether a video of so many pictures fills its latent frames.
func (v Video) Makes(pictures int) bool {
	return v.Step > 0 && pictures >= v.First && (pictures-v.First)%v.Step == 0
}

// Latent returns the number of latent frames of so many pictures, cut to a number that it Makes. There are at least
// First.
func (v Video) Latent(pictures int) int { return v.Lead + (pictures-v.First)/v.Step*v.Frames }

// Clip is the size of a video in pixels and pictures.
type Clip struct{ Width, Height, Pictures int }
