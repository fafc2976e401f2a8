package forecast

import (
	"testing"

	"patchbay/parallel/plan"
)

func memoryByRank(t *testing.T, w Workload, p plan.Plan, weight float64, value int) []Memory {
	t.Helper()
	out, err := MemoryByRank(w, p, weight, value)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func weigh(t *testing.T, s Search, p plan.Plan) Candidate {
	t.Helper()
	out, err := s.Weigh(p)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestPlannerTakesTheRankThatNeedsMost checks that the memory of a candidate is that of the rank that needs most,
// whichever it is, and that a plan fits if that rank fits.
func TestPlannerTakesTheRankThatNeedsMost(t *testing.T) {
	s := searchFor(t, "flux-dev", 1024, 4, "8xH100-nvlink")
	s.Device = s.Cluster.Device
	notFirst := 0
	for _, text := range []string{
		"ulysses=5", "ring=3", "cfg=1,tensor=5", "pipe=4", "pipe=8",
		"pipe=3,patches=5,shard=on", "pipe=4,shard=on,speeds=20:100:20:20",
	} {
		p := planOf(t, text)
		ranks := memoryByRank(t, s.Workload, p, s.Cluster.Device.WeightBytes, s.Cluster.Device.ValueBytes)
		most, at := int64(0), 0
		for r, m := range ranks {
			if m.Total() > most {
				most, at = m.Total(), r
			}
		}
		if ranks[0].Total() < most {
			notFirst++
		}
		for _, c := range []struct {
			free int64
			fits bool
		}{{most, true}, {most - 1, false}} {
			s := s
			s.Cluster.Device.Reserved, s.Cluster.Device.Memory = 0, c.free
			if got := weigh(t, s, p); got.Fits != c.fits || got.Memory != ranks[at] {
				t.Errorf("%s: with %d bytes free it fits: %v, want %v; memory %+v, want that of rank %d, %+v",
					text, c.free, got.Fits, c.fits, got.Memory, at, ranks[at])
			}
		}
	}
	if notFirst < 3 {
		t.Errorf("only %d plans need most on another rank than the first", notFirst)
	}
}

// TestHostMemoryIsShared checks what blocks that are brought take of host memory: for ranks of one process once what
// they hold in common, whatever their number, and for each of them where they are in processes or hosts of their own.
func TestHostMemoryIsShared(t *testing.T) {
	s := searchFor(t, "flux-dev", 1024, 4, "4xH100-nvlink")
	s.Device = s.Cluster.Device
	all := s
	all.Apart = true
	hosts := s
	hosts.Cluster.Hosts, hosts.Cluster.PerHost = 2, 2
	one := weigh(t, s, planOf(t, "stream=57")).Host
	if want := 2 * s.Spec.Params; !(float64(one) > 0.98*float64(want) && one < want) {
		t.Fatalf("one device brings %d bytes, want nearly the %d of the model", one, want)
	}
	for text, want := range map[string][3]float64{ // by s, all and hosts, in times of one device
		"ulysses=4,stream=57":                  {1, 4, 2},
		"ulysses=4,shard=on,stream=57":         {1, 1, 1},
		"ulysses=2,ring=2,stream=57":           {1, 4, 2},
		"pipe=4,patches=4,stream=57":           {1, 1, 1},
		"pipe=2,ulysses=2,patches=2,stream=57": {1, 2, 1},
		"cfg=1,ulysses=2,tensor=2,stream=57":   {1.271, 2.542, 2.542}, // both slices have the modulation, 0.271 of all
		"ulysses=2,shard=on,stream=57":         {1, 1, 1},
	} {
		for i, s := range []Search{s, all, hosts} {
			got := float64(weigh(t, s, planOf(t, text)).Host) / float64(one)
			if !(got >= want[i]*0.97 && got <= want[i]*1.03) {
				t.Errorf("%s, case %d: %.3f times the host memory of one device, want about %g", text, i, got, want[i])
			}
		}
	}
}

// TestEightBitStoresHalve checks that against bf16, stores of D elements per head take (1 + 4/D) / 2 of the bytes:
// 0.516 for D = 128, 0.531 for 64, and 0.257 of f32.
func TestEightBitStoresHalve(t *testing.T) {
	for model, want := range map[string]float64{"flux-dev": 0.515625, "sd3-medium": 0.53125, "hunyuandit": 0.5227272} {
		s := searchFor(t, model, 1024, 20, "8xH100-nvlink")
		for _, text := range []string{"pipe=4,patches=4", "pipe=2,ulysses=2,patches=4,shard=on"} {
			full, small := memoryByRank(t, s.Workload, planOf(t, text), 2, 2),
				memoryByRank(t, s.Workload, planOf(t, text+",kv=fp8"), 2, 2)
			for rank := range full {
				if got := float64(small[rank].KV) / float64(full[rank].KV); !near(got, want, 1e-5) {
					t.Errorf("%s %s, rank %d: %d bytes of %d, %.6f, want %.6f", model, text, rank, small[rank].KV,
						full[rank].KV, got, want)
				}
			}
		}
	}
}

// TestWorkspaceNeedsMemory checks that the workspace of a device's libraries counts: a plan that just fits does not
// fit in one byte less, and a pipeline whose stages have two lanes counts it twice.
func TestWorkspaceNeedsMemory(t *testing.T) {
	for _, c := range []struct {
		model, plan string
		times       int64
	}{{"flux-dev", "", 1}, {"flux-dev", "pipe=2", 1}, {"hunyuandit", "pipe=2", 2}} {
		const space = 32 << 20
		s, p := searchFor(t, c.model, 1024, 4, "2xL40"), planOf(t, c.plan)
		s.Device = s.Cluster.Device
		bare := weigh(t, s, p).Memory.Total()
		d := &s.Cluster.Device
		d.Workspace, d.Reserved, d.Memory = space, 0, bare+c.times*space
		if got := weigh(t, s, p); !got.Fits || got.Memory.Total() != d.Memory {
			t.Errorf("%s %q: %d bytes, fits %v: want %d", c.model, c.plan, got.Memory.Total(), got.Fits, d.Memory)
		}
		if d.Memory--; weigh(t, s, p).Fits {
			t.Errorf("%s %q fits in a byte less than it takes", c.model, c.plan)
		}
	}
}

// TestStagesHoldTheirParameters compares the weights of stages that own theirs with plan.HeldParams, which counts what
// a loader reads.
func TestStagesHoldTheirParameters(t *testing.T) {
	for _, model := range []string{"flux-dev", "hunyuandit", "z-image-turbo"} {
		s := searchFor(t, model, 1024, 20, "4xH100-nvlink")
		p, err := plan.Parse("pipe=4,patches=4,shard=on")
		if err != nil {
			t.Fatal(err)
		}
		lanes := NewPartition(s.Workload, p).Lanes
		for rank, got := range WeightsByRank(s.Workload, p, 1) {
			if want := plan.HeldParams(s.Spec, p.Held(lanes, plan.Mesh{Plan: p}.At(rank))); got != want {
				t.Errorf("%s: stage %d holds %d parameters, its loader reads %d", model, rank, got, want)
			}
		}
	}
}
