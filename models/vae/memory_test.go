package vae_test

import (
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
	"patchbay/models/vae"
	"patchbay/models/weights"
	"patchbay/tests/golden"
)

// published returns the config of the autoencoder of FLUX.1 and SD3.
func published() vae.Config {
	return vae.Config{
		Channels: 128, Mult: []int{1, 2, 4, 4}, Blocks: 2, Z: 16, Embed: 16, In: 3, Out: 3, Groups: 32,
		Eps: 1e-6, CanEncode: true,
	}
}

// TestPeakMemory checks the peak against the theoretical minimum: a layer of the last level reads 256 channels and
// writes 128 at full resolution, and both must exist at once. The rest (strips, the image, the latent, statistics) may
// add a tenth, or 96 MiB if that is more.
func TestPeakMemory(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		dtype   engine.DType
		y, x    int
		minimum int
	}{
		{engine.F32, 128, 128, (256 + 128) * 1024 * 1024 * 4},
		{engine.BF16, 128, 128, (256 + 128) * 1024 * 1024 * 2},
		{engine.F32, 256, 256, (256 + 128) * 2048 * 2048 * 4},
		{engine.F32, 64, 64, (256 + 128) * 512 * 512 * 4},
	} {
		got := vae.DecodeBytes(published(), c.dtype, c.y, c.x)
		t.Logf("decode %dx%d %s: %d MiB, minimum %d MiB", 8*c.y, 8*c.x, c.dtype, got/mib, c.minimum/mib)
		if slack := max(c.minimum/10, 96*mib); got < c.minimum || got > c.minimum+slack {
			t.Errorf("decode %dx%d %s needs %d bytes, want %d to %d", 8*c.y, 8*c.x, c.dtype, got, c.minimum, c.minimum+slack)
		}
	}
	half := vae.BandBytes(published(), engine.F32, vae.Band{Start: 0, End: 64, Total: 128}, 128)
	t.Logf("decode 1024x1024 f32 in two bands: %d MiB each", half/mib)
	if whole := vae.DecodeBytes(published(), engine.F32, 128, 128); half > whole*6/10 {
		t.Errorf("one of two bands needs %d bytes, the whole picture %d", half, whole)
	}
	encode := vae.EncodeBytes(published(), engine.F32, 1024, 1024)
	t.Logf("encode 1024x1024 f32: %d MiB", encode/mib)
	if minimum := 2 * 128 * 1024 * 1024 * 4; encode < minimum || encode > minimum*14/10 {
		t.Errorf("encode 1024x1024 needs %d bytes, want %d to %d", encode, minimum, minimum*14/10)
	}
}

// TestArenaIsExact runs with an arena of exactly the promised size (Alloc panics if it is too small) and checks that
// all of it was used.
func TestArenaIsExact(t *testing.T) {
	for _, model := range []string{"vae-kl", "wanvae-a", "wanvae-b", "flux2vae-a", "q21vae-a"} {
		t.Run(model, func(t *testing.T) { arenaIsExact(t, checkpoint(t, model)) })
	}
}

func arenaIsExact(t *testing.T, set *weights.Set) {
	t.Helper()
	for name, ops := range backends(t) {
		v := open(t, ops, set)
		env := decodeEnv(t, ops, v, 1, 2)
		if _, err := v.Decode(env, make([]float32, 2*v.Config.Latent()*2), 2, 1, 2); err != nil {
			t.Fatal(err)
		}
		if want := vae.DecodeBytes(v.Config, engine.F32, 1, 2); env.Arena.Peak() != want || env.Arena.Mark() != 0 {
			t.Errorf("%s: decode used %d bytes and left %d, DecodeBytes says %d", name, env.Arena.Peak(), env.Arena.Mark(), want)
		}
		side := v.Config.Scale()
		bytes := vae.EncodeBytes(v.Config, engine.F32, side, 2*side)
		env = arenaEnv(t, ops, bytes)
		if _, err := v.Encode(env, make([]float32, 2*side*side*v.Config.In), 1, side, 2*side); err != nil {
			t.Fatal(err)
		}
		if env.Arena.Peak() != bytes || env.Arena.Mark() != 0 {
			t.Errorf("%s: encode used %d bytes and left %d, EncodeBytes says %d", name, env.Arena.Peak(),
				env.Arena.Mark(), bytes)
		}
	}
}

// TestBF16 decodes on ref with bf16 activations and expects the image of f32 up to bf16's 8 bits.
func TestBF16(t *testing.T) {
	ops := ref.New()
	v := open(t, ops, checkpoint(t, "vae-kl"))
	z := golden.Input("bf16", 4*2*2)
	want, err := v.Decode(vae.Env{Ops: ops}, z, 1, 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	got, err := v.Decode(vae.Env{Ops: ops, DType: engine.BF16}, z, 1, 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "bf16", got, want, 0.1)
	var worse int
	for i := range got {
		if got[i] != want[i] {
			worse++
		}
	}
	if worse < len(got)/2 {
		t.Errorf("%d of %d values differ from f32: was bf16 used?", worse, len(got))
	}
}
