package plan

import (
	"io"
	"math"
	"strings"
	"testing"
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
