package jobs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/bubble"
)

// line makes jobs wait in a table and takes them one after the other. A job is named like "b7-low": client, number,
// priority.
type line struct {
	t testing.TB
	j *Table
}

func (l line) add(from, priority string, n int) string {
	l.t.Helper()
	req := &message.RunRequest{ID: strings.TrimSuffix(fmt.Sprintf("%s%d-%s", from, n, priority), "-")}
	req.From, req.Priority = from, priority
	if _, _, err := l.j.Create(context.Background(), req, "h"); err != nil {
		l.t.Fatal(err)
	}
	return req.ID
}

func (l line) take() string {
	l.t.Helper()
	rec, _, _, err := l.j.Take(context.Background(), "w")
	if err != nil {
		l.t.Fatal(err)
	}
	return rec.Job
}

// TestClientsTakeTurns checks that a client with one job waits for one job of a client with a thousand, and that
// clients that come again and again get no more than their turn.
func TestClientsTakeTurns(t *testing.T) {
	t.Parallel()
	l := line{t, New(Config{})}
	for i := range 1000 {
		l.add("many", "", i)
	}
	for range 10 {
		l.take()
	}
	one := l.add("one", "", 0)
	if a, b := l.take(), l.take(); a != one && b != one {
		t.Errorf("took %s and %s, and the only job of a client still waits", a, b)
	}
	for i := 1; i < 50; i++ { // each time it has one job waiting, and never gets two in a row
		id := l.add("one", "", i)
		if a, b := l.take(), l.take(); (a == id) == (b == id) {
			t.Fatalf("took %s and %s, want one job of each client", a, b)
		}
	}
}

// TestTurnsOfAnotherDaemon checks that a job which another daemon takes out of this one's order puts no client behind
// the jobs that were before it and still wait.
func TestTurnsOfAnotherDaemon(t *testing.T) {
	t.Parallel()
	l := line{t, New(Config{Owner: "here"})}
	for i := range 100 {
		l.add("many", "", i)
	}
	l.take()
	rec, err := l.j.Get("many60")
	if err != nil {
		t.Fatal(err)
	}
	rec.State, rec.Owner, rec.Attempt, rec.Rev = message.Running, "there", 1, rec.Rev+1000
	l.j.observe(rec)
	one := l.add("one", "", 0)
	if a, b := l.take(), l.take(); a != one && b != one {
		t.Errorf("took %s and %s, and the only job of a client still waits", a, b)
	}
}

// TestTurnsAreFair lets clients come and go at random and checks that between two jobs of a client no other one gets
// more than two, as long as both have jobs waiting.
func TestTurnsAreFair(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // a test repeats its numbers
	for range 50 {
		l := line{t, New(Config{})}
		waiting := map[string]int{}           // by client
		passed := map[string]map[string]int{} // for each client that waits, how many jobs others got since its last
		for n := range 400 {
			who := string(rune('a' + rnd.IntN(4)))
			if rnd.IntN(20) == 0 {
				for i := range 20 { // a burst
					l.add(who, "", 1000*(n+1)+i)
				}
				waiting[who] += 20
			}
			if rnd.IntN(2) == 0 {
				l.add(who, "", n)
				waiting[who]++
			}
			if waiting["a"]+waiting["b"]+waiting["c"]+waiting["d"] == 0 {
				continue
			}
			got := l.take()[:1]
			waiting[got]--
			delete(passed, got)
			for c, n := range waiting {
				if n == 0 || c == got {
					delete(passed, c)
					continue
				}
				if passed[c] == nil {
					passed[c] = map[string]int{}
				}
				if passed[c][got]++; passed[c][got] > 2 {
					t.Fatalf("%s has taken %d jobs while %s waited", got, passed[c][got], c)
				}
			}
		}
	}
}

// TestOrderOfPriorities checks that the urgent jobs go first and that every eighth time the least urgent one is asked
// first.
func TestOrderOfPriorities(t *testing.T) {
	t.Parallel()
	l := line{t, New(Config{})}
	for i := range 8 {
		for _, p := range []string{"low", "", "high"} {
			l.add("a", p, i)
		}
	}
	var got []string
	for range 24 {
		_, p, _ := strings.Cut(l.take(), "-")
		got = append(got, message.OrNormal(p)[:1])
	}
	if want := "hhhhhhhlhnnnnnnlnnllllll"; strings.Join(got, "") != want {
		t.Errorf("took %s, want %s", strings.Join(got, ""), want)
	}
}

// TestFrontIsAheadOfAll checks that a job put in front goes before urgent ones and before those put there earlier.
func TestFrontIsAheadOfAll(t *testing.T) {
	t.Parallel()
	l := line{t, New(Config{})}
	l.add("a", "high", 0)
	for _, id := range []string{"first", "second"} {
		if _, _, err := l.j.Create(context.Background(), &message.RunRequest{ID: id, Front: true}, "h"); err != nil {
			t.Fatal(err)
		}
	}
	if got := []string{l.take(), l.take(), l.take()}; !slices.Equal(got, []string{"second", "first", "a0-high"}) {
		t.Errorf("took %v", got)
	}
}

