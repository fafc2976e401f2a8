package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/cli/workflow"
	"patchbay/models/vae"
	"patchbay/parallel"
	"patchbay/parallel/plan"
)

// vaeFlags are the flags of bench vae.
type vaeFlags struct {
	timing
	file, size   string
	ranks, batch int
	device
}

func vaeCmd() *cobra.Command {
	var f vaeFlags
	cmd := &cobra.Command{
		Use:   "vae",
		Short: "Measure decoding and encoding of pictures on this machine",
		Long: `vae decodes a latent to pictures and encodes pictures to a latent, whole or split over ranks in bands of rows.
Without --vae it takes the autoencoder of the demo.`,
		Example: "  patchbay bench vae --vae models/vae/ae.safetensors --size 512x512 --ranks 2",
		Args:    console.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(f.check(), f.device.CheckDevices()); err != nil {
				return err
			}
			r, err := f.measure(cmd.Context())
			if err != nil {
				return err
			}
			return r.print(cmd.OutOrStdout(), f.json)
		},
	}
	f.timing.add(cmd.Flags(), 1, 5)
	fl := cmd.Flags()
	f.device.add(fl, "the autoencoder of FLUX")
	fl.StringVar(&f.file, "vae", "", "file of an autoencoder (default: the demo's)")
	fl.StringVar(&f.size, "size", "256x256", "width x height in pixels")
	fl.IntVar(&f.ranks, "ranks", 1, "ranks that share a picture")
	fl.IntVar(&f.batch, "batch", 1, "pictures at once")
	return cmd
}

func (f *vaeFlags) measure(ctx context.Context) (_ *report, err error) {
	w, h := 0, 0
	if n, err := fmt.Sscanf(f.size, "%dx%d", &w, &h); n != 2 || err != nil || w < 64 || h < 64 || w > 8192 || h > 8192 {
		return nil, console.BadInput(fmt.Errorf("--size %s: want width x height from 64 to 8192 pixels", f.size))
	}
	if f.ranks < 1 || f.ranks > plan.MaxRanks || f.batch < 1 || f.batch > 64 {
		return nil, console.BadInput(fmt.Errorf("want --ranks 1 to %d and --batch 1 to 64", plan.MaxRanks))
	}
	path := f.file
	if path == "" {
		examples, err := workflow.Examples()
		if err != nil {
			return nil, err
		}
		path = filepath.Join(examples, "demo", "vae", "demo_ae.safetensors")
	}
	set, config, done, err := f.open(path, decoderOfFLUX)
	if err != nil {
		return nil, console.BadInput(err)
	}
	defer done()
	eng, release, err := f.engine()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, release()) }()
	r := &report{
		Benchmark: "vae", Warmup: f.warmup,
		Inside: "layers, exchanges between bands, upload and download; the output is a picture (decode) or a latent " +
			"(encode)",
		Outside: "reading and packing weights, PNG, denoising",
		Extra: map[string]any{
			"vae": path, "size": f.size, "ranks": f.ranks, "batch": f.batch,
			"processors": runtime.GOMAXPROCS(0), "engine": eng.Name(), "random": f.random,
		},
	}
	return r, eng.Do(ctx, "vae", func(l *parallel.Workspace) error {
		net, err := vae.Open(l.Ops, l.Fitting(set), config)
		if err != nil {
			return err
		}
		defer net.Close()
		return f.clock(r, l, net, w, h)
	})
}

// clock measures both directions.
func (f *vaeFlags) clock(r *report, l *parallel.Workspace, net *vae.VAE, w, h int) error {
	s, c := net.Config.Scale(), net.Config.Latent()
	y, x := h/s, w/s
	wave := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(math.Sin(float64(i)))
		}
		return v
	}
	latent, picture := wave(f.batch*c*y*x), wave(f.batch*s*y*s*x*net.Config.In)
	times, err := f.clocked(func() error {
		_, err := l.Decode(net, latent, f.batch, y, x, f.ranks)
		return err
	})
	if err != nil {
		return err
	}
	r.Samples = append(r.Samples, summarise(fmt.Sprintf("decode, %d rank(s)", f.ranks), times))
	if !net.Config.CanEncode {
		return nil
	}
	times, err = f.clocked(func() error {
		_, err := l.Encode(net, picture, f.batch, s*y, s*x, f.ranks)
		return err
	})
	r.Samples = append(r.Samples, summarise(fmt.Sprintf("encode, %d rank(s)", f.ranks), times))
	return err
}
