// Package trial times exchanges between ranks of one process or of several, one operation of a Comm at a time.
package trial

import (
	"context"
	"fmt"
	"slices"
	"time"

	"patchbay/engine"
	"patchbay/parallel/comm"
	"patchbay/parallel/scope"
)

// Ring is the exchange in which every rank sends to the next one, all at once. With two ranks they send to each other.
const Ring = "ring"

// pipeline is the exchange by Offer, Post and Await.
const pipeline = "pipeline message"

// Upper bounds of a Trial.
const (
	MostBytes = 1 << 30
	MostRuns  = 100_000
)

// patience is how long a rank waits for the others.
const patience = time.Minute

// Trial is one exchange and how often it is timed.
type Trial struct {
	Exchange     string // one of Exchanges
	Bytes        int    // sent by every rank
	Warmup, Runs int    // runs that are not timed, and runs that are
	Row          int    // exchanges per run, one after the other
}

// Exchanges returns the names of all exchanges that can be timed.
func Exchanges() (names []string) {
	for _, e := range exchanges() {
		names = append(names, e.name)
	}
	return names
}

// exchange is one operation of a Comm in which every rank sends n values.
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
			c.Run(comm.NewAllToAll(dst, src, part, part))
		}},
		{Ring, func(c comm.Comm, dst, src engine.Tensor, n int) {
			c.SendRecv(dst.Slice(0, 0, n), (c.Rank()+c.Size()-1)%c.Size(), src.Slice(0, 0, n), (c.Rank()+1)%c.Size())
		}},
		{"all-gather", func(c comm.Comm, dst, src engine.Tensor, n int) {
			n /= c.Size() - 1
			c.Run(comm.NewAllGather(dst, src.Slice(0, 0, n), each(c.Size(), n)))
		}},
		{"all-reduce", func(c comm.Comm, dst, _ engine.Tensor, n int) {
			c.Run(comm.NewAllReduce(dst.Slice(0, 0, n*c.Size()/2/(c.Size()-1))))
		}},
		{pipeline, func(c comm.Comm, dst, src engine.Tensor, n int) {
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

// check returns the exchange of a trial between that many ranks, or an error if a field is out of bounds.
func (t *Trial) check(ranks int) (exchange, error) {
	i := slices.IndexFunc(exchanges(), func(e exchange) bool { return e.name == t.Exchange })
	switch {
	case i < 0:
		return exchange{}, fmt.Errorf("exchange %q: want one of %q", t.Exchange, Exchanges())
	case ranks < 2 || t.Bytes < 4*ranks || t.Bytes > MostBytes:
		return exchange{}, fmt.Errorf("%s of %d bytes between %d ranks: want 2 ranks or more, and %d to %d bytes", t.Exchange,
			t.Bytes, ranks, 4*ranks, MostBytes)
	case t.Warmup < 0 || t.Warmup > MostRuns || t.Runs < 1 || t.Runs > MostRuns || t.Row < 1 || t.Row > 64:
		return exchange{}, fmt.Errorf("%d runs after %d, %d in a row: want 1 to %d after 0 or more, 1 to 64", t.Runs,
			t.Warmup, t.Row, MostRuns)
	}
	return exchanges()[i], nil
}

// Run times the exchange on the members of g in this process. In every run all members wait for each other, then each
// records when it starts and when it is done. The result is, by run, the seconds per exchange of the slowest member in
// this process. ops are as for Transport.Connect; the caller must set Team, Ranks and Processes of g. When ctx ends,
// Run aborts.
func (t *Trial) Run(ctx context.Context, by comm.Transport, g comm.Group, ops []engine.Ops) ([]float64, error) {
	e, err := t.check(len(ops))
	if err != nil {
		return nil, err
	}
	g.Name, g.Deadline, g.Pipe = "trial", patience, e.name == pipeline
	comms, err := by.Connect(g, ops)
	if err != nil {
		return nil, err
	}
	n := t.Bytes / 4
	dsts, srcs := make([]engine.Tensor, len(ops)), make([]engine.Tensor, len(ops))
	for i, c := range comms {
		if c == nil { // in another process
			continue
		}
		var free func()
		if dsts[i], srcs[i], free, err = memory(ops[i], n*len(ops)+1); err != nil {
			c.Abort(err)
			return nil, err
		}
		defer free()
	}
	abort := func(cause error) {
		for _, c := range comms {
			if c != nil {
				c.Abort(cause)
			}
		}
	}
	defer context.AfterFunc(ctx, func() { abort(context.Cause(ctx)) })()
	all := scope.New(abort)
	start, took := time.Now(), make([][]float64, len(ops))
	for i, c := range comms {
		if c != nil {
			all.Go(fmt.Sprintf("rank %d", g.Ranks[i]), func() (err error) {
				took[i], err = t.clock(e, c, ops[i], dsts[i], srcs[i], start)
				return err
			})
		}
	}
	if err := all.Wait(); err != nil {
		return nil, err
	}
	return Slowest(took), nil
}

// Slowest returns the maximum over all members, by run.
func Slowest(took [][]float64) (out []float64) {
	for _, seconds := range took {
		if out == nil {
			out = slices.Clone(seconds)
		}
		for i := range min(len(out), len(seconds)) {
			out[i] = max(out[i], seconds[i])
		}
	}
	return out
}

// clock is one member's part of Run.
func (t *Trial) clock(e exchange, c comm.Comm, ops engine.Ops, dst, src engine.Tensor, start time.Time,
) (took []float64, err error) {
	n := t.Bytes / 4
	meet, now := dst.Slice(0, n*c.Size(), n*c.Size()+1), stamper(ops, start)
	var begun, done []func() time.Duration
	for range t.Warmup + t.Runs {
		c.Run(comm.NewAllReduce(meet))
		begun = append(begun, now())
		for range t.Row {
			e.run(c, dst, src, n)
		}
		done = append(done, now())
	}
	if ops != nil {
		if err := ops.Sync(); err != nil {
			return nil, err
		}
	}
	for i := t.Warmup; i < t.Warmup+t.Runs; i++ {
		took = append(took, (done[i]()-begun[i]()).Seconds()/float64(t.Row))
	}
	return took, nil
}

// memory allocates two buffers of n f32 values each; free frees them.
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

// stamper returns a function that stamps the current point in a rank's calls; its result returns that time once all
// calls have completed.
func stamper(ops engine.Ops, start time.Time) func() func() time.Duration {
	if s, ok := ops.(engine.Stamper); ok {
		return s.Stamp
	}
	return func() func() time.Duration {
		now := time.Since(start)
		return func() time.Duration { return now }
	}
}
