package plan

import (
	"fmt"
	"io"
	"math"
	"strings"
	"testing"

	"patchbay/models/published"
)

// TestOldFlagsAreRefusedByName checks that a removed flag names what replaces it, or says why nothing does.
func TestOldFlagsAreRefusedByName(t *testing.T) {
	for flag, want := range map[string]string{"--profile=f.json": "--rates f.json", "--requests=2": "removed"} {
		cmd := Command()
		cmd.SetArgs([]string{"--model", "flux-dev", "--devices", "cpu", flag})
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want a refusal that says %q", flag, err, want)
		}
	}
}

// TestLayersCount checks that three layers and the whole picture have as many tokens as a picture four times as tall,
// and that an odd number of rows is padded in each.
func TestLayersCount(t *testing.T) {
	flags := []string{"--model", "qwen-image-layered", "--devices", "2xH100-nvlink", "--plan", "ulysses=2", "--size"}
	for size, tall := range map[string]string{"640x640": "640x2560", "640x632": "640x2560"} {
		got, err := answer(t, append(flags, size, "--layers", "3")...)
		if err != nil {
			t.Fatal(err)
		}
		want, err := answer(t, append(flags, tall)...)
		if err != nil {
			t.Fatal(err)
		}
		// the latents of 632 rows of pixels are smaller, the computation is not
		if !(math.Abs(got.Seconds/want.Seconds-1) <= 1e-3) || got.Memory.Activations != want.Memory.Activations {
			t.Errorf("three layers of %s: %v s, %d bytes, a picture of %s %v s, %d bytes", size, got.Seconds,
				got.Memory.Activations, tall, want.Seconds, want.Memory.Activations)
		}
	}
	for want, flags := range map[string][]string{
		"--layers 65: want 1 to 64":         append(flags, "640x640", "--layers", "65"),
		"--layers 3: want 1 to 64 of":       {"--model", "flux-dev", "--devices", "2xH100-nvlink", "--layers", "3"},
		"beside layers: leave out --layers": append(flags, "640x640", "--layers", "3", "--patch", "blocks"),
		"--fits are for pictures without":   {"--fits", "--layers", "3"},
	} {
		if _, err := answer(t, flags...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %q", flags, err, want)
		}
	}
}

// TestFramesCount checks how many tokens videos have and that their time and memory are counted. Wan 2.1 has 32,760
// tokens for 81 pictures of 832x480 (Wan-AI's code), TI2V-5B 27,280 for 121 of 1280x704; latents of LTX-2 and
// MiniMax-H3 are ComfyUI's, with 121 rows and 2 x 207 columns of sound.
func TestFramesCount(t *testing.T) {
	for _, c := range []struct {
		model  string
		tokens int // that plans split
		sound  [2]int
	}{
		{"wan2.1-t2v-14b", 21 * 30 * 52, [2]int{}},
		{"wan2.2-ti2v-5b", 31 * 22 * 40, [2]int{}},
		{"ltx-2-19b", 16 * 16 * 24, [2]int{121, 16}},
		{"minimax-h3", 37*24*42 + 2*207, [2]int{2, 207}},
	} {
		m, err := published.Find(c.model)
		if err != nil {
			t.Fatal(err)
		}
		f := Flags{
			Model: c.model, Size: fmt.Sprintf("%dx%d", m.Clip.Width, m.Clip.Height), Devices: "1x4090-pcie", Batch: 1,
			frames: m.Clip.Pictures,
		}
		s, err := f.Search()
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]int{s.SoundY, s.SoundX}; s.Tokens() != c.tokens || got != c.sound {
			t.Errorf("%s: %d tokens and sound of %v, want %d and %v", c.model, s.Tokens(), got, c.tokens, c.sound)
		}
	}
	flags := []string{"--model", "wan2.1-t2v-1.3b", "--devices", "1x4090-pcie", "--plan", "ulysses=1", "--size"}
	video, err := answer(t, append(flags, "480x480", "--frames", "9")...)
	if err != nil {
		t.Fatal(err)
	}
	picture, err := answer(t, append(flags, "480x1440")...)
	if err != nil {
		t.Fatal(err)
	}
	if video.Frames != 9 || video.Seconds != picture.Seconds || video.Memory.Activations != picture.Memory.Activations {
		t.Errorf("9 pictures: %v s, %d bytes, a picture as large as their latents %v s, %d bytes", video.Seconds,
			video.Memory.Activations, picture.Seconds, picture.Memory.Activations)
	}
	for want, flags := range map[string][]string{
		"--frames 8: want 1, 5, 9 and so on":     append(flags, "480x480", "--frames", "8"),
		"--frames -3: want 1":                    append(flags, "480x480", "--frames", "-3"),
		"--frames 16385: want 1":                 append(flags, "480x480", "--frames", "16385"),
		"--frames 4: want 5, 22, 39 and so on":   {"--model", "minimax-h3", "--devices", "1x4090-pcie", "--frames", "4"},
		"--frames 5: flux-dev makes no videos":   {"--model", "flux-dev", "--devices", "1x4090-pcie", "--frames", "5"},
		"--frames is for videos alone":           append(flags, "480x480", "--frames", "9", "--layers", "2"),
		"--check is for pictures":                {"--check", "--frames", "5"},
		"--fits has rows for the usual video of": {"--fits", "--frames", "5"},
	} {
		if _, err := answer(t, flags...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %q", flags, err, want)
		}
	}
}
