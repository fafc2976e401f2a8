package parallel

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"patchbay/engine"
	"patchbay/parallel/comm"
	"patchbay/parallel/forecast"
	"patchbay/parallel/plan"
	"patchbay/parallel/request"
)

// countingEnd is the end of a group whose ranks compute nothing: it counts what would be sent, as Local does, and
// waits for no peer.
type countingEnd struct {
	comm.Comm // silent
	traffic   *comm.Traffic
}

func (e countingEnd) Run(c *comm.Call) { e.traffic.Sent(c.Sent(e.Rank(), e.Size()), c.Src.DType) }

func (e countingEnd) Begin(c *comm.Call) { e.Run(c) }

func (e countingEnd) Offer(_, src engine.Tensor, _ int) { e.traffic.Sent(src.Len(), src.DType) }

func (e countingEnd) SendRecv(_ engine.Tensor, _ int, src engine.Tensor, to int) {
	if to >= 0 {
		e.traffic.Sent(src.Len(), src.DType)
	}
}

func (e countingEnd) Traffic() comm.Traffic { return *e.traffic }

// countingTransport connects ranks that compute nothing.
type countingTransport struct{}

func (countingTransport) Connect(_ comm.Group, ops []engine.Ops) ([]comm.Comm, error) {
	out := make([]comm.Comm, len(ops))
	for i := range out {
		out[i] = countingEnd{comm.NewSilent(i, len(ops)), &comm.Traffic{}}
	}
	return out, nil
}

func (countingTransport) Interruptible() bool { return true }

// newRecordingEngine returns a leader that runs the real executor (leader, ranks and samplers) on operations that
// compute nothing and exchanges that move nothing.
func newRecordingEngine(t *testing.T) *Pool {
	t.Helper()
	e, err := NewPool(Config{
		Transport: countingTransport{},
		NewOps:    func(int, int) (engine.Ops, error) { return engine.NewRecorder(), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// TestForecastEqualsRecordedRun compares the planner's formulas with a recorded run of the executor, for every plan of
// the tests on every family, in f32 and bf16, with fewer and more evaluations than warm-ups: memory of each rank to
// the byte, and bytes and calls of each rank and axis.
func TestForecastEqualsRecordedRun(t *testing.T) {
	if testing.Short() {
		t.Skip("long: TestPatchesAreForecast, TestPrefixesAreForecast and TestStagesWithTheirWeightsAreForecast have some")
	}
	var plans []string
	for _, list := range [][]string{forecastPlans(), exactPlans(), stalePlans(), shardPlans(), streamPlans()} {
		plans = append(plans, list...)
	}
	slices.Sort(plans)
	plans = slices.Compact(plans)
	for k, f := range families(t) {
		e := newRecordingEngine(t)
		for a, steps := range []int{1, 4} {
			r := tinyRequest(t, f.name, 2, f.y, f.x, steps)
			for i, text := range plans {
				for b, compute := range []engine.DType{engine.F32, engine.BF16} {
					if !soak && (i+k+3*(2*a+b))%12 > 0 {
						continue // each of the four on one family of twelve
					}
					t.Run(fmt.Sprintf("%s/%d/%s/%s", f.name, steps, compute, text), func(t *testing.T) {
						compareRecorded(t, e, *r, text, compute)
					})
				}
			}
		}
	}
}

func compareRecorded(t *testing.T, e *Pool, r request.Request, text string, compute engine.DType) {
	t.Helper()
	text = taken(&r, text)
	w, p := workloadOf(&r), planOf(t, text)
	if err := p.Check(w.Spec, w.Batch, len(w.Text), w.Tokens()); err != nil {
		t.Fatalf("every tiny model takes it: %v", err)
	}
	r.Plan, r.Compute = text, compute
	e.dismiss() // ranks keep the memory of earlier requests
	res, err := e.Sample(context.Background(), &r, nil)
	if err != nil {
		t.Fatal(err)
	}
	checkTraffic(t, w, p, compute.Size(), res.Stats.Traffic)
	checkMemory(t, w, p, compute.Size(), e.whole.team, res.Stats.PeakBytes)
}

// TestMembersAreRanks checks that the planner assigns a member's work to the same rank as the team does.
func TestMembersAreRanks(t *testing.T) {
	e := newRecordingEngine(t)
	for _, text := range []string{"cfg=2,pipe=3,ulysses=2", "pipe=2,tensor=2", "data=2,ring=2"} {
		r := tinyRequest(t, "hunyuandit", 2, 10, 14, 1)
		r.Plan = text
		if _, err := e.Sample(context.Background(), r, nil); err != nil {
			t.Fatal(err)
		}
		o := forecast.NewPartition(workloadOf(r), planOf(t, text))
		for member := range e.whole.team.Members {
			at := e.whole.team.Mesh.At(member)
			at.Pipe = o.Stage(at.Pipe)
			says := plan.Mesh{Plan: e.whole.team.Plan}.Rank(at)
			if want, _ := e.whole.team.Device(member); says != want {
				t.Errorf("%s: member %d is rank %d, the planner says %d", text, member, want, says)
			}
		}
	}
}

// TestStagesWithTheirWeightsAreForecast compares a pipeline whose stages hold their own blocks alone, for every family:
// the outline of a stage must keep as little for foreign blocks as its weights do.
func TestStagesWithTheirWeightsAreForecast(t *testing.T) {
	for _, f := range families(t) {
		e := newRecordingEngine(t)
		r := tinyRequest(t, f.name, 2, f.y, f.x, 2)
		t.Run(f.name, func(t *testing.T) { compareRecorded(t, e, *r, "pipe=2,patches=3,shard=on", engine.BF16) })
	}
}

// TestUnevenTensorGroupsAreForecast compares the bytes that the ranks of a tensor group read from host memory with the
// planner's for every family, where heads and MLP columns do not divide evenly.
func TestUnevenTensorGroupsAreForecast(t *testing.T) {
	uneven := 0
	for _, f := range families(t) {
		e := newRecordingEngine(t)
		for _, text := range []string{"tensor=3,stream=on", "tensor=5,stream=3", "tensor=4,form=scatter,stream=2"} {
			r := tinyRequest(t, f.name, 2, f.y, f.x, 2)
			p, err := plan.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			w := workloadOf(r)
			if p.Check(w.Spec, w.Batch, len(w.Text), w.Tokens()) != nil {
				continue // refused, or fewer heads
			}
			if w.Spec.Groups()%p.Tensor > 0 {
				uneven++
			}
			t.Run(f.name+"/"+text, func(t *testing.T) { compareRecorded(t, e, *r, text, engine.BF16) })
		}
	}
	if uneven < 20 {
		t.Errorf("%d plans divide heads unevenly, want at least 20", uneven)
	}
}
