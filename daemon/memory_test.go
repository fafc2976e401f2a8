package daemon

import (
	"testing"

	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/parallel"
)

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]int64{
		"": 0, "1024": 1024, "2K": 2048, "1.5m": 3 << 19, "12G": 12 << 30,
		"1T": 1 << 40,
	} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"G", "-1G", "0", "lots", "9999999T"} {
		if got, err := ParseBytes(text); err == nil {
			t.Errorf("ParseBytes(%q) = %d, want an error", text, got)
		}
	}
}

func TestAvailableMemoryIsPlausible(t *testing.T) {
	if free := availableMemory(); free < 1<<20 || free > 1<<50 {
		t.Errorf("%d bytes are available", free)
	}
}

// TestPackCacheNeedsNoMemory checks that packed blocks in memory may take what --memory allows and are counted there,
// and that those in files of --pack-cache have no bound.
func TestPackCacheNeedsNoMemory(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		c := Config{Memory: "6G", PackCache: dir}
		ec := parallel.Config{DeviceOf: func(int) string { return "cuda:0" }}
		if _, _, err := c.bound(&ec, nil, zerolog.Nop()); err != nil {
			t.Fatal(err)
		}
		if want := map[bool]int64{true: 6 << 30}[dir == ""]; ec.HostMemory != want || ec.Copies.OnDisk() == (dir == "") {
			t.Errorf("with --pack-cache %q blocks may take %d bytes of host memory, want %d", dir, ec.HostMemory, want)
		}
		_, err := ec.Copies.Take("block", 7<<30, nil, func([]byte) error { return nil })
		if !fault.Is(err, fault.OutOfMemory) {
			t.Errorf("7 GiB of 6: %v", err)
		}
	}
	if err := (&Config{Devices: "cpu", PackCache: "memory_test.go"}).CheckDevices(); err == nil {
		t.Error("--pack-cache takes a file for a folder")
	}
}
