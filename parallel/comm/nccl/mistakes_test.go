//go:build cgo && fakegpu

package nccl

import (
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/engine/cuda/driver"
	"patchbay/parallel/comm"
)

// bent makes a mistake in the exchanges of communicators.
type bent struct {
	communicators
	exchange func(c communicators, rank int, on *driver.Stream, send, recv []engine.Tensor) (bool, error)
}

func (b bent) Exchange(rank int, on *driver.Stream, send, recv []engine.Tensor) (bool, error) {
	return b.exchange(b.communicators, rank, on, send, recv)
}

// pair is two ranks in two groups, each rank with pairLen f32 of memory for dst and for src.
type pair struct {
	*rig
	groups  [2][]comm.Comm
	streams [2]*cuda.Ops
	dst     [2]engine.Tensor
	src     [2]engine.Tensor
}

const pairLen = 64

func newPair(t testing.TB) *pair {
	t.Helper()
	t.Setenv("FAKEGPU_PATIENCE", "2")
	p := &pair{rig: newRig(t, 2)}
	ops, end, err := p.ops(2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for g := range p.groups {
			p.groups[g][0].Abort(errors.New("end of the test"))
		}
		for r, s := range p.streams {
			s.Free(p.dst[r].Buf)
			s.Free(p.src[r].Buf)
		}
		_ = end() // stuck streams report their error again
	})
	for g := range p.groups {
		if p.groups[g], err = p.Transport.Connect(comm.Group{Team: 1, Name: "test", Ranks: []int{0, 1}}, ops); err != nil {
			t.Fatal(err)
		}
	}
	for r, o := range ops {
		p.streams[r] = o.(*cuda.Ops)
		for _, m := range []*engine.Tensor{&p.dst[r], &p.src[r]} {
			buf, err := o.Alloc(4 * pairLen)
			if err != nil {
				t.Fatal(err)
			}
			*m = engine.NewTensor(buf, engine.F32, pairLen)
		}
		o.Fill(p.src[r], float32(r+1))
	}
	return p
}

// bend plants a mistake in the first group.
func (p *pair) bend(
	exchange func(c communicators, rank int, on *driver.Stream, send, recv []engine.Tensor) (bool, error),
) {
	w := p.groups[0][0].(*end).group.wires
	w.all = bent{w.all, exchange}
}

// run runs f on both ranks and returns all errors, those of their streams included.
func (p *pair) run(f func(rank int)) error {
	errs := make([]error, 2)
	var both sync.WaitGroup
	for r := range errs {
		both.Go(func() {
			defer func() {
				if v := recover(); v != nil {
					errs[r] = v.(error)
					p.groups[0][r].Abort(errs[r])
				}
			}()
			f(r)
			errs[r] = p.streams[r].Sync()
		})
	}
	both.Wait()
	return errors.Join(errs...)
}

// swap exchanges half of the memory over the first group.
func (p *pair) swap(rank int) {
	half := []int{pairLen / 2, pairLen / 2}
	p.groups[0][rank].Run(comm.NewAllToAll(p.dst[rank], p.src[rank], half, half))
}

// TestAbortedResultsAreErrors checks that an abort wakes a rank whose device waits for a peer that never comes, and
// that what it was to receive is not taken for a result.
func TestAbortedResultsAreErrors(t *testing.T) {
	p := newPair(t)
	t.Setenv("FAKEGPU_PATIENCE", "60")
	boom := errors.New("boom")
	waited := make(chan error)
	p.swap(0)
	got := p.streams[0].Download(make([]float32, pairLen), p.dst[0])
	go func() { waited <- got.Wait() }()
	p.groups[0][1].Abort(boom)
	if err := <-waited; !errors.Is(err, boom) {
		t.Errorf("got %v, want %v", err, boom)
	}
	if err := p.streams[0].Sync(); !errors.Is(err, boom) {
		t.Errorf("a later wait: got %v, want %v", err, boom)
	}
}

// TestExchangesAreEnqueued checks that an exchange of connected ranks is enqueued when its call returns. The library
// enqueues it on a thread of its own; a host that sleeps meanwhile loses a millisecond, and so does its device.
func TestExchangesAreEnqueued(t *testing.T) {
	p := newPair(t)
	var late atomic.Int64
	p.bend(func(c communicators, rank int, on *driver.Stream, send, recv []engine.Tensor) (bool, error) {
		pending, err := c.Exchange(rank, on, send, recv)
		if pending {
			late.Add(1)
		}
		return pending, err
	})
	const swaps = 8
	err := p.run(func(rank int) {
		for range swaps {
			p.swap(rank)
		}
	})
	if n := late.Load(); err != nil || n > 0 {
		t.Errorf("%d of %d exchanges were in progress after their call (%v)", n, 2*swaps, err)
	}
}

