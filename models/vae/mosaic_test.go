package vae_test

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/models/vae"
	"patchbay/models/weights"
	"patchbay/tests/golden"
)

// pieces are the recorded cases of MiniMax-H3's video autoencoder: names end with frames, rows and columns.
var pieces = regexp.MustCompile(`^h3vae-a/(encode|decode)/(\d+)x(\d+)x(\d+)(#image)?$`)

// TestMosaicGolden compares what an autoencoder with a decoder of tokens makes of videos with ComfyUI's: one picture,
// one chunk, chunks that are blended in time, tiles that are blended in space, and numbers of pictures that fill no
// clip.
func TestMosaicGolden(t *testing.T) {
	f, err := golden.Open("h3/vae.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var recorded map[string]struct {
		Stored []int `json:"stored_frames"`
	}
	if err := golden.JSON("h3/vae.json", &recorded); err != nil {
		t.Fatal(err)
	}
	checked := 0
	for name, ops := range backends(t) {
		v := openVideo(t, ops, "h3vae-a")
		for _, key := range f.Names() {
			m := pieces.FindStringSubmatch(key)
			if m == nil {
				continue
			}
			var n [3]int
			for i := range n {
				n[i], _ = strconv.Atoi(m[2+i])
			}
			if name == "ref" && (n[0] > 2 || n[1] > 32) {
				continue // a hundred times slower
			}
			checked++
			want, size := values(t, f, key), strings.Join(m[2:5], "x")
			if m[1] == "encode" {
				image := golden.Fill("input:h3vae-a/image/"+size, n[0]*n[1]*n[2]*3, 1, 0.5)
				pictures, y, x := v.Config.CropToImage(image, n[0], n[1], n[2], 3)
				got, err := v.EncodeVideo(vae.Env{Ops: ops}, pictures, n[0], y, x)
				if err != nil {
					t.Fatal(err)
				}
				compare(t, name+" "+key, got, want, tolerance)
				continue
			}
			latent := golden.Input("h3vae-a/latent/"+size, v.Config.Latent()*n[0]*n[1]*n[2])
			all := decodedClip(t, v, vae.Env{Ops: ops}, latent, n[0], n[1], n[2])
			vae.ToImage(all)
			frame := 16 * n[1] * 16 * n[2] * 3
			if len(all) != v.Config.Pictures(n[0])*frame {
				t.Fatalf("%s: %d values, want %d pictures", key, len(all), v.Config.Pictures(n[0]))
			}
			var got []float32
			for _, i := range recorded[strings.TrimSuffix(key, "#image")].Stored {
				got = append(got, all[i*frame:(i+1)*frame]...)
			}
			compare(t, name+" "+key, got, want, tolerance)
		}
	}
	if checked < 9 {
		t.Errorf("%d cases were compared, want at least all 9 on the fastest backend", checked)
	}
}

// TestMosaicFrames checks how many pictures latent frames become, and the other way, by ComfyUI's frame plan: each
// first of five stands for one picture, the others for four; clips of 17 pictures make five, the last three are
// dropped.
func TestMosaicFrames(t *testing.T) {
	ops, _ := fastest(t)
	cfg := openVideo(t, ops, "h3vae-a").Config
	pictures := 0
	for n := 1; n <= 40; n++ {
		if pictures += 4; (n-1)%5 == 0 {
			pictures -= 3
		}
		if got := cfg.Pictures(n); got != pictures {
			t.Errorf("%d latent frames become %d pictures, want %d", n, got, pictures)
		}
	}
	for n, want := range map[int]int{1: 1, 2: 2, 5: 2, 17: 2, 18: 7, 22: 7, 39: 12, 124: 37, 362: 107} {
		if used, got := cfg.Frames(n); got != want || used != n {
			t.Errorf("%d pictures become %d latent frames of %d of them, want %d", n, got, used, want)
		}
	}
}

// TestMosaicMemory checks that memory depends on neither the length nor, from a tile on, the size of a video.
func TestMosaicMemory(t *testing.T) {
	ops, _ := fastest(t)
	v := openVideo(t, ops, "h3vae-a")
	for _, encode := range []bool{false, true} {
		if a, b := v.PieceBytes(engine.F32, 16, 16, encode), v.PieceBytes(engine.F32, 48, 84, encode); a != b || a == 0 {
			t.Errorf("encode %t: a tile takes %d bytes, a picture of many %d", encode, a, b)
		}
	}
}

// TestMosaicBadInput checks what is refused by name: a picture without room for an edge that is reflected, a latent of
// another size, and a file whose tokens become boxes of another size.
func TestMosaicBadInput(t *testing.T) {
	ops, _ := fastest(t)
	v := openVideo(t, ops, "h3vae-a")
	if _, err := v.EncodeVideo(vae.Env{Ops: ops}, make([]float32, 16*48*3), 1, 16, 48); err == nil ||
		!strings.Contains(err.Error(), "at least 32") {
		t.Errorf("a picture of 16 rows: %v", err)
	}
	none := func(int, []float32) error { return nil }
	if err := v.DecodeVideo(vae.Env{Ops: ops}, make([]float32, 23), 1, 1, 1, none); err == nil {
		t.Error("a latent of 23 values is decoded")
	}
	set, less := checkpoint(t, "h3vae-a"), map[string]weights.Stored{}
	for _, name := range set.Names() {
		if !strings.HasPrefix(name, "encoder.down.0.downsample.") {
			less[name], _ = set.Get(name)
		}
	}
	if _, err := vae.Open(ops, weights.FromMap(less), nil); err == nil ||
		!strings.Contains(err.Error(), "proj_out") {
		t.Errorf("a file that halves pictures thrice: %v", err)
	}
	stop := errors.New("stop")
	env := vae.Env{Ops: ops, Check: func(int, int) error { return stop }}
	if err := v.DecodeVideo(env, make([]float32, 24), 1, 1, 1, none); !errors.Is(err, stop) {
		t.Errorf("a decode that is stopped: %v", err)
	}
}
