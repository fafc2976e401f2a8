package cli

import (
	"regexp"
	"testing"

	"patchbay/daemon"
	"patchbay/node/files"
)

// TestDoctorSaysWhatIsStreamed checks what doctor says of the demo, whose weights take 9 MB and whose picture of 1024
// px 42 MB more: nothing where they fit, how much comes from host memory where a part does, numbers where none does.
func TestDoctorSaysWhatIsStreamed(t *testing.T) {
	for memory, want := range map[string]string{
		"64M": "",
		"55M": `^note diffusion_models/demo_flux.safetensors: [246] of 6 blocks come from host memory, [0-9.]+ MiB a step: ` +
			`1\.[0-9]+ times the time of blocks that all stay, for a picture of 1024 px$`,
		"30M": `^note diffusion_models/demo_flux.safetensors: .*stream=6 needs 4[0-9.]+ MB a rank .*together may take ` +
			`27\.53 MB; blocks that come from host memory take [0-9.]+ MB there$`,
	} {
		cfg := daemon.Config{Models: []string{"../examples/demo"}, Devices: "cpu", Memory: memory}
		s := &stock{roots: cfg.Roots()}
		got := ""
		for _, c := range s.roomChecks(&cfg, files.KindDiffusion, "demo_flux.safetensors") {
			got += c.state + " " + c.text
		}
		if want == "" && got != "" || !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("with %s: %q, want %q", memory, got, want)
		}
	}
}
