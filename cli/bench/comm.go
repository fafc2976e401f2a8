package bench

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/daemon"
	"patchbay/engine"
	"patchbay/parallel/comm"
	"patchbay/parallel/comm/nccl"
	"patchbay/parallel/forecast"
	"patchbay/parallel/group"
	"patchbay/parallel/plan"
)

// commFlags are the flags of bench comm.
type commFlags struct {
	timing
	ranks   int
	size    string
	save    string
	devices daemon.Config // see settings.Devices
}

func commCmd() *cobra.Command {
	var f commFlags
	cmd := &cobra.Command{
		Use:   "comm",
		Short: "Measure exchanges between ranks of one process, and on the processors products and attention of one rank",
		Long: `comm measures every exchange of the ranks of a process at several sizes: on the processors, with one large
product and one large attention on all of them, or between GPUs by the transport that they use, with the way between
each two. --save keeps the rates in a file, for --rates of plan and serve; what else a profile of that name holds
stays.`,
		Example: `  patchbay bench comm --ranks 4 --save here.json
  patchbay bench comm --devices cuda:0-7 --save here.json`,
		Args: console.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			s, err := f.open(cmd.Flags().Changed("ranks"))
			if err != nil {
				return err
			}
			r, m, err := f.measure(s)
			if err = errors.Join(err, s.close()); err != nil {
				return err
			}
			for _, kind := range s.kinds {
				if f.save == "" {
					break
				}
				err := saveMachine(f.save, kind, func(to *forecast.Machine) error { return m.save(to, s.link, s.places) })
				if err != nil {
					return err
				}
			}
			return r.print(cmd.OutOrStdout(), f.json)
		},
	}
	f.add(cmd.Flags(), 5, 20)
	settings.Devices(cmd.Flags(), &f.devices)
	cmd.Flags().IntVar(&f.ranks, "ranks", 2, "ranks that exchange on the processors")
	cmd.Flags().StringVar(&f.size, "size", "", "bytes that a rank sends in the largest exchange, 64K to 1G (default 4M, "+
		"on GPUs 64M)")
	cmd.Flags().StringVar(&f.save, "save", "", "profile to keep the rates in")
	return cmd
}

// site is ranks that exchange.
type site struct {
	by     comm.Transport
	link   string       // its name for GPUs
	ops    []engine.Ops // nil: the rank is on the processors
	places []string     // GPUs of the ranks, nil on the processors
	kinds  []forecast.Machine
	again  int // exchanges that are timed together
	most   int // bytes
	team   uint64
	close  func() error
}

// open finds the ranks that flags ask for: with --ranks on the processors.
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
	s := &site{by: comm.Local{}, again: 1, most: 4 << 20, close: func() error { return nil }}
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
	if err == nil && f.size != "" {
		var bytes int64
		if bytes, err = daemon.ParseBytes(f.size); err == nil && (bytes < 64<<10 || bytes > 1<<30) {
			err = fmt.Errorf("--size %s: want 64K to 1G", f.size)
		}
		s.most = int(bytes)
	}
	if err != nil {
		return nil, console.BadInput(err)
	}
	if s.kinds, err = f.devices.Kinds(); err != nil || gpus == nil {
		s.ops = make([]engine.Ops, f.ranks)
		return s, err
	}
	return s, s.onGPUs(&f.devices)
}

// onGPUs opens the GPUs of a site.
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
	s.by, s.link, s.again = cfg.Transport, "localcuda", 8
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

// exchange is one operation of a Comm: n values leave every rank.
type exchange struct {
	name string
	run  func(c comm.Comm, dst, src engine.Tensor, n int)
}

func exchanges() []exchange {
	each := func(ranks, n int) []int {
		out := make([]int, ranks)
		for i := range out {
			out[i] = n
		}
		return out
	}
	return []exchange{
		{"all-to-all", func(c comm.Comm, dst, src engine.Tensor, n int) {
			part := each(c.Size(), n/(c.Size()-1))
			c.AllToAll(dst, src, part, part)
		}},
		{"ring", func(c comm.Comm, dst, src engine.Tensor, n int) {
			c.SendRecv(dst.Slice(0, 0, n), (c.Rank()+c.Size()-1)%c.Size(), src.Slice(0, 0, n), (c.Rank()+1)%c.Size())
		}},
		{"all-gather", func(c comm.Comm, dst, src engine.Tensor, n int) {
			n /= c.Size() - 1
			c.AllGather(dst, src.Slice(0, 0, n), each(c.Size(), n))
		}},
		{"all-reduce", func(c comm.Comm, dst, _ engine.Tensor, n int) {
			c.AllReduce(dst.Slice(0, 0, n*c.Size()/2/(c.Size()-1)))
		}},
		{"pipeline message", func(c comm.Comm, dst, src engine.Tensor, n int) {
			if c.Rank() > 0 {
				c.Post(dst.Slice(0, n, 2*n), c.Rank()-1)
			}
			if c.Rank() < c.Size()-1 {
				c.Offer(src.Slice(0, n, 2*n), src.Slice(0, 0, n), c.Rank()+1)
			}
			if c.Rank() > 0 {
				c.Await(dst.Slice(0, 0, n), c.Rank()-1)
			}
		}},
	}
}

