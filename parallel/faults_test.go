package parallel

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/parallel/request"
)

// faulty is an Ops that calls fault in a chosen call of Linear.
type faulty struct {
	engine.Ops
	left  *atomic.Int64 // calls until the fault, counted over all ranks
	fault func()
}

func (f *faulty) Linear(y, x engine.Tensor, w *engine.Weight, e engine.Epilogue) {
	if f.left.Add(-1) == 0 {
		f.fault()
	}
	f.Ops.Linear(y, x, w, e)
}

// faultyEngine returns a leader whose ranks share one countdown.
func faultyEngine(t *testing.T, left *atomic.Int64, fault func()) *Pool {
	t.Helper()
	e, err := NewPool(Config{NewOps: func(rank, ranks int) (engine.Ops, error) {
		ops, err := testOps(rank, ranks)
		return &faulty{ops, left, fault}, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// TestPanicInARankFailsOnlyTheJob checks that the error names the rank and carries the stack, that no rank hangs, and
// that the next run has the same bits as before.
func TestPanicInARankFailsOnlyTheJob(t *testing.T) {
	for _, plan := range []string{
		"", "ulysses=3", "ring=2", "gather=2", "tensor=2", "cfg=2,pipe=2,patches=3,warmup=1",
	} {
		t.Run(plan, func(t *testing.T) {
			var left atomic.Int64
			e := faultyEngine(t, &left, func() { panic("kernel fault") })
			r := parityRequest(t, openGolden(t, anyModel), anyModel, 1, 8, 8, 4)
			r.Plan = plan
			want, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			left.Store(90)
			_, err = e.Sample(context.Background(), r, nil)
			var pe *fault.Error
			if !errors.As(err, &pe) || pe.Code != fault.Panic || !strings.Contains(pe.Text, "rank") ||
				!strings.Contains(pe.Stack, "faults_test.go") {
				t.Fatalf("got %v, want a panic that names its rank and has a stack", err)
			}
			got, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			if rel := relative(got.Latent.Data, want.Latent.Data); rel != 0 {
				t.Errorf("the run after the panic differs by %.3g", rel)
			}
		})
	}
}

// TestErrorInObserverEndsTheRun stands for a panic or error in anything that runs inside the sampler's loop.
func TestErrorInObserverEndsTheRun(t *testing.T) {
	e := newEngine(t)
	r := parityRequest(t, openGolden(t, "flux-c"), "flux-c", 1, 8, 8, 4)
	_, err := e.Sample(context.Background(), r, func(request.Progress) error { panic("sampler fault") })
	var pe *fault.Error
	if !errors.As(err, &pe) || pe.Code != fault.Panic || !strings.Contains(pe.Text, "sampler euler") {
		t.Fatalf("got %v, want a panic that names the sampler", err)
	}
	if _, err := e.Sample(context.Background(), r, nil); err != nil {
		t.Fatal(err)
	}
}

// TestRefusalsNameTheField checks requests and plans that must not start.
func TestRefusalsNameTheField(t *testing.T) {
	e := newEngine(t)
	g := openGolden(t, "flux-c")
	nan := float32(0)
	nan /= nan
	for name, c := range map[string]struct {
		change func(r *request.Request)
		field  string
		text   string
	}{
		"channels":      {func(r *request.Request) { r.Latent = request.NewLatent(1, 4, 8, 8) }, "latent", "4 channels"},
		"nan cfg":       {func(r *request.Request) { r.Guider.CFG = nan }, "cfg", "finite"},
		"nan sigma":     {func(r *request.Request) { r.Sigmas = []float32{1, nan} }, "sigmas", "finite"},
		"sampler":       {func(r *request.Request) { r.Sampler = "nope" }, "sampler", "euler"},
		"context":       {func(r *request.Request) { r.Branches[0].Entries[0].Context.Cols = 7 }, "positive", "[tokens, 40]"},
		"noise":         {func(r *request.Request) { r.Noise.Y = 3 }, "noise", "shape"},
		"mask":          {func(r *request.Request) { r.Mask = request.NewLatent(1, 1, 3, 3) }, "mask", "want"},
		"branches":      {func(r *request.Request) { r.Branches = r.Branches[:1] }, "branches", "2"},
		"plan key":      {func(r *request.Request) { r.Plan = "ulises=2" }, "plan.ulises", "ulysses"},
		"plan value":    {func(r *request.Request) { r.Plan = "ulysses=0" }, "plan.ulysses", "from 1"},
		"plan both":     {func(r *request.Request) { r.Plan = "ring=2,gather=2" }, "plan.gather", "leave out one"},
		"gather value":  {func(r *request.Request) { r.Plan = "gather=0" }, "plan.gather", "from 1"},
		"gather tokens": {func(r *request.Request) { r.Plan = "gather=20" }, "plan.ulysses", "gather*ulysses is 20"},
		"plan twice":    {func(r *request.Request) { r.Plan = "cfg=2,cfg=2" }, "plan.cfg", "once"},
		"warm-up":       {func(r *request.Request) { r.Plan = "pipe=2,warmup=-1" }, "plan.warmup", "from 0"},
		"ranks":         {func(r *request.Request) { r.Plan = "ulysses=9,cfg=9" }, "plan", "64"},
		"data":          {func(r *request.Request) { r.Plan = "data=3" }, "plan.data", "data=1"},
		"heads":         {func(r *request.Request) { r.Plan = "tensor=7" }, "plan.tensor", "6 heads"},
		"stages":        {func(r *request.Request) { r.Plan = "pipe=5" }, "plan.pipe", "pipe=4"},
		"patches":       {func(r *request.Request) { r.Plan = "pipe=2,patches=17" }, "plan.patches", "16 tokens"},
		"spread only":   {func(r *request.Request) { r.Plan = "sync=spread" }, "plan.sync", "one stage"},
		"spread value":  {func(r *request.Request) { r.Plan = "pipe=2,sync=yes" }, "plan.sync", "stages or spread"},
		"resync":        {func(r *request.Request) { r.Plan = "pipe=2,resync=20" }, "plan.resync", "warmup=2"},
		"cut":           {func(r *request.Request) { r.Plan = "pipe=2,shard=on,cut=weights" }, "plan.cut", "leave cut out"},
		"half heads":    {func(r *request.Request) { r.Plan = "ulysses=2,heads=halves" }, "plan.heads", "leave heads out"},
		"patches only":  {func(r *request.Request) { r.Plan = "patches=2" }, "plan.patches", "one stage"},
		"bias behind": {func(r *request.Request) {
			b := r.Branches[0].Entries[0].Biases
			b[0], b[1] = b[1], b[0]
		}, "positive", "bias 1 on rows 1 to 3 of its text: want rows of 13, behind those of the bias before"},
		"bias beyond": {
			func(r *request.Request) { r.Branches[1].Entries[0].Biases[1].Rows.End = 8 }, "negative",
			"want rows of 7",
		},
		"bias of none": {
			func(r *request.Request) { r.Branches[1].Entries[0].Biases[0].Rows.End = 1 }, "negative",
			"rows 1 to 1",
		},
		"slots": {
			func(r *request.Request) { r.Branches[0].Entries[0].Slots = []int{2, 14} }, "positive",
			"behind [2 14] rows of its text: want ascending numbers from 0 to 13",
		},
		"nan bias": {func(r *request.Request) { r.Branches[1].Entries[0].Biases[1].Value = nan }, "negative", "finite"},
		"bias + reference": {func(r *request.Request) {
			r.Branches[0].Entries[0].References = []dit.Reference{{Y: 2, X: 2, Data: make([]float32, 64)}}
		}, "positive", "reference latents"},
		"bias + prefix": {func(r *request.Request) {
			biases := r.Branches[0].Entries[0].Biases
			prefixed(r, 1)
			r.Branches[0].Entries[0].Biases = biases
		}, "positive", "USOStyleReference"},
		"bias elsewhere": {func(r *request.Request) {
			spec := *r.Model.Spec
			spec.Biases, r.Model.Spec = false, &spec
		}, "positive", "attn_bias of StyleModelApply"},
		"pipe + area": {func(r *request.Request) {
			r.Plan = "pipe=2"
			r.Branches[0].Entries[0].Area = request.Area{H: 4, W: 4}
		}, "plan.pipe", "area"},
	} {
		t.Run(name, func(t *testing.T) {
			r := parityRequest(t, g, "flux-c", 1, 8, 8, 2)
			c.change(r)
			_, err := e.Sample(context.Background(), r, nil)
			var pe *fault.Error
			if !errors.As(err, &pe) || pe.Field != c.field || !strings.Contains(pe.Text, c.text) {
				t.Errorf("got %v, want field %s with %q", err, c.field, c.text)
			}
		})
	}
}

// TestMemoryIsRefusedBeforeWork checks that a picture or weights that do not fit are refused with numbers.
func TestMemoryIsRefusedBeforeWork(t *testing.T) {
	e, err := NewPool(Config{NewOps: testOps, MemoryBytes: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	g := openGolden(t, "flux-c")
	for name, c := range map[string]struct {
		side   int
		weight int64
		field  string
	}{"picture": {64, 1, "latent"}, "weights": {8, 5 << 20, "model"}} {
		r := parityRequest(t, g, "flux-c", 1, c.side, c.side, 2)
		r.Model.WeightBytes, r.Model.Key = c.weight, name
		_, err := e.Sample(context.Background(), r, nil)
		var pe *fault.Error
		if !errors.As(err, &pe) || pe.Code != fault.OutOfMemory || pe.Field != c.field || !strings.Contains(pe.Text, "MB") {
			t.Errorf("%s: got %v, want out of memory with numbers", name, err)
		}
	}
}

// TestShortSigmaLists checks that an empty list leaves the latent unchanged, that a single sigma mixes in noise
// without a step (golden custom/one_sigma), and that neither evaluates anything.
func TestShortSigmaLists(t *testing.T) {
	e := newEngine(t)
	r := parityRequest(t, openGolden(t, "flux-c"), "flux-c", 1, 8, 8, 2)
	for i := range r.Latent.Data {
		r.Latent.Data[i] = float32(i % 7)
	}
	mixed := make([]float32, len(r.Latent.Data))
	for i := range mixed { // (sigma*noise + (1-sigma)*latent) / (1-sigma) at 0.5
		mixed[i] = r.Noise.Data[i] + r.Latent.Data[i]
	}
	for _, c := range []struct {
		sigmas []float32
		want   []float32
	}{{nil, r.Latent.Data}, {[]float32{0.5}, mixed}} {
		r.Sigmas = c.sigmas
		res, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if rel := relative(res.Latent.Data, c.want); rel > 1e-6 || res.Stats.Evaluations != 0 {
			t.Errorf("sigmas %v: relative difference %.3g, %d evaluations", c.sigmas, rel, res.Stats.Evaluations)
		}
	}
}
