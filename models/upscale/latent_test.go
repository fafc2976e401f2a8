package upscale

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/deferred"
	"patchbay/engine/ref"
	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/models/vae"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// latentCase is one entry of ltx/upscale.json.
type latentCase struct{ Shape []int }

// enlarge returns what a recorded network makes of the latent of a case, [C, T, Y, X], normalised by the statistics of
// the autoencoder that it was recorded with.
func enlarge(t *testing.T, ops engine.Ops, key string, c latentCase) []float32 {
	t.Helper()
	model, size, _ := strings.Cut(key, "/")
	set, config, err := goldenweights.Set(model)
	if err != nil {
		t.Fatal(err)
	}
	m, err := OpenLatents(ops, set, config)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var frames, rows, columns int
	if _, err := fmt.Sscanf(size, "%dx%dx%d", &frames, &rows, &columns); err != nil {
		t.Fatal(err)
	}
	kept, _, err := goldenweights.Set("ltxvae-a")
	if err != nil {
		t.Fatal(err)
	}
	mean, std := vae.Statistics(kept)
	n := frames * rows * columns
	in, latent := golden.Input(model+"/latent/"+size, m.Config.Channels*n), make([]float32, m.Config.Channels*n)
	for i, v := range in {
		latent[i%n*m.Config.Channels+i/n] = v*std[i/n] + mean[i/n]
	}
	y, x, z := m.Config.Size(frames, rows, columns)
	if got, want := fmt.Sprint([]int{1, m.Config.Channels, y, x, z}), fmt.Sprint(c.Shape); got != want {
		t.Fatalf("%s: %s, want %s", key, got, want)
	}
	out, err := m.Upscale(dit.TaskEnv{Ops: ops, Take: func(bytes int) (*engine.Arena, error) {
		buf, err := ops.Alloc(bytes)
		arena := engine.NewArena("test", buf, bytes)
		if late, ok := ops.(*deferred.Ops); ok {
			late.Watch(arena)
		}
		return arena, err
	}}, latent, frames, rows, columns)
	if err != nil {
		t.Fatal(err)
	}
	n = y * x * z
	got := make([]float32, len(out))
	for i, v := range out {
		k := i % m.Config.Channels
		got[k*n+i/m.Config.Channels] = (v - mean[k]) / std[k]
	}
	return got
}

// TestLatentsGolden compares latents that networks of every kind enlarge with ComfyUI's: twice, 3/2 and 3/4 as large,
// with twice as many frames, and both.
func TestLatentsGolden(t *testing.T) {
	f, err := golden.Open("ltx/upscale.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var cases map[string]latentCase
	if err := golden.JSON("ltx/upscale.json", &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) != 8 {
		t.Fatalf("%d cases, want 8", len(cases))
	}
	for name, ops := range map[string]engine.Ops{
		"ref": ref.New(), "deferred": deferred.New(ref.New()), "fast": goldenrun.NewOps(),
	} {
		for key, c := range cases {
			if name != "fast" && !strings.HasSuffix(key, "/1x2x3") && !strings.HasSuffix(key, "/2x3x4") {
				continue // the operations are those of other tests
			}
			const every = 5
			var got []float32
			for i, v := range enlarge(t, ops, key, c) {
				if i%every == 0 {
					got = append(got, v)
				}
			}
			e, ok := f.Entry(key)
			if !ok {
				t.Fatalf("%s is not recorded", key)
			}
			want, err := e.F32()
			if err != nil {
				t.Fatal(err)
			}
			if worst, err := goldenrun.Compare(got, want, 2e-5); err != nil {
				t.Errorf("%s %s: %v", name, key, err)
			} else {
				t.Logf("%s %s: %.2g", name, key, worst)
			}
		}
	}
}

// TestLatentsAreToldApart checks what files of other networks, and ones whose sizes make no sense, are refused with.
func TestLatentsAreToldApart(t *testing.T) {
	shaped := func(name string, shape ...int) (string, weights.Stored) {
		n := 1
		for _, s := range shape {
			n *= s
		}
		return name, weights.Floats(make([]float32, n), shape...)
	}
	with := func(shapes ...func(map[string]weights.Stored)) *weights.Set {
		set := map[string]weights.Stored{}
		for _, f := range shapes {
			f(set)
		}
		return weights.FromMap(set)
	}
	add := func(name string, shape ...int) func(map[string]weights.Stored) {
		return func(set map[string]weights.Stored) {
			name, s := shaped(name, shape...)
			set[name] = s
		}
	}
	anchor, first := add(latentAnchor, 32), add("initial_conv.weight", 32, 2, 3, 3, 3)
	for want, set := range map[string]*weights.Set{
		"another video model":             with(add("blocks.0.block.0.conv.weight", 1), add("in_conv.conv.weight", 1)),
		"over frames to a multiple of 32": with(anchor, add("initial_conv.weight", 32, 2, 3, 3)),
		"want 2 or 8 times 32":            with(anchor, first, add("upsampler.0.weight", 160, 32, 3, 3)),
		"spatial_scale is 3":              with(anchor, first, add("upsampler.conv.weight", 288, 32, 3, 3)),
	} {
		if _, err := InferLatents(set, []byte(`{"spatial_scale": 3}`)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if _, err := InferLatents(with(add("conv_first.weight", 1)), nil); !errors.Is(err, ErrUnknown) {
		t.Errorf("another network: got %v", err)
	}
}
