package parallel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
	"patchbay/parallel/request"
)

// besideEngine returns an engine with that many places on a machine with links so fast that every rank helps.
func besideEngine(t *testing.T, schedule Schedule, places int, memory int64) *Pool {
	t.Helper()
	m, err := hardware.NewMachine("cpu")
	if err != nil {
		t.Fatal(err)
	}
	m.Link.Bandwidth, m.Link.Latency, m.Device.Handover, m.Device.Launch = 1e12, 1e-5, 1e-5, 0
	m.Device.GEMM, m.Device.Attention, m.Device.Traffic = 1e9, 1e9, 1e9
	e, err := NewPool(Config{
		NewOps: testOps, Machine: &m, Ranks: places, Schedule: schedule, MemoryBytes: memory,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// besideRequest returns one of several requests that differ by seed.
func besideRequest(t *testing.T, seed int) *request.Request {
	r := tinyRequest(t, "flux", 1, 8, 12, 2)
	for i := range r.Latent.Data {
		r.Latent.Data[i] += float32(seed) / 16
	}
	return r
}

// meeting returns a function for Observe: it waits until n runs have called it, whichever they are, or fails the test
// once all else stands still. The next n runs wait for one another in turn.
func meeting(t *testing.T, n int) func(run int) {
	var mu sync.Mutex
	group, sizes, full := map[int]chan struct{}{}, 0, make(chan struct{})
	return func(run int) {
		mu.Lock()
		mine, ok := group[run]
		if !ok {
			mine = full
			group[run] = mine
			if sizes++; sizes == n {
				close(full)
				sizes, full = 0, make(chan struct{})
			}
		}
		mu.Unlock()
		select {
		case <-mine:
		case <-time.After(time.Minute):
			t.Errorf("run %d waits for others that do not run beside it", run)
		}
	}
}

// TestRequestsRunBesideEachOther checks that jobs that wait together get one place each and run at the same time, that
// a lone job gets all places, and that one that names its plan gets as many as the plan needs. All give the result of
// one rank, and weights are loaded once.
func TestRequestsRunBesideEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const places = 4
		for _, schedule := range []Schedule{ScheduleAuto, ScheduleEach} {
			e := besideEngine(t, schedule, places, 0)
			loads := atomic.Int32{}
			of := func(seed int) *request.Request {
				r := besideRequest(t, seed)
				load := r.Model.Weights
				r.Model.Weights = request.LoadFunc(func(ops engine.Ops, held dit.Held) (dit.Model, error) {
					loads.Add(1)
					return load.Load(ops, held)
				})
				return r
			}
			turns := make([]*Turn, 2*places)
			for i := range turns {
				turns[i] = e.Enter() // all of them, before the first runs
			}
			meet := meeting(t, places)
			got, errs := make([]*request.Result, len(turns)), make([]error, len(turns))
			var running sync.WaitGroup
			var first sync.Once
			began := make(chan struct{}) // once the first has its places, the others have only their turns
			begin := func() { close(began) }
			for i, turn := range turns {
				running.Go(func() {
					defer turn.Leave()
					if i > 0 {
						<-began
					}
					got[i], errs[i] = turn.Sample(t.Context(), of(i), func(request.Progress) error {
						first.Do(begin)
						meet(i)
						return nil
					})
					first.Do(begin)
				})
			}
			running.Wait()
			for i, r := range got {
				if errs[i] != nil {
					t.Fatalf("%s, job %d: %v", schedule, i, errs[i])
				}
				if r.Stats.Plan != plan.OneRank().String() {
					t.Errorf("%s: job %d of %d ran with %q, want one rank", schedule, i, len(turns), r.Stats.Plan)
				}
				differs(t, fmt.Sprintf("%s, job %d", schedule, i), r, besideRequest(t, i))
			}
			if n := loads.Load(); n != 1 {
				t.Errorf("%s: weights were loaded %d times, want once", schedule, n)
			}
			alone, err := e.Sample(t.Context(), of(0), nil)
			if err != nil {
				t.Fatal(err)
			}
			want := map[Schedule]int{ScheduleAuto: places, ScheduleEach: 1}[schedule]
			if n := len(alone.Stats.Traffic); n != want {
				t.Errorf("%s: one that is alone ran with %q on %d ranks, want %d", schedule, alone.Stats.Plan, n, want)
			}
			differs(t, fmt.Sprintf("%s, alone", schedule), alone, besideRequest(t, 0))
			named := of(1)
			named.Plan = "ulysses=3"
			if r, err := e.Sample(t.Context(), named, nil); err != nil || r.Stats.Plan != "ulysses=3" {
				t.Errorf("%s: with a plan of its own: %v", schedule, err)
			}
			named.Plan = "ulysses=5"
			var pe *fault.Error
			if _, err := e.Sample(t.Context(), named, nil); !errors.As(err, &pe) || pe.Code != fault.BadInput {
				t.Errorf("%s: more ranks than places: %v, want bad_request", schedule, err)
			}
		}
	})
}

