package plantest

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestFreshnessTable compares the table with testdata/freshness.txt.
func TestFreshnessTable(t *testing.T) {
	text, err := os.ReadFile("testdata/freshness.txt")
	if err != nil {
		t.Fatal(err)
	}
	cases := 0
	var want, got []string
	compare := func(line int) {
		for i := range max(len(want), len(got)) {
			g, w := "nothing", "nothing"
			if i < len(got) {
				g = got[i]
			}
			if i < len(want) {
				w = want[i]
			}
			if g != w {
				t.Errorf("case before line %d, row %d: got %q, want %q", line, i, g, w)
			}
		}
		want, got = nil, nil
	}
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		var patches, evaluations, warmup int
		switch n, _ := fmt.Sscanf(line, "patches=%d evaluations=%d warmup=%d", &patches, &evaluations, &warmup); {
		case n == 3:
			compare(i)
			cases++
			for _, f := range FreshnessTable(patches, evaluations, warmup) {
				got = append(got, f.String())
			}
		case line != "" && line[0] != '#':
			want = append(want, line)
		}
	}
	compare(len(lines))
	if cases != 4 {
		t.Errorf("read %d cases, want 4", cases)
	}
}
