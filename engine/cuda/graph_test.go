//go:build cgo && fakegpu

package cuda

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"patchbay/engine"
)

// step is a sequence with a product, adapters, a copy and two moving rows. All other operands keep their addresses.
type step struct {
	m       *bench
	x, y    engine.Tensor
	w       *engine.Weight
	moving  engine.Tensor // [rows, 2, 64]
	f       func(o engine.Ops, fixed []engine.Tensor) error
	results [][]float32
}

func newStep(t testing.TB, o *Ops, rows int) *step {
	m := &bench{t: t, ops: o, rng: newRand()}
	s := &step{m: m, x: m.normal(engine.BF16, 1, 20, 64), y: m.normal(engine.BF16, 1, 20, 64)}
	s.w = &engine.Weight{
		Base:     m.weight(engine.BF16, 64, 64),
		Adapters: []engine.Adapter{{Down: m.weight(engine.BF16, 4, 64), Up: m.weight(engine.BF16, 64, 4), Scale: 1}},
	}
	s.moving = m.normal(engine.F32, rows, 2, 64)
	s.f = func(o engine.Ops, fixed []engine.Tensor) error {
		o.AdaLN(s.y, s.x, fixed[0], fixed[1], 1e-6)
		o.Linear(s.x, s.y, s.w, engine.Epilogue{Act: engine.GELUTanh})
		o.(engine.Marker).Mark(7)
		o.Copy(s.y, s.x)
		return nil
	}
	return s
}

// run evaluates the sequence once with the given row and records x.
func (s *step) run(t testing.TB, o *Ops, key string, row int) (replayed bool) {
	t.Helper()
	rows := s.moving.Index(0, row)
	moving := []engine.Tensor{rows.Slice(0, 0, 1), rows.Slice(0, 1, 2)}
	replayed, err := o.Replay(key, moving, func(fixed []engine.Tensor) error { return s.f(o, fixed) })
	if err != nil {
		t.Fatal(err)
	}
	got := make([]float32, s.x.Len())
	if err := o.Download(got, s.x).Wait(); err != nil {
		t.Fatal(err)
	}
	s.results = append(s.results, got)
	return replayed
}

// TestGraphs checks that a sequence is issued, then captured, then replayed, and that with moving rows it gives the
// same bits as eager calls.
func TestGraphs(t *testing.T) {
	dev := openLibrary(t)
	var want [][]float32
	for _, eager := range []bool{true, false} {
		dev.Eager = eager
		o := newOps(t, dev)
		s := newStep(t, o, 5)
		for row := range 5 {
			before := dev.Counts()
			replayed := s.run(t, o, "a", row)
			after := dev.Counts()
			if replayed != (!eager && row > 1) {
				t.Errorf("eager %t: evaluation %d replayed: %t", eager, row, replayed)
			}
			if n := after.Allocations - before.Allocations; row > 0 && n > 0 {
				t.Errorf("eager %t: evaluation %d takes memory %d times", eager, row, n)
			}
			if n := after.Launches - before.Launches; replayed && n != 2 {
				t.Errorf("a replay costs %d launches, want 2: the rows that move, and the graph", n)
			}
		}
		if eager {
			want = s.results
		} else {
			if !slices.EqualFunc(want, s.results, slices.Equal[[]float32]) {
				t.Error("graphs give other bits")
			}
			if got := o.Chosen()["evaluations by graphs"]; got != 4 {
				t.Errorf("%d evaluations by graphs, want 4", got)
			}
		}
		if slices.Equal(s.results[0], s.results[4]) {
			t.Error("the rows make no difference")
		}
		s.m.free()
	}
}

// TestCopyMoving checks that moving rows, adjacent or not, dense or not, are copied to their fixed places in pieces of
// 16 and of 4 bytes.
func TestCopyMoving(t *testing.T) {
	o := openOps(t)
	m := &bench{t: t, ops: o, rng: newRand()}
	x := m.normal(engine.F32, 6, 3, 8)
	at := func(row, from, to int) engine.Tensor { return x.Index(0, row).Slice(0, from, to) }
	moving := []engine.Tensor{
		at(0, 0, 1), at(0, 2, 3), at(1, 1, 2), at(5, 0, 3), at(4, 0, 3), at(2, 0, 1).Slice(1, 1, 6),
		at(3, 0, 1).Slice(1, 1, 6), at(3, 0, 2).Slice(1, 2, 6),
	}
	places, err := o.placeMoving(moving)
	if err != nil {
		t.Fatal(err)
	}
	before := o.dev.Counts().Launches
	o.copyMoving(places, moving)
	if n := o.dev.Counts().Launches - before; n != 4 {
		t.Errorf("%d launches, want 4: three rows, two, two shifted ones, and one that is not dense", n)
	}
	for i := range moving {
		want, dense := make([]float32, moving[i].Len()), m.normal(engine.F32, moving[i].Shape()...)
		o.Copy(dense, moving[i])
		got := make([]float32, len(want))
		if err := errors.Join(o.Download(want, dense).Wait(), o.Download(got, places[i]).Wait()); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("operand %d: got %v, want %v", i, got, want)
		}
	}
	m.free()
}