// waits reports whether that many requests wait for places.
func (p *Pool) waits(n int) bool {
	p.places.mu.Lock()
	defer p.places.mu.Unlock()
	return len(p.places.queue) == n
}

// differs compares a picture with that of one rank on an engine that runs one request at a time.
func differs(t *testing.T, name string, got *request.Result, r *request.Request) {
	t.Helper()
	e, err := NewPool(Config{NewOps: testOps})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	want, err := e.Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range got.Latent.Data {
		if d := math.Abs(float64(v - want.Latent.Data[i])); !(d <= 1e-4) {
			t.Fatalf("%s: value %d is %v, want %v", name, i, v, want.Latent.Data[i])
		}
	}
}

// TestPlacesAreSharedOut checks who gets which places, and in which order.
func TestPlacesAreSharedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPlaces(8)
		even := func(due, free int) int {
			if sizes := ShareSizes(due, free, func(n int) float64 {
				return 1 / math.Pow(float64(n),
					0.9)
			}); sizes != nil {
				return sizes[0]
			}
			return 0
		}
		lone, err := s.take(t.Context(), nil, even)
		if err != nil || len(lone) != 8 {
			t.Fatalf("one that is alone has the places %v (%v), want all", lone, err)
		}
		type grant struct {
			who    int
			places []int
		}
		got := make(chan grant, 16)
		ctx, cancel := context.WithCancel(t.Context())
		var ended sync.WaitGroup
		wait := func(ctx context.Context, who int, size func(due, free int) int) {
			ended.Go(func() {
				if places, err := s.take(ctx, nil, size); err == nil {
					got <- grant{who, places}
				}
			})
			synctest.Wait()
		}
		wait(ctx, 0, even) // is canceled
		wait(t.Context(), 1, func(_, free int) int { return free / 6 * 6 })
		for i := range 4 {
			wait(t.Context(), 2+i, even)
		}
		cancel()
		s.give(lone[:5])
		synctest.Wait()
		select {
		case g := <-got:
			t.Fatalf("%d has %v while one before it waits for six", g.who, g.places)
		default:
		}
		s.give(lone[5:])
		three := []grant{<-got, <-got, <-got} // they report in any order
		slices.SortFunc(three, func(a, b grant) int { return a.places[0] - b.places[0] })
		first := three[0]
		if first.who != 1 || !slices.Equal(first.places, []int{0, 1, 2, 3, 4, 5}) {
			t.Errorf("%d has %v, want 1 with six", first.who, first.places)
		}
		for i, g := range three[1:] {
			if !slices.Equal(g.places, []int{6 + i}) {
				t.Errorf("%d has %v, want one of the two left", g.who, g.places)
			}
		}
		s.give(first.places)
		for range 2 { // the two that are left share what is free
			if g := <-got; len(g.places) != 3 {
				t.Errorf("%d of the last two has %v, want half of six", g.who, g.places)
			}
		}
		ended.Wait()
	})
}

