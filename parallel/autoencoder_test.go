package parallel

import (
	"context"
	"errors"
	"testing"

	"patchbay/fault"
	"patchbay/models/vae"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// TestSplitDecodeEqualsOneRank checks decodes with 1 to 5 ranks, also with more ranks than some layers have rows, and
// after a canceled decode.
func TestSplitDecodeEqualsOneRank(t *testing.T) {
	set, config, err := goldenweights.Set("vae-flux")
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(t)
	const b, y, x = 2, 7, 5
	var net *vae.VAE
	run := func(ctx context.Context, ranks int) (out []float32, err error) {
		err = e.Do(ctx, "vae", func(l *Workspace) error {
			if net == nil {
				if net, err = vae.Open(l.Ops, set, config); err != nil {
					return err
				}
			}
			latent := golden.Input("split", b*net.Config.Latent()*y*x)
			out, err = l.Decode(net, latent, b, y, x, ranks)
			return err
		})
		return out, err
	}
	want, err := run(context.Background(), 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, ranks := range []int{2, 3, 5, 7, 64} {
		got, err := run(context.Background(), ranks)
		if err != nil {
			t.Fatalf("%d ranks: %v", ranks, err)
		}
		if rel := relative(got, want); rel > 1e-5 {
			t.Errorf("%d ranks: relative difference %.3g, bound 1e-5", ranks, rel)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var pe *fault.Error
	if _, err := run(ctx, 3); !errors.As(err, &pe) || pe.Code != fault.Cancelled {
		t.Errorf("cancelled decode gave %v", err)
	}
	net.Close()
}

// TestSplitEncodeEqualsOneRank checks encodes with 1 to 5 ranks, also with one latent row per rank, and that sizes are
// refused as on one rank.
func TestSplitEncodeEqualsOneRank(t *testing.T) {
	set, config, err := goldenweights.Set("vae-kl")
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(t)
	var net *vae.VAE
	run := func(b, y, x, ranks int) (out []float32, err error) {
		err = e.Do(context.Background(), "vae", func(l *Workspace) error {
			if net == nil {
				if net, err = vae.Open(l.Ops, set, config); err != nil {
					return err
				}
			}
			out, err = l.Encode(net, golden.Input("encode", b*y*x*3), b, y, x, ranks)
			return err
		})
		return out, err
	}
	if _, err := run(1, 1, 1, 1); err == nil {
		t.Fatal("a picture of one pixel is encoded, want a refusal")
	}
	s := net.Config.Scale()
	const b, rows, columns = 2, 5, 3
	want, err := run(b, rows*s, columns*s, 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(want) != b*net.Config.Latent()*rows*columns {
		t.Fatalf("%d values, want %d", len(want), b*net.Config.Latent()*rows*columns)
	}
	for _, ranks := range []int{2, 3, 4, 5, 64} {
		got, err := run(b, rows*s, columns*s, ranks)
		if err != nil {
			t.Fatalf("%d ranks: %v", ranks, err)
		}
		if rel := relative(got, want); rel > 1e-5 {
			t.Errorf("%d ranks: relative difference %.3g, bound 1e-5", ranks, rel)
		}
	}
	if _, err := run(1, 2*s+1, s, 2); err == nil {
		t.Error("rows that are no multiple of the scale are encoded, want a refusal")
	}
	net.Close()
}
