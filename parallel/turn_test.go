package parallel

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"patchbay/engine"
)

// gated is an Ops that tells a test which micro-step its rank is at and waits where the test says.
type gated struct {
	engine.Ops
	rank int
	at   func(rank int, m Micro)
	e    **Engine
}

func (g *gated) Linear(y, x engine.Tensor, wt *engine.Weight, e engine.Epilogue) {
	if team := (*g.e).team; team != nil && g.rank < len(team.links) {
		g.at(g.rank, team.links[g.rank].rank.pos.now())
	}
	g.Ops.Linear(y, x, wt, e)
}

// queue runs two requests of four steps, the second one waiting from the start, on the ranks of a plan.
type queue struct {
	e      *Engine
	mu     sync.Mutex
	begun  int            // requests that the first rank has begun
	fresh  bool           // the first rank is at the start of a request
	second chan struct{}  // closed when the first rank begins the second request
	tail   func(q *queue) // called once, by the last rank in the last micro-step of the first request
	head   func()         // called once, by the first rank at the start of the second request
	told   bool
	a, b   *Request
	last   int
	cancel [2]context.CancelFunc
}

func newQueue(t *testing.T, plan string, memory int64) *queue {
	t.Helper()
	q := &queue{second: make(chan struct{})}
	p, err := ParsePlan(plan)
	if err != nil {
		t.Fatal(err)
	}
	q.last = p.Ranks() - 1
	q.e, err = NewEngine(Config{MemoryBytes: memory, NewOps: func(rank, ranks int) (engine.Ops, error) {
		ops, err := testOps(rank, ranks)
		return &gated{Ops: ops, rank: rank, at: func(rank int, m Micro) { q.at(p, rank, m) }, e: &q.e}, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.e.Close)
	g := openGolden(t, "flux-c")
	q.a, q.b = parityRequest(t, g, "flux-c", 1, 12, 12, 4), parityRequest(t, g, "flux-c", 1, 12, 12, 4)
	q.b.Noise.Data = slices.Clone(q.b.Noise.Data)
	for i := range q.b.Noise.Data {
		q.b.Noise.Data[i] *= 0.9
	}
	q.a.Plan, q.b.Plan = plan, plan
	return q
}

func (q *queue) at(p Plan, rank int, m Micro) {
	q.mu.Lock()
	first := m.Evaluation == 0
	if rank == 0 && first && !q.fresh {
		if q.begun++; q.begun == 2 {
			close(q.second)
		}
	}
	start := rank == 0 && first && q.begun == 2 && q.head != nil
	var head func()
	if start {
		head, q.head = q.head, nil
	}
	if rank == 0 {
		q.fresh = first
	}
	end := rank == q.last && m.Evaluation == 3 && m.Patch == p.Patches-1 && !q.told && q.tail != nil
	if end {
		q.told = true
	}
	q.mu.Unlock()
	if head != nil {
		head()
	}
	if end {
		q.tail(q)
	}
}

// run samples both requests and returns results and errors.
func (q *queue) run() (out [2]*Result, errs [2]error) {
	var wg sync.WaitGroup
	for i, r := range []*Request{q.a, q.b} {
		ctx, cancel := context.WithCancel(context.Background())
		q.cancel[i] = cancel
		defer cancel()
		started := make(chan struct{})
		wg.Add(1)
		go func() {
			defer wg.Done()
			out[i], errs[i] = q.e.Sample(ctx, r, func(Progress) error {
				select {
				case <-started:
				default:
					close(started)
				}
				return nil
			})
		}()
		if i == 0 {
			<-started // the first one has the turn
		}
	}
	wg.Wait()
	return out, errs
}

// alone is what the two requests give without each other.
func (q *queue) alone(t *testing.T) (out [2]*Result) {
	t.Helper()
	e, err := NewEngine(Config{NewOps: testOps})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for i, r := range []*Request{q.a, q.b} {
		if out[i], err = e.Sample(context.Background(), r, nil); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func (q *queue) expect(t *testing.T, out [2]*Result, errs [2]error, which ...int) {
	t.Helper()
	want := q.alone(t)
	for _, i := range which {
		if errs[i] != nil {
			t.Errorf("request %d: %v", i, errs[i])
			continue
		}
		if rel := relative(out[i].Latent.Data, want[i].Latent.Data); rel != 0 {
			t.Errorf("request %d differs by %.3g from what it is alone, want the same bits", i, rel)
		}
		for r, axes := range out[i].Stats.Traffic {
			for a, got := range axes {
				if w := want[i].Stats.Traffic[r][a]; got.Bytes != w.Bytes || got.Calls != w.Calls {
					t.Errorf("request %d, rank %d, %s: %d bytes in %d calls, alone %d in %d", i, r, Axis(a), got.Bytes, got.Calls, w.Bytes, w.Calls)
				}
			}
		}
		if !slices.Equal(out[i].Stats.Tokens, want[i].Stats.Tokens) {
			t.Errorf("request %d: tokens %v, alone %v", i, out[i].Stats.Tokens, want[i].Stats.Tokens)
		}
	}
}

var queuePlans = []string{"pipe=3,patches=4,warmup=1", "pipe=2,ulysses=2,patches=3,warmup=1,sync=spread", "pipe=3,patches=1", "cfg=2,pipe=2,patches=4,warmup=0"}

// TestRequestsOverlapInThePipe: the last rank does not end the first request before the first rank has begun the second one, so the fill of one runs beside
// the drain of the other; results, bytes and tokens are those of either alone.
func TestRequestsOverlapInThePipe(t *testing.T) {
	for _, plan := range queuePlans {
		t.Run(plan, func(t *testing.T) {
			q := newQueue(t, plan, 0)
			var late atomic.Bool
			q.tail = func(q *queue) {
				select {
				case <-q.second:
				case <-time.After(time.Minute):
					late.Store(true)
				}
			}
			out, errs := q.run()
			if late.Load() || !q.told {
				t.Errorf("the second request did not begin while the first one was in the pipe (end of the first seen: %v)", q.told)
			}
			q.expect(t, out, errs, 0, 1)
		})
	}
}

// TestFaultsBetweenRequests: what happens to one request at the moment when two are in the pipe leaves the other as it is alone.
func TestFaultsBetweenRequests(t *testing.T) {
	both := func(q *queue) { <-q.second }
	cases := []struct {
		name  string
		set   func(q *queue)
		check func(t *testing.T, q *queue, out [2]*Result, errs [2]error)
	}{
		{"panic at the end of the first", func(q *queue) {
			q.tail = func(q *queue) { both(q); panic("kernel fault") }
		}, func(t *testing.T, q *queue, out [2]*Result, errs [2]error) {
			wantCode(t, errs[0], Panic)
			q.expect(t, out, errs, 1)
		}},
		{"panic at the start of the second", func(q *queue) {
			q.tail = both
			q.head = func() { panic("kernel fault") }
		}, func(t *testing.T, q *queue, out [2]*Result, errs [2]error) {
			wantCode(t, errs[1], Panic)
			q.expect(t, out, errs, 0)
		}},
		{"first cancelled", func(q *queue) {
			q.tail = func(q *queue) { both(q); q.cancel[0]() }
		}, func(t *testing.T, q *queue, out [2]*Result, errs [2]error) {
			wantCode(t, errs[0], Cancelled)
			q.expect(t, out, errs, 1)
		}},
		{"second cancelled", func(q *queue) {
			q.tail = func(q *queue) { both(q); q.cancel[1]() }
		}, func(t *testing.T, q *queue, out [2]*Result, errs [2]error) {
			wantCode(t, errs[1], Cancelled)
			q.expect(t, out, errs, 0)
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			q := newQueue(t, queuePlans[0], 0)
			c.set(q)
			out, errs := q.run()
			c.check(t, q, out, errs)
			q.tail, q.head = nil, nil
			again, err := q.e.Sample(context.Background(), q.a, nil)
			q.expect(t, [2]*Result{again}, [2]error{err}, 0)
		})
	}
}

func wantCode(t *testing.T, err error, code Code) {
	t.Helper()
	if pe := (*Error)(nil); !errors.As(err, &pe) || pe.Code != code {
		t.Errorf("got %v, want an error with code %s", err, code)
	}
}

// TestRequestsInARow: between two requests the first stage stands still for no micro-step, where it waits for all other stages if requests are kept apart; on
// links without any buffer too.
func TestRequestsInARow(t *testing.T) {
	for stages := 2; stages <= 8; stages++ {
		for patches := 2; patches <= 20; patches++ {
			for _, spread := range []bool{false, true} {
				gap := func(apart bool) (idle, seconds float64) {
					timing := plainTiming(stages, patches, 5, 1, false, 0)
					timing.requests, timing.apart, timing.spread = 3, apart, spread
					p := newProgram(timing)
					ends, spans, err := p.net.run(false)
					if err != nil {
						t.Fatalf("%d stages, %d patches: %v", stages, patches, err)
					}
					var last, next float64 // of the first request, of the second one, on the first stage
					next = -1
					for _, s := range spans {
						switch {
						case s.Actor != 0 || s.Kind != Working:
						case s.Micro.Evaluation < 5:
							last = max(last, s.End)
						case next < 0 || s.Start < next:
							next = s.Start
						}
					}
					return next - last, slices.Max(ends)
				}
				idle, together := gap(false)
				waits, apart := gap(true)
				want := 0.0
				if spread { // the first evaluation needs all stages
					want = float64(stages - 1)
				}
				if idle > want {
					t.Errorf("%d stages, %d patches, spread %v: the first stage stands still for %v micro-steps between requests, want %v", stages, patches, spread, idle, want)
				}
				if waits != float64(stages-1) || !spread && apart-together != 2*float64(stages-1) {
					t.Errorf("%d stages, %d patches, spread %v: requests kept apart leave %v micro-steps and take %v, overlapped %v", stages, patches, spread, waits, apart, together)
				}
			}
		}
	}
}
