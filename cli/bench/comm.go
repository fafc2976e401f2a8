package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/daemon"
	"patchbay/engine"
	"patchbay/parallel/comm"
	"patchbay/parallel/comm/nccl"
	"patchbay/parallel/comm/trial"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
	"patchbay/parallel/remote"
)

type commFlags struct {
	timing
	ranks   int
	size    string
	save    string
	devices daemon.Config // see settings.Devices and settings.Hosts
}

func commCmd(version string) *cobra.Command {
	f := commFlags{devices: daemon.Config{Version: version}}
	var cmd *cobra.Command
	cmd = f.command(&cobra.Command{
		Use: "comm",
		Short: "Measure exchanges between ranks of one process or of several hosts, and on the processors products and " +
			"attention of one rank",
		Long: `comm measures every exchange of the ranks of a process at several sizes: on the processors, with one large
product and one large attention on all of them, or between GPUs by the transport that they use, with the way between
each two. --save keeps the rates in a file, for --rates of plan and serve; what else a profile of that name holds
stays.

With --hosts it measures between the devices of machines that run "patchbay host" and work for nobody else now: all of
them together, and each two, through host memory over TLS or by NCCL with --trusted-network. It keeps nothing: serve
measures the network itself when hosts meet.`,
		Example: `  patchbay bench comm --ranks 4 --save here.json
  patchbay bench comm --devices cuda:0-7 --save here.json
  patchbay bench comm --hosts a,b --cluster-key cluster.key`,
	}, 5, 20, func(context.Context) (*report, error) {
		open := f.open
		if f.devices.Hosts != "" {
			open = f.openHosts
		}
		s, err := open(cmd.Flags().Changed("ranks"))
		if err != nil {
			return nil, err
		}
		r, m, err := f.measure(s)
		if err = errors.Join(err, s.close()); err != nil || f.save == "" {
			return r, err
		}
		for _, kind := range s.kinds {
			err := saveMachine(f.save, kind, func(to *hardware.Machine) error { return m.save(to, s.link, s.places) })
			if err != nil {
				return nil, err
			}
		}
		return r, nil
	})
	settings.Devices(cmd.Flags(), &f.devices)
	settings.Hosts(cmd.Flags(), &f.devices)
	cmd.Flags().IntVar(&f.ranks, "ranks", 2, "ranks that exchange on the processors")
	cmd.Flags().StringVar(&f.size, "size", "", "bytes that a rank sends in the largest exchange, 64K to 1G (default 4M, "+
		"on GPUs 64M, between hosts 16M)")
	cmd.Flags().StringVar(&f.save, "save", "", "profile to keep the rates in")
	return cmd
}

// site is a set of ranks between which exchanges are measured.
type site struct {
	by     comm.Transport
	link   string       // name of the transport on GPUs and hosts
	ops    []engine.Ops // by rank; nil: on the processors, or on a host
	places []string     // by rank, its GPU or its name on hosts; nil on the processors
	kinds  []hardware.Machine
	inRow  int // exchanges timed in a row
	most   int // bytes that a rank sends in the largest exchange
	team   uint64
	hosts  *remote.Bench // nil: the ranks are in this process
	close  func() error
}

// open returns the ranks that the flags ask for. ranks says that --ranks was given, which asks for the processors.
func (f *commFlags) open(ranks bool) (*site, error) {
	auto := f.devices.Devices == "auto"
	if auto && ranks {
		f.devices.Devices = "cpu"
	}
	if err := f.devices.CheckDevices(); err != nil {
		return nil, err
	}
	gpus, err := daemon.GPUs(f.devices.Devices)
	if err == nil && auto && len(gpus) < 2 {
		f.devices.Devices, gpus = "cpu", nil
	}
	s := &site{by: comm.Local{}, inRow: 1, most: 4 << 20, close: func() error { return nil }}
	switch {
	case err != nil:
	case gpus != nil && ranks:
		err = fmt.Errorf("--ranks %d --devices %s: a GPU is one rank; name it twice for two", f.ranks, f.devices.Devices)
	case len(gpus) == 1:
		err = fmt.Errorf("--devices %s: want two GPUs or more, as in cuda:0-1", f.devices.Devices)
	case f.devices.Placement != daemon.PlacementThreads:
		err = fmt.Errorf("--placement %s: want threads, ranks of this process are measured", f.devices.Placement)
	case f.ranks < 2 || f.ranks > plan.MaxRanks:
		err = fmt.Errorf("--ranks %d: want 2 to %d", f.ranks, plan.MaxRanks)
	case gpus != nil:
		s.most = 64 << 20
	}
	if err == nil {
		err = f.sized(s)
	}
	if err != nil {
		return nil, console.BadInput(err)
	}
	if s.kinds, err = f.devices.BuiltInRates(); err != nil || gpus == nil {
		s.ops = make([]engine.Ops, f.ranks)
		return s, err
	}
	return s, s.onGPUs(&f.devices)
}

