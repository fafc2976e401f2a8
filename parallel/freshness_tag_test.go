package parallel

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"patchbay/engine"
	"patchbay/parallel/forecast"
	"patchbay/parallel/plan"
	"patchbay/parallel/plan/plantest"
	"patchbay/parallel/rank"
	"patchbay/parallel/request"
)

// tagBase distinguishes tags from keys that are not tagged (text keys in cross-attention).
const tagBase = 1 << 20

// tagging is an Ops that replaces keys and values, where they are normalized before they are stored, by the number of
// the evaluation, and records what every attention reads. The tags pass through all exchanges and stores.
type tagging struct {
	engine.Ops
	pos *rank.Position
	mu  *sync.Mutex
	// idle: only tags move and nothing is computed, when the result of a run does not matter.
	idle bool
	// seen counts reads by micro-step and by the tags of all rows, in sequence order.
	seen map[plan.Micro]map[string]int
}

func (o *tagging) QKNormRoPE(qo, ko, vo, q, k, v engine.Tensor, n engine.QKNorm, r engine.RoPE) {
	if !o.idle {
		o.Ops.QKNormRoPE(qo, ko, vo, q, k, v, n, r)
	}
	tag := tagBase + float32(o.pos.Now().Evaluation)
	for _, t := range []engine.Tensor{ko, vo} {
		if !t.IsZero() {
			ones := engine.FromF32(slices.Repeat([]float32{tag}, t.Len()), t.Dim(0), t.Dim(1), t.Dim(2), t.Dim(3))
			o.Copy(t, ones)
		}
	}
}

