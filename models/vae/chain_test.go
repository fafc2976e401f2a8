package vae_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/models/vae"
	"patchbay/models/weights"
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
	f, err := golden.Open("ltx/vae.safetensors")
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
	_, quick := fastest(t)
	for name, ops := range backends(t) {
		for key, want := range recorded {
			model, rest, _ := strings.Cut(key, "/")
			kind, size, _ := strings.Cut(strings.TrimSuffix(rest, "#raw"), "/")
			var n, y, x int
			if _, err := fmt.Sscanf(size, "%dx%dx%d", &n, &y, &x); err != nil {
				t.Fatal(err)
			}
			if name != quick && n > 1 {
				continue // the convolutions are those of other tests
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

// TestChainMemory checks that the memory of long clips is that of short ones, and a figure of docs/limits.md: the
// autoencoder of LTX-2.0 and 121 frames of 1280 x 704.
func TestChainMemory(t *testing.T) {
	chain := &vae.Chain{Square: 4, Ahead: 1, Reflect: true}
	for _, width := range []int{1024, 512, 256} {
		chain.Up = append(chain.Up, vae.Hop{In: width, Out: width, Blocks: 5},
			vae.Hop{In: width, Out: width / 2, Time: true, Space: true, Shortcut: true})
	}
	chain.Up = append(chain.Up, vae.Hop{In: 128, Out: 128, Blocks: 5})
	cfg := vae.Config{
		Channels: 128, Z: 128, Embed: 128, In: 3, Out: 3, Quant: true, Wan: true, Video: true,
		Time: []bool{true, true, true}, Chain: chain,
	}
	band := vae.Band{Start: 0, End: 22, Total: 22}
	few, many := vae.DecodeClipBytes(cfg, engine.BF16, band, 40, 3), vae.DecodeClipBytes(cfg, engine.BF16, band, 40, 16)
	if few != many {
		t.Errorf("3 latent frames take %d bytes, 16 take %d", few, many)
	}
	if got := float64(many) / 1e9; !(got > 0.7 && got < 0.75) {
		t.Errorf("121 frames of 1280 x 704 take %.2f GB", got)
	}
}

// TestChainBadInput checks what is refused by name: a file without metadata, settings that are not known, and metadata
// that do not fit the weights.
func TestChainBadInput(t *testing.T) {
	ops, _ := fastest(t)
	set, config, err := goldenweights.Set("ltxvae-a")
	if err != nil {
		t.Fatal(err)
	}
	changed := func(pairs ...string) []byte { return []byte(strings.NewReplacer(pairs...).Replace(string(config))) }
	for want, text := range map[string][]byte{
		"no config with a member vae":   nil,
		"want pixel_norm":               changed(`"pixel_norm"`, `"group_norm"`),
		"timestep_conditioning is true": changed(`"timestep_conditioning":false`, `"timestep_conditioning":true`),
		"decoder_blocks[1]":             changed(`"compress_all"`, `"compress_none"`),
		"encoder_blocks[1]":             changed(`"compress_space_res"`, `"compress_space"`),
		"patch_size is 0":               changed(`"patch_size":4`, `"patch_size":0`),
		"make a latent pixel of 16":     changed(`"compress_space_res"`, `"compress_time_res"`),
		"decoder.conv_in.conv":          changed(`"decoder_base_channels":8`, `"decoder_base_channels":16`),
		"without noise":                 changed(`"inject_noise":false`, `"inject_noise":true`),
	} {
		v, err := vae.Open(ops, set, text)
		if err == nil {
			v.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	less := map[string]weights.Stored{}
	for _, name := range set.Names() {
		less[name], _ = set.Get(name)
	}
	maps.DeleteFunc(less, func(name string, _ weights.Stored) bool { return strings.HasSuffix(name, ".std-of-means") })
	_, err = vae.Open(ops, weights.FromMap(less), config)
	if err == nil || !strings.Contains(err.Error(), "std-of-means") {
		t.Errorf("a file without statistics: %v", err)
	}
}
