package vae_test

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"

	"patchbay/engine"
	"patchbay/models/vae"
	"patchbay/tests/golden"
)

// openVideo loads a golden autoencoder with its layers over time.
func openVideo(t testing.TB, ops engine.Ops, model string) *vae.VAE {
	t.Helper()
	v, err := vae.OpenVideo(ops, checkpoint(t, model), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	return v
}

// decodedClip decodes a clip of latents [C, n*y, x] and returns its pictures one after the other.
func decodedClip(t testing.TB, v *vae.VAE, env vae.Env, latent []float32, n, y, x int) (out []float32) {
	t.Helper()
	next := 0
	err := v.DecodeVideo(env, latent, n, y, x, func(i int, picture []float32) error {
		if i != next {
			return fmt.Errorf("picture %d follows %d", i, next-1)
		}
		next++
		out = append(out, picture...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// clips are the recorded cases of both autoencoders: names end with frames, rows and columns.
var clips = regexp.MustCompile(`^(wan2[12]vae-a)/(encode|decode)/(\d+)x(\d+)x(\d+)(#raw)?$`)

// TestClipsGolden compares clips of 1 to 21 pictures, some of odd sides and of numbers that are not 4k+1, with what
// ComfyUI encodes and decodes in chunks of its own.
func TestClipsGolden(t *testing.T) {
	f, err := golden.Open("wan/vae.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	checked := 0
	for name, ops := range backends(t) {
		loaded := map[string]*vae.VAE{}
		for _, key := range f.Names() {
			m := clips.FindStringSubmatch(key)
			if m == nil {
				continue
			}
			var n [3]int
			for i := range n {
				n[i], _ = strconv.Atoi(m[3+i])
			}
			if name == "ref" && n[0] > 5 {
				continue // a hundred times slower
			}
			v := loaded[m[1]]
			if v == nil {
				v = openVideo(t, ops, m[1])
				loaded[m[1]] = v
			}
			checked++
			want, size := values(t, f, key), m[3]+"x"+m[4]+"x"+m[5]
			if m[2] == "decode" {
				latent := golden.Input(m[1]+"/latent/"+size, v.Config.Latent()*n[0]*n[1]*n[2])
				got := decodedClip(t, v, vae.Env{Ops: ops}, latent, n[0], n[1], n[2])
				compare(t, name+" "+key, got, last(want, v.Config.Out), tolerance)
				continue
			}
			image := golden.Fill("input:"+m[1]+"/image/"+size, n[0]*n[1]*n[2]*3, 1, 0.5)
			pictures, y, x := v.Config.CropToImage(image, n[0], n[1], n[2], 3)
			got, err := v.EncodeVideo(vae.Env{Ops: ops}, pictures, n[0], y, x)
			if err != nil {
				t.Fatal(err)
			}
			compare(t, name+" "+key, got, want, tolerance)
		}
	}
	if checked < 19 {
		t.Errorf("%d cases were compared, want all 19 on each backend", checked)
	}
}

// TestClipsDoNotDependOnTheirLength checks that pictures do not depend on later latent frames, and latents not on later
// pictures, and that the memory of long clips is that of short ones.
func TestClipsDoNotDependOnTheirLength(t *testing.T) {
	ops, _ := fastest(t)
	for _, model := range []string{"wan21vae-a", "wan22vae-a"} {
		v := openVideo(t, ops, model)
		c, s := v.Config.Latent(), v.Config.Scale()
		latent := golden.Input(model+"/long", c*4*2*3)
		var short []float32 // of two of the four frames
		for k := range c {
			short = append(short, latent[k*24:k*24+12]...)
		}
		whole := decodedClip(t, v, vae.Env{Ops: ops}, latent, 4, 2, 3)
		part := decodedClip(t, v, vae.Env{Ops: ops}, short, 2, 2, 3)
		if !slices.Equal(whole[:len(part)], part) || len(part) != 5*2*s*3*s*3 {
			t.Errorf("%s: the first 5 of 13 pictures depend on the others, or are %d values", model, len(part))
		}
		pictures := golden.Fill(model+"/pictures", 9*2*s*2*s*3, 2, 0)
		long, err := v.EncodeVideo(vae.Env{Ops: ops}, pictures, 9, 2*s, 2*s)
		if err != nil {
			t.Fatal(err)
		}
		first, err := v.EncodeVideo(vae.Env{Ops: ops}, pictures, 7, 2*s, 2*s)
		if err != nil {
			t.Fatal(err)
		}
		for k := range c {
			if !slices.Equal(long[k*12:k*12+8], first[k*8:(k+1)*8]) {
				t.Fatalf("%s: the first two latent frames of 9 pictures are not those of 7, channel %d", model, k)
			}
		}
		band := vae.Band{Start: 0, End: 6, Total: 6}
		few := vae.DecodeClipBytes(v.Config, engine.F32, band, 5, 3)
		many := vae.DecodeClipBytes(v.Config, engine.F32, band, 5, 81)
		if few != many {
			t.Errorf("%s: 3 latent frames take %d bytes, 81 take %d", model, few, many)
		}
	}
}

// TestClipsInBands decodes and encodes a clip in bands of rows and compares it with the whole, in memory of exactly the
// size that is promised.
func TestClipsInBands(t *testing.T) {
	ops, _ := fastest(t)
	for _, model := range []string{"wan21vae-a", "wan22vae-a", "ltxvae-a", "ltxvae-b"} {
		v := openChain(t, ops, model)
		c, s := v.Config.Latent(), v.Config.Scale()
		const n, y, x = 3, 4, 2
		pictures := v.Config.Pictures(n)
		latent := golden.Input(model+"/bands", c*n*y*x)
		frames := golden.Fill(model+"/bands", pictures*y*s*x*s*3, 2, 0)
		want := decodedClip(t, v, vae.Env{Ops: ops}, latent, n, y, x)
		encoded, err := v.EncodeVideo(vae.Env{Ops: ops}, frames, pictures, y*s, x*s)
		if err != nil {
			t.Fatal(err)
		}
		cuts := []int{0, 1, 4}
		got, back := make([]float32, len(want)), make([]float32, len(encoded))
		decode, encode := newBands(len(cuts)-1), newBands(len(cuts)-1)
		errs := make([]error, len(cuts)-1)
		var done sync.WaitGroup
		for rank := range errs {
			band := vae.Band{Start: cuts[rank], End: cuts[rank+1], Total: y}
			done.Go(func() {
				ops, _ := fastest(t)
				bytes := max(vae.DecodeClipBytes(v.Config, engine.F32, band, x, n),
					vae.EncodeClipBytes(v.Config, engine.F32, band, x*s, pictures))
				env := arenaEnv(t, ops, bytes)
				env.Exchange = decode.exchange(t, rank, ops)
				row := s * x * s * 3
				errs[rank] = v.DecodeClip(env, band, x, vae.Clip{
					T: n, Load: func(i int, z engine.Tensor) {
						ops.Upload(z, vae.LatentRows(latent, c, n*y, x, i*y+band.Start, i*y+band.End))
					},
					Store: func(i int, picture engine.Tensor) error {
						return ops.Download(got[(i*y+band.Start)*row:(i*y+band.End)*row], picture).Wait()
					},
				})
				if errs[rank] != nil {
					return
				}
				env.Exchange = encode.exchange(t, rank, ops)
				moments := make([]float32, band.Len()*x*2*c)
				errs[rank] = v.EncodeClip(env, band, x*s, vae.Clip{
					T: pictures, Load: func(i int, p engine.Tensor) {
						ops.Upload(p, frames[(i*y+band.Start)*row:(i*y+band.End)*row])
					},
					Store: func(i int, result engine.Tensor) error {
						err := ops.Download(moments, result).Wait()
						for j := range band.Len() * x {
							for k := range c {
								back[((k*n+i)*y+band.Start)*x+j] = moments[j*2*c+k]
							}
						}
						return err
					},
				})
			})
		}
		done.Wait()
		for rank, err := range errs {
			if err != nil {
				t.Fatalf("%s: rank %d: %v", model, rank, err)
			}
		}
		compare(t, model+" decoded in bands", got, want, 5e-6)
		compare(t, model+" encoded in bands", back, encoded, 5e-6)
	}
}

// TestClipMemory checks the figure of docs/limits.md: 81 frames of 832 x 480 by Wan's autoencoder.
func TestClipMemory(t *testing.T) {
	cfg := vae.Config{
		Channels: 96, Mult: []int{1, 2, 4, 4}, Blocks: 2, Z: 16, Embed: 16, In: 3, Out: 3, Groups: 32, Eps: 1e-6,
		Quant: true, CanEncode: true, Wan: true, Video: true, Time: []bool{false, true, true},
	}
	const gb = 1_000_000_000
	decode := vae.DecodeClipBytes(cfg, engine.BF16, vae.Band{Start: 0, End: 60, Total: 60}, 104, 21)
	encode := vae.EncodeClipBytes(cfg, engine.BF16, vae.Band{Start: 0, End: 60, Total: 60}, 832, 81)
	t.Logf("decode %d MB, encode %d MB", decode/1_000_000, encode/1_000_000)
	if decode > 6*gb || decode < gb || encode > 6*gb || encode < gb/2 {
		t.Errorf("decoding takes %d bytes and encoding %d, want at most 6 GB", decode, encode)
	}
}

// TestClipTilesGolden compares clips that are decoded in tiles of space and time with ComfyUI's: pictures of one tile
// differ a lot from those of the whole, as the first frame of every tile is a first frame.
func TestClipTilesGolden(t *testing.T) {
	f, err := golden.Open("wan/vae.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ops, name := fastest(t)
	for _, c := range []struct {
		key                                  string
		size, overlap, frames, overlapFrames int
	}{
		{"wan21vae-a/decode_tiled/64-16-16-4", 64, 16, 16, 4},
		{"wan21vae-a/decode_tiled/64-32-64-8", 64, 32, 64, 8},
		{"wan22vae-a/decode_tiled/64-16-12-4", 64, 16, 12, 4},
	} {
		const n, y, x = 7, 9, 6
		v := openVideo(t, ops, c.key[:10])
		latent := golden.Input(c.key[:10]+"/tiled", v.Config.Latent()*n*y*x)
		tiles := vae.DecodeClipTiles(c.size, c.overlap, c.frames, c.overlapFrames, v.Config)
		got, err := v.DecodeClipTiled(vae.Env{Ops: ops}, latent, n, y, x, tiles)
		if err != nil {
			t.Fatal(err)
		}
		vae.ToImage(got)
		var third []float32 // what is recorded
		picture := len(got) / v.Config.Pictures(n)
		for i := 0; i < v.Config.Pictures(n); i += 3 {
			third = append(third, got[i*picture:(i+1)*picture]...)
		}
		compare(t, name+" "+c.key, third, values(t, f, c.key), tolerance)
	}
}

// tiledClips are the names of recorded clips that are encoded in tiles.
var tiledClips = regexp.MustCompile(`^(wan2[12]vae-a)/(\d+)x(\d+)x(\d+)/(\d+)-(\d+)-(\d+)-(\d+)$`)

// TestEncodedClipTilesGolden compares clips that are encoded in tiles of space and time with ComfyUI's VAEEncodeTiled.
func TestEncodedClipTilesGolden(t *testing.T) {
	f, err := golden.Open("wan/encode_tiled.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ops, name := fastest(t)
	for _, key := range f.Names() {
		m := tiledClips.FindStringSubmatch(key)
		var n [7]int
		for i := range n {
			n[i], _ = strconv.Atoi(m[2+i])
		}
		v := openVideo(t, ops, m[1])
		pictures, y, x := v.Config.CropToImage(golden.Fill("input:"+key, n[0]*n[1]*n[2]*3, 1, 0.5), n[0], n[1], n[2], 3)
		tiles := vae.EncodeClipTiles(n[3], n[4], n[5], n[6], v.Config)
		got, err := v.EncodeClipTiled(vae.Env{Ops: ops}, pictures, n[0], y, x, tiles)
		if err != nil {
			t.Fatal(err)
		}
		compare(t, name+" "+key, got, values(t, f, key), tolerance)
		whole, err := v.EncodeVideo(vae.Env{Ops: ops}, pictures, n[0], y, x)
		if err != nil || slices.Equal(got, whole) {
			t.Errorf("%s: the tiles change nothing, %v", key, err)
		}
	}
}
