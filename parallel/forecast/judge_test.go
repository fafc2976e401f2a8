package forecast

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"patchbay/models/published"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
)

// publishedRow is one time that another program has published.
type publishedRow struct {
	Device, Model      string // Device: a key of publishedTable.Devices
	Text, Entries      int    // 0: as publishedTable.Text and the release say
	Size, Steps, Ranks int
	Plan               string // "best": the fastest of all plans on that many ranks
	Seconds            float64
	Group              string // rows whose order is checked
	Fit                bool   // the calibration was fitted to it
	Note               string
}

// String returns a description of the row.
func (r publishedRow) String() string {
	plan := r.Plan
	if plan == "" {
		plan = "one rank"
	}
	return fmt.Sprintf("%s %d px, %d steps, %dx%s, %s", r.Model, r.Size, r.Steps, r.Ranks, r.Device, plan)
}

// calibration holds what is fitted for one kind of device: rates, host time per operation, and the link.
type calibration struct {
	Cluster   string  `json:"cluster"`
	GEMM      float64 `json:"gemm"`
	Attention float64 `json:"attention"`
	Launch    float64 `json:"launch"`
	Bandwidth float64 `json:"bandwidth"`
	hardware.Shapes
	AllToAll float64 `json:"all_to_all"`
	Latency  float64 `json:"latency"`
	Across   float64 `json:"across"`
	Island   int     `json:"island"` // devices that share a switch; 0: as the link says
}

// publishedTable is testdata/published.json.
type publishedTable struct {
	Text    map[string]int
	Devices map[string]calibration
	// Disputed lists exactly the pairs that are predicted in the wrong order, with what the other program does
	// differently.
	Disputed []struct{ Group, First, Second, Why string }
	Rows     []publishedRow
}

// disputed reports whether a before b is one of the pairs that may be predicted in the wrong order.
func (p *publishedTable) disputed(a, b publishedRow) bool {
	for _, d := range p.Disputed {
		if d.Group == a.Group && d.First == a.Plan && d.Second == b.Plan {
			return true
		}
	}
	return false
}

