// Package plan implements `patchbay plan`, which chooses and predicts plans. It reads no weights and computes nothing,
// except with --check.
package plan

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/daemon"
	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/published"
	"patchbay/node/files"
	"patchbay/node/value"
	"patchbay/parallel/forecast"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
)

// Flags are the flags of plan. The exported ones are also used by other commands that search for a plan.
type Flags struct {
	Model, Size, Devices       string
	HostMemory                 string
	plan, timeline, rates      string
	file                       string
	Steps, Batch, Warmup       int
	text, entries, jobs        int
	layers, frames             int
	exact, json, all, blocking bool
	table, checks              bool
	controls, patches          []string
	weightBytes                float64      // bytes per weight of the file; 0: those of the device
	opened                     *value.Model // of a file; nil: a released model
}

// Command returns `patchbay plan`.
func Command() *cobra.Command {
	var f Flags
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Choose how to split one picture over devices, and predict time, bytes and memory",
		Long: `plan answers before a weight is read: which plan is fastest for a model and a picture size on a set of
devices, how long it will take, what each device must hold and what it sends, and why every other plan loses. A model
is the name of a released one (` + strings.Join(published.Names(), ", ") + `)
or a checkpoint (safetensors, GGUF, folder). Times are those of denoising; text encoders and VAE are not in them, nor in
the memory.

Devices are COUNTxDEVICE-LINK, for several hosts HOSTSxCOUNTxDEVICE-LINK+NETWORK, or a list of devices of one host
that differ, as in 2xH100-pcie,2xL40: fast ones get more of the work, slow ones may be left out. Or GPUs of this machine
as serve takes them, cuda:0-3.` + deviceHelp(),
		Example: `  patchbay plan --model flux-dev --size 1024x1024 --devices 8xH100-nvlink
  patchbay plan --model hunyuandit --size 2048x2048 --devices 4xL40-pcie --timeline t.svg
  patchbay plan --model flux-dev --devices 4x4090-pcie --plan pipe=4,patches=6 --timeline -
  patchbay plan --model flux-dev --devices 2xH100-pcie,2xL40
  patchbay plan --model flux-dev --devices 2x4090-pcie --control 5+10
  patchbay plan --model qwen-image --devices 4xL40-pcie --patch blocks
  patchbay plan --model qwen-image-layered --size 640x640 --layers 3 --devices 4xL40-pcie
  patchbay plan --model wan2.2-ti2v-5b --size 1280x704 --frames 121 --devices 1x3060 --host-memory 32G
  patchbay plan --model qwen-image --file int8 --devices 1x3060 --host-memory 32G
  patchbay plan --fits --host-memory 32G
  patchbay plan --fits --exact --devices 4xL40-pcie
  patchbay plan --check --plan pipe=2,patches=4 --size 256x256`,
		Args: console.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := f.run(cmd)
			if _, ok := errors.AsType[*fault.Error](err); ok {
				return console.BadInput(err)
			}
			return err
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.Model, "model", "", "name of a released model, or a file")
	fl.StringVar(&f.Size, "size", "1024x1024", "width x height in pixels")
	fl.StringVar(&f.Devices, "devices", "", "devices, for example 8xH100-nvlink")
	fl.StringVar(&f.plan, "plan", "", "predict this plan instead of choosing one")
	fl.IntVar(&f.Steps, "steps", 0, "evaluations of the network (default: those of the release; 20 for files)")
	fl.IntVar(&f.Batch, "batch", 1, "pictures at once")
	fl.IntVar(&f.layers, "layers", 0, "layers beside the whole picture, as Qwen-Image-Layered makes them")
	fl.IntVar(&f.frames, "frames", 0, "length of a video in pictures, whose sound is counted in models that make one "+
		"(default: one frame of the latent)")
	fl.IntVar(&f.text, "text", 0, "text tokens (default: those of the release; 256 for files)")
	fl.IntVar(&f.entries, "entries", 0,
		"conditioning entries of an evaluation: 2 with cfg, 1 without (default: by the model)")
	fl.StringArrayVar(&f.controls, "control", nil, "a control net beside the model in every evaluation, on all entries: "+
		"a file, or how many double and single blocks of the model it has copied, as in 5+10; for each of several once")
	fl.StringArrayVar(&f.patches, "patch", nil, "a model patch: a file (USO's too), or "+blocksPatch+" for layers "+
		"behind all blocks, as DiffSynth's; for each of several once")
	fl.IntVar(&f.Warmup, "warmup", 1, "synchronous evaluations at the start of pipelines")
	fl.IntVar(&f.jobs, "jobs", 0, "predict so many equal jobs, side by side on groups of the devices")
	fl.BoolVar(&f.exact, "exact", false, "leave out pipelines with stale keys and values, whose pictures differ a little")
	fl.BoolVar(&f.blocking, "no-overlap", false, "pipeline transfers keep their stage from computing")
	fl.BoolVar(&f.all, "all", false, "list every plan with the reason why it loses")
	fl.StringVar(&f.timeline, "timeline", "",
		"draw every stage's micro-steps into this file (.svg or .txt), - for the terminal")
	fl.StringVar(&f.rates, "rates", "", "replace device and link rates by those of a file that bench step --save "+
		"or bench comm --save has measured")
	fl.StringVar(&f.HostMemory, "host-memory", "", "host memory, as in 32G: blocks that do not fit the devices may come "+
		"from there (stream=on)")
	fl.StringVar(&f.file, "file", "", "form of the file of a released model, such as fp8, int8, nvfp4 or q4_k (default: "+
		"bf16, or that of the device in --rates)")
	fl.BoolVar(&f.table, "fits", false, "print what cards of 8 to 96 GB do with every model, by bits of a weight in the "+
		"file: yes if one card holds all weights, how many times longer it takes if some come from host memory "+
		"(--host-memory), or the plan of several cards; --devices says how many and how fast (default 1x4090-pcie)")
	fl.BoolVar(&f.checks, "check", false, "run --plan on this machine's processors and print predicted and measured "+
		"work, bytes and memory of every rank; --model is a file, or the demo's")
	fl.BoolVar(&f.json, "json", false, "print JSON")
	fl.Func("requests", "", func(string) error {
		return errors.New("was removed: requests no longer overlap, so they take as many times as long as one")
	})
	fl.Func("profile", "", func(path string) error {
		return fmt.Errorf("was renamed, as run --profile is something else: use --rates %s", path)
	})
	_, _ = fl.MarkHidden("requests"), fl.MarkHidden("profile") // fails only for unknown flags
	return cmd
}