// TestJobsWaitUntilTheirTime checks that a job with not_before waits until then, however long, and no longer, while
// others are taken.
func TestJobsWaitUntilTheirTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := line{t, New(Config{})}
		began := time.Now()
		at := began.Add(3 * time.Hour)
		req := &message.RunRequest{ID: "later", NotBefore: at.UnixMilli()}
		if _, _, err := l.j.Create(context.Background(), req, "h"); err != nil {
			t.Fatal(err)
		}
		now := l.add("a", "low", 0)
		if got := l.take(); got != now || time.Since(began) > 0 {
			t.Errorf("took %s after %v, want %s at once", got, time.Since(began), now)
		}
		if got := l.take(); got != "later" || time.Since(at) < 0 || time.Since(at) > time.Second {
			t.Errorf("took %s %v after its time", got, time.Since(at))
		}
	})
}

// early is a store whose table hears of a new job before the store has answered that it has it, as the watch of a NATS
// server may, and where somebody follows the job at once.
type early struct {
	Store
	t   *testing.T
	j   *Table
	req *message.RunRequest
}

func (s *early) request(context.Context, message.Record) (*message.RunRequest, error) {
	return s.req, nil
}

func (s *early) keep(ctx context.Context, rec message.Record, req *message.RunRequest) (message.Record, bool, error) {
	rec, created, err := s.Store.keep(ctx, rec, req)
	s.req = req
	s.j.observe(rec)
	cur, failed := s.j.Follow(ctx, rec.Job, 0, false)
	if failed != nil {
		s.t.Error(failed)
	} else {
		cur.Close()
	}
	synctest.Wait() // a worker that could take it has it now
	return rec, created, err
}

// TestQueuedEventComesFirst checks that the log of a job begins with its queued event, however early this daemon hears
// of the job, and that a worker that waits gets the job at once all the same.
func TestQueuedEventComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &early{Store: &memory{}, t: t}
		store.j = New(Config{Store: store})
		l, began := line{t, store.j}, time.Now()
		var taken string
		go func() {
			taken = l.take()
			l.j.Append(taken, -1, message.Event{Type: message.EventStart})
		}()
		id := l.add("a", "", 0)
		synctest.Wait()
		log := l.j.jobs[id].log
		if took := time.Since(began); taken != id || took != 0 {
			t.Errorf("%q was taken after %s, want %s at once", taken, took, id)
		}
		if len(log) != 2 || log[0].Type != message.EventQueued || log[0].Seq != 1 || log[1].Seq != 2 {
			t.Errorf("the log is %+v, want queued as its number 1, then execution_start", log)
		}
	})
}

// TestUniqueKeys checks that jobs of a client with one key are one job while it waits or runs and for a while after it
// is done, that other clients and keys are not concerned, and that a failed job stands in nobody's way.
func TestUniqueKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, j := context.Background(), New(Config{})
		submit := func(from, key string, within time.Duration) (string, bool) {
			t.Helper()
			req := &message.RunRequest{UniqueKey: key, UniqueMS: int(within.Milliseconds()), From: from}
			rec, created, err := j.Create(ctx, req, fmt.Sprint("hash", time.Now().UnixNano()))
			if err != nil || rec.Unique != key {
				t.Fatalf("%+v, %v", rec, err)
			}
			return rec.Job, created
		}
		first, created := submit("a", "k", time.Minute)
		if again, twice := submit("a", "k", 0); !created || twice || again != first {
			t.Errorf("the same key once more: %s and %s, created %v", first, again, twice)
		}
		for _, other := range [][2]string{{"b", "k"}, {"a", "l"}} {
			if id, created := submit(other[0], other[1], time.Minute); !created || id == first {
				t.Errorf("%v: %s, created %v", other, id, created)
			}
		}
		time.Sleep(time.Hour) // it waits long
		if again, twice := submit("a", "k", time.Minute); twice || again != first {
			t.Errorf("a job that waits: %s and %s, created %v", first, again, twice)
		}
		end := func(id string, failure *fault.Error) {
			t.Helper()
			for _, c := range []change{taken{"w", "", "c"}, ended{attempt: attempt{1, ""}, failure: failure}} {
				if _, _, err := j.do(ctx, id, c); err != nil {
					t.Fatal(err)
				}
			}
		}
		end(first, nil)
		if again, twice := submit("a", "k", 2*time.Hour); twice || again != first {
			t.Errorf("a job that is done: %s and %s, created %v", first, again, twice)
		}
		second, created := submit("a", "k", time.Minute)
		if !created || second == first {
			t.Errorf("a job that has been done for long: %s and %s, created %v", first, second, created)
		}
		end(second, fault.New(fault.Internal, "it was to fail"))
		if third, created := submit("a", "k", time.Minute); !created || third == first || third == second {
			t.Errorf("a job that failed: %s, %s and %s, created %v", first, second, third, created)
		}
	})
}

// TestUniqueKeysOfTwoDaemons checks that of requests with one key that several daemons get at a time one becomes a job.
func TestUniqueKeysOfTwoDaemons(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := jetstreamServer(t, false)
		a, _ := durable(t, e, "a")
		b, _ := durable(t, e, "b")
		for round := range 5 {
			var made atomic.Int32
			var all sync.WaitGroup
			var ids sync.Map
			for i := range 8 {
				all.Go(func() {
					req := &message.RunRequest{UniqueKey: fmt.Sprint("k", round), From: "c"}
					rec, created, err := []*Table{a, b}[i%2].Create(wiretest.Context(t), req, fmt.Sprint("hash-", i))
					if err != nil {
						t.Error(err)
					}
					if created {
						made.Add(1)
					}
					ids.Store(rec.Job, true)
				})
			}
			all.Wait()
			n := 0
			ids.Range(func(any, any) bool { n++; return true })
			if made.Load() != 1 || n != 1 {
				t.Errorf("%d jobs were made, and %d ids returned", made.Load(), n)
			}
		}
	})
}
