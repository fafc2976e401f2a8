package parallel

import (
	"context"
	"errors"
	"flag"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"patchbay/engine"
	"patchbay/fault"
)

// TestMain lets more tests run in parallel than there are processors, since the parallel tests of this package mostly
// wait for silent peers and hanging ranks.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "10"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// hangPatience is longer than any rank stands still on a machine that does other work too.
const hangPatience = 5 * time.Second

// hangingEngine returns an engine in which rank victim blocks in the call of Linear that makes the countdown zero,
// until release is closed.
func hangingEngine(t *testing.T, victim int, left *atomic.Int64, release chan struct{}) *Pool {
	t.Helper()
	e, err := NewPool(Config{Patience: hangPatience, NewOps: func(rank, ranks int) (engine.Ops, error) {
		ops, err := testOps(rank, ranks)
		if rank != victim || ranks == 1 {
			return ops, err
		}
		return &faulty{ops, left, func() { <-release }}, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// TestHangingRankIsNamed checks that a rank that stops is named with evaluation, patch and block, that the positions
// of all ranks are listed, that the watchdog's patience ends the request, and that the engine is usable again once the
// rank has returned, but not before.
func TestHangingRankIsNamed(t *testing.T) {
	t.Parallel() // mostly waits
	for _, c := range []struct {
		plan   string
		victim int
		calls  int64
		want   string
	}{
		{"ulysses=3", 1, 40, `no progress for 5s: rank 1 at evaluation \d, whole picture, block \d;`},
		{"ring=2", 0, 40, `no progress for 5s: rank 0 at evaluation \d, whole picture, block \d;`},
		{"pipe=2,patches=3,warmup=1", 1, 60, `no progress for 5s: rank 1 at evaluation [12], patch \d, block \d;`},
		{"cfg=2,pipe=2,patches=3,warmup=1", 2, 60, `no progress for 5s: rank 2 at evaluation [12], patch \d, block \d;`},
	} {
		t.Run(c.plan, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var left atomic.Int64
				release := make(chan struct{})
				e := hangingEngine(t, c.victim, &left, release)
				r := parityRequest(t, openGolden(t, "flux-c"), "flux-c", 1, 8, 8, 4)
				r.Plan = c.plan
				want, err := e.Sample(context.Background(), r, nil)
				if err != nil {
					t.Fatal(err)
				}
				left.Store(c.calls)
				var reported atomic.Pointer[error]
				e.whole.cfg.Lost = func(err error) { reported.CompareAndSwap(nil, &err) }
				_, err = e.Sample(context.Background(), r, nil)
				if lost := reported.Load(); lost == nil || !regexp.MustCompile(c.want).MatchString((*lost).Error()) {
					t.Errorf("the owner of the process was told %v, want a match of %s", lost, c.want)
				}
				var pe *fault.Error
				if !errors.As(err, &pe) || pe.Code != fault.PeerLost || !regexp.MustCompile(c.want).MatchString(pe.Text) {
					t.Errorf("got %v, want a match of %s", err, c.want)
				}
				if err != nil && strings.Count(err.Error(), "[rank ") != len(want.Stats.Traffic) {
					t.Errorf("%v does not list the positions of all %d ranks", err, len(want.Stats.Traffic))
				}
				if _, err = e.Sample(context.Background(), r, nil); !errors.As(err, &pe) || pe.Code != fault.PeerLost ||
					!strings.Contains(pe.Text, "hangs") {
					t.Errorf("request beside a hanging rank: got %v, want a refusal", err)
				}
				close(release)
				synctest.Wait() // the rank returns
				got, err := e.Sample(context.Background(), r, nil)
				if err != nil {
					t.Fatal(err)
				}
				if rel := relative(got.Latent.Data, want.Latent.Data); rel != 0 {
					t.Errorf("the run after the hang differs by %.3g", rel)
				}
			})
		})
	}
}
