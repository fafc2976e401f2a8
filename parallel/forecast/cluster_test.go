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

// TestProfilesAreComplete: every device and link has positive rates and says where they come from.
func TestProfilesAreComplete(t *testing.T) {
	p, err := readDevices()
	if err != nil {
		t.Fatal(err)
	}
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

// TestWires works out exchanges by hand: eight devices in two islands of four, on two hosts of eight.
func TestWires(t *testing.T) {
	f := Cluster{
		Hosts: 2, PerHost: 8, Link: Link{Bandwidth: 10, Latency: 1, AllToAll: 0.5, Island: 4, Across: 8},
		Network: Link{Bandwidth: 2, Latency: 7},
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
	f.Link.Island = 0
	if w := f.wire([][]int{span(0, 8)}, toAll); !near(w.perByte, 1./5, 1e-12) {
		t.Errorf("all-to-all without islands: got %.6f s a byte, want half the link, %.6f", w.perByte, 1./5)
	}
}
