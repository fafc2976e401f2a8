package bench

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/daemon"
	"patchbay/engine"
	"patchbay/parallel/comm"
	"patchbay/parallel/forecast"
	"patchbay/parallel/group"
	"patchbay/parallel/plan"
)

// commFlags are the flags of bench comm.
type commFlags struct {
	timing
	ranks int
	save  string
}

func commCmd() *cobra.Command {
	var f commFlags
	cmd := &cobra.Command{
		Use:   "comm",
		Short: "Measure exchanges between ranks of one process, and products and attention of one rank",
		Long: `comm measures every exchange of the local transport at several sizes, and one large product and one large
attention on all processors. --save keeps the rates in a file, for --rates of plan and serve; what else a
profile of that name holds stays.`,
		Example: "  patchbay bench comm --ranks 4 --save here.json",
		Args:    console.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			if f.ranks < 2 || f.ranks > plan.MaxRanks {
				return console.BadInput(fmt.Errorf("--ranks %d: want 2 to %d", f.ranks, plan.MaxRanks))
			}
			r, m, err := f.measure()
			if err != nil {
				return err
			}
			if f.save != "" {
				err := saveMachine(f.save, func(to *forecast.Machine) error {
					to.Device.GEMM, to.Device.Attention, to.Link = m.GEMM, m.Attention, m.link(to.Link)
					return nil
				})
				if err != nil {
					return err
				}
			}
			return r.print(cmd.OutOrStdout(), f.json)
		},
	}
	f.add(cmd.Flags(), 5, 20)
	cmd.Flags().IntVar(&f.ranks, "ranks", 2, "ranks that exchange")
	cmd.Flags().StringVar(&f.save, "save", "", "profile to keep the rates in")
	return cmd
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
	}
}

// measure runs all exchanges at all sizes.
func (f *commFlags) measure() (*report, measured, error) {
	r := &report{
		Benchmark: "comm", Warmup: f.warmup,
		Inside: "from the first rank's call to the last rank's return: waiting for each other and copies; for product " +
			"and attention the call and its wait",
		Outside: "allocation, packing of weights, starting the ranks",
		Extra:   map[string]any{"ranks": f.ranks, "processors": runtime.GOMAXPROCS(0)},
	}
	var m measured
	for _, e := range exchanges() {
		for _, bytes := range []int{4 << 10, 256 << 10, 4 << 20} {
			times, err := f.time(e, bytes/4)
			if err != nil {
				return nil, m, fmt.Errorf("%s of %d bytes: %w", e.name, bytes, err)
			}
			s := summarise(fmt.Sprintf("%s, %d KiB a rank", e.name, bytes>>10), times)
			s.Bytes, s.Rate = bytes, float64(bytes)/s.Median
			r.Samples = append(r.Samples, s)
			switch {
			case e.name == "ring" && bytes == 4<<20:
				m.Bandwidth = s.Rate
			case e.name == "all-to-all" && bytes == 4<<10:
				m.Latency = s.Median
			case e.name == "all-to-all" && bytes == 4<<20:
				m.AllToAll = s.Rate
			}
		}
	}
	m.AllToAll = min(1, m.AllToAll/m.Bandwidth)
	products, err := f.compute(&m)
	if err != nil {
		return nil, m, err
	}
	r.Samples = append(r.Samples, products...)
	return r, m, nil
}

// time clocks one exchange on all ranks: they meet, then everyone notes when it starts and when it is done.
func (f *commFlags) time(e exchange, n int) ([]float64, error) {
	comms, err := comm.Local{}.Connect(comm.Group{Name: "bench", Deadline: time.Minute}, make([]engine.Ops, f.ranks))
	if err != nil {
		return nil, err
	}
	runs := f.warmup + f.runs
	starts, ends := make([][]time.Time, f.ranks), make([][]time.Time, f.ranks)
	g := group.New(func(cause error) {
		for _, c := range comms {
			c.Abort(cause)
		}
	})
	for rank, c := range comms {
		g.Go(fmt.Sprintf("rank %d", rank), func() error {
			room := n * f.ranks
			tensor := func() engine.Tensor {
				return engine.NewTensor(engine.Buf{Host: make([]byte, 4*room)}, engine.F32, room)
			}
			dst, src, meet := tensor(), tensor(), engine.NewTensor(engine.Buf{Host: make([]byte, 4)}, engine.F32, 1)
			for range runs {
				c.AllReduce(meet)
				starts[rank] = append(starts[rank], time.Now())
				e.run(c, dst, src, n)
				ends[rank] = append(ends[rank], time.Now())
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var times []float64
	for i := f.warmup; i < runs; i++ {
		first, last := starts[0][i], ends[0][i]
		for rank := range comms {
			if starts[rank][i].Before(first) {
				first = starts[rank][i]
			}
			if ends[rank][i].After(last) {
				last = ends[rank][i]
			}
		}
		times = append(times, last.Sub(first).Seconds())
	}
	return times, nil
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