// deviceHelp lists the known devices, links and networks.
func deviceHelp() string {
	devices, links, networks := hardware.Devices()
	return fmt.Sprintf("\n  devices   %s\n  links     %s\n  networks  %s", strings.Join(devices, ", "),
		strings.Join(links, ", "), strings.Join(networks, ", "))
}

func (f *Flags) run(cmd *cobra.Command) error {
	switch {
	case len(f.netNames()) > 0 && f.checks:
		return console.BadInput(errors.New("--check runs the model alone: leave out --control and --patch"))
	case f.layers != 0 && (f.checks || f.table):
		return console.BadInput(errors.New("--check and --fits are for pictures without layers: leave out --layers"))
	case f.frames != 0 && f.checks:
		return console.BadInput(errors.New("--check is for pictures: leave out --frames"))
	case f.frames != 0 && f.table:
		return console.BadInput(errors.New("--fits has rows for the usual video of each model: leave out --frames"))
	}
	if f.checks {
		return f.check(cmd.Context(), cmd.OutOrStdout())
	}
	if f.table {
		if f.file != "" {
			return console.BadInput(errors.New("--fits has rows for all forms of files: leave out --file"))
		}
		f.Devices = cmp.Or(f.Devices, "1x4090-pcie")
		return f.fits(cmd.OutOrStdout())
	}
	search, err := f.Search()
	if err != nil {
		return console.BadInput(err)
	}
	if f.jobs != 0 {
		return f.queue(cmd.OutOrStdout(), search)
	}
	var choice *forecast.Choice
	if f.plan == "" {
		choice, err = search.Choose()
	} else {
		var p plan.Plan
		if p, err = plan.Parse(f.plan); err == nil {
			choice, err = search.Predict(p)
		}
	}
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	switch {
	case f.timeline == "-":
		console.Printf(out, "%s", timeline{choice.Simulation}.text(110))
		return nil
	case f.timeline != "":
		if err := writeTimeline(f.timeline, choice.Simulation); err != nil {
			return err
		}
	}
	if f.json {
		return console.PrintIndented(out, f.report(search, choice))
	}
	f.show(out, search, choice)
	return nil
}

