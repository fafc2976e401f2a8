package vae_test

import (
	"fmt"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/safetensors"
	"patchbay/models/vae"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// openChain loads a golden autoencoder whose metadata say how its blocks are put together.
func openChain(t testing.TB, ops engine.Ops, model string) *vae.VAE {
	t.Helper()
	set, config, err := goldenweights.Set(model)
	if err != nil {
		t.Fatal(err)
	}
	v, err := vae.OpenVideo(ops, set, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	return v
}

// TestChainsGolden compares clips of 1 to 31 pictures, whole and in tiles, with what ComfyUI encodes and decodes: with
// decoders that look a frame ahead and one that does not, edges reflected and zero, and shortcuts and none.
func TestChainsGolden(t *testing.T) {
	f, err := safetensors.Open(golden.Path("ltx/vae.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var recorded map[string]struct {
		Shape, Tiles []int
		Every        int
	}
	if err := golden.JSON("ltx/vae.json", &recorded); err != nil {
		t.Fatal(err)
	}
	checked := 0
	for name, ops := range backends(t) {
		for key, want := range recorded {
			model, rest, _ := strings.Cut(key, "/")
			kind, size, _ := strings.Cut(strings.TrimSuffix(rest, "#raw"), "/")
			var n, y, x int
			if _, err := fmt.Sscanf(size, "%dx%dx%d", &n, &y, &x); err != nil {
				t.Fatal(err)
			}
			if name == "ref" && n > 1 {
				continue // a hundred times slower
			}
			v, env := openChain(t, ops, model), vae.Env{Ops: ops}
			var got []float32
			latent := golden.Input(model+"/latent/"+size, v.Config.Latent()*n*y*x)
			image := golden.Fill("input:"+model+"/image/"+size, n*y*x*3, 1, 0.5)
			switch pictures, ly, lx := v.Config.CropToImage(image, n, y, x, 3); kind {
			case "decode":
				got = decodedClip(t, v, env, latent, n, y, x)
			case "decode_tiled":
				tiles := vae.DecodeClipTiles(want.Tiles[0], want.Tiles[1], want.Tiles[2], want.Tiles[3], v.Config)
				got, err = v.DecodeClipTiled(env, latent, n, y, x, tiles)
				vae.ToImage(got)
			case "encode":
				got, err = v.EncodeVideo(env, pictures, n, ly, lx)
			case "encode_tiled":
				tiles := vae.EncodeClipTiles(want.Tiles[0], want.Tiles[1], want.Tiles[2], want.Tiles[3], v.Config)
				got, err = v.EncodeClipTiled(env, pictures, n, ly, lx, tiles)
			}
			if err != nil {
				t.Fatal(err)
			}
			var stored []float32
			for i := 0; i < len(got); i += want.Every {
				stored = append(stored, got[i])
			}
			checked++
			compare(t, name+" "+key, stored, values(t, f, key), tolerance)
		}
	}
	if checked < 14 {
		t.Errorf("%d cases were compared, want all 14", checked)
	}
}
