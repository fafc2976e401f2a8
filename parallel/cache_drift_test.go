package parallel

import (
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"patchbay/parallel/request"
)

// pageTable is a table of docs/parallel.md between two markers.
type pageTable struct{ page, begin, end string }

func cacheTable() pageTable {
	return pageTable{
		driftPage, "<!-- cache: go test ./parallel -run CacheOnTheDemo -args -update-drift -->\n",
		"<!-- /cache -->\n",
	}
}

// cut returns the page before the table, the table, and the page after it.
func (p pageTable) cut(t *testing.T) (before, table, after string) {
	t.Helper()
	text, err := os.ReadFile(p.page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), p.begin)
	table, after, ok2 := strings.Cut(rest, p.end)
	if !ok || !ok2 {
		t.Fatalf("%s has no table between %q and %q", p.page, p.begin, p.end)
	}
	return before, table, after
}

func (p pageTable) write(t *testing.T, table string) {
	t.Helper()
	before, _, after := p.cut(t)
	if err := os.WriteFile(p.page, []byte(before+p.begin+table+p.end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// rows returns the numbers in each row of a table by its first column.
func (p pageTable) rows(t *testing.T) map[string][]float64 {
	t.Helper()
	_, table, _ := p.cut(t)
	out := map[string][]float64{}
	for line := range strings.SplitSeq(table, "\n") {
		cells := strings.Split(strings.Trim(line, "| "), "|")
		var values []float64
		for _, c := range cells[1:] {
			var v float64
			if n, _ := fmt.Sscan(strings.TrimSpace(c), &v); n == 1 {
				values = append(values, v)
			}
		}
		if len(values) > 0 {
			out[strings.TrimSpace(cells[0])] = values
		}
	}
	return out
}

// meanPSNR returns the mean PSNR in dB of pictures against others; the peak is 1. It is -Inf if they cannot be
// compared.
func meanPSNR(got, want [][]float32) float64 {
	if len(got) != len(want) || len(got) == 0 {
		return math.Inf(-1)
	}
	total := 0.0
	for k, picture := range got {
		if len(picture) != len(want[k]) {
			return math.Inf(-1)
		}
		mse := 0.0
		for i, v := range picture {
			d := float64(v - want[k][i])
			mse += d * d / float64(len(picture))
		}
		total += decibels(1, max(mse, 1e-12))
	}
	return total / float64(len(got))
}

// mean returns the mean of a statistic over the last pictures.
func (b *driftBench) mean(of func(request.Stats) int) float64 {
	n := 0
	for _, s := range b.stats {
		n += of(s)
	}
	return float64(n) / float64(len(b.stats))
}

// cachePlans returns the plans of the table, of which the first two share columns. cacheRow returns for each of them
// the evaluations that ran with a cache, and the PSNR to the same plan without one.
func cachePlans() []string { return []string{"", "cfg=2,ulysses=2", "pipe=2,patches=4,warmup=1"} }

func (b *driftBench) cacheRow(c request.Cache, plain map[string][][]float32) []float64 {
	b.t.Helper()
	var out []float64
	for i, plan := range cachePlans() {
		if i == 1 && !soak && !*writeDrift {
			out = append(out, out...) // TestCacheOnExactPlans checks that they equal one rank's
			continue
		}
		if plain[plan] == nil {
			b.cache = nil
			plain[plan] = b.pictures(plan)
		}
		b.cache = &c
		got := b.pictures(plan)
		out = append(out, b.mean(func(s request.Stats) int { return s.Evaluations }), meanPSNR(got, plain[plan]))
	}
	b.cache = nil
	return out
}

func cacheRows() map[string]request.Cache {
	out := map[string]request.Cache{}
	for _, v := range []float32{0.1, 0.2, 0.5} {
		out[fmt.Sprintf("EasyCache %v", v)] = request.Cache{Threshold: v, Start: 0.15, End: 0.95}
	}
	out["LazyCache 0.2"] = request.Cache{Rule: request.CacheLazy, Threshold: 0.2, Start: 0.15, End: 0.95}
	return out
}

// TestCacheOnTheDemo compares pictures with a cache with those without, on one rank, an exact plan and a pipeline. In
// the rows tested the table in docs/parallel.md must hold to 1 dB and half an evaluation, and the exact plan must
// equal one rank. Some row must save a factor of 1.8 in evaluations.
func TestCacheOnTheDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("long: it measures a table of docs/parallel.md on trained weights")
	}
	const steps = 12
	plain := map[string][][]float32{}
	if *writeDrift {
		b := newDriftBench(t)
		table := "| node and threshold | exact plans: evaluations of 12 | PSNR | pipe=2,patches=4: evaluations | PSNR |\n" +
			"|---|---|---|---|---|\n"
		for _, name := range slices.Sorted(maps.Keys(cacheRows())) {
			row := b.cacheRow(cacheRows()[name], plain)
			table += fmt.Sprintf("| %s | %.1f | %.1f | %.1f | %.1f |\n", name, row[0], row[1], row[4], row[5])
		}
		cacheTable().write(t, table)
		return
	}
	rows := cacheTable().rows(t)
	if len(rows) != len(cacheRows()) {
		t.Fatalf("the table has %d rows, want %d", len(rows), len(cacheRows()))
	}
	best := steps + 1.0
	for name, want := range rows {
		if strings.HasPrefix(name, "EasyCache") {
			best = min(best, want[0], want[2])
		}
	}
	if best*1.8 > steps {
		t.Errorf("the table's best row runs %.1f of %d evaluations: no speed-up of 1.8", best, steps)
	}
	if testing.Short() {
		return // only the long form makes pictures
	}
	b := newDriftBench(t)
	tested := []string{"EasyCache 0.2", "LazyCache 0.2"}
	if !soak {
		tested = tested[:1]
	}
	for _, name := range tested {
		got, want := b.cacheRow(cacheRows()[name], plain), rows[name]
		want = append(want[:2:2], want...) // exact plans share columns
		t.Logf("%s: %.2f, table %.1f", name, got, want)
		for i := range want {
			if !near(got[i], want[i], []float64{0.5, 1}[i%2]) {
				t.Errorf("%s, %q: %.2f, the table says %.1f", name, cachePlans()[i/2], got[i], want[i])
			}
		}
		if got[2] != got[0] || !near(got[3], got[1], 0.1) {
			t.Errorf("%s: %s runs %.2f evaluations at %.2f dB, one rank %.2f at %.2f", name, cachePlans()[1], got[2],
				got[3], got[0], got[1])
		}
	}
}

// BenchmarkCacheOnTheDemo measures the time that goes with the table: six pictures of the demo model, text states
// given, VAE included. denoise-ms/picture is the time of the steps.
func BenchmarkCacheOnTheDemo(b *testing.B) {
	d := newDriftBench(b)
	for _, plan := range cachePlans() {
		for _, c := range []*request.Cache{nil, {Threshold: 0.2, Start: 0.15, End: 0.95}} {
			name := fmt.Sprintf("plan=%s/cache=%v", plan, c != nil)
			d.cache = c
			b.Run(name, func(b *testing.B) {
				seconds := 0.0
				for b.Loop() {
					d.draw(plan)
					for _, s := range d.stats {
						for _, v := range s.StepSeconds {
							seconds += v
						}
					}
				}
				b.ReportMetric(seconds/float64(b.N)/6*1e3, "denoise-ms/picture")
				b.ReportMetric(d.mean(func(s request.Stats) int { return s.Evaluations }), "evaluations")
			})
		}
	}
}