// TestGraphsMove checks that a graph is captured anew after Drop and after the scratch memory has moved, and that every
// key has a graph of its own.
func TestGraphsMove(t *testing.T) {
	dev := openDevice(t)
	o, eager := newOps(t, dev), newOps(t, dev)
	eager.graphs.eager = true
	a, b := newStep(t, o, 8), newStep(t, eager, 8)
	for i, want := range []bool{false, false, true, false, true, false, false, true} {
		switch i {
		case 3: // another call has grown the scratch memory
			if err := o.mem.need(o.mem.bytes + 1); err != nil {
				t.Fatal(err)
			}
		case 5:
			o.Drop()
		}
		if got := a.run(t, o, "a", i); got != want {
			t.Errorf("evaluation %d replayed: %t, want %t", i, got, want)
		}
		b.run(t, eager, "a", i)
	}
	if a.run(t, o, "b", 0) {
		t.Error("a key was replayed under another one")
	}
	b.run(t, eager, "b", 0)
	if !slices.EqualFunc(a.results, b.results, slices.Equal[[]float32]) {
		t.Error("graphs give other bits")
	}
	a.m.free()
	b.m.free()
}

// TestGraphsBetween checks that the functions passed to Between run at their places in a sequence, once per
// evaluation, outside captures and again in replays, even if no call of the stream lies between two of them. The
// graphs of a dropped sequence are reused by sequences of fewer and of more pieces.
func TestGraphsBetween(t *testing.T) {
	dev := openDevice(t)
	o, eager := newOps(t, dev), newOps(t, dev)
	eager.graphs.eager = true
	a, b := newStep(t, o, 5), newStep(t, eager, 5)
	for _, between := range []int{2, 1, 3} {
		for s, on := range map[*step]*Ops{a: o, b: eager} {
			var calls []string
			s.f = func(ops engine.Ops, fixed []engine.Tensor) error {
				ops.AdaLN(s.y, s.x, fixed[0], fixed[1], 1e-6)
				for i := range between {
					if i > 1 {
						ops.Linear(s.x, s.y, s.w, engine.Epilogue{})
					}
					ops.(engine.Replayer).Between(func() {
						if on.graphs.within != nil {
							t.Error("a call is made in a capture")
						}
						calls = append(calls, fmt.Sprint(i))
						ops.Add(s.y, s.y, s.y) // like an exchange that changes s.y
					})
				}
				ops.Copy(s.x, s.y)
				return nil
			}
			for row := range 4 {
				calls = nil
				s.run(t, on, fmt.Sprint(between), row)
				if want := []string{"0", "1", "2"}[:between]; !slices.Equal(calls, want) {
					t.Errorf("evaluation %d made calls %v between, want %v", row, calls, want)
				}
			}
			on.Drop()
		}
	}
	if !slices.EqualFunc(a.results, b.results, slices.Equal[[]float32]) {
		t.Error("graphs give other bits")
	}
	if o.graphs.count.refused > 0 || o.graphs.count.launched != 3*3 {
		t.Errorf("%+v, want 9 launched", o.graphs.count)
	}
	a.m.free()
	b.m.free()
}

// TestGraphsRefuse checks that a sequence with operations that cannot be captured is issued call by call from then on,
// and that the stream stays usable after an error or a panic of the sequence.
func TestGraphsRefuse(t *testing.T) {
	dev := openDevice(t)
	errStop := errors.New("stop")
	for name, bad := range map[string]func(o *Ops, s *step) error{
		"a wait":            func(o *Ops, _ *step) error { return o.Sync() },
		"a wait for all":    func(o *Ops, _ *step) error { return try2(o, o.dev) },
		"an event outside":  func(o *Ops, _ *step) error { return outside(o) },
		"a stream unjoined": func(o *Ops, s *step) error { return unjoined(o, s) },
		"more scratch": func(o *Ops, _ *step) error {
			o.Note(o.mem.need(o.mem.bytes + 1<<16))
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOps(t, dev)
			s := newStep(t, o, 4)
			good := s.f
			s.f = func(ops engine.Ops, fixed []engine.Tensor) error {
				if err := good(ops, fixed); err != nil || o.graphs.within == nil {
					return err
				}
				_ = bad(o, s)
				return nil
			}
			for i := range 4 {
				if s.run(t, o, "a", i) {
					t.Errorf("evaluation %d was replayed", i)
				}
			}
			if o.graphs.count.refused != 1 || o.graphs.count.launched != 0 {
				t.Errorf("graphs: %+v, want one refused and none launched", o.graphs.count)
			}
			s.m.free()
		})
	}
	for _, panics := range []bool{false, true} {
		t.Run(fmt.Sprint("an error, a panic: ", panics), func(t *testing.T) {
			o := newOps(t, dev)
			s := newStep(t, o, 4)
			good, broken := s.f, false
			s.f = func(ops engine.Ops, fixed []engine.Tensor) error {
				if err := good(ops, fixed); err != nil || !broken {
					return err
				}
				if panics {
					panic(errStop)
				}
				return errStop
			}
			s.run(t, o, "a", 0)
			broken = true
			err := func() (err error) {
				defer func() {
					if v := recover(); v != nil {
						err, _ = v.(error)
					}
				}()
				rows := s.moving.Index(0, 1)
				_, err = o.Replay("a", []engine.Tensor{rows.Slice(0, 0, 1), rows.Slice(0, 1, 2)},
					func(fixed []engine.Tensor) error { return s.f(o, fixed) })
				return err
			}()
			if !errors.Is(err, errStop) {
				t.Fatalf("got %v", err)
			}
			broken = false
			if s.run(t, o, "a", 1) || !s.run(t, o, "a", 2) {
				t.Error("the sequence is not captured and replayed after an error")
			}
			s.m.free()
		})
	}
}

