package jobs

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/bubble"
)

// heard is a follower that keeps what it hears.
type heard struct {
	mu   sync.Mutex
	jobs map[string]message.Record
	gone []string
}

func (h *heard) observe(rec message.Record) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if rec.Rev > h.jobs[rec.Job].Rev {
		h.jobs[rec.Job] = rec
	}
}

func (h *heard) vanish(job string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.jobs, job)
	h.gone = append(h.gone, job)
}

func (h *heard) Get(job string) (message.Record, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	rec, ok := h.jobs[job]
	if !ok {
		return rec, ErrNoJob
	}
	return rec, nil
}

func (h *heard) turnBack(uint64, message.Record) {}
func (h *heard) Hear(message.Event)              {}
func (h *heard) wasAway()                        {}

// known returns what a table would pass to tend.
func (h *heard) known() (out []message.Record) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, rec := range h.jobs {
		out = append(out, rec)
	}
	return out
}

// TestStores checks what every Store does. again opens the same jobs a second time; it is nil for a store that has one
// table.
func TestStores(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) (s Store, again func() Store){
		"memory": func(*testing.T) (Store, func() Store) { return &memory{}, nil },
		"JetStream": func(t *testing.T) (Store, func() Store) {
			e := jetstreamServer(t, false)
			daemons := 0
			one := func() Store {
				daemons++
				l, err := OpenJetStream(t.Context(), JetStreamConfig{
					URL: e.URL, InProcess: e, Owner: fmt.Sprint("d", daemons), Log: zerolog.Nop(),
				})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(l.Close)
				return l
			}
			return one(), one
		},
	} {
		t.Run(name, func(t *testing.T) {
			for check, f := range map[string]func(*testing.T, Store){
				"Keep": keepsOnce, "Swap": swapsAtARevision, "Race": oneSwapWins, "Request": keepsRequests,
				"Tend": dropsWhatIsForgotten, "Unknown": knowsNoOthers,
			} {
				bubble.Part(t, check, func(t *testing.T) {
					s, _ := open(t)
					if err := s.open(wiretest.Context(t), &heard{jobs: map[string]message.Record{}}); err != nil {
						t.Fatal(err)
					}
					f(t, s)
				})
			}
			bubble.Part(t, "Follow", func(t *testing.T) {
				if s, again := open(t); again != nil {
					tellsFollowers(t, s, again())
				}
			})
		})
	}
}

// job keeps a new job in a store.
func job(t *testing.T, s Store, id string) message.Record {
	t.Helper()
	req := &message.RunRequest{ID: id, Workflow: "{}", Client: "of " + id}
	rec := New(Config{Owner: "d1"}).fresh(req, "hash-"+id)
	rec, created, err := s.keep(wiretest.Context(t), rec, req)
	if err != nil || !created || rec.Rev == 0 {
		t.Fatalf("keep %s: revision %d, %v, %v", id, rec.Rev, created, err)
	}
	return rec
}

// in returns a record in another state.
func in(rec message.Record, s message.State) message.Record {
	rec.State = s
	if s.Final() {
		rec.Finished = time.Now().UnixMilli()
	}
	return rec
}

func knowsNoOthers(t *testing.T, s Store) {
	ctx := wiretest.Context(t)
	job(t, s, "here")
	if _, err := s.get(ctx, "elsewhere"); !errors.Is(err, ErrNoJob) {
		t.Errorf("got %v, want %v", err, ErrNoJob)
	}
	if _, err := s.swap(ctx, message.Record{Job: "elsewhere", Rev: 1}); !errors.Is(err, errConflict) {
		t.Errorf("swap: got %v, want %v", err, errConflict)
	}
	if log, err := s.log(ctx, "elsewhere"); err != nil || len(log) > 0 {
		t.Errorf("log: %v, %v", log, err)
	}
}

func keepsOnce(t *testing.T, s Store) {
	ctx := wiretest.Context(t)
	first := job(t, s, "a")
	job(t, s, "b")
	other := first
	other.Rev, other.Hash, other.Client = 0, "another", "another"
	got, created, err := s.keep(ctx, other, &message.RunRequest{ID: "a"})
	if err != nil || created || got.Hash != first.Hash || got.Rev != first.Rev {
		t.Errorf("kept once more: %+v, %v, %v; want the first", got, created, err)
	}
	got, err = s.get(ctx, "a")
	if err != nil || got.Hash != first.Hash || got.Rev != first.Rev || got.Client != "of a" ||
		got.State != message.Queued {
		t.Errorf("got %+v, %v; want\n%+v", got, err, first)
	}
}

