package graph_test

import (
	"testing"

	"patchbay/node/classes"
)

func TestSimilar(t *testing.T) {
	for name, want := range map[string]string{
		"Ksampler": "KSampler", "KSampelr": "KSampler", "VAEDecodeTile": "VAEDecodeTiled",
		"CLIPTextEncoder": "CLIPTextEncode",
		"Load Image":      "LoadImage", "SaveImages": "SaveImage", "KSampler": "KSampler",
		"Nope": "", "": "", "UltimateSDUpscale": "", "IPAdapterAdvanced": "",
	} {
		if got := classes.All().Similar(name); got != want {
			t.Errorf("%q is like %q, want %q", name, got, want)
		}
	}
}
