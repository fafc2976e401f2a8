package vae_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/safetensors"
	"patchbay/models/vae"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// tolerance is the bound of tests/golden/README.md section 2, relative to the largest value.
const tolerance = 2e-5

// checkpoint returns the weights of a golden autoencoder.
func checkpoint(t testing.TB, name string) *weights.Set {
	t.Helper()
	set, _, err := goldenweights.Set(name)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// open loads a golden autoencoder without its config, because names and shapes must be enough.
func open(t testing.TB, ops engine.Ops, set *weights.Set) *vae.VAE {
	t.Helper()
	v, err := vae.Open(ops, set, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	return v
}

// recorded opens the file of recorded tensors.
func recorded(t testing.TB) *safetensors.File {
	t.Helper()
	f, err := golden.Open("text_vae.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func values(t testing.TB, f *safetensors.File, name string) []float32 {
	t.Helper()
	e, ok := f.Entry(name)
	if !ok {
		t.Fatalf("%s is not in the file", name)
	}
	v, err := e.F32()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// compare fails the test if the largest difference exceeds bound, relative to the largest wanted value.
func compare(t testing.TB, what string, got, want []float32, bound float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: got %d values, want %d", what, len(got), len(want))
	}
	scale, worst, at := 0.0, 0.0, 0
	for _, v := range want {
		scale = max(scale, math.Abs(float64(v)))
	}
	for i := range want {
		if d := math.Abs(float64(got[i]) - float64(want[i])); !(d <= worst) {
			worst, at = d, i
		}
		if worst != worst {
			break // a later, larger difference must not replace a NaN
		}
	}
	if !(worst <= bound*scale) {
		t.Errorf("%s: value %d is %g, want %g; relative error %.3g, bound %.3g", what, at, got[at], want[at],
			worst/scale, bound)
		return
	}
	t.Logf("%s: relative error %.2g", what, worst/scale)
}

// last transposes [C, n] to [n, C].
func last(v []float32, c int) []float32 {
	n := len(v) / c
	out := make([]float32, len(v))
	for i := range n {
		for k := range c {
			out[i*c+k] = v[k*n+i]
		}
	}
	return out
}

func TestDecodeGolden(t *testing.T) {
	f := recorded(t)
	all := backends(t)
	for _, model := range []string{"vae-flux", "vae-kl"} {
		set := checkpoint(t, model)
		for name, ops := range all {
			v := open(t, ops, set)
			for _, size := range [][2]int{{5, 7}, {8, 12}} {
				y, x := size[0], size[1]
				if name == "ref" && y == 8 { // it takes ten times as long
					break
				}
				key := fmt.Sprintf("%s/decode/%dx%d", model, y, x)
				latent := golden.Input(fmt.Sprintf("%s/latent/%dx%d", model, y, x), v.Config.Latent()*y*x)
				got, err := v.Decode(decodeEnv(t, ops, v, y, x), latent, 1, y, x)
				if err != nil {
					t.Fatal(err)
				}
				compare(t, name+" "+key+"#raw", got, last(values(t, f, key+"#raw"), 3), tolerance)
				vae.ToImage(got)
				compare(t, name+" "+key+"#image", got, values(t, f, key+"#image"), tolerance)
			}
		}
	}
}

func TestEncodeGolden(t *testing.T) {
	f := recorded(t)
	all := backends(t)
	for _, model := range []string{"vae-flux", "vae-kl"} {
		set := checkpoint(t, model)
		for name, ops := range all {
			v := open(t, ops, set)
			for _, c := range []struct {
				key        string
				b, y, x, c int
				input      string
			}{{"rgba-b2", 2, 16, 24, 4, "image4"}, {"5x7", 1, 43, 61, 3, "image/5x7"}, {"8x12", 1, 67, 101, 3, "image/8x12"}} {
				if name == "ref" && c.y == 67 {
					break
				}
				image := golden.Fill("input:"+model+"/"+c.input, c.b*c.y*c.x*c.c, 1, 0.5)
				picture, y, x := v.Config.CropToImage(image, c.b, c.y, c.x, c.c)
				got, err := v.Encode(vae.Env{Ops: ops}, picture, c.b, y, x)
				if err != nil {
					t.Fatal(err)
				}
				key := model + "/encode/" + c.key
				compare(t, name+" "+key, got, values(t, f, key), tolerance)
			}
		}
	}
}

// TestLaterGolden compares encoding and decoding with ComfyUI's: single frames of Wan 2.1's video autoencoder and of
// the one with alpha, which treats images without alpha as opaque, and FLUX.2's.
func TestLaterGolden(t *testing.T) {
	f, err := golden.Open("modern/vae.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sets := map[string]*weights.Set{}
	for _, model := range []string{"wanvae-a", "wanvae-b", "flux2vae-a"} {
		sets[model] = checkpoint(t, model)
	}
	for name, ops := range backends(t) {
		loaded := map[string]*vae.VAE{}
		for _, c := range []struct {
			model, size string
			y, x        int // of the latent
			tall, wide  int // of the image
		}{
			{"wanvae-a", "5x7", 5, 7, 43, 61},
			{"wanvae-a", "8x6", 8, 6, 67, 53},
			{"wanvae-b", "5x7", 5, 7, 43, 61},
			{"wanvae-b", "8x6", 8, 6, 67, 53},
			{"flux2vae-a", "3x4", 3, 4, 51, 71},
			{"flux2vae-a", "2x5", 2, 5, 35, 87},
		} {
			if name == "ref" && (c.size == "8x6" || c.size == "2x5") { // ten times slower: one size of each
				continue
			}
			v := loaded[c.model]
			if v == nil {
				v = open(t, ops, sets[c.model])
				loaded[c.model] = v
			}
			latent := golden.Input(c.model+"/latent/"+c.size, v.Config.Latent()*c.y*c.x)
			got, err := v.Decode(decodeEnv(t, ops, v, c.y, c.x), latent, 1, c.y, c.x)
			if err != nil {
				t.Fatal(err)
			}
			key := c.model + "/decode/" + c.size
			compare(t, name+" "+key+"#raw", got, last(values(t, f, key+"#raw"), v.Config.Out), tolerance)
			vae.ToImage(got)
			compare(t, name+" "+key+"#image", got, values(t, f, key+"#image"), tolerance)

			for channels := 3; channels <= v.Config.In; channels++ {
				key := c.size + map[int]string{4: "-rgba"}[channels]
				image := golden.Fill("input:"+c.model+"/image/"+c.size, c.tall*c.wide*channels, 1, 0.5)
				picture, y, x := v.Config.CropToImage(image, 1, c.tall, c.wide, channels)
				if got, err = v.Encode(vae.Env{Ops: ops}, picture, 1, y, x); err != nil {
					t.Fatal(err)
				}
				compare(t, name+" encode "+c.model+" "+key, got, values(t, f, c.model+"/encode/"+key), tolerance)
			}
		}
	}
}

// TestShortcutsGolden compares encoding and decoding by Qwen-Image-2.1's autoencoder with diffusers', in sizes of odd
// and even sides, and a picture without alpha.
func TestShortcutsGolden(t *testing.T) {
	f, err := golden.Open("qwen21/vae.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const model = "q21vae-a"
	set := checkpoint(t, model)
	if n, err := vae.Latents(set); err != nil || n != 64 || vae.Frames(set) {
		t.Errorf("%d channels (%v), frames %v; want 64, none", n, err, vae.Frames(set))
	}
	for name, ops := range backends(t) {
		v := open(t, ops, set)
		for _, size := range [][2]int{{3, 5}, {4, 4}, {1, 2}, {6, 3}} {
			y, x := size[0], size[1]
			key := fmt.Sprintf("%s/decode/%dx%d", model, y, x)
			latent := golden.Input(key, 64*y*x)
			env := decodeEnv(t, ops, v, y, x)
			env.StripBytes = 1 << 12 // so that there are several
			got, err := v.Decode(env, latent, 1, y, x)
			if err != nil {
				t.Fatal(err)
			}
			compare(t, name+" "+key+"#raw", got, last(values(t, f, key+"#raw"), 4), tolerance)
			vae.ToImage(got)
			compare(t, name+" "+key+"#image", got, values(t, f, key+"#image"), tolerance)
		}
		for _, c := range []struct{ y, x, channels int }{{48, 80, 4}, {64, 32, 4}, {16, 32, 3}} {
			key := fmt.Sprintf("%s/encode/%dx%d", model, c.y, c.x)
			image := golden.Fill(fmt.Sprintf("input:%s/image/%dx%d", model, c.y, c.x), c.y*c.x*c.channels, 1, 0.5)
			picture, y, x := v.Config.CropToImage(image, 1, c.y, c.x, c.channels)
			got, err := v.Encode(vae.Env{Ops: ops, StripBytes: 1 << 12}, picture, 1, y, x)
			if err != nil {
				t.Fatal(err)
			}
			compare(t, name+" "+key, got, values(t, f, key), tolerance)
		}
	}
}

// TestDecodeBatchOfVideos compares a batch of two latents of Wan 2.1's autoencoder with ComfyUI's.
func TestDecodeBatchOfVideos(t *testing.T) {
	f, err := golden.Open("modern/vae.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ops, name := fastest(t)
	v := open(t, ops, checkpoint(t, "wanvae-a"))
	got, err := v.Decode(vae.Env{Ops: ops}, golden.Input("wanvae-a/latent/b2", 2*16*4*5), 2, 4, 5)
	if err != nil {
		t.Fatal(err)
	}
	vae.ToImage(got)
	compare(t, name+" wanvae-a/decode/b2", got, values(t, f, "wanvae-a/decode/b2#image"), tolerance)
}

// TestPackedRefusals checks the errors for wrong statistics of packed latents.
func TestPackedRefusals(t *testing.T) {
	ops, _ := fastest(t)
	whole := checkpoint(t, "flux2vae-a")
	few := &weights.Stored{Shape: []int{4}, Data: make([]byte, 16)}
	for name, c := range map[string]struct {
		with *weights.Stored // nil: the tensor is missing
		want string
	}{
		"bn.running_var":         {nil, "bn.running_mean and bn.running_var have 128 and 1 values"},
		"bn.running_mean":        {few, "have 4 and 128 values, want 128"},
		"post_quant_conv.bias":   {nil, "post_quant_conv.bias"},
		"quant_conv.bias":        {few, "quant_conv.bias has 4 values, want 64"},
		"post_quant_conv.weight": {nil, "0 channels of post_quant_conv"},
	} {
		m := map[string]weights.Stored{}
		for _, n := range whole.Names() {
			m[n], _ = whole.Get(n)
		}
		if delete(m, name); c.with != nil {
			m[name] = *c.with
		}
		if _, err := vae.Open(ops, weights.FromMap(m), nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

func TestDecodeTiledGolden(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT RUN: three passes over two 96x128 pictures, run without -short")
	}
	f := recorded(t)
	ops, name := fastest(t)
	for _, model := range []string{"vae-flux", "vae-kl"} {
		v := open(t, ops, checkpoint(t, model))
		z := golden.Input(model+"/tiled", v.Config.Latent()*12*16)
		tiles := vae.Tiles{Y: 8, X: 8, Overlap: 2}
		env := arenaEnv(t, ops, vae.DecodeTiledBytes(v.Config, engine.F32, 12, 16, tiles))
		got, err := v.DecodeTiled(env, z, 1, 12, 16, tiles)
		if err != nil {
			t.Fatal(err)
		}
		vae.ToImage(got)
		compare(t, name+" "+model+"/decode_tiled", got, values(t, f, model+"/decode_tiled"), tolerance)
	}
}

// TestTilesOfOnePiece checks that tiles larger than the image give the same result as no tiles, in both directions.
func TestTilesOfOnePiece(t *testing.T) {
	ops, _ := fastest(t)
	v := open(t, ops, checkpoint(t, "vae-kl"))
	env := vae.Env{Ops: ops}
	z := golden.Input("one piece", 2*4*2*3)
	want, err := v.Decode(env, z, 2, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	env.Check = func(done, total int) error {
		if done != calls || total != 2*3*16 { // items, passes, layers
			t.Errorf("call %d: %d of %d layers are done", calls, done, total)
		}
		calls++
		return nil
	}
	got, err := v.DecodeTiled(env, z, 2, 2, 3, vae.Tiles{Y: 8, X: 8, Overlap: 2})
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "decode in one tile", got, want, 1e-6)
	env.Check = nil
	pixels := golden.Fill("one piece", 2*16*24*3, 2, 0)
	if want, err = v.Encode(env, pixels, 2, 16, 24); err != nil {
		t.Fatal(err)
	}
	if got, err = v.EncodeTiled(env, pixels, 2, 16, 24, vae.Tiles{Y: 64, X: 64, Overlap: 16}); err != nil {
		t.Fatal(err)
	}
	compare(t, "encode in one tile", got, want, 1e-6)
}

// TestEncodeTiled checks that, without overlap, a pass is its tiles side by side and the result the mean of three
// passes.
func TestEncodeTiled(t *testing.T) {
	ops, _ := fastest(t)
	v := open(t, ops, checkpoint(t, "vae-kl"))
	env := vae.Env{Ops: ops}
	const y, x, c = 16, 24, 4
	pixels := golden.Fill("tiles", y*x*3, 2, 0)
	got, err := v.EncodeTiled(env, pixels, 1, y, x, vae.Tiles{Y: 16, X: 16})
	if err != nil {
		t.Fatal(err)
	}
	want := make([]float32, c*y/8*x/8)
	for _, shape := range [][2]int{{16, 16}, {8, 32}, {32, 8}} {
		for y0 := 0; y0 < y; y0 += shape[0] {
			for x0 := 0; x0 < x; x0 += shape[1] {
				h, w := min(shape[0], y-y0), min(shape[1], x-x0)
				var tile []float32
				for r := range h {
					at := ((y0+r)*x + x0) * 3
					tile = append(tile, pixels[at:at+3*w]...)
				}
				z, err := v.Encode(env, tile, 1, h, w)
				if err != nil {
					t.Fatal(err)
				}
				for i, f := range z { // [C, h/8, w/8]
					k, r, q := i/(h/8*w/8), i/(w/8)%(h/8), i%(w/8)
					want[(k*y/8+y0/8+r)*x/8+x0/8+q] += f / 3
				}
			}
		}
	}
	compare(t, "encoded in tiles", got, want, 1e-6)
}

// TestDecodeTiles checks the tile sizes against the arithmetic of ComfyUI's VAEDecodeTiled node.
func TestDecodeTiles(t *testing.T) {
	for in, want := range map[[2]int]vae.Tiles{
		{512, 64}: {Y: 64, X: 64, Overlap: 8}, {64, 64}: {Y: 8, X: 8, Overlap: 2},
		{256, 0}: {Y: 32, X: 32},
	} {
		if got := vae.DecodeTiles(in[0], in[1], 8); got != want {
			t.Errorf("tile_size %d, overlap %d: got %+v, want %+v", in[0], in[1], got, want)
		}
	}
}

// TestBatch checks that two items decoded together equal the same items decoded one by one.
func TestBatch(t *testing.T) {
	ops, _ := fastest(t)
	v := open(t, ops, checkpoint(t, "vae-kl"))
	latent := golden.Input("batch", 2*4*2*3)
	both, err := v.Decode(vae.Env{Ops: ops}, latent, 2, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	second, err := v.Decode(vae.Env{Ops: ops}, latent[24:], 1, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "second item", both[len(both)/2:], second, 0)
}

// TestCheckStops checks how often Check is called and that its error stops decoding.
func TestCheckStops(t *testing.T) {
	ops, _ := fastest(t)
	v := open(t, ops, checkpoint(t, "vae-kl"))
	latent := golden.Input("stop", 4)
	calls, total := 0, 0
	env := vae.Env{Ops: ops, Check: func(done, n int) error {
		if done != calls {
			t.Errorf("call %d says %d layers are done", calls, done)
		}
		calls, total = calls+1, n
		return nil
	}}
	if _, err := v.Decode(env, latent, 1, 1, 1); err != nil {
		t.Fatal(err)
	}
	// conv_in, three in the middle, 2 blocks at each of 4 levels, 3 upsamplings, conv_out.
	if want := 1 + 3 + 8 + 3 + 1; calls != want || total != want {
		t.Errorf("Check was called %d times with a total of %d, want %d", calls, total, want)
	}
	stop := errors.New("stop")
	calls = 0
	env.Check = func(int, int) error {
		if calls++; calls == 5 {
			return stop
		}
		return nil
	}
	if _, err := v.Decode(env, latent, 1, 1, 1); !errors.Is(err, stop) || calls != 5 {
		t.Errorf("got %v after %d calls, want the error of call 5", err, calls)
	}
}

func TestRefusals(t *testing.T) {
	ops, _ := fastest(t)
	v := open(t, ops, checkpoint(t, "vae-kl"))
	env := vae.Env{Ops: ops}
	for what, f := range map[string]func() error{
		"30 values for a latent [1, 4, 2, 4]": func() error {
			_,
				err := v.Decode(env, make([]float32, 30), 1, 2, 4)
			return err
		},
		"multiples of 8": func() error {
			_,
				err := v.Encode(env, make([]float32, 9*8*3), 1, 9, 8)
			return err
		},
		"tiles must be larger than the overlap": func() error {
			_, err := v.DecodeTiled(env, make([]float32, 32), 1, 2, 4, vae.Tiles{Y: 4, X: 4, Overlap: 2})
			return err
		},
		"no decoder.conv_in.weight": func() error { _, err := vae.Open(ops, weights.FromMap(nil), nil); return err },
	} {
		if err := f(); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("error is %v, want one with %q", err, what)
		}
	}
	set, _, err := goldenweights.Set("vae-kl")
	if err != nil {
		t.Fatal(err)
	}
	for config, want := range map[string]string{
		`{"norm_num_groups": 48}`:                    "norm_num_groups is 48, must be a divisor of the 64 channels",
		`{"num_res_blocks": 2}`:                      "missing",
		`{"ch_mult": [1, 1, 2, 4]}`:                  "expected [",
		`{"norm_eps": 0}`:                            "norm_eps",
		`{"ch_mult": [1,1,1,1,1,1,1,1,1,1,1,1,1,1]}`: "number of levels is 14",
		`7`: "config",
	} {
		if _, err := vae.Open(ops, set, json.RawMessage(config)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v, want one with %q", config, err, want)
		}
	}
}

// TestPrefixesAndDiffusersNames checks that the same weights decode alike under prefixes and under diffusers' names.
func TestPrefixesAndDiffusersNames(t *testing.T) {
	ops, _ := fastest(t)
	set, _, err := goldenweights.Set("vae-kl")
	if err != nil {
		t.Fatal(err)
	}
	latent := golden.Input("names", 4)
	want, err := open(t, ops, checkpoint(t, "vae-kl")).Decode(vae.Env{Ops: ops}, latent, 1, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	for what, rename := range map[string]func(string) string{
		"checkpoint": func(n string) string { return "first_stage_model." + n },
		"vae.":       func(n string) string { return "vae." + n },
		"diffusers":  diffusersName,
	} {
		other := map[string]weights.Stored{}
		for _, n := range set.Names() {
			other[rename(n)], _ = set.Get(n)
		}
		v, err := vae.Open(ops, weights.FromMap(other), nil)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		got, err := v.Decode(vae.Env{Ops: ops}, latent, 1, 1, 1)
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		compare(t, what, got, want, 0)
		v.Close()
	}
}

// diffusersName converts a name of the original layout to diffusers' (4 levels).
func diffusersName(n string) string {
	for i := range 4 {
		n = strings.Replace(n, fmt.Sprintf("decoder.up.%d.", i), fmt.Sprintf("decoder.up_blocks.%d.", 3-i), 1)
	}
	return strings.NewReplacer("encoder.down.", "encoder.down_blocks.", ".mid.block_1.", ".mid_block.resnets.0.",
		".mid.block_2.", ".mid_block.resnets.1.",
		".mid.attn_1.norm.", ".mid_block.attentions.0.group_norm.", ".mid.attn_1.q.", ".mid_block.attentions.0.to_q.",
		".mid.attn_1.k.", ".mid_block.attentions.0.to_k.", ".mid.attn_1.v.", ".mid_block.attentions.0.to_v.",
		".mid.attn_1.proj_out.", ".mid_block.attentions.0.to_out.0.", ".block.", ".resnets.",
		".nin_shortcut.", ".conv_shortcut.",
		".upsample.", ".upsamplers.0.", ".downsample.", ".downsamplers.0.", ".norm_out.", ".conv_norm_out.").Replace(n)
}
