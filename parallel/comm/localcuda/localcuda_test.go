//go:build cgo && fakegpu

package localcuda_test

import (
	"errors"
	"os"
	"testing"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/engine/ref"
	"patchbay/parallel/comm"
	"patchbay/parallel/comm/commtest"
	"patchbay/parallel/comm/localcuda"
	"patchbay/tests/fakegpu"
)

// TestLocalCUDA runs the transport suite with ranks on one device and on devices with and without peer access, with
// streams in a random order, and with work that begins as soon as it may.
func TestLocalCUDA(t *testing.T) {
	for _, c := range []struct {
		name               string
		devices            int
		peers, seed, eager string
	}{
		{"one device", 1, "1", "1", ""},
		{"devices", 3, "1", "2", ""},
		{"devices that do not reach each other", 3, "0", "3", ""},
		{"eager", 2, "1", "4", "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("FAKEGPU_DEVICES", "8")
			t.Setenv("FAKEGPU_PEERS", c.peers)
			t.Setenv("FAKEGPU_SEED", c.seed)
			t.Setenv("FAKEGPU_EAGER", c.eager)
			commtest.Run(t, commtest.Rig{Transport: localcuda.Transport{}, Ops: streams(open(t, c.devices))})
		})
	}
}

// open opens n devices and closes them at the end of the test, which fails if memory was not freed.
func open(t *testing.T, n int) []*cuda.Device {
	t.Helper()
	dir := os.Getenv("PATCHBAY_TEST_CUDA")
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
	if len(list) < n {
		t.Skipf("NOT RUN: %d GPUs are here, this needs %d", len(list), n)
	}
	devices := make([]*cuda.Device, n)
	for i := range devices {
		if devices[i], err = driver.Device(i); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := devices[i].Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return devices
}

// streams returns a function that makes the Ops of n ranks, which take turns on the devices.
func streams(devices []*cuda.Device) func(n int) ([]engine.Ops, func() error, error) {
	return func(n int) ([]engine.Ops, func() error, error) {
		out, ends := make([]engine.Ops, n), make([]func() error, n)
		for r := range out {
			o, err := devices[r%len(devices)].NewOps()
			if err != nil {
				return nil, nil, err
			}
			out[r], ends[r] = o, o.Close
		}
		return out, func() error {
			var errs []error
			for _, end := range ends {
				errs = append(errs, end())
			}
			return errors.Join(errs...)
		}, nil
	}
}

// TestRefusals checks that Ops of another kind and groups too large for one sum are refused.
func TestRefusals(t *testing.T) {
	if _, err := (localcuda.Transport{}).Connect(comm.Group{Name: "test"}, []engine.Ops{ref.New()}); err == nil {
		t.Error("ranks on the processors were connected")
	}
	ops, end, err := streams(open(t, 1))(33)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (localcuda.Transport{}).Connect(comm.Group{Name: "test"}, ops); err == nil {
		t.Error("33 ranks were connected")
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}

// TestFreeWaitsForOtherDevices checks that memory is not freed while a stream of another device still reads it.
func TestFreeWaitsForOtherDevices(t *testing.T) {
	t.Setenv("FAKEGPU_DEVICES", "2")
	ops, end, err := streams(open(t, 2))(2)
	if err != nil {
		t.Fatal(err)
	}
	ends, err := (localcuda.Transport{}).Connect(comm.Group{Name: "test"}, ops)
	if err != nil {
		t.Fatal(err)
	}
	const n = 64
	memory := func(o engine.Ops) engine.Tensor {
		buf, err := o.Alloc(4 * n)
		if err != nil {
			t.Fatal(err)
		}
		return engine.NewTensor(buf, engine.F32, n)
	}
	src, slot, posted, got := memory(ops[0]), memory(ops[0]), memory(ops[1]), memory(ops[1])
	ops[0].Fill(src, 3)
	ends[0].Offer(slot, src, 1)
	ends[1].Post(posted, 0)
	ops[0].Free(slot.Buf)
	ends[1].Await(got, 0)
	values := make([]float32, n)
	if err := ops[1].Download(values, got).Wait(); err != nil {
		t.Fatal(err)
	}
	if values[0] != 3 || values[n-1] != 3 {
		t.Errorf("got %g .. %g, want 3", values[0], values[n-1])
	}
	ops[0].Free(src.Buf)
	ops[1].Free(posted.Buf)
	ops[1].Free(got.Buf)
	if err := end(); err != nil {
		t.Error(err)
	}
}
