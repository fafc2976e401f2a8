package goldenweights

import (
	"encoding/json"
	"strings"

	"patchbay/models/dit"
	"patchbay/tests/golden"
)

// Sound is what cases of networks for videos with sound have beside the others (MiniMax-H3).
type Sound struct {
	Sound []int `json:"sound"` // [1, C, Y, X]; nil: there is none
	// Tags has a 0 for each text row of a picture, and a 1 for the others.
	Tags      []int `json:"tags"`
	Keyframes []struct {
		At    int     `json:"resolved_frame_index"`
		Video *latent `json:"latent"`
		Sound *latent `json:"audio_latent"`
	} `json:"keyframes"`
	Refs []struct {
		Video *latent `json:"latent"`
		Sound *latent `json:"audio_latent"`
	} `json:"refs"`
	Seed       uint64   `json:"seed"`
	CleanVideo *float32 `json:"visual_cond_noise_aug"` // nil: 0.999
	CleanSound *float32 `json:"audio_cond_noise_aug"`  // nil: 1
	// Scale: samplers carry the sound times this, and the network's result is what they get (0: neither).
	Scale float32 `json:"audio_scale"`
}

// latent is the name and the shape of a recorded input.
type latent struct {
	name  string
	shape []int
}

func (l *latent) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&l.name, &l.shape})
}

// reference returns the latent as a network takes it.
func (l *latent) reference() dit.Reference {
	n := len(l.shape)
	data := golden.Input(strings.TrimPrefix(l.name, "input:"), product(l.shape))
	r := dit.Reference{Y: l.shape[n-2], X: l.shape[n-1], Data: data}
	if n == 5 {
		r.T = l.shape[2]
		r.Y *= r.T
	}
	return r
}

// ratio is the shift of the recorded sounds over that of their videos.
const ratio = 0.25

// with adds what s has to an entry.
func (s *Sound) with(e *dit.Entry) {
	if s.Sound == nil {
		return
	}
	e.SoundRatio = ratio
	for at := 0; at < len(s.Tags); at++ {
		start := at
		for at < len(s.Tags) && s.Tags[at] == 0 {
			at++
		}
		if at > start {
			e.Pictures = append(e.Pictures, dit.Range{Start: start, End: at})
		}
	}
	clean := func(v *float32, standard float32) float32 {
		if v != nil {
			return *v
		}
		return standard
	}
	video := func(l *latent, frame int) {
		if l != nil {
			r := l.reference()
			r.Frame, r.Clean, r.Seed = frame, clean(s.CleanVideo, 0.999), s.Seed
			e.References = append(e.References, r)
		}
	}
	sound := func(l *latent, frame int, joined bool) {
		if l != nil {
			r := l.reference()
			r.Sound, r.Frame, r.Joined = true, frame, joined
			r.Clean, r.Seed = clean(s.CleanSound, 1), s.Seed+1
			e.References = append(e.References, r)
		}
	}
	for _, k := range s.Keyframes {
		video(k.Video, k.At+1)
		sound(k.Sound, k.At+1, false)
	}
	for _, r := range s.Refs {
		sound(r.Sound, 0, r.Video != nil)
		video(r.Video, 0)
	}
}

// Grid returns the token grid of a case.
func (c Case) Grid(spec *dit.Spec) dit.Grid {
	g := spec.FrameTokens(c.T, c.X[2], c.X[3])
	if n := len(c.Sound.Sound); n > 0 {
		g = spec.WithSound(g, c.Sound.Sound[n-2], c.Sound.Sound[n-1])
	}
	return g
}

// SoundSigma returns the sigma of the video and that of the sound at timestep i of a case.
func (c Case) SoundSigma(i int) (video, sound float32) {
	v := c.Timesteps[i] / 1000
	return v, ratio * v / (1 + (ratio-1)*v)
}

// Sounds returns the input sounds [n, C, Y, X] as the network reads them, and what the result of an item's sound is for
// the network's, by element.
func (c Case) Sounds() (in []float32, result func(item int, out []float32)) {
	if c.Sound.Sound == nil {
		return nil, func(int, []float32) {}
	}
	in = golden.Input(c.Name+"/audio", product(c.Sound.Sound))
	if c.Scale == 0 {
		return in, func(int, []float32) {}
	}
	size := len(in) / c.N()
	for i := range in {
		video, sound := c.SoundSigma(i / size)
		in[i] *= sound / video
	}
	return in, func(item int, out []float32) {
		_, sound := c.SoundSigma(item)
		for i := range out {
			out[i] = (1-c.Scale)*in[item*size+i] + (1+(c.Scale-1)*sound)*out[i]
		}
	}
}
