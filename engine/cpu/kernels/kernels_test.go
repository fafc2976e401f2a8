//go:build cgo

package kernels

import (
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"patchbay/tests/race"
)

// TestLevelsOfThisProcessor compares the levels with what Linux says of the processor.
func TestLevelsOfThisProcessor(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector levels are left out")
	}
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		t.Fatal(err)
	}
	flags := " " + string(regexp.MustCompile(`(?m)^(flags|Features)\s*:.*`).Find(info)) + " "
	needs := map[string]string{
		"generic": "", "avx2": "avx2 fma f16c", "avx512": "avx2 fma f16c avx512f avx512bw avx512dq avx512vl",
		"avx512bf16": "avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_bf16 avx512_vnni",
	}
	for _, l := range Levels() {
		flagsNeeded, known := needs[l.Name]
		if !known {
			continue // amx also needs Linux' permission
		}
		want := l.Name == "generic" || runtime.GOARCH == "amd64"
		for flag := range strings.FieldsSeq(flagsNeeded) {
			want = want && strings.Contains(flags, " "+flag+" ")
		}
		if (l.Table != nil) != want {
			t.Errorf("level %s is there: %v, want %v by /proc/cpuinfo:%s", l.Name, l.Table != nil, want, flags)
		}
	}
}