func readPublished(t *testing.T) publishedTable {
	t.Helper()
	b, err := os.ReadFile("testdata/published.json")
	if err != nil {
		t.Fatal(err)
	}
	var p publishedTable
	if err := json.Unmarshal(b, &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// predict returns the simulated time of a row in seconds, by the calibration of its device and program.
func (p *publishedTable) predict(t *testing.T, r publishedRow) float64 {
	t.Helper()
	cal := p.Devices[r.Device]
	f, err := hardware.ParseCluster(fmt.Sprintf("%dx%s", r.Ranks, cal.Cluster))
	if err != nil {
		t.Fatal(err)
	}
	f.Device.GEMM, f.Device.Attention, f.Device.Launch = cal.GEMM, cal.Attention, cal.Launch
	f.Device.Shapes = cal.Shapes
	f.Device.Handover = cal.Latency // its last stage sends the latent straight back to the first
	f.Link.Bandwidth, f.Link.AllToAll, f.Link.Latency = cal.Bandwidth, cal.AllToAll, cal.Latency
	if cal.Across > 0 {
		f.Link.Across = cal.Across
	}
	if cal.Island > 0 {
		f.Link.Island = cal.Island
	}
	return p.on(t, r, f)
}

// on returns the simulated time of a row on a cluster in seconds.
func (p *publishedTable) on(t *testing.T, r publishedRow, f hardware.Cluster) float64 {
	t.Helper()
	m, err := published.Find(r.Model)
	if err != nil {
		t.Fatal(err)
	}
	text := slices.Repeat([]int{cmp.Or(r.Text, p.Text[r.Model])}, cmp.Or(r.Entries, m.Entries))
	w := Workload{Spec: m.Spec, Y: r.Size / m.Scale, X: r.Size / m.Scale, Batch: 1, Text: text, Evaluations: r.Steps}
	plans := []string{r.Plan}
	if r.Plan == "best" {
		plans = theirPlans(len(text), r.Ranks, r.Steps)
	}
	best := math.Inf(1)
	for _, text := range plans {
		plan, err := plan.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		choices := []int{1}
		if plan.Pipe > 1 {
			choices = []int{plan.Pipe, 2 * plan.Pipe}
		}
		for _, plan.Patches = range choices {
			best = min(best, simulate(newCosts(NewPartition(w, plan), f), true).Seconds)
		}
	}
	return best
}

// theirPlans returns the products of powers of two that xDiT accepts for n devices.
func theirPlans(entries, n, steps int) []string {
	var out []string
	for cfg := 1; cfg <= entries; cfg *= 2 {
		for pipe := 1; cfg*pipe <= n && (pipe == 1 || steps > 4); pipe *= 2 {
			for ring := 1; cfg*pipe*ring <= n; ring *= 2 {
				if rest := n / cfg / pipe / ring; n%(cfg*pipe*ring) == 0 {
					out = append(out, fmt.Sprintf("cfg=%d,pipe=%d,ring=%d,ulysses=%d", cfg, pipe, ring, rest))
				}
			}
		}
	}
	return out
}

// TestSimulatorAgainstPublishedTimes checks the simulator against published times: with one calibration per kind of
// device and program, the median error over all rows and over the held-out ones is at most 10 %, and where two methods
// differ by more than 10 % the faster one is predicted to be faster, except for the pairs that published.json disputes.
func TestSimulatorAgainstPublishedTimes(t *testing.T) {
	p := readPublished(t)
	got := make([]float64, len(p.Rows))
	var all, held []float64
	for i, r := range p.Rows {
		got[i] = p.predict(t, r)
		if !(got[i] > 0) {
			t.Fatalf("%s: predicted %v s", r, got[i])
		}
		off := math.Abs(got[i]-r.Seconds) / r.Seconds
		all = append(all, off)
		mark := "fit"
		if !r.Fit {
			mark = "held out"
			held = append(held, off)
		}
		t.Logf("%-62s published %7.2f s, predicted %7.2f s, %+5.0f %% (%s)", r, r.Seconds, got[i],
			100*(got[i]/r.Seconds-1), mark)
	}
	pairs, disputes, wrong := 0, 0, []string{}
	for i, a := range p.Rows {
		for j, b := range p.Rows {
			if a.Group == "" || a.Group != b.Group || a.Seconds*1.1 >= b.Seconds {
				continue
			}
			pairs++
			switch {
			case got[i] < got[j]:
			case p.disputed(a, b):
				disputes++
				t.Logf("disputed %s: %q before %q, predicted %.2f and %.2f", a.Group, a.Plan, b.Plan, got[i], got[j])
			default:
				wrong = append(wrong, fmt.Sprintf("%s: %q %.2f s before %q %.2f s, predicted %.2f and %.2f", a.Group, a.Plan,
					a.Seconds, b.Plan, b.Seconds, got[i], got[j]))
			}
		}
	}
	slices.Sort(all)
	slices.Sort(held)
	t.Logf("%d rows, median error %.1f %%; %d held out, median %.1f %%; %d of %d pairs in the published order", len(all),
		100*all[len(all)/2], len(held),
		100*held[len(held)/2], pairs-len(wrong)-disputes, pairs)
	if disputes != len(p.Disputed) {
		t.Errorf("%d pairs are disputed, %d of them are in the wrong order: the others must go from the list",
			len(p.Disputed), disputes)
	}
	if !(all[len(all)/2] <= 0.10 && held[len(held)/2] <= 0.10) {
		t.Errorf("median error %.1f %% (held out %.1f %%), bound 10 %%", 100*all[len(all)/2], 100*held[len(held)/2])
	}
	if len(wrong) > 0 {
		t.Errorf("%d of %d pairs in the wrong order:\n%s", len(wrong), pairs, strings.Join(wrong, "\n"))
	}
}

// TestBuiltInRatesAgainstPublishedTimes checks the table of devices, by which users plan, against those times of SGLang
// on H100 that nothing was fitted to.
func TestBuiltInRatesAgainstPublishedTimes(t *testing.T) {
	p := readPublished(t)
	var held []float64
	for _, r := range p.Rows {
		if r.Device != "H100 of SGLang" || r.Fit {
			continue
		}
		f, err := hardware.ParseCluster(fmt.Sprintf("%dxH100-nvlink", r.Ranks))
		if err != nil {
			t.Fatal(err)
		}
		got := p.on(t, r, f)
		held = append(held, math.Abs(got/r.Seconds-1))
		t.Logf("%-62s published %7.2f s, predicted %7.2f s, %+5.1f %%", r, r.Seconds, got, 100*(got/r.Seconds-1))
	}
	slices.Sort(held)
	if !(len(held) == 7 && held[0] >= 0 && held[len(held)/2] <= 0.06) {
		t.Errorf("errors %.3f, want seven with a median of at most 0.06", held)
	}
}
