package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/cli/plan"
	"patchbay/cli/settings"
	"patchbay/daemon"
	"patchbay/engine"
	"patchbay/parallel"
	"patchbay/parallel/hardware"
	"patchbay/parallel/request"
)

type stepFlags struct {
	timing
	plan.Trial
	save    string
	devices daemon.Config // see settings.Devices
}

func stepCmd() *cobra.Command {
	var f stepFlags
	cmd := f.command(&cobra.Command{
		Use:   "step",
		Short: "Measure sampler steps of a model on this machine",
		Long: `step runs the denoise loop of a model on noise with made-up conditioning and prints the time of its steps,
what each rank sent and how long it waited. A file keeps the form and the type of activations that it has in serve, and
is refused if serve would refuse it for want of memory. Without --model it takes the model of the demo. --save keeps
the rates of its products, attention and element-wise work in a file, for --rates of plan and serve: stages of pipelines
are balanced and plans chosen by them. Rates depend on the model and the size: measure what you run.`,
		Example: "  patchbay bench step --plan pipe=2,patches=4 --steps 8",
	}, 1, 5, f.measure)
	fl := cmd.Flags()
	settings.Devices(fl, &f.devices)
	fl.StringVar(&f.Model, "model", "", "file of a diffusion model (default: the demo's)")
	fl.StringVar(&f.Size, "size", "256x256", "width x height in pixels")
	fl.StringVar(&f.Plan, "plan", "", "how to split the work (default: one rank)")
	fl.StringVar(&f.save, "save", "", "file to keep the rates of this model in")
	settings.Compute(fl, &f.Compute)
	settings.Memory(fl, &f.devices)
	fl.IntVar(&f.Steps, "steps", 4, "steps of a run")
	fl.IntVar(&f.Text, "text", 0, "text tokens (default: 32, of --random-weights the release's)")
	fl.IntVar(&f.Entries, "entries", 0, "conditioning entries: 2 with cfg, 1 without (default: 2, of --random-weights "+
		"the release's)")
	fl.BoolVar(&f.Random, "random-weights", false, "--model names a release, as in flux-dev, that is measured with "+
		"random weights: no file is needed")
	return cmd
}

func (f *stepFlags) measure(ctx context.Context) (_ *report, err error) {
	if err := f.devices.CheckDevices(); err != nil {
		return nil, err
	}
	if f.save != "" && f.Plan != "" {
		return nil, console.BadInput(fmt.Errorf("--save measures one rank: leave --plan out"))
	}
	kernels := map[string]string{}
	f.devices.Loaded = func(device, how string) { kernels[device] = how }
	eng, closing, err := openPool(&f.devices)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closing()) }()
	req, err := f.Open(eng.Name())
	if err != nil {
		return nil, err
	}
	before, err := deviceBytesInUse(ctx, eng)
	if err != nil {
		return nil, err
	}
	var steps, runs []float64
	var last request.Stats
	for i := range f.warmup + f.runs {
		res, err := eng.Sample(ctx, req, nil)
		if err != nil {
			return nil, err
		}
		last = res.Stats
		if i < f.warmup {
			continue
		}
		sum := 0.0
		for _, s := range res.Stats.StepSeconds {
			steps, sum = append(steps, s), sum+s
		}
		runs = append(runs, sum)
	}
	if f.save != "" {
		if err := f.keep(ctx, eng, req); err != nil {
			return nil, err
		}
	}
	used := last.Plan
	out := &report{
		Benchmark: "step", Warmup: f.warmup,
		Samples: []sample{summarise("step, "+used, steps), summarise(fmt.Sprintf("%d steps, %s", f.Steps, used), runs)},
		Inside:  "network evaluations, exchanges, guidance, sampler; the output is a latent",
		Outside: "reading and packing weights, opening the session (text projections, modulations), text encoders, VAE",
		Extra: map[string]any{
			"plan": used, "compute": last.Compute.String(), "model": f.Model, "size": f.Size,
			"processors": runtime.GOMAXPROCS(0), "engine": eng.Name(), "peak_bytes": last.PeakBytes,
			"traffic": last.Traffic, "tokens": last.Tokens, "evaluations": last.Evaluations,
		},
	}
	if last.Chosen != nil {
		out.Extra["computed"] = last.Chosen
	}
	if len(kernels) > 0 {
		out.Extra["kernels"] = kernels
	}
	held := int64(0)
	for _, r := range eng.Resident() {
		held += r.Bytes
	}
	out.Extra["weight_bytes"] = held
	after, err := deviceBytesInUse(ctx, eng)
	if after > 0 && f.Plan == "" {
		out.Extra["device_memory"] = map[string]int64{"predicted": last.PeakBytes + held, "taken": after - before}
	}
	return out, err
}

// deviceBytesInUse returns the bytes in use on the device of the only rank, 0 if that is the memory of this process.
func deviceBytesInUse(ctx context.Context, eng *parallel.Pool) (bytes int64, err error) {
	err = eng.Do(ctx, "memory", func(l *parallel.Workspace) error {
		device, ok := l.Ops.(engine.Located)
		if !ok {
			return nil
		}
		free, total, err := device.DeviceMemory()
		bytes = total - free
		return err
	})
	return bytes, err
}

// keep runs once more with profiling and saves the rates.
func (f *stepFlags) keep(ctx context.Context, eng *parallel.Pool, req *request.Request) error {
	profiled := *req
	profiled.Profile = true
	res, err := eng.Sample(ctx, &profiled, nil)
	if err != nil {
		return err
	}
	kinds, err := f.devices.BuiltInRates()
	if err != nil {
		return err
	}
	return saveMachine(f.save, kinds[0], func(m *hardware.Machine) error {
		m.Device.WeightBytes = float64(req.Model.LoadedBytes()) / float64(max(1, req.Model.Spec.Params))
		m.Device.Source = fmt.Sprintf("patchbay bench step: %s, %s px, %s, %d processors", filepath.Base(req.Model.Key),
			f.Size, eng.Name(), runtime.GOMAXPROCS(0))
		return plan.Measure(m, req.Workload(), res.Stats.Spans, req.Compute.Size())
	})
}
