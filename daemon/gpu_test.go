package daemon

import (
	"slices"
	"strings"
	"testing"

	"patchbay/engine/cuda"
	"patchbay/parallel/hardware"
)

// TestGPUs checks that numbers, lists and ranges are read, other names of GPUs refused, and other devices left to
// others.
func TestGPUs(t *testing.T) {
	for text, want := range map[string][]int{
		"cuda:0": {0}, "cuda:3": {3}, "cuda:0-3": {0, 1, 2, 3}, "cuda:0,2": {0, 2},
		"cuda:0,cuda:2-3": {0, 2, 3}, "cuda:2-2": {2}, "cuda:0,0": {0, 0}, "cuda:0-2,1": {0, 1, 2, 1},
		"cpu": nil, "": nil, "rates.json": nil,
	} {
		if got, err := GPUs(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"cuda", "cuda:", "cuda:x", "cuda:-1", "cuda:1-0", "cuda:0,", "cuda0", "cuda:0-",
		"cuda:999", "cuda:+1",
	} {
		if got, err := GPUs(text); err == nil {
			t.Errorf("%q: got %v, want a refusal", text, got)
		}
	}
}

// TestSchedulesThatAreRefused checks that a bad --schedule is refused with the flag and its possible values, and that a
// good one gives the number of jobs that a worker has in hand.
func TestSchedulesThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string // part of the refusal; empty: none
		jobs int
	}{
		{Config{Devices: "cpu"}, "", 1},
		{Config{Devices: "cpu", Schedule: "one", Ranks: 4}, "", 1},
		{Config{Devices: "cpu", Schedule: "auto", Ranks: 4}, "", 6},
		{Config{Devices: "cuda:0-7", Schedule: "each"}, "", 10},
		{Config{Devices: "cuda:0", Schedule: "auto"}, "", 1},
		{Config{Devices: "cpu", Schedule: "all"}, "want one, auto or each", 0},
		{Config{Devices: "cpu", Schedule: "auto"}, "--ranks", 0},
		{Config{Devices: "cpu", Ranks: -1}, "--ranks -1", 0},
		{Config{Devices: "cuda:0-1", Ranks: 2}, "a GPU is one place", 0},
		{Config{Devices: "cpu", Ranks: 2, Schedule: "auto", Hosts: "a,b"}, "--hosts a,b", 0},
		{Config{Devices: "cpu", Ranks: 2, Schedule: "each", Placement: "children"}, "", 4},
	} {
		err := c.cfg.checkSchedule()
		if c.want == "" && (err != nil || c.cfg.jobs() != c.jobs) {
			t.Errorf("%+v: %v, %d jobs in hand, want %d", c.cfg, err, c.cfg.jobs(), c.jobs)
		}
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: got %v, want %q in it", c.cfg, err, c.want)
		}
	}
}

// TestMeasuredGPUsAreInOrder checks that fast GPUs come first, each with its rates and memory, that GPUs of one kind
// keep their order, and that one without rates is refused by name.
func TestMeasuredGPUsAreInOrder(t *testing.T) {
	m, err := hardware.NewMachine("L40")
	if err != nil {
		t.Fatal(err)
	}
	fast, err := hardware.NewMachine("H100")
	if err != nil {
		t.Fatal(err)
	}
	m.Others = []hardware.Device{fast.Device}
	gpu := func(index int, name string) cuda.Info {
		return cuda.Info{Index: index, Name: name, Memory: int64(index+1) << 30}
	}
	order := func(infos []cuda.Info) (out []int) {
		for _, i := range infos {
			out = append(out, i.Index)
		}
		return out
	}
	check := func(of *hardware.Machine, first string) {
		t.Helper()
		if of.Device.Name != first || of.Check() != nil {
			t.Errorf("the first device is of the kind %s (%v), want %s", of.Device.Name, of.Check(), first)
		}
	}
	of, mixed, infos, err := rated(&m, []cuda.Info{gpu(0, "L40"), gpu(1, "h100"), gpu(2, "L40")})
	if err != nil || !slices.Equal(order(infos), []int{1, 0, 2}) || len(mixed) != 3 || mixed[0].Name != "H100" ||
		mixed[0].Memory != 2<<30 || mixed[2].GEMM != m.Device.GEMM {
		t.Fatalf("%v, %+v, %v", order(infos), mixed, err)
	}
	check(of, "H100")
	if of, mixed, infos, err = rated(&m, []cuda.Info{gpu(3, "H100"), gpu(1, "H100")}); err != nil || mixed != nil ||
		!slices.Equal(order(infos), []int{3, 1}) {
		t.Fatalf("equal GPUs: %v, %+v, %v", order(infos), mixed, err)
	}
	check(of, "H100")
	if of, mixed, infos, err = rated(nil, []cuda.Info{gpu(0, "NVIDIA L40"), gpu(1, "NVIDIA H100")}); err != nil ||
		len(mixed) != 2 || !slices.Equal(order(infos), []int{1, 0}) {
		t.Fatalf("GPUs that were not measured: %v, %+v, %v", order(infos), mixed, err)
	}
	check(of, "NVIDIA H100")
	slow := m.Device
	slow.Name = "cpu"
	m.Others = append(m.Others, slow)
	if of, _, _, err = rated(&m, nil); err != nil {
		t.Fatal(err)
	}
	check(of, "cpu")
	if _, _, _, err = rated(&m, []cuda.Info{gpu(0, "L20")}); err == nil || !strings.Contains(err.Error(), "L20") {
		t.Errorf("a GPU without rates: %v", err)
	}
}

// TestSiteOfProcessors checks that places on the CPUs of a host share what one rank has there alone.
func TestSiteOfProcessors(t *testing.T) {
	one, err := (&Config{Devices: "cpu"}).site(1, nil)
	if err != nil {
		t.Fatal(err)
	}
	two, err := (&Config{Devices: "cpu"}).site(2, nil)
	if err != nil || len(one.Devices) != 1 || len(two.Devices) != 2 || two.GPUs || two.Check(2) != nil {
		t.Fatalf("%+v, %v, want one place and two", two, err)
	}
	for _, d := range two.Devices {
		if d.GEMM*2 != one.Devices[0].GEMM || d.Attention*2 != one.Devices[0].Attention ||
			d.Traffic*2 != one.Devices[0].Traffic {
			t.Errorf("one of two places has %+v, want half of %+v", d, one.Devices[0])
		}
	}
	if _, err := (&Config{Devices: "cpu", Rates: "/nowhere"}).site(1, nil); err == nil {
		t.Error("a file of rates that is not there was read")
	}
}
