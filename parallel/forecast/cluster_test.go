package forecast

import (
	"strings"
	"testing"
)

func TestParseFabric(t *testing.T) {
	for _, c := range []struct {
		text, device, link, network string
		hosts, per                  int
	}{
		{"8xH100-nvlink", "H100", "nvlink4", "", 1, 8},
		{"H100", "H100", "nvlink4", "", 1, 1},
		{"4xa100-80", "A100-80", "nvlink3", "", 1, 4},
		{"4xA100-40-pcie4", "A100-40", "pcie4", "", 1, 4},
		{"2x8xL40-pcie+infiniband400", "L40", "pcie4", "infiniband400", 2, 8},
		{"2x8xL40", "L40", "pcie4", "ethernet100", 2, 8},
		{"2xcpu", "cpu", "memory", "", 1, 2},
		{"3x4090", "4090", "pcie4", "", 1, 3},
	} {
		f, err := ParseCluster(c.text)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if f.Device.Name != c.device || f.Link.Name != c.link || f.Network.Name != c.network || f.Hosts != c.hosts ||
			f.PerHost != c.per {
			t.Errorf("%s: got %s %s %s %d %d", c.text, f.Device.Name, f.Link.Name, f.Network.Name, f.Hosts, f.PerHost)
		}
		if again, err := ParseCluster(f.String()); err != nil || again.String() != f.String() {
			t.Errorf("%s: %s does not read back: %v", c.text, f, err)
		}
	}
	for text, want := range map[string]string{
		"": "8xH100", "0xH100": "1 to 64", "8xB300": "H100", "8xH100-token": "nvlink4", "9x9xH100": "1 to 64",
		"65xL40":         "1 to 64",
		"2x8xL40+pigeon": "ethernet100", "99999999999999999999xL40": "1 to 64",
	} {
		if _, err := ParseCluster(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error that contains %q", text, err, want)
		}
	}
}

// TestProfilesAreComplete checks that every device and link has positive rates and names their source.
func TestProfilesAreComplete(t *testing.T) {
	p := known()
	for _, d := range p.Devices {
		if d.GEMM <= 0 || d.Attention <= 0 || d.Traffic <= 0 || d.Launch <= 0 || d.Handover <= 0 || d.WeightBytes == 0 ||
			d.ValueBytes == 0 || len(d.Source) < 20 {
			t.Errorf("device %s lacks something: %+v", d.Name, d)
		}
	}
	for _, l := range append(p.Links, p.Networks...) {
		if l.Bandwidth <= 0 || l.Latency <= 0 || l.AllToAll <= 0 || l.AllToAll > 1 || l.Island > 0 && l.Across <= 0 ||
			len(l.Source) < 20 {
			t.Errorf("link %s lacks something: %+v", l.Name, l)
		}
	}
}

// TestWires checks exchanges worked out by hand: eight devices in two islands of four, on two hosts of eight.
func TestWires(t *testing.T) {
	f := Cluster{
		Hosts: 2, PerHost: 8, Link: Interconnect{Bandwidth: 10, Latency: 1, AllToAll: 0.5, Island: 4, Across: 8},
		Network: Interconnect{Bandwidth: 2, Latency: 7},
	}
	span := func(from, n int) []int {
		var out []int
		for i := range n {
			out = append(out, from+i)
		}
		return out
	}
	for _, c := range []struct {
		name    string
		groups  [][]int
		p       pattern
		perByte float64
		latency float64
	}{
		{"one rank", [][]int{{3}}, toAll, 0, 0},
		{"ring inside an island", [][]int{span(0, 4)}, toNeighbour, 1. / 10, 1},
		{"ring over both islands: one crosses each way", [][]int{span(0, 8)}, toNeighbour, 1. / 8, 1},
		{"all-to-all inside an island: the link", [][]int{span(0, 4), span(4, 4)}, toAll, 1. / 10, 1},
		{
			"all-to-all over both: four members send 4/7 across, at half its rate",
			[][]int{span(0, 8)},
			toAll,
			4 * 4. / 7 / 4, 1,
		},
		{"four pairs across", [][]int{{0, 4}, {1, 5}, {2, 6}, {3, 7}}, toNeighbour, 4. / 8, 1},
		{"a pipeline over hosts", [][]int{{0, 8}, {1, 9}}, toNext, 2. / 2, 7},
	} {
		w := f.wire(c.groups, c.p)
		if !near(w.perByte, c.perByte, 1e-12) || w.latency != c.latency {
			t.Errorf("%s: got %.6f s a byte and %v s, want %.6f and %v", c.name, w.perByte, w.latency, c.perByte, c.latency)
		}
	}
	own := f
	own.Hosts, own.PerHost, own.Places = 1, 7, []int{3, 1, 4} // three ranks send a third each, and one sends all
	if w := own.wire([][]int{span(0, 4)}, toAll); !near(w.perByte, 1./2, 1e-12) || w.latency != 7 {
		t.Errorf("all-to-all of hosts of three ranks and one: got %.6f s a byte and %v s", w.perByte, w.latency)
	}
	inside, across := own.wire([][]int{span(4, 3)}, toAll), own.wire([][]int{span(3, 2)}, toNext)
	if inside.latency != 1 || across.latency != 7 {
		t.Errorf("%v s on the third host and %v s to it, want that of its link and of the network", inside.latency,
			across.latency)
	}
	f.Link.Island = 0
	if w := f.wire([][]int{span(0, 8)}, toAll); !near(w.perByte, 1./5, 1e-12) {
		t.Errorf("all-to-all without islands: got %.6f s a byte, want half the link, %.6f", w.perByte, 1./5)
	}
}

