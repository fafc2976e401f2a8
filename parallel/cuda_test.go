//go:build cgo && fakegpu

package parallel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/engine/datafile"
	"patchbay/engine/gguf"
	"patchbay/engine/gguf/ggufwrite"
	"patchbay/fault"
	"patchbay/models"
	"patchbay/models/dit"
	"patchbay/models/tiny"
	"patchbay/models/weights"
	"patchbay/parallel/comm"
	"patchbay/parallel/comm/localcuda"
	"patchbay/parallel/plan"
	"patchbay/parallel/request"
	"patchbay/tests/fakegpu"
)

// newFakeEngine returns a leader whose ranks take turns on that many fake GPUs. The end of the test fails if memory
// was not freed.
func newFakeEngine(t *testing.T, devices int) *Pool {
	t.Helper()
	return newFakeEngineBy(t, devices, func(*cuda.Driver, string) comm.Transport { return localcuda.Transport{} })
}

// newFakeEngineBy is newFakeEngine with the transport that by returns for the driver and the folder of its library.
func newFakeEngineBy(t *testing.T, devices int, by func(driver *cuda.Driver, dir string) comm.Transport) *Pool {
	t.Helper()
	driver, dir, open := openFakes(t, devices)
	return newEngineOn(t, open, by(driver, dir))
}

// openFakes opens that many fake GPUs.
func openFakes(t *testing.T, devices int) (driver *cuda.Driver, dir string, open []*cuda.Device) {
	t.Helper()
	dir = os.Getenv("PATCHBAY_TEST_CUDA") // as in engine/cuda: a real GPU, which all ranks share if it is the only one
	if dir == "" {
		dir = fakegpu.Library(t)
	}
	driver, err := cuda.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	list, err := driver.Devices()
	if err != nil {
		t.Fatal(err)
	}
	devices = min(devices, len(list))
	open = make([]*cuda.Device, devices)
	for i := range open {
		if open[i], err = driver.Device(i); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := open[i].Close(); err != nil && !errors.Is(err, engine.ErrDeviceLost) {
				t.Error(err)
			}
		})
	}
	return driver, dir, open
}