func swapsAtARevision(t *testing.T, s Store) {
	ctx := wiretest.Context(t)
	first := job(t, s, "a")
	next := in(first, message.Running)
	next.Causes = []string{"written"}
	second, err := s.swap(ctx, next)
	if err != nil || second.Rev <= first.Rev || second.State != message.Running {
		t.Fatalf("got %+v, %v", second, err)
	}
	if _, err := s.swap(ctx, in(first, message.Cancelled)); !errors.Is(err, errConflict) {
		t.Errorf("at the revision of before: got %v, want %v", err, errConflict)
	}
	if got, err := s.get(ctx, "a"); err != nil || got.State != message.Running || got.Rev != second.Rev {
		t.Errorf("got %+v, %v", got, err)
	}
	next.Causes[0], second.Causes[0] = "changed after it was written", "too"
	if got, err := s.get(ctx, "a"); err != nil || got.Causes[0] != "written" {
		t.Errorf("the store shares memory with its callers: %v, %v", got.Causes, err)
	}
}

func oneSwapWins(t *testing.T, s Store) {
	ctx := wiretest.Context(t)
	first := job(t, s, "a")
	var wins atomic.Int32
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			next := in(first, message.Running)
			next.Worker = fmt.Sprint("w", i)
			switch got, err := s.swap(ctx, next); {
			case err == nil && got.Worker == next.Worker:
				wins.Add(1)
			case !errors.Is(err, errConflict):
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
	all.Wait()
	if wins.Load() != 1 {
		t.Errorf("%d swaps at one revision succeeded", wins.Load())
	}
}

func keepsRequests(t *testing.T, s Store) {
	ctx := wiretest.Context(t)
	rec := job(t, s, "a")
	other := rec
	other.Hash, other.Pieces, other.Rev = "another", 0, 0
	if _, created, err := s.keep(ctx, other, &message.RunRequest{ID: "a", Client: "another"}); created || err != nil {
		t.Fatal(created, err)
	}
	req, err := s.request(ctx, rec)
	if err != nil || req.ID != "a" || req.Client != "of a" {
		t.Errorf("got %+v, %v", req, err)
	}
	if rec, err = s.swap(ctx, in(rec, message.Running)); err == nil {
		rec, err = s.swap(ctx, in(rec, message.Done))
	}
	for err == nil { // the request of a job that is done goes, perhaps a little later
		_, err = s.request(ctx, rec)
	}
	if !errors.Is(err, errGone) || fault.From(err).Public() != fault.Expired {
		t.Errorf("the request of a job that is done: got %v, want that it is gone", err)
	}
}

func dropsWhatIsForgotten(t *testing.T, s Store) {
	ctx := wiretest.Context(t)
	var ended []message.Record
	for _, id := range []string{"gone", "again"} {
		rec, err := s.swap(ctx, in(job(t, s, id), message.Failed))
		if err != nil {
			t.Fatal(err)
		}
		ended = append(ended, rec)
	}
	again, err := s.swap(ctx, in(ended[1], message.Queued))
	if err != nil {
		t.Fatal(err)
	}
	if left := s.tend(ctx, []message.Record{again}, slices.Clone(ended)); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
	if _, err := s.get(ctx, "gone"); !errors.Is(err, ErrNoJob) {
		t.Errorf("a forgotten job is there: %v", err)
	}
	if got, err := s.get(ctx, "again"); err != nil || got.Rev != again.Rev {
		t.Errorf("a job that was changed since it was forgotten: %+v, %v", got, err)
	}
	// a store may drop the request of any job that has ended, but does not give another's
	if req, err := s.request(ctx, again); !errors.Is(err, errGone) && (err != nil || req.Client != "of again") {
		t.Errorf("what it asks for: %+v, %v", req, err)
	}
}

// tellsFollowers checks that a follower hears of the jobs that are there, of their changes and of their removal.
func tellsFollowers(t *testing.T, a, b Store) {
	ctx := wiretest.Context(t)
	before := job(t, a, "before")
	ended, err := a.swap(ctx, in(job(t, a, "goes"), message.Cancelled))
	if err != nil {
		t.Fatal(err)
	}
	f := &heard{jobs: map[string]message.Record{}}
	if err := b.open(ctx, f); err != nil {
		t.Fatal(err)
	}
	if len(f.known()) != 2 {
		t.Errorf("after open it has heard of %v", f.known())
	}
	if err := a.open(ctx, &heard{jobs: map[string]message.Record{}}); err != nil {
		t.Fatal(err)
	}
	before, err = a.swap(ctx, in(before, message.Running))
	if err != nil {
		t.Fatal(err)
	}
	later := job(t, a, "later")
	a.tend(ctx, []message.Record{before, later, ended}, []message.Record{ended})
	eventually(ctx, t, "it has heard of all changes", func() bool {
		one, _ := f.Get("before")
		two, _ := f.Get("later")
		_, err := f.Get("goes")
		return one.Rev == before.Rev && one.State == message.Running && two.Rev == later.Rev && errors.Is(err, ErrNoJob)
	})
}
