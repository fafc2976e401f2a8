package daemon

import (
	"slices"
	"testing"
)

// TestPlaces compares the devices that stats reports with --devices.
func TestPlaces(t *testing.T) {
	for devices, want := range map[string][]string{
		"cpu": {"cpu"}, "cuda:0-2,5": {"cuda:0", "cuda:1", "cuda:2", "cuda:5"}, "cuda:1,1": {"cuda:1", "cuda:1"},
	} {
		if got := (&Config{Devices: devices}).places(); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", devices, got, want)
		}
	}
}