func (f *Flags) Search() (forecast.Search, error) {
	var s forecast.Search
	if f.Model == "" || f.Devices == "" {
		return s, fmt.Errorf("--model and --devices are needed: a model is one of %s or a file, devices are for "+
			"example 8xH100-nvlink", strings.Join(published.Names(), ", "))
	}
	m, err := f.open()
	if err != nil {
		return s, err
	}
	switch {
	case f.file != "" && f.opened != nil:
		return s, fmt.Errorf("--file %s: %s is a file, which has its own form", f.file, f.Model)
	case f.file != "":
		if f.weightBytes, err = formOf(f.file); err != nil {
			return s, err
		}
	}
	if onThisMachine(f.Devices) {
		local := daemon.Config{Devices: f.Devices, Rates: f.rates, CUDALibs: os.Getenv("PATCHBAY_CUDA_LIBS")}
		s.Cluster, err = local.Cluster()
	} else if s.Cluster, err = hardware.ParseCluster(f.Devices); err == nil && f.rates != "" {
		err = useRates(f.rates, &s.Cluster)
	}
	if err != nil {
		return s, err
	}
	if f.weightBytes > 0 {
		s.Cluster.Device.WeightBytes = f.weightBytes
	}
	w, h, err := settings.Pixels(f.Size, m.Scale, 65536)
	if err != nil {
		return s, fmt.Errorf("%w, for example 1024x1024", err)
	}
	if f.Batch < 1 || f.Batch > 1024 || f.Warmup < 0 || m.Steps < 1 || m.Steps > 10000 || m.Text < 1 || m.Text > 65536 ||
		m.Entries < 1 || m.Entries > 64 {
		return s, errors.New(
			"want --batch 1 to 1024, --warmup 0 or more, --steps 1 to 10000, --text 1 to 65536, --entries 1 to 64")
	}
	s.Workload = forecast.Workload{
		Spec: m.Spec, Y: (h + m.Scale - 1) / m.Scale, X: (w + m.Scale - 1) / m.Scale, Batch: f.Batch,
		Text: slices.Repeat([]int{m.Text}, m.Entries), Evaluations: m.Steps,
	}
	switch {
	case f.frames != 0:
		if err := f.video(&s.Workload, m.Video); err != nil {
			return s, err
		}
	case f.layers == 0:
	case f.layers < 0 || f.layers > 64 || !m.Spec.Frames:
		return s, fmt.Errorf("--layers %d: want 1 to 64 of a model that takes layers, 0 of others", f.layers)
	case len(f.netNames()) > 0:
		return s, errors.New("no control nets and model patches run beside layers: leave out --layers, or " +
			"--control and --patch")
	default:
		s.T = f.layers + 1
		s.Y *= s.T
	}
	if s.HostMemory, err = daemon.ParseBytes(f.HostMemory); err != nil {
		return s, fmt.Errorf("--host-memory %w", err)
	}
	if s.Cluster.Device.Memory == 0 { // the processors have no other
		s.Shared, s.HostMemory = forecast.Room(s.HostMemory), math.MaxInt64
	}
	s.Exact, s.Warmup, s.Blocking = f.exact, f.Warmup, f.blocking
	return s, f.nets(&s.Workload, s.Cluster.Device.WeightBytes)
}

// video makes the latent of w, which is one frame, that of --frames pictures, with its sound.
func (f *Flags) video(w *forecast.Workload, v family.Video) error {
	const most = 16384 // of ComfyUI's nodes
	switch {
	case v.Step == 0:
		return fmt.Errorf("--frames %d: %s makes no videos: leave it out", f.frames, f.Model)
	case f.layers != 0 || len(f.netNames()) > 0:
		return errors.New("--frames is for videos alone: leave out --layers, --control and --patch")
	case f.frames > most || !v.Makes(f.frames):
		return fmt.Errorf("--frames %d: want %d, %d, %d and so on, at most %d", f.frames, v.First, v.First+v.Step,
			v.First+2*v.Step, most)
	}
	w.T = v.Latent(f.frames)
	w.Y *= w.T
	if v.Sound != nil {
		w.SoundY, w.SoundX = v.Sound(f.frames)
	}
	return nil
}