func (f *commFlags) sized(s *site) error {
	if f.size == "" {
		return nil
	}
	bytes, err := daemon.ParseBytes(f.size)
	if err == nil && (bytes < 64<<10 || bytes > trial.MostBytes) {
		err = fmt.Errorf("--size %s: want 64K to 1G", f.size)
	}
	s.most = int(bytes)
	return err
}

// openHosts connects the machines of --hosts. ranks says that --ranks was given, which is refused.
func (f *commFlags) openHosts(ranks bool) (*site, error) {
	s := &site{inRow: 8, most: 16 << 20, link: "host memory over TLS"}
	err := f.sized(s)
	switch {
	case err != nil:
	case ranks:
		err = fmt.Errorf("--ranks %d --hosts: a host says how many ranks it has: patchbay host --ranks", f.ranks)
	case f.devices.Devices != "auto":
		err = fmt.Errorf("--devices %s --hosts: a host says what it computes on: patchbay host --devices", f.devices.Devices)
	case f.save != "":
		err = fmt.Errorf("--save %s --hosts: serve measures the network itself when hosts meet, and keeps it; rates of a "+
			"host are measured there, and given to patchbay host --rates", f.save)
	}
	if err == nil {
		err = f.devices.CheckDevices()
	}
	if err != nil {
		return nil, console.BadInput(err)
	}
	if s.hosts, err = f.devices.Bench(); err != nil {
		return nil, err
	}
	s.close = func() error { s.hosts.Close(); return nil }
	if n := s.hosts.Ranks(); n < 2 || n > plan.MaxRanks {
		return nil, errors.Join(console.BadInput(fmt.Errorf("--hosts %s: want 2 to %d ranks together, and there are %d",
			f.devices.Hosts, plan.MaxRanks, n)), s.close())
	}
	if s.hosts.NCCL() {
		s.link = "nccl"
	}
	s.ops, s.places = make([]engine.Ops, s.hosts.Ranks()), make([]string, s.hosts.Ranks())
	return s, nil
}

// exchangesInRow returns how many exchanges of so many bytes are timed in a row. Between hosts that is one, except for
// the smallest exchange: ranks there do not start at the same moment.
func (s *site) exchangesInRow(bytes int) int {
	if s.hosts != nil && bytes > least {
		return 1
	}
	return s.inRow
}

// time measures an exchange between the ranks who.
func (s *site) time(t trial.Trial, who []int) ([]float64, error) {
	if s.hosts != nil {
		times, err := s.hosts.Time(who, t)
		for r := range s.places {
			s.places[r] = s.hosts.Name(r)
		}
		return times, err
	}
	ops := make([]engine.Ops, len(who))
	for i, r := range who {
		ops[i] = s.ops[r]
	}
	s.team++
	return t.Run(context.Background(), s.by, comm.Group{Team: s.team, Ranks: who}, ops)
}

func (s *site) onGPUs(devices *daemon.Config) error {
	cfg, release, err := devices.EngineConfig()
	if err != nil {
		return err
	}
	s.close = func() error {
		var errs []error
		for _, o := range s.ops {
			if c, ok := o.(io.Closer); ok {
				errs = append(errs, c.Close())
			}
		}
		return errors.Join(append(errs, release())...)
	}
	s.by, s.link, s.inRow = cfg.Transport, "localcuda", 8
	if _, ok := cfg.Transport.(*nccl.Transport); ok {
		s.link = "nccl"
	}
	for r := range cfg.Ranks {
		ops, err := cfg.NewOps(r, cfg.Ranks)
		if err != nil {
			return errors.Join(err, s.close())
		}
		s.ops, s.places = append(s.ops, ops), append(s.places, cfg.DeviceOf(r))
	}
	return nil
}

