package hardware

import (
	"math"
	"testing"
)

// near reports whether two numbers differ by at most the tolerance; NaN is near nothing.
func near(got, want, tolerance float64) bool { return math.Abs(got-want) <= tolerance }

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
		p       Pattern
		perByte float64
		latency float64
	}{
		{"one rank", [][]int{{3}}, ToAll, 0, 0},
		{"ring inside an island", [][]int{span(0, 4)}, ToNeighbour, 1. / 10, 1},
		{"ring over both islands: one crosses each way", [][]int{span(0, 8)}, ToNeighbour, 1. / 8, 1},
		{"all-to-all inside an island: the link", [][]int{span(0, 4), span(4, 4)}, ToAll, 1. / 10, 1},
		{
			"all-to-all over both: four members send 4/7 across, at half its rate",
			[][]int{span(0, 8)},
			ToAll,
			4 * 4. / 7 / 4, 1,
		},
		{"four pairs across", [][]int{{0, 4}, {1, 5}, {2, 6}, {3, 7}}, ToNeighbour, 4. / 8, 1},
		{"a pipeline over hosts", [][]int{{0, 8}, {1, 9}}, ToNext, 2. / 2, 7},
	} {
		w := f.Wire(c.groups, c.p)
		if !near(w.PerByte, c.perByte, 1e-12) || w.Latency != c.latency {
			t.Errorf("%s: got %.6f s a byte and %v s, want %.6f and %v", c.name, w.PerByte, w.Latency, c.perByte, c.latency)
		}
	}
	uneven := f
	uneven.Hosts, uneven.PerHost, uneven.Places = 1, 7, []int{3, 1, 4} // three ranks send a third each, and one sends all
	if w := uneven.Wire([][]int{span(0, 4)}, ToAll); !near(w.PerByte, 1./2, 1e-12) || w.Latency != 7 {
		t.Errorf("all-to-all of hosts of three ranks and one: got %.6f s a byte and %v s", w.PerByte, w.Latency)
	}
	inside, across := uneven.Wire([][]int{span(4, 3)}, ToAll), uneven.Wire([][]int{span(3, 2)}, ToNext)
	if inside.Latency != 1 || across.Latency != 7 {
		t.Errorf("%v s on the third host and %v s to it, want that of its link and of the network", inside.Latency,
			across.Latency)
	}
	f.Link.Island = 0
	if w := f.Wire([][]int{span(0, 8)}, ToAll); !near(w.PerByte, 1./5, 1e-12) {
		t.Errorf("all-to-all without islands: got %.6f s a byte, want half the link, %.6f", w.PerByte, 1./5)
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
		p                Pattern
		perByte, latency float64
	}{
		{"one rank", [][]int{{2}}, ToAll, 0, 0},
		{"a close pair alone", [][]int{{0, 1}}, ToAll, 1. / 40, 1},
		{"a far pair alone", [][]int{{1, 2}}, ToNeighbour, 1. / 10, 2},
		{"two close pairs at the same time", [][]int{{0, 1}, {2, 3}}, ToAll, 1. / 40 / 0.5, 1},
		{"two far ones", [][]int{{0, 2}, {1, 3}}, ToNeighbour, 1. / 10 / 0.5, 2},
		{"a circle of all: the far ways count", [][]int{{0, 1, 2, 3}}, ToNeighbour, 1. / 10 / 0.5, 9},
		{"a pipeline of three", [][]int{{0, 1, 2}}, ToNext, 1. / 10 / 0.5, 9},
		{"a pipeline that ends before the far way", [][]int{{0, 1}}, ToNext, 1. / 40, 1},
		{"all to all: a third of a byte to each", [][]int{{0, 1, 2, 3}}, ToAll, (1./40 + 2./10) / 3 / 0.25, 9},
	} {
		if w := f.Wire(c.groups, c.p); !near(w.PerByte, c.perByte, 1e-12) || w.Latency != c.latency {
			t.Errorf("%s: got %.6f s a byte and %v s, want %.6f and %v", c.name, w.PerByte, w.Latency, c.perByte, c.latency)
		}
	}
	part := f.Of([]int{1, 2})
	if w := part.Wire([][]int{{0, 1}}, ToAll); !near(w.PerByte, 1./10, 1e-12) {
		t.Errorf("ranks 1 and 2 alone: got %.6f s a byte, want that of their way", w.PerByte)
	}
}