// onThisMachine reports whether devices names GPUs of this machine by number, as for serve.
func onThisMachine(devices string) bool { return strings.HasPrefix(devices, "cuda:") }

// open describes the model that --model names, with the flags that override its defaults.
func (f *Flags) open() (*published.Model, error) {
	m, err := published.Find(f.Model)
	if _, missing := os.Stat(f.Model); err != nil && missing == nil {
		var spec *dit.Spec
		var stored string
		if spec, stored, err = f.describeFile(f.Model); err == nil {
			m = published.Of(family.Release{Name: f.Model + stored, Steps: 20, Text: 256, Entries: 2}, spec, f.opened.Format)
			if spec.TakesGuidance {
				m.Entries = 1
			}
		}
	}
	if err != nil {
		return nil, err
	}
	for _, v := range []struct {
		flag int
		at   *int
	}{{f.Steps, &m.Steps}, {f.text, &m.Text}, {f.entries, &m.Entries}} {
		if v.flag != 0 {
			*v.at = v.flag
		}
	}
	return m, nil
}

// describeFile reads the header of a checkpoint and sets weightBytes. It returns the form of a quantized one in
// parentheses.
func (f *Flags) describeFile(path string) (spec *dit.Spec, stored string, err error) {
	read := func(h files.Header) (err error) {
		if f.opened, err = value.OpenModel(h); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		f.weightBytes = float64(f.opened.Request().LoadedBytes()) / float64(f.opened.Spec.Params)
		if form, quantised := h.Weights.Set().Form(); quantised {
			stored = " (" + form + ")"
		}
		return nil
	}
	if err := files.ReadHeader(files.KindDiffusion, path, false, read); err != nil {
		return nil, "", err
	}
	return f.opened.Spec, stored, nil
}

func writeTimeline(path string, s *forecast.Simulation) error {
	text := timeline{s}.svg()
	if strings.HasSuffix(path, ".txt") {
		text = timeline{s}.text(200)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return fmt.Errorf("--timeline: %w", err)
	}
	return nil
}

