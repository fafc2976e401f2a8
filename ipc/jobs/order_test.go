package jobs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"patchbay/ipc/message"
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