// BenchmarkExchange measures the host's wall time for an exchange of two connected ranks: the median.
func BenchmarkExchange(b *testing.B) {
	p := newPair(b)
	var took [2][]time.Duration
	b.ResetTimer()
	err := p.run(func(rank int) {
		for range b.N {
			began := time.Now()
			p.swap(rank)
			took[rank] = append(took[rank], time.Since(began))
			if err := p.streams[rank].Sync(); err != nil {
				panic(err)
			}
		}
	})
	if err != nil {
		b.Fatal(err)
	}
	all := slices.Sorted(slices.Values(slices.Concat(took[0], took[1])))
	b.ReportMetric(1e6*all[len(all)/2].Seconds(), "wall-us/exchange")
}

// TestMistakesAreFound checks that mistakes that would hang GPUs or mix up numbers are errors on fake ones, not hangs.
func TestMistakesAreFound(t *testing.T) {
	if dir := os.Getenv("PATCHBAY_TEST_CUDA"); dir == "-" {
		t.Skip("NOT RUN: only the fake library finds mistakes in the order of calls")
	}
	type exchange = func(c communicators, rank int, on *driver.Stream, send, recv []engine.Tensor) (bool, error)
	swapped := func(c communicators, rank int, on *driver.Stream, send, recv []engine.Tensor) (bool, error) {
		return c.Exchange(1-rank, on, recv, send)
	}
	for name, c := range map[string]struct {
		bend exchange
		run  func(p *pair, rank int) // nil: swap
		want string
	}{
		"mismatched counts": {bend: func(
			c communicators, rank int, on *driver.Stream, send, recv []engine.Tensor,
		) (bool, error) {
			if rank == 0 {
				send[1] = comm.Piece(send[1], 0, send[1].Len()-1)
			}
			return c.Exchange(rank, on, send, recv)
		}, want: "disagree: "},
		"another type": {bend: func(c communicators, rank int, on *driver.Stream, send, recv []engine.Tensor) (bool, error) {
			if rank == 0 {
				send[1] = engine.NewTensor(send[1].Buf, engine.BF16, send[1].Len())
			}
			return c.Exchange(rank, on, send, recv)
		}, want: "of type 9"},
		"no group": {bend: func(c communicators, rank int, on *driver.Stream, send, recv []engine.Tensor) (bool, error) {
			if pending, err := c.Exchange(rank, on, send, nil); pending || err != nil {
				return pending, err
			}
			return c.Exchange(rank, on, nil, recv)
		}, want: "deadlock: stream"},
		"a receive without its send": {
			bend: func(c communicators, rank int, on *driver.Stream, send, recv []engine.Tensor) (bool, error) {
				if rank == 0 {
					send = nil
				}
				return c.Exchange(rank, on, send, recv)
			}, want: "deadlock: a peer has not issued its part",
		},
		"after abort": {bend: func(c communicators, rank int, on *driver.Stream, send, recv []engine.Tensor) (bool, error) {
			c.Abort()
			return c.Exchange(rank, on, send, recv)
		}, want: "the communicators were given back"},
		"axes in other orders": {run: func(p *pair, rank int) {
			for i := range p.groups {
				p.groups[(i+rank)%2][rank].Run(comm.NewAllReduce(p.dst[rank]))
			}
		}, want: "deadlock: stream"},
		"another device's stream": {bend: swapped, want: "a stream of another context"},
		"before the last one is over": {run: func(p *pair, rank int) {
			var part [2][]engine.Tensor
			for i, m := range []engine.Tensor{p.src[rank], p.dst[rank]} {
				part[i] = make([]engine.Tensor, 2)
				part[i][1-rank] = m
			}
			id, err := p.newID()
			if err != nil {
				panic(err)
			}
			made, err := p.connect([][]byte{id}, p.streams[:]) // without waiting for it
			if err != nil {
				panic(err)
			}
			_, err = made[0].Exchange(rank, p.streams[rank].Stream, part[0], part[1])
			made[0].Abort()
			if err != nil {
				panic(err)
			}
		}, want: "while something is in progress"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			if c.bend != nil {
				p.bend(c.bend)
			}
			err := p.run(func(rank int) {
				if c.run == nil {
					p.swap(rank)
				} else {
					c.run(p, rank)
				}
			})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
	p := newPair(t) // without a mistake everything works
	if err := p.run(p.swap); err != nil {
		t.Error(err)
	}
	for r := range p.dst {
		got := make([]float32, pairLen)
		if err := p.streams[r].Download(got, p.dst[r]).Wait(); err != nil || got[0] != 1 || got[pairLen-1] != 2 {
			t.Errorf("rank %d has %g .. %g (%v), want 1 .. 2", r, got[0], got[pairLen-1], err)
		}
	}
}
