package parallel

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"patchbay/engine"
	"patchbay/fault"
)

// begun returns the number of blocks that each rank of the leader's team has begun.
func begun(e *Pool) []int64 {
	var out []int64
	for _, l := range e.whole.team.Members {
		out = append(out, rankOf(l).Pos.Blocks())
	}
	return out
}

// TestCancelAtAnyMicroStep cancels runs inside a random product of a random rank, on plans of every axis. It checks
// that no rank begins another block once it knows, that the run ends as canceled, and that the next run has the bits
// of an undisturbed one. 50 cancellations, 500 in the long form.
func TestCancelAtAnyMicroStep(t *testing.T) {
	plans := []string{
		"", "ulysses=3", "ring=2", "tensor=2", "pipe=3,patches=4,warmup=1", "pipe=2,ulysses=2,patches=3,warmup=1",
		"cfg=2,pipe=2,patches=3,warmup=1",
		"cfg=2,ulysses=2", "pipe=2,ring=2,patches=2,warmup=0", "pipe=2,tensor=2,patches=3,warmup=1",
	}
	each := 5
	if soak {
		each = 50
	}
	if testing.Short() {
		each = 1
	}
	rng := rand.New(rand.NewPCG(5, 6))
	g := openGolden(t, anyModel)
	for _, plan := range plans {
		var left atomic.Int64
		var e *Pool
		var cancel context.CancelFunc
		var atStop []int64
		e = faultyEngine(t, &left, func() {
			cancel()
			for _, l := range e.whole.team.Members {
				for !rankOf(l).Stopped(e.whole.last.Load()) {
					time.Sleep(10 * time.Microsecond)
				}
			}
			atStop = begun(e)
		})
		r := parityRequest(t, g, anyModel, 1, 8, 8, 4)
		r.Plan = plan
		left.Store(1 << 40)
		want, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		calls := 1<<40 - left.Load()
		stopped := 0
		for range each {
			var ctx context.Context
			ctx, cancel = context.WithCancel(context.Background())
			at := 1 + rng.Int64N(calls)
			team := e.whole.team
			left.Store(at)
			_, err := e.Sample(ctx, r, nil)
			cancel()
			var pe *fault.Error
			if err != nil && (!errors.As(err, &pe) || pe.Code != fault.Cancelled) {
				t.Fatalf("%q: run cancelled at product %d of %d ended with %v", plan, at, calls, err)
			}
			if err != nil {
				stopped++
				for r, l := range team.Members {
					if n := rankOf(l).Pos.Blocks(); n > atStop[r] {
						t.Errorf("%q: rank %d began %d blocks after the cancellation at product %d", plan, r, n-atStop[r], at)
					}
				}
			}
			got, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatalf("%q: run after the cancellation at product %d: %v", plan, at, err)
			}
			if rel := relative(got.Latent.Data, want.Latent.Data); rel != 0 {
				t.Errorf("%q: run after the cancellation at product %d differs by %.3g", plan, at, rel)
			}
		}
		if stopped < each-1 { // one may fall into the last block of the run
			t.Errorf("%q: %d of %d runs were stopped", plan, stopped, each)
		}
	}
}

// counting is an Ops that counts the bytes that are allocated and not freed.
type counting struct {
	engine.Ops
	live *atomic.Int64
}

func (c *counting) Alloc(n int) (engine.Buf, error) {
	b, err := c.Ops.Alloc(n)
	if err == nil {
		c.live.Add(int64(len(b.Host)))
	}
	return b, err
}

func (c *counting) Free(b engine.Buf) {
	c.live.Add(-int64(len(b.Host)))
	c.Ops.Free(b)
}

// resident returns the resident set size of this process in bytes.
func resident(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip("no /proc on this system: memory of the process is not watched")
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// TestManyJobsLeaveNothingBehind runs 120 jobs (1,020 in the long form) of changing sizes and plans on one engine,
// after a first round of 60. Goroutines, the memory allocated from Ops, Go's heap and the resident set stay as after
// the first round, and only the ranks of the last plan remain.
func TestManyJobsLeaveNothingBehind(t *testing.T) {
	if testing.Short() {
		t.Skip("100 jobs: runs without -short")
	}
	jobs := 100
	if soak {
		jobs = 1000
	}
	var live atomic.Int64
	e, err := NewPool(Config{NewOps: func(rank, ranks int) (engine.Ops, error) {
		ops, err := testOps(rank, ranks)
		return &counting{ops, &live}, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	g := openGolden(t, anyModel)
	plans := []string{"", "ulysses=2", "cfg=2,pipe=2,patches=2,warmup=1", "ring=3", "tensor=2"}
	run := func(i int) {
		r := parityRequest(t, g, anyModel, 1, 6+i%4, 6+i%3, 2)
		r.Plan = plans[i%len(plans)]
		if _, err := e.Sample(context.Background(), r, nil); err != nil {
			t.Fatal(err)
		}
	}
	type state struct {
		goroutines      int
		live            int64
		heap, processes int64
	}
	measure := func() state {
		debug.FreeOSMemory() // memory freed by earlier tests would count otherwise
		time.Sleep(10 * time.Millisecond)
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return state{runtime.NumGoroutine(), live.Load(), int64(m.HeapAlloc), resident(t)}
	}
	const round = 60 // all pairs of size and plan
	for i := range round {
		run(i)
	}
	before := measure()
	for i := range (jobs + round - 1) / round * round {
		run(i)
	}
	after := measure()
	if after.goroutines > before.goroutines+10 {
		t.Errorf("%d goroutines after %d jobs, %d before", after.goroutines, jobs, before.goroutines)
	}
	if after.live != before.live {
		t.Errorf("%d bytes of buffers after %d jobs, %d before", after.live, jobs, before.live)
	}
	if after.heap > before.heap+8<<20 {
		t.Errorf("%d MB of heap after %d jobs, %d before", after.heap>>20, jobs, before.heap>>20)
	}
	if after.processes > before.processes+32<<20 {
		t.Errorf("%d MB of the process in memory after %d jobs, %d before", after.processes>>20, jobs, before.processes>>20)
	}
	if n := len(e.whole.team.Members); n != 2 {
		t.Errorf("%d ranks are left, the last plan has 2", n)
	}
}