// measure runs all exchanges at all sizes, and on GPUs each pair alone.
func (f *commFlags) measure(s *site) (*report, measured, error) {
	r := &report{
		Benchmark: "comm", Warmup: f.warmup,
		Inside: "from a rank's call to its return, of the rank that takes longest: waiting for each other and copies; for " +
			"product and attention the call and its wait",
		Outside: "allocation, packing of weights, starting the ranks",
		Extra:   map[string]any{"ranks": len(s.ops), "processors": runtime.GOMAXPROCS(0)},
	}
	if s.places != nil {
		r.Inside = fmt.Sprintf("from a rank's exchange to the end of it by the clock of its GPU, of the rank that takes "+
			"longest, %d in a row", s.again)
		r.Outside = "allocation, connecting the ranks"
		r.Extra["transport"], r.Extra["devices"] = s.link, s.places
	}
	var m measured
	one := func(what string, e exchange, bytes int, who ...int) (sample, error) {
		times, err := f.time(s, e, bytes/4, who)
		if err != nil {
			return sample{}, fmt.Errorf("%s of %d bytes: %w", e.name, bytes, err)
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
	for _, e := range exchanges() {
		for _, bytes := range []int{least, s.most / 16, s.most} {
			got, err := one(e.name, e, bytes, all...)
			switch {
			case err != nil:
				return nil, m, err
			case e.name == "ring" && bytes == s.most:
				m.Bandwidth = got.Rate
			case e.name == "all-to-all" && bytes == least:
				m.Latency = got.Median
			case e.name == "all-to-all" && bytes == s.most:
				m.AllToAll = got.Rate
			}
		}
	}
	if s.places == nil {
		products, err := f.compute(&m)
		r.Samples = append(r.Samples, products...)
		return r, m, err
	}
	ring := exchanges()[slices.IndexFunc(exchanges(), func(e exchange) bool { return e.name == "ring" })]
	for a := range all {
		for b := a + 1; b < len(all); b++ {
			p := forecast.Pair{A: s.places[a], B: s.places[b]}
			what := p.A + " and " + p.B
			small, err := one(what, ring, least, a, b)
			if err != nil {
				return nil, m, err
			}
			large, err := one(what, ring, s.most, a, b)
			if err != nil {
				return nil, m, err
			}
			p.Bandwidth, p.Latency = large.Rate, small.Median
			m.pairs = append(m.pairs, p)
		}
	}
	return r, m, nil
}

// least is bytes of the smallest exchange.
const least = 4 << 10

// memory is two buffers of a rank, of n numbers each. The function gives them back.
func memory(ops engine.Ops, n int) (dst, src engine.Tensor, free func(), err error) {
	if ops == nil {
		host := func() engine.Tensor { return engine.NewTensor(engine.Buf{Host: make([]byte, 4*n)}, engine.F32, n) }
		return host(), host(), func() {}, nil
	}
	both, err := ops.Alloc(2 * 4 * n)
	if err != nil {
		return dst, src, nil, err
	}
	t := engine.NewTensor(both, engine.F32, 2*n)
	return t.Slice(0, 0, n), t.Slice(0, n, 2*n), func() { ops.Free(both) }, nil
}

// stamper notes the time of a rank. What it returns tells it when all calls have run.
func stamper(ops engine.Ops, start time.Time) func() func() time.Duration {
	if s, ok := ops.(engine.Stamper); ok {
		return s.Stamp
	}
	return func() func() time.Duration {
		now := time.Since(start)
		return func() time.Duration { return now }
	}
}

// time clocks one exchange of n numbers on some ranks: they meet, then everyone notes when it starts and when it is
// done. Seconds are those of the rank that took longest.
func (f *commFlags) time(s *site, e exchange, n int, who []int) ([]float64, error) {
	ops := make([]engine.Ops, len(who))
	for i, r := range who {
		ops[i] = s.ops[r]
	}
	s.team++
	comms, err := s.by.Connect(comm.Group{
		Team: s.team, Name: "bench", Ranks: who, Deadline: time.Minute, Pipe: e.name == "pipeline message",
	}, ops)
	if err != nil {
		return nil, err
	}
	start, runs := time.Now(), f.warmup+f.runs
	took := make([][]float64, len(who))
	var dsts, srcs []engine.Tensor
	for _, o := range ops {
		dst, src, free, err := memory(o, n*len(who)+1)
		if err != nil {
			return nil, err
		}
		defer free()
		dsts, srcs = append(dsts, dst), append(srcs, src)
	}
	g := group.New(func(cause error) {
		for _, c := range comms {
			c.Abort(cause)
		}
	})
	for rank, c := range comms {
		dst, src := dsts[rank], srcs[rank]
		g.Go(fmt.Sprintf("rank %d", rank), func() error {
			meet, now := dst.Slice(0, n*len(who), n*len(who)+1), stamper(ops[rank], start)
			var begun, done []func() time.Duration
			for range runs {
				c.AllReduce(meet)
				begun = append(begun, now())
				for range s.again {
					e.run(c, dst, src, n)
				}
				done = append(done, now())
			}
			if ops[rank] != nil {
				if err := ops[rank].Sync(); err != nil {
					return err
				}
			}
			for i := f.warmup; i < runs; i++ {
				took[rank] = append(took[rank], (done[i]()-begun[i]()).Seconds()/float64(s.again))
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for _, other := range took[1:] {
		for i, t := range other {
			took[0][i] = max(took[0][i], t)
		}
	}
	return took[0], nil
}

// compute clocks a product and an attention of the sizes of a small block on all processors.
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
		times, err := f.clocked(func() error { return v.run().Wait() })
		if err != nil {
			return nil, err
		}
		s := summarise(v.what, times)
		s.Rate = v.flops / s.Median
		*v.to = s.Rate
		out = append(out, s)
	}
	if len(out) == 0 {
		return nil, errors.New("nothing measured")
	}
	return out, nil
}
