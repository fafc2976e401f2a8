package bench

import (
	"testing"

	"patchbay/engine"
	"patchbay/models/text"
	"patchbay/models/vae"
	"patchbay/models/weights"
)

// TestRandomNetworks: the random networks are what the loaders want, with the sizes and numbers of parameters of the
// released ones.
func TestRandomNetworks(t *testing.T) {
	count := func(list []weights.Declared) (n int64) {
		for _, d := range list {
			n += d.Params()
		}
		return n
	}
	if n := count(decoderOfFLUX()); n != 49_545_475 {
		t.Errorf("the autoencoder's decoder has %d parameters, want 49545475", n)
	}
	if n := count(t5XXL()); n != 4_762_310_656 {
		t.Errorf("the text encoder has %d parameters, want 4762310656", n)
	}
	v, err := vae.Open(engine.NewRecorder(), weights.Random(decoderOfFLUX()), nil)
	if err != nil {
		t.Fatal(err)
	}
	if c := v.Config; c.Scale() != 8 || c.Latent() != 16 || c.Channels != 128 || c.Blocks != 2 || c.Out != 3 {
		t.Errorf("the autoencoder's config is %+v", c)
	}
	e, err := text.OpenT5(engine.NewRecorder(), weights.Random(t5(3, 192, 2, 80, 100)), nil)
	if err != nil {
		t.Fatal(err)
	}
	if c := e.Config; c.Width != 192 || c.Layers != 3 || c.Heads != 2 || c.HeadDim != 64 || c.MLP != 80 || !c.Gated {
		t.Errorf("the text encoder's config is %+v", c)
	}
}
