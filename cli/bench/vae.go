package bench

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
	cliplan "patchbay/cli/plan"
	"patchbay/cli/settings"
	"patchbay/models/vae"
	"patchbay/models/weights"
	"patchbay/parallel"
	"patchbay/parallel/plan"
)

type vaeFlags struct {
	timing
	size         string
	ranks, batch int
	device
}

func vaeCmd() *cobra.Command {
	var f vaeFlags
	cmd := f.command(&cobra.Command{
		Use:   "vae",
		Short: "Measure decoding and encoding of pictures on this machine",
		Long: `vae decodes a latent to pictures and encodes pictures to a latent, whole or split over ranks in bands of rows.
Without --vae it takes the autoencoder of the demo.`,
		Example: "  patchbay bench vae --vae models/vae/ae.safetensors --size 512x512 --ranks 2",
	}, 1, 5, f.measure)
	fl := cmd.Flags()
	f.device.add(fl, "the autoencoder of FLUX")
	fl.StringVar(&f.file, "vae", "", "file of an autoencoder (default: the demo's)")
	fl.StringVar(&f.size, "size", "256x256", "width x height in pixels")
	fl.IntVar(&f.ranks, "ranks", 1, "ranks that share a picture")
	fl.IntVar(&f.batch, "batch", 1, "pictures at once")
	return cmd
}

func (f *vaeFlags) measure(ctx context.Context) (*report, error) {
	if err := f.CheckDevices(); err != nil {
		return nil, err
	}
	w, h, err := settings.Pixels(f.size, 64, 8192)
	if err != nil {
		return nil, console.BadInput(err)
	}
	if f.ranks < 1 || f.ranks > plan.MaxRanks || f.batch < 1 || f.batch > 64 {
		return nil, console.BadInput(fmt.Errorf("want --ranks 1 to %d and --batch 1 to 64", plan.MaxRanks))
	}
	r := &report{
		Benchmark: "vae", Warmup: f.warmup,
		Inside: "layers, exchanges between bands, upload and download; the output is a picture (decode) or a latent " +
			"(encode)",
		Outside: "reading and packing weights, PNG, denoising",
		Extra:   map[string]any{"size": f.size, "ranks": f.ranks, "batch": f.batch},
	}
	return r, f.run(ctx, r, "vae", "demo_ae.safetensors", decoderOfFLUX, func(l *parallel.Workspace, set *weights.Set,
		config []byte,
	) error {
		r.Extra["vae"] = f.file
		net, err := vae.Open(l.Ops, set, config)
		if err != nil {
			return err
		}
		defer net.Close()
		return f.clock(r, l, net, w, h)
	})
}

// clock measures decoding and, if the autoencoder has an encoder, encoding.
func (f *vaeFlags) clock(r *report, l *parallel.Workspace, net *vae.VAE, w, h int) error {
	s, c := net.Config.Scale(), net.Config.Latent()
	y, x := h/s, w/s
	latent, picture := cliplan.Wave(f.batch*c*y*x), cliplan.Wave(f.batch*s*y*s*x*net.Config.In)
	decode, err := f.clocked(fmt.Sprintf("decode, %d rank(s)", f.ranks), func() error {
		_, err := l.Decode(net, latent, f.batch, y, x, f.ranks)
		return err
	})
	if err != nil {
		return err
	}
	r.Samples = append(r.Samples, decode)
	if !net.Config.CanEncode {
		return nil
	}
	encode, err := f.clocked(fmt.Sprintf("encode, %d rank(s)", f.ranks), func() error {
		_, err := l.Encode(net, picture, f.batch, s*y, s*x, f.ranks)
		return err
	})
	r.Samples = append(r.Samples, encode)
	return err
}
