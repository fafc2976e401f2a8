package sampling

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"patchbay/tests/golden"
)

// TestSoundSchedules compares the sigmas of sounds with those recorded of ComfyUI, and the schedules of the videos
// beside them.
func TestSoundSchedules(t *testing.T) {
	var cases map[string]struct {
		Shift  float64
		Audio  float64            `json:"audio_shift"`
		Scale  float64            `json:"audio_scale"`
		Of     map[string]float64 `json:"audio_sigma_of_video_sigma"`
		Sigmas []float32
	}
	if err := golden.JSON("h3/sigmas.json", &cases); err != nil {
		t.Fatal(err)
	}
	n := 0
	for name, c := range cases {
		line := "h3/"
		if strings.HasPrefix(name, "h3/shift-10-3/") {
			line = "h3/shift-10-3/"
		}
		of := cases[line+"conversions"]
		m, err := NewFlow(of.Shift, 1000)
		if err != nil {
			t.Fatal(err)
		}
		if m, err = m.WithSound(of.Audio); err != nil {
			t.Fatal(err)
		}
		if steps, ok := strings.CutPrefix(name, line+"simple/"); ok {
			k, err := strconv.Atoi(steps)
			if err != nil {
				t.Fatal(err)
			}
			got, err := KSamplerSigmas(m, "euler", "simple", k, 1)
			if err != nil || len(got) != len(c.Sigmas) {
				t.Fatalf("%s: %v, %v", name, got, err)
			}
			for i, want := range c.Sigmas {
				if !(math.Abs(float64(got[i]-want)) <= 4*0x1p-24) {
					t.Errorf("%s: sigma %d is %v, want %v", name, i, got[i], want)
				}
			}
			n++
			continue
		}
		if got := m.SoundScale(); got != float32(c.Scale) {
			t.Errorf("%s: sounds are carried times %v, want %v", name, got, c.Scale)
		}
		for video, want := range c.Of {
			sigma, err := strconv.ParseFloat(video, 32)
			if err != nil {
				t.Fatal(err)
			}
			if got := float64(m.SoundSigma(float32(sigma))); !(math.Abs(got-want) <= 1e-6*want) {
				t.Errorf("%s: beside %s the sound has sigma %v, want %v", name, video, got, want)
			}
			n++
		}
	}
	if n != 20 {
		t.Errorf("compared %d numbers and lists, want 20", n)
	}
}

// TestCarriedSound checks that one step of the carried sound by the video's schedule is a step of the sound by its own.
func TestCarriedSound(t *testing.T) {
	m, err := NewFlow(12, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if m, err = m.WithSound(3); err != nil {
		t.Fatal(err)
	}
	const from, to, clean, noise = 0.9, 0.6, 0.7, -1.3
	scale := m.SoundScale()
	at := func(sigma float32) float32 { return (1-sigma)*scale*clean + sigma*noise } // carried
	input := []float32{at(from)}
	m.SoundInput(input, from)
	s := m.SoundSigma(from)
	if want := (1-s)*clean + s*noise; !(math.Abs(float64(input[0]-want)) <= 1e-6) {
		t.Errorf("the network reads %v, want the sound at its sigma, %v", input[0], want)
	}
	out := []float32{noise - clean}
	m.SoundOutput(out, input, from)
	if got := at(from) + out[0]*(to-from); !(math.Abs(float64(got-at(to))) <= 2e-6) {
		t.Errorf("after a step %v, want %v", got, at(to))
	}
	for _, shift := range []float64{0, -1, math.Inf(1), math.NaN()} {
		if _, err := m.WithSound(shift); err == nil {
			t.Errorf("a shift of %v was taken", shift)
		}
	}
}
