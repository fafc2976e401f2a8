//go:build cgo

package nccl

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/engine/cuda/library"
	"patchbay/parallel/comm"
	"patchbay/parallel/comm/commtest"
	"patchbay/tests/fakegpu"
)

// rig is a transport and its devices, the fake ones unless PATCHBAY_TEST_CUDA says otherwise.
type rig struct {
	*Transport
	devices []*cuda.Device
	lib     *cuda.NCCL
	teams   uint64
	made    int // calls that made communicators
}

// newRig opens so many devices and makes a transport on them; at the end of the test all is closed, which finds what was
// not given back.
func newRig(t *testing.T, devices int) *rig {
	t.Helper()
	t.Setenv("FAKEGPU_DEVICES", strconv.Itoa(devices))
	dir := os.Getenv("PATCHBAY_TEST_CUDA")
	search := &library.Search{Folders: filepath.Join(dir, "nccl")}
	if dir == "" {
		dir = fakegpu.Library(t)
		search.Folders = filepath.Join(dir, "nccl")
	}
	driver, err := cuda.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	list, err := driver.Devices()
	if err != nil {
		t.Fatal(err)
	}
	if len(list) < devices {
		t.Skipf("NOT RUN: %d GPUs are here, this needs %d", len(list), devices)
	}
	lib, err := driver.NCCL(search)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{lib: lib, Transport: New(lib, nil), devices: make([]*cuda.Device, devices)}
	connect := r.connect
	r.Transport.connect = func(groups ...[]*cuda.Ops) ([]communicators, error) {
		r.made++
		return connect(groups...)
	}
	for i := range r.devices {
		if r.devices[i], err = driver.Device(i); err != nil {
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

// Connect gives every group a team of its own, so that communicators are given back or used again.
func (r *rig) Connect(g comm.Group, ops []engine.Ops) ([]comm.Comm, error) {
	r.teams++
	g.Team = r.teams
	return r.Transport.Connect(g, ops)
}

// ops makes streams of ranks, each on a device of its own.
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

// TestNCCL: the suite of all transports, with streams in an order that is drawn, and work that begins as soon as it may.
func TestNCCL(t *testing.T) {
	for _, c := range []struct{ name, seed, eager string }{{"drawn", "1", ""}, {"eager", "2", "1"}} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("FAKEGPU_SEED", c.seed)
			t.Setenv("FAKEGPU_EAGER", c.eager)
			r := newRig(t, 6)
			commtest.Run(t, commtest.Rig{Transport: r, Ops: r.ops, Late: true})
		})
	}
}

var _ = time.Second
