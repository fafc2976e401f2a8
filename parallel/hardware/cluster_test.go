package hardware

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
		{"2x5090", "5090", "pcie5", "", 1, 2},
		{"4xrtx3090", "3090", "pcie4", "", 1, 4},
		{"2xRTX PRO 6000", "PRO6000", "pcie5", "", 1, 2},
		{"8xB200-nvlink", "B200", "nvlink5", "", 1, 8},
		{"8xH20-nvlink", "H20", "nvlink4", "", 1, 8},
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
		{"NVIDIA B200", 100, 180 * gib, "B200", "nvlink5", "by its name"},
		{"NVIDIA GB200", 100, 186 * gib, "B200", "nvlink5", "by its name"},
		{"NVIDIA B300 SXM6 AC", 103, 270 * gib, "B200", "nvlink5", "no row for a NVIDIA B300"},
		{"NVIDIA H20", 90, 96 * gib, "H20", "nvlink4", "by its name"},
		{"NVIDIA GeForce RTX 5090", 120, 32 * gib, "5090", "pcie5", "by its name"},
		{"NVIDIA GeForce RTX 5080", 120, 16 * gib, "5090", "pcie5", "no row for"},
		{"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 120, 96 * gib, "PRO6000", "pcie5", "by its name"},
		{"NVIDIA RTX 6000 Ada Generation", 89, 48 * gib, "4090", "pcie4", "no row for"},
		{"NVIDIA GeForce RTX 3090", 86, 24 * gib, "3090", "pcie4", "by its name"},
		{"NVIDIA RTX A6000", 86, 48 * gib, "3090", "pcie4", "no row for"},
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

// TestMixedClusters checks that lists are sorted, fastest first, share the slowest link, and can be read back.
func TestMixedClusters(t *testing.T) {
	for text, want := range map[string]string{
		"2xL40,H100": "1xH100-pcie4,2xL40-pcie4", "H100-nvlink,A100-80": "1xH100-nvlink3,1xA100-80-nvlink3",
		"L40,L40": "2xL40-pcie4", "2xH100,2xH200,L20": "2xH100-pcie4,2xH200-pcie4,1xL20-pcie4",
	} {
		f, err := ParseCluster(text)
		if err != nil || f.String() != want || (f.Mixed == nil) != (text == "L40,L40") {
			t.Errorf("%s: %s, %v, want %s", text, f, err, want)
		}
		if again, err := ParseCluster(f.String()); err != nil || again.String() != want {
			t.Errorf("%s: %s does not read back: %v", text, f, err)
		}
	}
	for text, want := range map[string]string{
		"2x2xH100,L40": "on one host", "40xL40,40xL20": "at most 64", "L40,": "8xH100", "L40,B300": "B300",
	} {
		if _, err := ParseCluster(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error that contains %q", text, err, want)
		}
	}
}