// TestWeightsInUseStay checks that where the weights of two models do not fit together, the second request runs after
// the first, whose weights stay resident while it runs.
func TestWeightsInUseStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const weights = 1 << 20
		free := besideRequest(t, 0)
		one, err := besideEngine(t, ScheduleEach, 2, 0).Sample(t.Context(), free, nil)
		if err != nil {
			t.Fatal(err)
		}
		e := besideEngine(t, ScheduleEach, 2, weights*3/2+one.Stats.PeakBytes)
		var order []string
		var mu sync.Mutex
		note := func(s string) { mu.Lock(); defer mu.Unlock(); order = append(order, s) }
		model := func(key string) *request.Request {
			r := besideRequest(t, 0)
			load := r.Model.Weights
			r.Model.Key, r.Model.WeightBytes = key, weights+one.Stats.PeakBytes/2
			r.Model.Weights = request.LoadFunc(func(ops engine.Ops, held dit.Held) (dit.Model, error) {
				note("load " + key)
				m, err := load.Load(ops, held)
				return parting{m, func() { note("drop " + key) }}, err
			})
			return r
		}
		began, second := make(chan struct{}), make(chan error, 1)
		var once sync.Once
		turns := []*Turn{e.Enter(), e.Enter()}
		go func() {
			<-began
			_, err := turns[1].Sample(t.Context(), model("b"), nil)
			second <- err
		}()
		_, err = turns[0].Sample(t.Context(), model("a"), func(p request.Progress) error {
			once.Do(func() {
				close(began)
				synctest.Wait()
				if !e.waits(1) {
					t.Error("the second does not wait for the first")
				}
			})
			note("step of a")
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := <-second; err != nil {
			t.Fatalf("the second: %v", err)
		}
		want := []string{"load a", "step of a", "step of a", "drop a", "load b"}
		if !slices.Equal(order, want) {
			t.Errorf("got %v, want %v", order, want)
		}
	})
}

// parting is a model that reports its Close.
type parting struct {
	dit.Model
	onClose func()
}

func (c parting) Close() { c.onClose(); c.Model.Close() }

// TestWorkBesideShares checks that encoders and decoders run alongside requests, one at a time, and that freeing
// memory waits for both.
func TestWorkBesideShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := besideEngine(t, ScheduleAuto, 2, 0)
		evicted := make(chan struct{})
		inside := atomic.Bool{}
		_, err := e.Sample(t.Context(), besideRequest(t, 0), func(p request.Progress) error {
			if p.Step != 1 {
				return nil
			}
			inside.Store(true)
			defer inside.Store(false)
			if err := e.Do(t.Context(), "encode", func(*Workspace) error { return nil }); err != nil {
				return err
			}
			go func() {
				e.Evict("")
				if inside.Load() {
					t.Error("weights were freed while a request ran")
				}
				close(evicted)
			}()
			synctest.Wait()
			if !e.waits(1) {
				t.Error("freeing does not wait for the request")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		<-evicted
		if left := e.Resident(); len(left) > 0 {
			t.Errorf("%v is left", left)
		}
		full := 0
		err = e.Do(t.Context(), "decode", func(*Workspace) error {
			if full++; full < 3 {
				return engine.ErrOutOfMemory
			}
			return nil
		})
		if err != nil || full != 3 {
			t.Errorf("work without memory was tried %d times (%v), want beside others, alone, and with all freed", full, err)
		}
	})
}

// TestManyJobsTakeAsLongAsOneADevice measures 40 jobs on 8 ranks of the CPU: one after the other on one rank with all
// processors, each on one place, and with ScheduleAuto. It asserts only that they end.
func TestManyJobsTakeAsLongAsOneADevice(t *testing.T) {
	if !soak {
		t.Skip("NOT RUN: measures, with -tags soak")
	}
	const jobs, places = 40, 8
	order := []Schedule{ScheduleOne, ScheduleEach, ScheduleAuto, ScheduleEach, ScheduleAuto, ScheduleEach, ScheduleAuto}
	for _, schedule := range order {
		e, err := NewPool(Config{NewOps: testOps, Ranks: places, Schedule: schedule})
		if err != nil {
			t.Fatal(err)
		}
		of := func() *request.Request { return tinyRequest(t, "flux", 1, 16, 16, 2) }
		r, err := e.Sample(t.Context(), of(), nil) // loads weights and finds plans
		if err != nil {
			t.Fatal(err)
		}
		used := func() time.Duration {
			var u syscall.Rusage
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
			return time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
		began, before := time.Now(), used()
		var all sync.WaitGroup
		turns := make([]*Turn, jobs)
		for i := range turns {
			turns[i] = e.Enter()
		}
		for _, turn := range turns {
			all.Go(func() {
				defer turn.Leave()
				if _, err := turn.Sample(t.Context(), of(), nil); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		t.Logf("%s: %d jobs on %d places %.2f s, %.2f of processors; one that is alone has %d ranks", schedule, jobs,
			places, time.Since(began).Seconds(), (used() - before).Seconds(), len(r.Stats.Traffic))
		e.Close()
	}
}
