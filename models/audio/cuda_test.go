//go:build cgo && fakegpu

package audio_test

import (
	"strings"
	"testing"

	"patchbay/engine/cuda"
	"patchbay/models/audio"
	"patchbay/tests/fakegpu"
	"patchbay/tests/golden"
)

// TestMelsOnFakeGPU compares short sounds and a latent with ComfyUI's on the fake device.
func TestMelsOnFakeGPU(t *testing.T) {
	driver, err := cuda.Open(fakegpu.Library(t))
	if err != nil {
		t.Fatal(err)
	}
	device, err := driver.Device(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := device.Close(); err != nil {
			t.Error(err)
		}
	})
	ops, err := device.NewOps()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ops.Close(); err != nil {
			t.Error(err)
		}
	})
	f, err := golden.Open("ltx/audio.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, key := range []string{
		"ltxaudio-a/decode/1", "ltxaudio-b/decode/1", "ltxaudio-c/decode/1", "ltxaudio-a/encode/2x4096x44100",
	} {
		model, rest, _ := strings.Cut(key, "/")
		v := openMel(t, ops, model)
		var got []float32
		if strings.HasPrefix(rest, "decode") {
			got, err = v.Decode(audio.Env{Ops: ops}, golden.Input(model+"/latent/1", 8*16), 1, 16)
		} else {
			got, err = v.Encode(audio.Env{Ops: ops}, golden.Fill("input:"+model+"/wave/2x4096", 2*4096, 1, 0), 2, 4096)
		}
		if err != nil {
			t.Fatal(err)
		}
		e, _ := f.Entry(key)
		want, err := e.F32()
		if err != nil {
			t.Fatal(err)
		}
		compare(t, key, got, want)
	}
}
