package parallel

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"patchbay/models/tiny"
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

// TestFreshnessFollowsTheSchedule checks that the table lists the micro-steps that the executor runs, in its order.
func TestFreshnessFollowsTheSchedule(t *testing.T) {
	d, err := tiny.Describe("flux")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"pipe=2", "pipe=3,patches=5,warmup=2", "pipe=4,patches=2,warmup=0", "ulysses=2"} {
		p, err := ParsePlan(text)
		if err != nil {
			t.Fatal(err)
		}
		o := newOutline(Workload{Spec: &d.Spec, Y: 12, X: 12, Batch: 1, Text: []int{7}, Evaluations: 5}, p)
		table := FreshnessTable(len(o.patches), 5, p.Warmup)
		for i, m := range o.micros() {
			if i >= len(table) || table[i].Micro != m {
				t.Fatalf("%s: micro-step %d is %s, the table has %v", text, i, m, table[min(i, len(table)-1)].Micro)
			}
		}
		if len(table) != len(o.micros()) {
			t.Errorf("%s: %d rows, the executor has %d micro-steps", text, len(table), len(o.micros()))
		}
	}
}
