package bench

import (
	"context"
	"strings"
	"testing"

	"patchbay/daemon"
	"patchbay/engine"
	"patchbay/models/text"
	"patchbay/models/vae"
	"patchbay/models/weights"
)

// lateContext is cancelled once its error has been asked for left times.
type lateContext struct {
	context.Context
	left int
}

func (c *lateContext) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestFailuresAreReported checks that a failed run reports its own error.
func TestFailuresAreReported(t *testing.T) {
	f := textFlags{
		timing: timing{runs: 1}, tokens: 8,
		device: device{file: "../../examples/demo/text_encoders/demo_t5.safetensors", Config: daemon.Config{
			Devices: "cpu", Compute: "auto", Placement: daemon.PlacementThreads, Transport: daemon.TransportAuto,
			Graphs: daemon.GraphsOn,
		}},
	}
	if _, err := f.measure(&lateContext{t.Context(), 1}); err == nil || !strings.Contains(err.Error(), "cancel") {
		t.Errorf("got %v, want that the work was cancelled", err)
	}
}

// TestRandomNetworks checks that the random networks are what the loaders expect, with the sizes and numbers of
// parameters of the released ones.
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
