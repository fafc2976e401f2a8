package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/request"
)

// located is an Ops on a named test device that reports its free memory.
type located struct {
	engine.Ops
	name string
	free func() int64
}

func (l located) Location() string { return l.name }

func (l located) DeviceMemory() (free, total int64, err error) { return l.free(), 1 << 40, nil }

// freed is a model that reports its Close.
type freed struct {
	dit.Model
	tell func()
}

func (f freed) Close() { f.Model.Close(); f.tell() }

// TestWeightsAreKeptByDevice checks that ranks of one device share its weights, and that free memory is queried before
// every load: if it is short, the least recently used model is evicted, and a model that does not fit at all is
// refused with the device and the numbers.
func TestWeightsAreKeptByDevice(t *testing.T) {
	var mu sync.Mutex
	loads, used := map[string]int{}, map[string]int64{}
	room := int64(1 << 30)
	deviceOf := func(rank int) string { return fmt.Sprintf("d%d", rank/2) }
	e, err := NewPool(Config{
		DeviceOf: deviceOf, Reserve: 1 << 20, Transport: comm.Local{},
		NewOps: func(rank, ranks int) (engine.Ops, error) {
			ops, err := testOps(rank, ranks)
			where := deviceOf(rank)
			return located{ops, where, func() int64 { return room + 1<<20 - used[where] }}, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	request := func(name, plan string) *request.Request {
		r := parityRequest(t, openGolden(t, name), name, 1, 8, 8, 2)
		r.Plan, r.Model.WeightBytes = plan, 1<<20
		load := r.Model.Weights.Load
		r.Model.Weights = request.LoadFunc(func(ops engine.Ops, held dit.Held) (dit.Model, error) {
			mu.Lock()
			defer mu.Unlock()
			where := ops.(engine.Located).Location()
			loads[where]++
			used[where] += 1 << 20
			m, err := load(ops, held)
			return freed{m, func() { used[where] -= 1 << 20 }}, err
		})
		return r
	}
	run := func(name, plan string) {
		t.Helper()
		if _, err := e.Sample(context.Background(), request(name, plan), nil); err != nil {
			t.Fatal(err)
		}
	}
	run("flux-c", "ulysses=4")
	if len(loads) != 2 || loads["d0"] != 1 || loads["d1"] != 1 {
		t.Errorf("four ranks on two devices loaded %v, want once on each", loads)
	}
	run("flux-c", "ulysses=2") // on d0 alone
	run("flux-a", "")
	if loads["d0"] != 2 || loads["d1"] != 1 {
		t.Errorf("loaded %v, want 2 on d0 and 1 on d1", loads)
	}
	room = 3 << 19 // one model
	run("flux-a", "ulysses=3")
	var left []string
	for _, m := range e.Resident() {
		left = append(left, m.Device+" "+m.Key)
	}
	if want := []string{"d0 flux-a", "d0 flux-c", "d1 flux-a"}; !slices.Equal(left, want) {
		t.Errorf("resident are %v, want %v: d1 had room for one, d0 loaded nothing", left, want)
	}
	room = 1 << 19
	_, err = e.Sample(context.Background(), request("sd3-b", ""), nil)
	var pe *fault.Error
	if !errors.As(err, &pe) || pe.Code != fault.OutOfMemory ||
		!strings.Contains(pe.Text, "take 1 MB, activations and buffers beside them 0 MB, 0 MB of d0 are free") {
		t.Errorf("got %v, want a refusal that names d0 and the numbers", err)
	}
}

// closing counts its calls of Close.
type closing struct {
	engine.Ops
	ended *atomic.Int64
}

func (c closing) Close() error {
	c.ended.Add(1)
	return nil
}

// TestRanksOnDevices checks that without a transport between devices more than one rank is refused before weights are
// read, that one rank runs, and that every Ops is closed in the end.
func TestRanksOnDevices(t *testing.T) {
	var began, ended atomic.Int64
	e, err := NewPool(Config{
		DeviceOf: func(int) string { return "d0" },
		NewOps: func(rank, ranks int) (engine.Ops, error) {
			began.Add(1)
			ops, err := testOps(rank, ranks)
			return closing{ops, &ended}, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r := parityRequest(t, openGolden(t, "flux-c"), "flux-c", 1, 8, 8, 2)
	for _, plan := range []string{"ulysses=2", "pipe=2", "ranks=2"} {
		loaded := len(e.Resident())
		r.Plan = plan
		_, err := e.Sample(context.Background(), r, nil)
		var pe *fault.Error
		if !errors.As(err, &pe) || pe.Code != fault.BadInput || pe.Field != "plan" ||
			!strings.Contains(pe.Text, "over 2 ranks, and there are places for 1: d0 (") {
			t.Errorf("%s: got %v", plan, err)
		}
		if len(e.Resident()) != loaded {
			t.Errorf("%s: weights were read for a plan that is refused", plan)
		}
	}
	r.Plan = ""
	if _, err := e.Sample(context.Background(), r, nil); err != nil {
		t.Error(err)
	}
	e.Close()
	if began.Load() < 2 || began.Load() != ended.Load() {
		t.Errorf("%d streams began and %d were closed", began.Load(), ended.Load())
	}
}

// TestPlansAreRefusedBeforeLoading checks that a requested plan is refused on devices by everything that it takes
// there (weights, activations, exchanges, cached keys and values, the libraries' workspace), not only by its weights,
// and before any are read: if there is less than a run has taken. Ranks that share a device are counted together.
func TestPlansAreRefusedBeforeLoading(t *testing.T) {
	const weights, space, slack = 1 << 20, 1 << 16, 1 << 12
	for _, c := range []struct {
		plan    string
		devices int
		field   string
	}{{"", 1, "plan"}, {"ulysses=2", 2, "plan"}, {"pipe=2,patches=2,warmup=1", 2, "plan"}, {"ulysses=2", 1, "model"}} {
		var loads, held int64
		run := func(budget int64) (*request.Result, error) {
			deviceOf := func(rank int) string { return fmt.Sprintf("d%d", rank%c.devices) }
			e, err := NewPool(Config{
				DeviceOf: deviceOf, DeviceMemory: budget, Transport: comm.Local{}, Ranks: 2,
				NewOps: func(rank, ranks int) (engine.Ops, error) {
					ops, err := testOps(rank, ranks)
					return spacious{located{ops, deviceOf(rank), func() int64 { return 1 << 40 }}, space}, err
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			r := parityRequest(t, openGolden(t, "flux-c"), "flux-c", 1, 16, 16, 2)
			r.Plan, r.Model.WeightBytes = c.plan, weights
			load := r.Model.Weights.Load
			r.Model.Weights = request.LoadFunc(func(ops engine.Ops, held dit.Held) (dit.Model, error) {
				atomic.AddInt64(&loads, 1)
				return load(ops, held)
			})
			result, err := e.Sample(t.Context(), r, nil)
			for _, m := range e.Resident() {
				held = max(held, m.Bytes)
			}
			return result, err
		}
		free, err := run(0)
		if err != nil {
			t.Fatalf("%q on %d: %v", c.plan, c.devices, err)
		}
		peak, least := free.Stats.PeakBytes, held+free.Stats.PeakBytes-slack
		if c.devices == 1 && c.plan != "" { // the second rank has fewer rows
			peak, least = 2*peak, held+peak*3/2
		}
		if _, err := run(held + peak + slack); err != nil {
			t.Errorf("%q on %d in what it takes: %v", c.plan, c.devices, err)
		}
		loads = 0
		var f *fault.Error
		if _, err := run(least); !errors.As(err, &f) || f.Code != fault.OutOfMemory || f.Field != c.field || loads > 0 {
			t.Errorf("%q on %d in less than it takes: %d loads, %v", c.plan, c.devices, loads, err)
		}
	}
}

// spacious is an Ops whose libraries need a workspace.
type spacious struct {
	located
	space int64
}

func (s spacious) Workspace(bool) int64           { return s.space }
func (s spacious) Scratch(*engine.Recorder) int64 { return s.space }
func (s spacious) Reserve(*engine.Recorder) error { return nil }