// newEngineOn returns a leader whose ranks take turns on open devices.
func newEngineOn(t *testing.T, open []*cuda.Device, transport comm.Transport) *Pool {
	t.Helper()
	devices := len(open)
	e, err := NewPool(Config{
		Recode: roundTrip, Transport: transport, Patience: 5 * time.Minute,
		DeviceOf: func(rank int) string { return fmt.Sprintf("cuda:%d", rank%devices) },
		NewOps:   func(rank, _ int) (engine.Ops, error) { return open[rank%devices].NewOps() },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// TestEncodersBringLayersOnFakeGPUs is TestEncodersBringLayers on a device with memory of its own.
func TestEncodersBringLayersOnFakeGPUs(t *testing.T) {
	if testing.Short() {
		t.Skip("long: whole encoders on the fake device; TestPlansOnFakeGPUs brings blocks there")
	}
	encodersBringLayers(t, newFakeEngine(t, 1), 4, "t5")
	visionTowersBringBlocks(t, newFakeEngine(t, 1), 8)
	pictureEncodersBringLayers(t, newFakeEngine(t, 1))
}

// TestPlansOnFakeGPUs checks that every kind of plan on two to four ranks, on one device and on two with and without
// peer access, gives the numbers of the same plan on the CPU, and that a second run gives the same bits.
func TestPlansOnFakeGPUs(t *testing.T) {
	t.Setenv("FAKEGPU_DEVICES", "2")
	cpu := newEngine(t)
	for i, c := range []struct {
		model, plan string
		devices     int
		bound       float64
		again       bool // run twice
	}{
		{"flux-c", "", 1, 1e-5, false},
		{"flux-c", "ulysses=2", 2, 1e-5, true},
		{"flux-c", "ring=2", 1, 1e-5, false},
		{"flux-c", "gather=2", 2, 1e-5, true},
		{"flux-c", "tensor=2", 2, 1e-5, false},
		{"flux-c", "tensor=2,form=scatter", 1, 1e-5, false},
		{"flux-c", "ulysses=2,shard=on", 2, 1e-5, true},
		{"flux-c", "pipe=2,patches=3,warmup=1", 1, 1e-5, true},
		{"flux-c", "stream=4", 1, 1e-5, true},
		{"flux-c", "ulysses=2,shard=on,stream=3", 2, 1e-5, true},
		{"hydit-a", "pipe=2,patches=2,warmup=1,stream=3", 1, 1e-5, false},
		{"flux-c", "pipe=2,ulysses=2,patches=2,warmup=1,sync=spread", 2, 1e-5, false},
		{"flux-c", "pipe=2,patches=2,warmup=1,kv=fp8", 1, 1e-3, false}, // a last-bit difference becomes a fourth-bit one
		{"flux-c", "pipe=2,patches=2,warmup=1,overlap=off,shard=on", 2, 1e-5, false},
		{"sd3-b", "cfg=2", 1, 1e-5, false},
		{"f3-d", "tensor=2", 2, 1e-5, false}, // a flow map
		{"q21-b", "ring=2,ulysses=2", 1, 1e-5, false},
		{"q21-b", "pipe=2,tensor=2,patches=2,warmup=1", 2, 1e-5, false},
		{"hydit-a", "pipe=2,patches=2,warmup=1", 1, 1e-5, false}, // both lanes of the folded stage on one device
	} {
		t.Run(c.model+"/"+c.plan, func(t *testing.T) {
			t.Setenv("FAKEGPU_SEED", fmt.Sprint(i+1))
			t.Setenv("FAKEGPU_PEERS", fmt.Sprint(i/2%2))
			r := parityRequest(t, openGolden(t, c.model), c.model, 1, 4, 5, 2)
			r.Branches[0].Entries = r.Branches[0].Entries[:1]
			r.Plan = c.plan
			want, err := cpu.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			e := newFakeEngine(t, c.devices)
			got, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			if rel := relative(got.Latent.Data, want.Latent.Data); !(rel <= c.bound) {
				t.Errorf("differs from the processors by %.3g, bound %g", rel, c.bound)
			}
			if !c.again {
				return
			}
			again, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			if relative(again.Latent.Data, got.Latent.Data) != 0 {
				t.Error("the second run differs")
			}
		})
	}
}

// TestFakeGPUsShareCopies checks that devices of one process share what is in host memory of the blocks that they
// bring, also where plans bring other ones later, and that nothing stays there when the weights are dropped.
func TestFakeGPUsShareCopies(t *testing.T) {
	t.Setenv("FAKEGPU_DEVICES", "2")
	r := tinyRequest(t, "flux", 1, 9, 8, 1)
	var want []float32
	taken := func(plans ...string) (bytes []int64) {
		t.Helper()
		total := int64(0)
		_, _, open := openFakes(t, 2)
		e, err := NewPool(Config{
			Transport: localcuda.Transport{}, Patience: 5 * time.Minute,
			DeviceOf: func(rank int) string { return fmt.Sprintf("cuda:%d", rank%2) },
			NewOps:   func(rank, _ int) (engine.Ops, error) { return open[rank%2].NewOps() },
			Copies:   datafile.NewCopies("", "", func(n int64) bool { total += n; return true }, nil),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		for _, text := range plans {
			of := *r
			before := total
			if of.Plan = text; text == "" {
				e.Evict("")
				continue
			}
			got, err := e.Sample(context.Background(), &of, nil)
			if err != nil {
				t.Fatal(err)
			}
			if want == nil {
				want = got.Latent.Data
			}
			if rel := relative(got.Latent.Data, want); !(rel <= 1e-5) {
				t.Errorf("%s: differs from one device by %.3g, bound 1e-5", text, rel)
			}
			bytes = append(bytes, total-before)
		}
		return bytes
	}
	one := taken("stream=7", "", "stream=7")
	if one[0] == 0 || one[1] != one[0] {
		t.Errorf("one device took %d bytes of host memory, after it has dropped them %d", one[0], one[1])
	}
	for _, plans := range [][]string{
		{"ulysses=2,stream=7", "stream=7", "ulysses=2,stream=4"}, {"stream=7", "ulysses=2,stream=7"},
	} {
		bytes := taken(plans...)
		sum := int64(0)
		for _, n := range bytes {
			sum += n
		}
		if sum != one[0] {
			t.Errorf("%q on two devices took %d bytes of host memory, want the %d of one", plans, bytes, one[0])
		}
	}
	halves := taken("tensor=2,stream=7")[0]
	if halves < one[0] || halves >= 2*one[0] {
		t.Errorf("two slices took %d bytes of host memory, want those of one, %d, and less than twice as many", halves,
			one[0])
	}
}

// TestStreamsOnFakeGPUs is TestStreamsOnHostsAndChildren on two devices, which have the forms of files in layouts of
// their own, and give the bits that they give with whole weights. The devices do not reach each other's memory, so that
// one that would use the weights of the other fails.
func TestStreamsOnFakeGPUs(t *testing.T) {
	if testing.Short() {
		t.Skip("long: every family and form; TestPlansOnFakeGPUs brings blocks on a few plans")
	}
	t.Setenv("FAKEGPU_DEVICES", "2")
	t.Setenv("FAKEGPU_PEERS", "0")
	e := newFakeEngine(t, 2)
	formsStream(t, e, []*Pool{e}, []string{"fakes"}, len(fileForms()))
}

// TestOtherSizesOnFakeGPUs is TestOtherSizesKeepBlocks on a device with memory of its own, where what is brought is
// packed when it is loaded: a plan that brings other blocks than the one before reads those alone that were not where
// they are needed.
func TestOtherSizesOnFakeGPUs(t *testing.T) {
	set, meta, err := tiny.Checkpoint("flux")
	if err != nil {
		t.Fatal(err)
	}
	d, read := watched(t, set, meta)
	r := tinyRequest(t, "flux", 1, 9, 8, 1)
	r.Model.WeightBytes, r.Model.Weights = 4*r.Model.Spec.Params, request.LoadFunc(d.Load)
	_, _, open := openFakes(t, 1)
	e, err := NewPool(Config{
		Patience: 5 * time.Minute, DeviceMemory: r.Model.WeightBytes * 5 / 4,
		DeviceOf: func(int) string { return "cuda:0" },
		NewOps:   func(int, int) (engine.Ops, error) { return open[0].NewOps() },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	where := map[int]bool{} // by block: it was brought
	for i, text := range []string{"stream=4", "stream=2", "stream=7", "stream=3", ""} {
		clear(read)
		if _, err := e.Load(context.Background(), r.Model, text); err != nil {
			t.Fatal(err)
		}
		brought := planOf(t, text).Held(nil, plan.Coord{}).Streamed(len(d.Spec.Blocks))
		for _, name := range set.Names() {
			b := blockOf(set, name)
			want := i == 0 || b >= 0 && brought[b] != where[b]
			if w, _ := set.Get(name); len(w.Shape) == 2 && (read[name] > 0) != want {
				t.Errorf("%q: %d elements of %s were read, want some: %v", text, read[name], name, want)
			}
		}
		for b, yes := range brought {
			where[b] = yes
		}
	}
}

// TestSameBitsOnFakeGPUs checks that with deterministic=on plans give the bits of one rank on GPUs too, even where so
// few rows would otherwise select other kernels.
func TestSameBitsOnFakeGPUs(t *testing.T) {
	t.Setenv("FAKEGPU_DEVICES", "2")
	e := newFakeEngine(t, 2)
	for compute, plans := range map[engine.DType][]string{
		engine.F32:  {"", "ring=2,ulysses=2,shard=on"},
		engine.BF16: {"", "ulysses=3", "pipe=2,patches=2"},
	} {
		r := parityRequest(t, openGolden(t, "flux-c"), "flux-c", 1, 4, 5, 1)
		r.Branches[0].Entries, r.Compute = r.Branches[0].Entries[:1], compute
		var want []float32
		for _, text := range plans {
			r.Plan = strings.TrimPrefix(text+",deterministic=on", ",")
			got, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			if text == "" {
				want = got.Latent.Data
			}
			if at := firstDifference(got.Latent.Data, want); at >= 0 {
				t.Errorf("%s, %s: value %d is %v, on one rank %v", compute, text, at, got.Latent.Data[at], want[at])
			}
		}
	}
}

// TestGraphsOnFakeGPUs checks that evaluations replayed as graphs give the bits of eager calls with fewer driver
// calls, on one rank and on ranks that exchange between graphs, and that a canceled run of another size before them
// has no effect.
func TestGraphsOnFakeGPUs(t *testing.T) {
	t.Setenv("FAKEGPU_DEVICES", "2")
	for i, c := range []struct {
		model, plan string
		devices     int
		graphs      int64   // evaluations or micro-steps, of all ranks
		from        int     // step after which calls count; 0 for pipelines, whose stages begin steps early
		calls       float64 // bound of driver calls, as a fraction of those without graphs
	}{
		{"flux-c", "", 1, 3, 3, 0.25},
		{"sd3-b", "cfg=2", 2, 2 * 3, 3, 0.25},
		{"f3-d", "", 1, 3, 3, 0.25}, // a flow map, whose texts change from step to step
		{"flux-c", "ulysses=2", 1, 2 * 3, 3, 0.7},
		{"flux-c", "tensor=2,form=scatter", 2, 2 * 3, 3, 0.9},
		{"hydit-a", "pipe=2,patches=2,warmup=1", 1, 3 * 2 * 2, 0, 0.92}, // both lanes of the folded stage
	} {
		t.Run(c.model+"/"+c.plan, func(t *testing.T) {
			t.Setenv("FAKEGPU_SEED", fmt.Sprint(i+1))
			r := parityRequest(t, openGolden(t, c.model), c.model, 1, 4, 4, 4)
			r.Plan = c.plan
			if r.Plan != "cfg=2" {
				r.Branches[0].Entries = r.Branches[0].Entries[:1]
			}
			run := func(eager, before bool) (*request.Result, float64) {
				_, _, open := openFakes(t, c.devices)
				for _, dev := range open {
					dev.Eager = eager
				}
				e := newEngineOn(t, open, localcuda.Transport{})
				if before {
					cancelRun(t, e, c.model)
				}
				made := map[int]int64{}
				count := func(p request.Progress) error {
					for _, dev := range open {
						made[p.Step] += dev.Counts().Calls
					}
					return nil
				}
				result, err := e.Sample(context.Background(), r, count)
				if err != nil {
					t.Fatal(err)
				}
				const end = -1
				_ = count(request.Progress{Step: end})
				return result, float64(made[end] - made[c.from])
			}
			calls, without := run(true, false)
			graphs, with := run(false, i == 0)
			if relative(graphs.Latent.Data, calls.Latent.Data) != 0 {
				t.Error("graphs give other bits")
			}
			if got := graphs.Stats.Chosen["evaluations by graphs"]; got != c.graphs {
				t.Errorf("%d evaluations as graphs, want %d", got, c.graphs)
			}
			if t.Logf("%.0f calls without graphs, %.0f with", without, with); !(with <= c.calls*without) {
				t.Errorf("graphs leave %.2f of the calls, want at most %.2f", with/without, c.calls)
			}
		})
	}
}

// cancelRun runs a request of another size and cancels it.
func cancelRun(t *testing.T, e *Pool, model string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	other := parityRequest(t, openGolden(t, model), model, 1, 4, 6, 4)
	_, err := e.Sample(ctx, other, func(p request.Progress) error {
		if p.Step == 3 {
			cancel()
		}
		return nil
	})
	if e := (*fault.Error)(nil); !errors.As(err, &e) || e.Code != fault.Cancelled {
		t.Errorf("a cancelled run: %v", err)
	}
}

// inBlocks returns a checkpoint as a GGUF file stores it: matrices of whole blocks in q8_0.
func inBlocks(t *testing.T, set *weights.Set) *weights.Set {
	t.Helper()
	var tensors []ggufwrite.Tensor
	for _, name := range set.Names() {
		s, _ := set.Get(name)
		as := gguf.F32
		if len(s.Shape) == 2 && s.Shape[1]%32 == 0 {
			as = gguf.Q8v0
		}
		data := ggufwrite.Quantise(as, s.F32())
		tensors = append(tensors, ggufwrite.Tensor{Name: name, Type: as, Shape: s.Shape, Data: data})
	}
	f, err := gguf.OpenBytes(ggufwrite.File(nil, tensors))
	if err != nil {
		t.Fatal(err)
	}
	out, err := weights.FromGGUF(f, engine.BF16)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestBlocksOnFakeGPUs checks that block-quantized weights stay quantized on the device, whole, gathered from parts
// and cut for a tensor group: the numbers are those of the CPU, and the forecast of their memory is within 2 %.
func TestBlocksOnFakeGPUs(t *testing.T) {
	t.Setenv("FAKEGPU_DEVICES", "2")
	set, meta, err := tiny.Checkpoint("flux-c")
	if err != nil {
		t.Fatal(err)
	}
	set = inBlocks(t, set)
	d, err := models.OpenDiffusion(set, meta)
	if err != nil {
		t.Fatal(err)
	}
	cpu, gpu := newEngine(t), newFakeEngine(t, 2)
	for _, text := range []string{"", "tensor=2,ulysses=2,shard=on"} {
		r := tinyRequest(t, "flux-c", 1, 4, 4, 1)
		r.Branches[0].Entries = r.Branches[0].Entries[:1]
		held := int64(0)
		r.Plan, r.Model.Key = text, "blocks"
		r.Model.Weights = request.LoadFunc(func(ops engine.Ops, part dit.Held) (dit.Model, error) {
			count := &weighing{Ops: ops}
			m, err := d.Load(count, part)
			if text == "" {
				held = count.peak
			}
			return m, err
		})
		r.Model.WideBytes, r.Model.Blocks = set.WideBytes(), set.HasBlocks()
		want, err := cpu.Sample(t.Context(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := gpu.Sample(t.Context(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if rel := relative(got.Latent.Data, want.Latent.Data); !(rel <= 1e-5) {
			t.Errorf("%q differs from the processors by %.3g, bound 1e-5", text, rel)
		}
		if text != "" {
			continue
		}
		if off := float64(held)/float64(set.WideBytes()) - 1; !near(off, 0, 0.02) || !set.HasBlocks() {
			t.Errorf("weights take %d bytes on the device, the forecast is %d", held, set.WideBytes())
		}
	}
}

// TestSumsOfBF16OnFakeGPUs checks that sums of bf16 parts in each rank's own memory are near those of f32.
func TestSumsOfBF16OnFakeGPUs(t *testing.T) {
	t.Setenv("FAKEGPU_DEVICES", "2")
	r := parityRequest(t, openGolden(t, "flux-c"), "flux-c", 1, 4, 4, 1)
	r.Branches[0].Entries = r.Branches[0].Entries[:1]
	want, err := newEngine(t).Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Plan, r.Compute = "tensor=2", engine.BF16
	got, err := newFakeEngine(t, 2).Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if db := snr(got.Latent.Data, want.Latent.Data); !(db >= 30) {
		t.Errorf("bf16 is %.1f dB from f32, want at least 30", db)
	}
}

// TestFailuresOfFakeGPUs checks that work that runs out of memory is retried once after all caches were freed, that a
// lost device is reported by its error code and to Config.Lost, and that an invalid call fails only its request.
func TestFailuresOfFakeGPUs(t *testing.T) {
	if os.Getenv("PATCHBAY_TEST_CUDA") != "" {
		t.Skip("NOT RUN: only the fake device fails when it is told to")
	}
	t.Setenv("FAKEGPU_DEVICES", "2")
	full, broken := filepath.Join(t.TempDir(), "full"), filepath.Join(t.TempDir(), "broken")
	refused := filepath.Join(t.TempDir(), "refused")
	t.Setenv("FAKEGPU_REFUSE", refused)
	t.Setenv("FAKEGPU_FULL", full)
	t.Setenv("FAKEGPU_BREAK", broken)
	tell := func(file string) {
		t.Helper()
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e := newFakeEngine(t, 2)
	relieved, lost := 0, 0
	e.whole.cfg.Lost = func(error) { lost++ }
	keep := func() { e.keep(t, "kept", 1, func() { relieved++ }) }
	keep()
	r := parityRequest(t, openGolden(t, "flux-c"), "flux-c", 1, 4, 4, 1)
	r.Branches[0].Entries = r.Branches[0].Entries[:1]
	run := func(plan string) (*request.Result, error) {
		r.Plan = plan
		return e.Sample(context.Background(), r, nil)
	}
	want, err := run("ulysses=2")
	if err != nil {
		t.Fatal(err)
	}
	tell(full)
	got, err := run("tensor=2") // takes memory
	if err != nil || relieved != 1 || relative(got.Latent.Data, want.Latent.Data) > 1e-5 {
		t.Fatalf("after an allocation that found no memory: %v, caches were freed %d times, want 1", err, relieved)
	}
	keep()
	err = e.Do(context.Background(), "work", func(l *Workspace) error {
		tell(full)
		_, err := l.Ops.Alloc(100)
		return err
	})
	var fe *fault.Error
	if !errors.As(err, &fe) || fe.Code != fault.OutOfMemory || relieved != 2 {
		t.Errorf("without memory twice: %v, caches were freed %d times in all, want %s and 2", err, relieved,
			fault.OutOfMemory)
	}
	if got, err = run("ulysses=2"); err != nil || relative(got.Latent.Data, want.Latent.Data) != 0 || lost != 0 {
		t.Fatalf("after work that failed: %v, %d devices lost", err, lost)
	}
	keep()
	tell(refused)
	if _, err = run("ulysses=2"); !errors.As(err, &fe) || fe.Code != fault.Panic || lost != 0 || relieved != 2 {
		t.Errorf("a refused call: %v, %d devices lost, caches were freed %d times; want %s, 0 and 2", err, lost, relieved,
			fault.Panic)
	}
	if got, err = run("ulysses=2"); err != nil || relative(got.Latent.Data, want.Latent.Data) != 0 || lost != 0 {
		t.Fatalf("after a refused call: %v, %d devices lost", err, lost)
	}
	tell(broken)
	if _, err = run("ulysses=2"); !errors.As(err, &fe) || fe.Code != fault.DeviceLost || lost != 1 {
		t.Errorf("a broken device: %v, Lost was told %d times, want %s and once", err, lost, fault.DeviceLost)
	}
}

// TestSharedWorkOnFakeGPUs is TestSharedWorkSums on three devices.
func TestSharedWorkOnFakeGPUs(t *testing.T) { sharedWork(t, newFakeEngine(t, 3)) }