// show prints a choice for people.
func (f *Flags) show(out io.Writer, s forecast.Search, c *forecast.Choice) {
	r := f.report(s, c)
	made := fmt.Sprintf("%d picture(s)", s.Batch)
	if r.Frames > 0 {
		made = fmt.Sprintf("%d video(s) of %d pictures", s.Batch, r.Frames)
	}
	console.Printf(out, "%s, %s px, %s, %d evaluations, %d entries of %d text tokens on %s\n",
		strings.Join(append([]string{r.Model}, r.Nets...), " with "), r.Size, made, s.Evaluations, len(s.Text), s.Text[0],
		r.Devices)
	console.Printf(out, "rates     %s\n", r.Rates)
	note := "the picture of one rank"
	if !r.Exact {
		note = "stale keys and values: close to the picture of one rank"
	}
	console.Printf(out, "plan      %s (%s)\n", r.Plan, note)
	kind, who, idle := "device", "a rank at most", ""
	if s.Cluster.Mixed != nil {
		kind, who = s.Cluster.Device.Name, "on the "+c.Best.On.Name+", which has least room"
		idle = " (" + s.Cluster.DescribeFrom(c.Best.Plan.Ranks()) + ")"
	}
	console.Printf(out, "time      %s", seconds(r.Seconds))
	if r.OneRankSeconds > 0 && c.Best.Plan.Ranks() > 1 {
		console.Printf(out, ", %.2f x faster than one %s (%s)", r.OneRankSeconds/r.Seconds, kind,
			seconds(r.OneRankSeconds))
	}
	console.Printf(out, "\nstep      %s in the steady state", seconds(r.StepSeconds))
	if r.WarmupSeconds > 0 && r.WarmupSeconds < r.Seconds {
		console.Printf(out, ", warm-up %s", seconds(r.WarmupSeconds))
	}
	mean := mean(c.Simulation)
	part := func(v float64) string { return fmt.Sprintf("%.1f %%", 100*v/r.Seconds) }
	console.Printf(out, "\nmean rank computing %s, exchanges %s (another %s hidden), pipeline transfers %s, idle "+
		"%s; all devices wait for the host %s\n", part(mean.Compute),
		part(mean.Exchange), part(mean.Hidden), part(mean.Send), part(mean.Idle), part(c.Simulation.HandoverSeconds))
	m := r.Memory
	console.Printf(out, "memory    %.2f GB %s: weights %.2f, session %.2f (keys and values %.2f), "+
		"activations %.2f, exchange %.2f", gb(m.Total()), who, gb(m.Weights), gb(m.Session),
		gb(m.KV), gb(m.Activations), gb(m.Exchange))
	if r.FreeBytes > 0 {
		console.Printf(out, "; %.2f are free", gb(r.FreeBytes))
	}
	console.Printf(out, "\nsends     ")
	any := false
	for _, t := range r.Traffic {
		if t.MostBytes > 0 && t.Axis != plan.AxisStream.String() {
			console.Printf(out, "%s %.1f MB in %d exchanges, ", t.Axis, float64(t.MostBytes)/1e6, t.Calls)
			any = true
		}
	}
	if any {
		console.Printf(out, "per step by the rank that sends most\n")
	} else {
		console.Printf(out, "nothing between devices\n")
	}
	if b := c.Streams; b.Blocks > 0 {
		console.Printf(out, "streams   %d of %d blocks, %d stay: %.2f GB per step from host memory, where %.2f GB lie for "+
			"all ranks; %.2f x the time of blocks that all stay\n", b.Blocks, b.Blocks+b.Resident, b.Resident,
			gb(b.StepBytes), gb(b.HostBytes), b.Slowdown)
	}
	if r.Idle > 0 {
		console.Printf(out, "idle      devices %d to %d%s: %s\n", s.Cluster.Ranks()-r.Idle, s.Cluster.Ranks()-1, idle,
			cmp.Or(r.IdleReason, "the plan does not use them"))
	}
	if len(r.Others) == 0 {
		return
	}
	var rows [][]string
	for _, o := range r.Others {
		bytes := fmt.Sprintf("%.2f GB", gb(o.Bytes))
		if o.Least {
			bytes = "over " + bytes
		}
		rows = append(rows, []string{o.Plan, seconds(o.Seconds), bytes, o.Why})
	}
	console.Printf(out, "\n")
	console.PrintTable(out, []string{"other plan", "time", "memory", "why it loses"}, rows)
	if more := len(c.Others) - len(r.Others); more > 0 {
		console.Printf(out, "%d more with --all\n", more)
	}
}

func gb(n int64) float64 { return float64(n) / 1e9 }

func seconds(v float64) string {
	if v == 0 {
		return "-"
	}
	return duration(v)
}

// useRates replaces the rates of a cluster with measured ones. Names, memory, counts and the bytes of weights and
// values stay.
func useRates(path string, f *hardware.Cluster) error {
	m, err := daemon.ReadMachine(path)
	if err != nil {
		return fmt.Errorf("--rates: %w", err)
	}
	use := func(of hardware.Device) (hardware.Device, error) {
		d, err := m.Kind(of.Name)
		if err != nil && f.Mixed != nil {
			return d, fmt.Errorf("--rates %s: %w", path, err)
		} else if err != nil {
			d = m.Device
		}
		d.Name, d.Memory, d.Reserved = of.Name, of.Memory, of.Reserved
		d.WeightBytes, d.ValueBytes = of.WeightBytes, of.ValueBytes
		return d, nil
	}
	if f.Device, err = use(f.Device); err != nil {
		return err
	}
	for i := range f.Mixed {
		if f.Mixed[i], err = use(f.Mixed[i]); err != nil {
			return err
		}
	}
	m.Link.Name = f.Link.Name
	f.Link, f.Between = m.Link, m.Between(m.Paired())
	if f.Mixed != nil {
		*f = f.Sorted()
	}
	return nil
}
