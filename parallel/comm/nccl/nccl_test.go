//go:build cgo && fakegpu

package nccl

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/engine/cuda/library"
	"patchbay/engine/cuda/nccl"
	"patchbay/engine/ref"
	"patchbay/parallel/comm"
	"patchbay/parallel/comm/commtest"
	"patchbay/tests/fakegpu"
)

// rig is a transport and its devices: fake ones unless PATCHBAY_TEST_CUDA is set.
type rig struct {
	*Transport
	devices []*cuda.Device
	lib     *nccl.Library
	teams   uint64
	made    int // calls that created communicators
}

// newRig opens that many devices and returns a transport on them. The end of the test closes all, which reports leaks.
func newRig(t testing.TB, devices int) *rig {
	t.Helper()
	t.Setenv("FAKEGPU_DEVICES", strconv.Itoa(devices))
	dir := os.Getenv("PATCHBAY_TEST_CUDA")
	search := &library.Search{Folders: filepath.Join(dir, "nccl")}
	if dir == "" {
		dir = fakegpu.Library(t)
		search.Folders = filepath.Join(dir, "nccl")
	}
	d, err := cuda.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	list, err := d.Devices()
	if err != nil {
		t.Fatal(err)
	}
	if len(list) < devices {
		t.Skipf("NOT RUN: %d GPUs are here, this needs %d", len(list), devices)
	}
	lib, err := nccl.Open(d.Driver, search)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{lib: lib, Transport: New(lib, nil), devices: make([]*cuda.Device, devices)}
	connect := r.connect
	r.Transport.connect = func(ids [][]byte, groups ...[]*cuda.Ops) ([]communicators, error) {
		r.made++
		return connect(ids, groups...)
	}
	for i := range r.devices {
		if r.devices[i], err = d.Device(i); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := r.devices[i].Close(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// Connect gives every group a team of its own, so that communicators are released or reused.
func (r *rig) Connect(g comm.Group, ops []engine.Ops) ([]comm.Comm, error) {
	r.teams++
	g.Team = r.teams
	return r.Transport.Connect(g, ops)
}

// ops returns Ops of n ranks, each on a device of its own.
func (r *rig) ops(n int) ([]engine.Ops, func() error, error) {
	out, ends := make([]engine.Ops, n), make([]func() error, n)
	for i := range out {
		o, err := r.devices[i].NewOps()
		if err != nil {
			return nil, nil, err
		}
		out[i], ends[i] = o, o.Close
	}
	return out, func() error {
		var errs []error
		for _, end := range ends {
			errs = append(errs, end())
		}
		return errors.Join(errs...)
	}, nil
}

// TestNCCL runs the transport suite, with streams in a random order.
func TestNCCL(t *testing.T) {
	r := newRig(t, 6)
	commtest.Run(t, commtest.Rig{Transport: r, Ops: r.ops, Late: true})
}

// TestEvenExchanges checks exchanges of two ranks for which NCCL has a single call.
func TestEvenExchanges(t *testing.T) {
	p := newPair(t)
	move := func(c comm.Comm, dst, src engine.Tensor) { p.streams[c.Rank()].Copy(dst, src) }
	const half = pairLen / 2
	even := []int{half, half}
	for name, c := range map[string]struct {
		call func(c comm.Comm, dst, src engine.Tensor)
		want [2]float32 // first and last element of dst, the same on both ranks
	}{
		"AllGather": {
			func(c comm.Comm, dst, src engine.Tensor) {
				c.Run(comm.NewAllGather(dst, comm.Piece(src, 0, half), even))
			}, [2]float32{1, 2},
		},
		"ReduceScatter": {
			func(c comm.Comm, dst, src engine.Tensor) { c.Run(comm.NewReduceScatter(dst, src, even)) },
			[2]float32{3, 9}, // 9 is left over
		},
		"AllReduce": {
			func(c comm.Comm, dst, src engine.Tensor) { c.Run(comm.NewAllReduce(src)); move(c, dst, src) }, [2]float32{3, 3},
		},
	} {
		var got [2][]float32
		err := p.run(func(rank int) {
			o := p.streams[rank]
			o.Fill(p.dst[rank], 9)
			o.Fill(p.src[rank], float32(rank+1))
			c.call(p.groups[0][rank], p.dst[rank], p.src[rank])
			got[rank] = make([]float32, pairLen)
			if err := o.Download(got[rank], p.dst[rank]).Wait(); err != nil {
				panic(err)
			}
		})
		for r, v := range got {
			if err != nil || v[0] != c.want[0] || v[pairLen-1] != c.want[1] {
				t.Errorf("%s on rank %d: %v .. %v (%v), want %v", name, r, v[0], v[pairLen-1], err, c.want)
			}
		}
	}
}

// TestRefusals checks that Ops of another kind and two ranks on one GPU are refused.
func TestRefusals(t *testing.T) {
	r := newRig(t, 1)
	if _, err := r.Connect(comm.Group{Name: "test"}, []engine.Ops{ref.New()}); err == nil {
		t.Error("ranks on the processors were connected")
	}
	two := make([]engine.Ops, 2)
	for i := range two {
		o, err := r.devices[0].NewOps()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = o.Close() }()
		two[i] = o
	}
	_, err := r.Connect(comm.Group{Name: "test"}, two)
	if err == nil || !strings.Contains(err.Error(), "ranks 0 and 1 are both on cuda:0") {
		t.Errorf("two ranks on one GPU: %v", err)
	}
}

// TestCommunicatorsAreKept checks that a team's communicators are reused by the next team on the same GPUs but not by
// a second group of the same team, and are created anew after an abort.
func TestCommunicatorsAreKept(t *testing.T) {
	r := newRig(t, 2)
	connect := func(team uint64, want int) comm.Comm {
		t.Helper()
		ops, end, err := r.ops(2)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = end() }() // some streams have failed
		ends, err := r.Transport.Connect(comm.Group{Team: team, Name: "test", Ranks: []int{0, 1}}, ops)
		if err != nil {
			t.Fatal(err)
		}
		if r.made != want {
			t.Errorf("team %d: communicators were made %d times, want %d", team, r.made, want)
		}
		return ends[0]
	}
	connect(1, 1)
	connect(1, 2)
	connect(2, 2)
	connect(2, 2).Abort(errors.New("broken"))
	connect(3, 2)
	connect(3, 3)
}