func (o *tagging) Attention(out, q, k, v engine.Tensor, a engine.AttentionArgs) {
	if !o.idle {
		o.Ops.Attention(out, q, k, v, a)
	}
	tags := ""
	for _, t := range []engine.Tensor{k, v} {
		b, l, h, d := t.Dim(0), t.Dim(1), t.Dim(2), t.Dim(3)
		if b*l*h*d == 0 {
			return
		}
		flat := engine.FromF32(make([]float32, b*l*h*d), b, l, h, d)
		o.Copy(flat, t)
		rows := make([]float32, l)
		for i, x := range flat.F32() {
			if x < tagBase {
				return // keys and values of cross-attention
			}
			row := i / (h * d) % l
			if i/(h*d) < l && i%(h*d) == 0 {
				rows[row] = x
			}
			if x != rows[row] {
				rows[row] = -1 // heads, items or channels of one row disagree
			}
		}
		text := ""
		for _, x := range rows {
			text += fmt.Sprint(x-tagBase, " ")
		}
		if tags != "" && tags != text {
			text = "keys " + tags + "values " + text
		}
		tags = text
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	m := o.pos.Now()
	if o.seen[m] == nil {
		o.seen[m] = map[string]int{}
	}
	o.seen[m][tags]++
}

func (o *tagging) Linear(y, x engine.Tensor, w *engine.Weight, e engine.Epilogue) {
	if !o.idle {
		o.Ops.Linear(y, x, w, e)
	}
}

// taggedEngine returns a leader whose ranks run tagging operations, idle or not.
func taggedEngine(t *testing.T, idle bool) (*Pool, *sync.Mutex, map[plan.Micro]map[string]int) {
	t.Helper()
	mu, seen := new(sync.Mutex), map[plan.Micro]map[string]int{}
	e, err := NewPool(Config{NewOps: func(rank, ranks int) (engine.Ops, error) {
		ops, err := testOps(rank, ranks)
		return &tagging{Ops: ops, mu: mu, idle: idle, seen: seen}, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e, mu, seen
}

// wantTags returns the tags that one attention reads according to the freshness table: evaluation numbers, text first.
func wantTags(f plantest.Freshness, w forecast.Workload, p plan.Plan, entry int, imageOnly bool) string {
	o, out := forecast.NewPartition(w, p), ""
	if !imageOnly {
		for range o.Sequence(entry).Text {
			out += fmt.Sprint(f.Micro.Evaluation-f.Text, " ")
		}
	}
	for j, r := range o.Patches {
		for range r.Len() {
			out += fmt.Sprint(f.Micro.Evaluation-f.Image[j], " ")
		}
	}
	return out
}

// TestStoresHoldWhatTheTableSays checks, for every number of stages, patches and warm-up evaluations, combined with
// ulysses and ring, on straight and folded pipelines, that what every attention of every micro-step reads is row by
// row as old as FreshnessTable says, and is read once per attention. Tags are written where keys are made and read
// where attention begins, so store, exchanges and schedule are all covered.
func TestStoresHoldWhatTheTableSays(t *testing.T) {
	if testing.Short() {
		t.Skip("long: TestLateEntriesAreSynchronousAtFirst follows the age of every value on one plan")
	}
	const evaluations = 4
	for k, family := range []string{"flux", "sd3", "hunyuandit"} {
		e, mu, seen := taggedEngine(t, true)
		r := tinyRequest(t, family, 1, 8, 8, evaluations)
		r.Branches, r.Guider = []request.Branch{{
			Name:    "positive",
			Entries: r.Branches[0].Entries[:1],
		}}, request.Guider{Kind: request.GuideBasic}
		w := workloadOf(r)
		plans := somePlans(tagPlans(family), k, 6)
		if family == "hunyuandit" && !testing.Short() { // only folded pipelines lend out their 8-bit stores
			plans = append(plans, "pipe=2,patches=3,warmup=1,sync=spread,kv=fp8")
		}
		for _, text := range plans {
			r := *r
			r.Plan = text
			p, err := plan.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			if p.Check(w.Spec, w.Batch, len(w.Text), w.Tokens()) != nil {
				continue
			}
			clear(seen)
			e.dismiss()
			if err := e.whole.assemble(p, w.Spec); err != nil {
				t.Fatal(err)
			}
			for _, l := range e.whole.team.Members {
				rankOf(l).Ops.(*tagging).pos = rankOf(l).Pos
			}
			if _, err := e.Sample(context.Background(), &r, nil); err != nil {
				t.Fatalf("%s %s: %v", family, text, err)
			}
			mu.Lock()
			compareTags(t, family+" "+text, w, p, seen)
			mu.Unlock()
		}
	}
}

// compareTags compares all reads and their counts with FreshnessTable.
func compareTags(t *testing.T, name string, w forecast.Workload, p plan.Plan, seen map[plan.Micro]map[string]int) {
	t.Helper()
	compareTagsWith(t, name, w, p, seen, plantest.FreshnessTable(len(forecast.NewPartition(w, p).Patches),
		w.Evaluations, p.Warmup))
}

// compareTagsWith compares them with a given table.
func compareTagsWith(t *testing.T, name string, w forecast.Workload, p plan.Plan, seen map[plan.Micro]map[string]int,
	table []plantest.Freshness,
) {
	t.Helper()
	if len(seen) != len(table) {
		t.Errorf("%s: %d micro-steps read something, the table has %d", name, len(seen), len(table))
	}
	for _, f := range table {
		want := map[string]int{}
		for i := range w.Text {
			for _, b := range w.Spec.Blocks {
				plan.EachAttention(b, func(imageOnly bool) {
					n := p.Ulysses * p.Ring
					if f.Micro.Whole && p.Spread { // all stages read it
						n *= p.Pipe
					}
					want[wantTags(f, w, p, i, imageOnly)] += n
				})
			}
		}
		got := seen[f.Micro]
		for tags, n := range want {
			if got[tags] != n {
				t.Fatalf("%s: %s: %d attentions read %s\nwant %d; all readings: %v", name, f, got[tags], tags, n, got)
			}
		}
		if len(got) != len(want) {
			t.Fatalf("%s: %s: %d kinds of readings, want %d: %v", name, f, len(got), len(want), got)
		}
	}
}

// tagPlans returns plans of 2 to 4 stages, 1 to 8 patches and 0 to 2 warm-up evaluations, some with ulysses and ring.
func tagPlans(family string) []string {
	var out []string
	step, warmups := 1, []int{0, 1, 2}
	if family != "flux" {
		step = 2
	}
	for pipe := 2; pipe <= 4; pipe++ {
		for patches := 1; patches <= 8; patches += step {
			for _, warmup := range warmups {
				base := fmt.Sprintf("pipe=%d,patches=%d,warmup=%d", pipe, patches, warmup)
				out = append(out, base)
				if patches%3 == 0 && pipe != 3 {
					out = append(out, base+",sync=spread", base+",ulysses=2,sync=spread", base+",ring=2,sync=spread")
				}
				if family == "flux" || patches == 3 {
					out = append(out, base+",ulysses=2")
				}
				if patches%4 == 2 {
					out = append(out, base+",ring=2", base+",ring=2,ulysses=3")
				}
				if patches == 6 || patches == 1 && pipe == 2 { // a constant row survives 8 bits unchanged
					out = append(out, base+",kv=fp8", base+",ring=2,ulysses=2,kv=fp8", base+",sync=spread,kv=fp8")
				}
			}
		}
	}
	return out
}