// measure runs all exchanges at all sizes, and on GPUs and hosts also between each pair of ranks. On the processors it
// measures compute rates too.
func (f *commFlags) measure(s *site) (*report, measured, error) {
	r := &report{
		Benchmark: "comm", Warmup: f.warmup,
		Inside: "from a rank's call to its return, of the rank that takes longest: waiting for each other and copies; for " +
			"product and attention the call and its wait",
		Outside: "allocation, packing of weights, starting the ranks",
		Extra:   map[string]any{"ranks": len(s.ops), "processors": runtime.GOMAXPROCS(0)},
	}
	if s.places != nil {
		r.Inside = fmt.Sprintf("from a rank's exchange to the end of it by the clock of its device, of the rank that takes "+
			"longest, %d in a row", s.inRow)
		if s.hosts != nil {
			r.Inside += " where they are small"
		}
		r.Outside = "allocation, connecting the ranks"
		r.Extra["transport"], r.Extra["devices"] = s.link, s.places
	}
	var m measured
	one := func(what, exchange string, bytes int, who ...int) (sample, error) {
		times, err := s.time(trial.Trial{
			Exchange: exchange, Bytes: bytes, Warmup: f.warmup, Runs: f.runs, Row: s.exchangesInRow(bytes),
		}, who)
		if err != nil {
			return sample{}, fmt.Errorf("%s of %d bytes: %w", exchange, bytes, err)
		}
		got := summarise(fmt.Sprintf("%s, %d KiB a rank", what, bytes>>10), times)
		got.Bytes, got.Rate = bytes, float64(bytes)/max(got.Median, 1e-9)
		r.Samples = append(r.Samples, got)
		return got, nil
	}
	all := make([]int, len(s.ops))
	for i := range all {
		all[i] = i
	}
	for _, e := range trial.Exchanges() {
		for _, bytes := range []int{least, s.most / 16, s.most} {
			got, err := one(e, e, bytes, all...)
			switch {
			case err != nil:
				return nil, m, err
			case e == trial.Ring && bytes == s.most:
				m.Bandwidth = got.Rate
			case e == "all-to-all" && bytes == least:
				m.Latency = got.Median
			case e == "all-to-all" && bytes == s.most:
				m.AllToAll = got.Rate
			}
		}
	}
	if s.places == nil {
		products, err := f.compute(&m)
		r.Samples = append(r.Samples, products...)
		return r, m, err
	}
	for a := range all {
		for b := a + 1; b < len(all); b++ {
			p := hardware.Pair{A: s.places[a], B: s.places[b]}
			what := p.A + " and " + p.B
			small, err := one(what, trial.Ring, least, a, b)
			if err != nil {
				return nil, m, err
			}
			large, err := one(what, trial.Ring, s.most, a, b)
			if err != nil {
				return nil, m, err
			}
			p.Bandwidth, p.Latency = large.Rate, small.Median
			m.pairs = append(m.pairs, p)
		}
	}
	return r, m, nil
}

// least is the bytes of the smallest exchange.
const least = 4 << 10

// compute measures a matrix product and an attention, of the sizes in a small block, on all processors.
func (f *commFlags) compute(m *measured) ([]sample, error) {
	ops, err := daemon.NewOps(0, 1)
	if err != nil {
		return nil, err
	}
	const rows, width, heads, dim = 1024, 1152, 16, 72
	alloc := func(shape ...int) engine.Tensor {
		n := 4
		for _, s := range shape {
			n *= s
		}
		return engine.NewTensor(engine.Buf{Host: make([]byte, n)}, engine.F32, shape...)
	}
	packed, err := ops.Pack(engine.Matrix{DType: engine.F32, N: 4 * width, K: width, Data: make([]byte, 4*4*width*width)},
		0)
	if err != nil {
		return nil, err
	}
	defer ops.Free(packed.Buf)
	weight := &engine.Weight{Base: packed}
	x, y := alloc(1, rows, width), alloc(1, rows, 4*width)
	q, o := alloc(1, rows, heads, dim), alloc(1, rows, heads, dim)
	probe := make([]float32, y.Len())
	var out []sample
	for _, v := range []struct {
		what  string
		flops float64
		to    *float64
		run   func() engine.Pending
	}{
		{"product 1024 x 1152 x 4608", 2 * rows * width * 4 * width, &m.GEMM, func() engine.Pending {
			ops.Linear(y, x, weight, engine.Epilogue{})
			return ops.Download(probe, y)
		}},
		{"attention 16 heads of 72, 1024 tokens", 4 * heads * dim * rows * rows, &m.Attention, func() engine.Pending {
			ops.Attention(o, q, q, q, engine.AttentionArgs{})
			return ops.Download(probe[:o.Len()], o)
		}},
	} {
		s, err := f.clocked(v.what, func() error { return v.run().Wait() })
		if err != nil {
			return nil, err
		}
		s.Rate = v.flops / s.Median
		*v.to = s.Rate
		out = append(out, s)
	}
	return out, nil
}
