package bench

import (
	"path/filepath"
	"testing"

	"patchbay/daemon"
	"patchbay/parallel/hardware"
)

// TestRatesAreKeptByKind checks that rates measured on one kind of device are kept beside those of other kinds.
func TestRatesAreKeptByKind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rates.json")
	for _, c := range []struct {
		kind string
		gemm float64
	}{{"A", 1e12}, {"cpu", 2e12}, {"B", 3e12}, {"A", 4e12}} {
		fresh, err := hardware.NewMachine("H100")
		if err != nil {
			t.Fatal(err)
		}
		fresh.Device.Name = c.kind
		err = saveMachine(path, fresh, func(m *hardware.Machine) error {
			if m.Device.Name != c.kind || m.Others != nil {
				t.Errorf("the rates of %s are changed for %s", m.Device.Name, c.kind)
			}
			m.Device.GEMM, m.Link.Bandwidth = c.gemm, c.gemm
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	m, err := daemon.ReadMachine(path)
	if err != nil || m.Link.Bandwidth != 4e12 || len(m.Others) != 2 {
		t.Fatalf("%+v, %v", m, err)
	}
	for kind, want := range map[string]float64{"A": 4e12, "B": 3e12, "cpu": 2e12} {
		if d, err := m.Kind(kind); err != nil || d.GEMM != want {
			t.Errorf("%s: %g, %v, want %g", kind, d.GEMM, err, want)
		}
	}
}

// TestPairsAreKept checks that newly measured pairs of devices replace older ones and leave those of other devices, and
// that what all exchanges reach together is stored as a fraction of what the pairs promise.
func TestPairsAreKept(t *testing.T) {
	m, err := hardware.NewMachine("H100")
	if err != nil {
		t.Fatal(err)
	}
	pair := func(a, b string, rate float64) hardware.Pair {
		return hardware.Pair{A: a, B: b, Bandwidth: rate, Latency: 1e-5}
	}
	m.Pairs = []hardware.Pair{pair("cuda:0", "cuda:1", 7), pair("cuda:3", "cuda:4", 8)}
	found := measured{Bandwidth: 5, Latency: 2e-5, AllToAll: 6, pairs: []hardware.Pair{
		pair("cuda:0", "cuda:1", 40), pair("cuda:0", "cuda:2", 10), pair("cuda:2", "cuda:1", 10),
	}}
	if err := found.save(&m, "nccl", []string{"cuda:0", "cuda:1", "cuda:2"}); err != nil {
		t.Fatal(err)
	}
	// the ring takes as long as its slowest pair, 1/10 s a byte; in an all-to-all the third device sends half a byte to
	// each of the others, 1/20 + 1/20 s
	if l := m.Link; l.Name != "nccl" || l.RingFraction != 0.5 || l.AllToAll != 0.6 || l.Bandwidth != 5 ||
		l.Latency != 2e-5 {
		t.Errorf("the link is %+v, want half and 0.6 of what pairs promise", l)
	}
	if len(m.Pairs) != 4 || m.Pairs[0] != pair("cuda:3", "cuda:4", 8) || m.Pairs[1].Bandwidth != 40 {
		t.Errorf("the pairs are %+v", m.Pairs)
	}
	ways := m.Between([]string{"cuda:2", "cuda:1", "cuda:9"})
	if ways[0][1].Bandwidth != 10 || ways[1][0].Bandwidth != 10 || ways[1][2].Bandwidth != 5 {
		t.Errorf("the ways are %+v, want pairs in both directions, and the link where there is none", ways)
	}
	if err := m.Check(); err != nil {
		t.Error(err)
	}
}
