package bench

import (
	"context"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/cli/plan"
)

func planCmd() *cobra.Command {
	var f plan.Flags
	var b timing
	cmd := b.command(&cobra.Command{
		Use:     "plan",
		Short:   "Measure how long choosing a plan takes",
		Example: "  patchbay bench plan --model flux-dev --devices 8xL40-pcie",
	}, 1, 5, func(context.Context) (*report, error) {
		f.Batch, f.Warmup = 1, 1
		search, err := f.Search()
		if err != nil {
			return nil, console.BadInput(err)
		}
		chosen := ""
		s, err := b.clocked("", func() error {
			choice, err := search.Choose()
			if err == nil {
				chosen = choice.Best.Plan.String()
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		s.What = "choose " + chosen
		return &report{
			Benchmark: "plan", Warmup: b.warmup, Samples: []sample{s},
			Inside: "listing, weighing and simulating every plan", Outside: "reading the model's description",
			Extra: map[string]any{"plan": chosen},
		}, nil
	})
	fl := cmd.Flags()
	fl.StringVar(&f.Model, "model", "flux-dev", "name of a released model, or a file")
	fl.StringVar(&f.Size, "size", "1024x1024", "width x height in pixels")
	fl.StringVar(&f.Devices, "devices", "8xH100-nvlink", "devices")
	fl.IntVar(&f.Steps, "steps", 0, "evaluations of the network")
	return cmd
}
