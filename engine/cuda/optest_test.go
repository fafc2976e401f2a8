//go:build cgo && fakegpu

package cuda

import (
	"os"
	"testing"

	"patchbay/engine/optest"
	"patchbay/tests/fakegpu"
)

// driverFolder returns the directory of the driver library for tests: PATCHBAY_TEST_CUDA if it is set ("-" stands for
// the loader's search path, which is how the tests run on a GPU), else that of the fake device.
func driverFolder(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv("PATCHBAY_TEST_CUDA"); dir != "" {
		return dir
	}
	return fakegpu.Library(t)
}

// openDevice opens device 0 and closes it at the end of the test, which reports memory that was not freed.
func openDevice(t testing.TB) *Device {
	t.Helper()
	d, err := Open(driverFolder(t))
	if err != nil {
		t.Fatal(err)
	}
	dev, err := d.Device(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return dev
}

// openOps makes a stream on device 0.
func openOps(t testing.TB) *Ops {
	t.Helper()
	o, err := openDevice(t).NewOps()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
	return o
}

// TestConformance runs the suite with asynchronous copies that land as late as their wait allows, and again with
// cuBLASLt and copies that land at once.
func TestConformance(t *testing.T) {
	known := &optest.Reference{}
	t.Run("late", func(t *testing.T) {
		t.Setenv("FAKEGPU_LANDING", "late")
		optest.Run(t, openOps(t), optest.Options{BF16: true, Reference: known})
	})
	t.Run("once", func(t *testing.T) {
		t.Setenv("FAKEGPU_LANDING", "once")
		o := newOps(t, openLibrary(t))
		optest.Run(t, o, optest.Options{BF16: true, Reference: known})
		if o.library == 0 || o.refused > 0 {
			t.Errorf("%d products by cuBLASLt, want some; it disagrees for %d shapes", o.library, o.refused)
		}
	})
}
