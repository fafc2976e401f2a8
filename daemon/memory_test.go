package daemon

import "testing"

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
