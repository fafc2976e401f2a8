package vae_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"patchbay/engine"
	"patchbay/engine/safetensors"
	"patchbay/models/latent"
	"patchbay/models/vae"
	"patchbay/models/weights"
)

// demo is the folder of the trained demo checkpoint.
const demo = "../../examples/demo"

// demoVAE opens the demo's autoencoder, whose metadata has the group count and the latent scale.
func demoVAE(t testing.TB, ops engine.Ops) (*vae.VAE, latent.Format) {
	t.Helper()
	if _, err := os.Stat(demo); err != nil {
		t.Skipf("NOT RUN: the demo checkpoint is missing: %v", err)
	}
	f, err := safetensors.Open(filepath.Join(demo, "vae", "demo_ae.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	config := []byte(f.Metadata()["config"])
	v, err := vae.Open(ops, weights.FromFile(f), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	format, err := latent.FLUX().WithConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return v, format
}

// TestDemoDecode decodes the demo's final latents and compares them with the images that PyTorch decoded.
func TestDemoDecode(t *testing.T) {
	for name, ops := range backends(t) {
		v, format := demoVAE(t, ops)
		if v.Config.Groups != 8 || format.Scale != 0.5728 || format.Shift != 0.0275 {
			t.Fatalf("config %+v, latent %+v: the metadata was not used", v.Config, format)
		}
		for _, prompt := range []int{0, 1} {
			f, err := safetensors.Open(filepath.Join(demo, "reference", fmt.Sprintf("prompt%d.safetensors", prompt)))
			if err != nil {
				t.Fatal(err)
			}
			z, want := values(t, f, "final_latent"), last(values(t, f, "decoded"), 3)
			f.Close()
			format.FromModel(z, 16*16)
			got, err := v.Decode(decodeEnv(t, ops, v, 16, 16), z, 1, 16, 16)
			if err != nil {
				t.Fatal(err)
			}
			compare(t, fmt.Sprintf("%s demo prompt %d", name, prompt), got, want, tolerance)
		}
	}
}

// TestDemoRoundTrip checks that a decoded image survives encoding and decoding.
func TestDemoRoundTrip(t *testing.T) {
	for name, ops := range nativeBackends(t) {
		v, format := demoVAE(t, ops)
		f, err := safetensors.Open(filepath.Join(demo, "reference", "prompt0.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		z := values(t, f, "final_latent")
		format.FromModel(z, 16*16)
		env := vae.Env{Ops: ops}
		first, err := v.Decode(env, z, 1, 16, 16)
		if err != nil {
			t.Fatal(err)
		}
		again, err := v.Encode(env, first, 1, 128, 128)
		if err != nil {
			t.Fatal(err)
		}
		second, err := v.Decode(env, again, 1, 16, 16)
		if err != nil {
			t.Fatal(err)
		}
		var sum float64
		for i := range first {
			d := float64(first[i] - second[i])
			sum += d * d
		}
		if mse := sum / float64(len(first)); mse > 0.004 { // 30 dB on the range of 2
			t.Errorf("%s: mean squared error %g after a round trip", name, mse)
		}
	}
}

// BenchmarkDecode measures decoding with the demo's autoencoder and with a narrow one of FLUX's shape.
func BenchmarkDecode(b *testing.B) {
	for name, ops := range nativeBackends(b) {
		small, _ := demoVAE(b, ops)
		for what, v := range map[string]*vae.VAE{"demo": small, "fluxshape": open(b, ops, checkpoint(b, "vae-flux"))} {
			for _, side := range []int{128, 512} {
				b.Run(fmt.Sprintf("%s/%s/%d", name, what, side), func(b *testing.B) {
					n := side / v.Config.Scale()
					z := make([]float32, v.Config.Latent()*n*n)
					for i := range z {
						z[i] = float32(i%7) - 3
					}
					env := decodeEnv(b, ops, v, n, n)
					for b.Loop() {
						if _, err := v.Decode(env, z, 1, n, n); err != nil {
							b.Fatal(err)
						}
					}
					b.ReportMetric(float64(env.Arena.Peak())/(1<<20), "MiB")
				})
			}
		}
	}
}