// TestPairedWires checks exchanges worked out by hand between four devices of which 0 and 1, and 2 and 3 are close,
// like cards with a bridge.
func TestPairedWires(t *testing.T) {
	f := Cluster{
		Hosts: 1, PerHost: 4, Link: Interconnect{
			Bandwidth: 3, Latency: 9, AllToAll: 0.25, RingFraction: 0.5, Island: 2,
			Across: 1,
		},
	}
	for a := range 4 {
		var row []Pair
		for b := range 4 {
			way := Pair{Bandwidth: 10, Latency: 2}
			if a/2 == b/2 {
				way = Pair{Bandwidth: 40, Latency: 1}
			}
			row = append(row, way)
		}
		f.Between = append(f.Between, row)
	}
	for _, c := range []struct {
		name             string
		groups           [][]int
		p                pattern
		perByte, latency float64
	}{
		{"one rank", [][]int{{2}}, toAll, 0, 0},
		{"a close pair alone", [][]int{{0, 1}}, toAll, 1. / 40, 1},
		{"a far pair alone", [][]int{{1, 2}}, toNeighbour, 1. / 10, 2},
		{"two close pairs at the same time", [][]int{{0, 1}, {2, 3}}, toAll, 1. / 40 / 0.5, 1},
		{"two far ones", [][]int{{0, 2}, {1, 3}}, toNeighbour, 1. / 10 / 0.5, 2},
		{"a circle of all: the far ways count", [][]int{{0, 1, 2, 3}}, toNeighbour, 1. / 10 / 0.5, 9},
		{"a pipeline of three", [][]int{{0, 1, 2}}, toNext, 1. / 10 / 0.5, 9},
		{"a pipeline that ends before the far way", [][]int{{0, 1}}, toNext, 1. / 40, 1},
		{"all to all: a third of a byte to each", [][]int{{0, 1, 2, 3}}, toAll, (1./40 + 2./10) / 3 / 0.25, 9},
	} {
		if w := f.wire(c.groups, c.p); !near(w.perByte, c.perByte, 1e-12) || w.latency != c.latency {
			t.Errorf("%s: got %.6f s a byte and %v s, want %.6f and %v", c.name, w.perByte, w.latency, c.perByte, c.latency)
		}
	}
	part := f.Of([]int{1, 2})
	if w := part.wire([][]int{{0, 1}}, toAll); !near(w.perByte, 1./10, 1e-12) {
		t.Errorf("ranks 1 and 2 alone: got %.6f s a byte, want that of their way", w.perByte)
	}
}

// TestPlansFollowPairs checks that where only two of four devices are close to each other, the planner chooses those
// two. By the link's rates alone it chooses four.
func TestPlansFollowPairs(t *testing.T) {
	s := searchFor(t, "sd3-medium", 1024, 28, "4xH100")
	s.Exact = true
	if got := choose(t, s).Best.Plan; got.Ranks() != 4 {
		t.Fatalf("by the link alone it is %s, want four ranks", got)
	}
	for a := range 4 {
		var row []Pair
		for b := range 4 {
			way := Pair{Bandwidth: 5e8, Latency: 1e-3}
			if a < 2 && b < 2 {
				way = Pair{Bandwidth: 3e11, Latency: 2e-5}
			}
			row = append(row, way)
		}
		s.Cluster.Between = append(s.Cluster.Between, row)
	}
	s.Cluster.Link.RingFraction, s.Cluster.Link.AllToAll = 1, 1
	if got := choose(t, s).Best.Plan; got.Ranks() != 2 || got.Ulysses != 2 && got.Ring != 2 && got.CFG != 2 {
		t.Errorf("the planner chose %s, want the two that are close", got)
	}
}

// TestUsualRows checks that GPUs that were not measured get the table row of their name or the nearest, and say so.
func TestUsualRows(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		name           string
		capability     int
		memory         int64
		row, link, why string
	}{
		{"NVIDIA H100 80GB HBM3", 90, 80 * gib, "H100", "nvlink4", "by its name"},
		{"NVIDIA H100 PCIe", 90, 80 * gib, "H100", "pcie4", "by its name"},
		{"NVIDIA H200", 90, 141e9, "H200", "nvlink4", "by its name"},
		{"NVIDIA A100-SXM4-80GB", 80, 80 * gib, "A100-80", "nvlink3", "by its name"},
		{"NVIDIA A100-PCIE-40GB", 80, 40 * gib, "A100-40", "pcie4", "by its name"},
		{"NVIDIA L40S", 89, 48 * gib, "L40", "pcie4", "by its name"},
		{"NVIDIA L4", 89, 24 * gib, "4090", "pcie4", "no row for a NVIDIA L4"},
		{"NVIDIA GeForce RTX 4090", 89, 24 * gib, "4090", "pcie4", "by its name"},
		{"NVIDIA B200", 100, 180 * gib, "H100", "nvlink4", "no row for a NVIDIA B200"},
		{"NVIDIA GeForce RTX 5090", 120, 32 * gib, "4090", "pcie4", "no row for"},
		{"NVIDIA A30", 80, 24 * gib, "A100-80", "nvlink3", "no row for"},
	} {
		m := Usual(c.name, c.capability, c.memory)
		d, l := m.Device, m.Link
		row, err := ParseCluster(c.row)
		if err != nil {
			t.Fatal(err)
		}
		if d.GEMM != row.Device.GEMM || d.Attention != row.Device.Attention || d.Name != c.name || d.Memory != c.memory ||
			l.Name != c.link || !strings.Contains(d.Source, "row "+c.row+" ") || !strings.Contains(d.Source, c.why) ||
			!strings.Contains(d.Source, "not measured") {
			t.Errorf("%s: %+v and %s, want row %s %s with %s", c.name, d, l.Name, c.row, c.why, c.link)
		}
	}
}