// try2 waits for the device without the lock that keeps such waits out of captures.
func try2(o *Ops, dev *Device) error {
	dev.CaptureMu.Unlock()
	defer dev.CaptureMu.Lock()
	err := dev.Sync()
	o.Note(err)
	return err
}

// outside makes the stream wait for an event of another stream that is not being captured.
func outside(o *Ops) error {
	other, err := o.Beside()
	if err != nil {
		return err
	}
	p := other.Record()
	o.After(p)
	o.Forget(p)
	return nil
}

// unjoined makes another stream depend on the captured one, which never waits for it.
func unjoined(o *Ops, s *step) error {
	other, err := o.Beside()
	if err != nil {
		return err
	}
	p := o.Record()
	other.After(p)
	other.Fill(s.y, 3)
	return nil
}

// TestGraphsFail checks that a graph that the driver refuses fails the evaluation, and every later one.
func TestGraphsFail(t *testing.T) {
	file := filepath.Join(t.TempDir(), "now")
	t.Setenv("FAKEGPU_REFUSE", file)
	o := openOps(t)
	if o.dev.Name != "Fake GPU" {
		t.Skip("NOT RUN: only the fake device refuses when it is told to")
	}
	s := newStep(t, o, 4)
	for i := range 3 {
		s.run(t, o, "a", i)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if replayed, err := o.Replay("a", nil, nil); err != nil || !replayed {
		t.Fatalf("replayed: %t, %v", replayed, err)
	}
	err := o.Download(make([]float32, s.x.Len()), s.x).Wait()
	if !errors.Is(err, engine.ErrDevice) || errors.Is(err, engine.ErrDeviceLost) {
		t.Errorf("got %v, want a refusal", err)
	}
	if err := o.Sync(); err == nil {
		t.Error("Sync does not return the error")
	}
	if !s.run(t, o, "a", 3) {
		t.Error("the graph is gone after a refusal")
	}
	s.m.free()
}

// TestGraphsBeside checks that streams of one device can capture and replay while others allocate memory, free it and
// wait for the whole device.
func TestGraphsBeside(t *testing.T) {
	dev := openDevice(t)
	var wg sync.WaitGroup
	for i := range 2 {
		o := newOps(t, dev)
		wg.Go(func() {
			s := newStep(t, o, 4)
			for j := range 12 {
				if j%4 == 0 {
					o.Drop()
				}
				s.run(t, o, "a", j%4)
			}
			if o.graphs.count.refused > 0 || o.graphs.count.launched != 9 {
				t.Errorf("stream %d: %+v, want 9 launched", i, o.graphs.count)
			}
			s.m.free()
		})
	}
	o := newOps(t, dev)
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	for busy := true; busy; {
		select {
		case <-done:
			busy = false
		default:
		}
		o.Free(vector(t, o, 33).Buf)
	}
}

// BenchmarkGraph measures what the host spends on an evaluation of many blocks, call by call and as a graph.
func BenchmarkGraph(b *testing.B) {
	dev := openDevice(b)
	for _, eager := range []bool{true, false} {
		b.Run(map[bool]string{true: "calls", false: "graph"}[eager], func(b *testing.B) {
			dev.Eager = eager
			o := newOps(b, dev)
			s := newStep(b, o, 2)
			once := s.f
			s.f = func(o engine.Ops, fixed []engine.Tensor) error {
				for range 57 {
					_ = once(o, fixed)
				}
				return nil
			}
			s.run(b, o, "a", 0)
			s.run(b, o, "a", 1)
			before := dev.Counts().Calls
			rate(b, o, 0, 0, func() {
				_, _ = o.Replay("a", []engine.Tensor{
					s.moving.Index(0, 0).Slice(0, 0, 1),
					s.moving.Index(0, 0).Slice(0, 1, 2),
				}, func(fixed []engine.Tensor) error { return s.f(o, fixed) })
			})
			b.ReportMetric(float64(dev.Counts().Calls-before)/float64(b.N+1), "driver-calls/step")
			s.m.free()
		})
	}
}
