//go:build cgo && fakegpu

package stream_test

import (
	"errors"
	"testing"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/parallel/comm/commtest"
	"patchbay/tests/fakegpu"
)

// TestStagedOnFakeGPUs runs the transport suite with ranks on GPUs in several processes that have only host memory
// between them.
func TestStagedOnFakeGPUs(t *testing.T) {
	t.Setenv("FAKEGPU_DEVICES", "2")
	driver, err := cuda.Open(fakegpu.Library(t))
	if err != nil {
		t.Fatal(err)
	}
	var devices [2]*cuda.Device
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
	s := &several{processes: 2, meshes: meshes(t, 2, false)}
	defer func() {
		for _, m := range s.meshes {
			m.Close()
		}
	}()
	commtest.Run(t, commtest.Rig{Transport: s, Texts: true, Ops: func(n int) ([]engine.Ops, func() error, error) {
		out, ends := make([]engine.Ops, n), make([]func() error, n)
		for r := range out {
			o, err := devices[r%2].NewOps()
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
	}})
}
