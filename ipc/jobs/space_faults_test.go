package jobs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/bubble"
)

const testSpace = 16 << 20

// heavyBytes is nearly a tenth of testSpace.
const heavyBytes = 1_500_000

var heavyInput = sync.OnceValue(func() []byte { return []byte(noise(heavyBytes)) })

// heavy returns a job with heavyBytes of input.
func heavy(id string) *message.RunRequest { return weighing(id, heavyBytes) }

// weighing returns a job with the given number of input bytes.
func weighing(id string, bytes int) *message.RunRequest {
	return &message.RunRequest{ID: id, Inputs: map[string][]byte{"a.png": heavyInput()[:bytes]}}
}

// create creates a job in a table right after a pass of the reconciler.
func create(t *testing.T, j *Table, req *message.RunRequest) error {
	t.Helper()
	ctx := wiretest.Context(t)
	j.reconcile(ctx)
	_, _, err := j.Create(ctx, req, "hash")
	return err
}

// fill queues jobs of the given number of bytes until one is refused, and returns the ids of those that wait.
func fill(t *testing.T, j *Table, bytes int) (ids []string) {
	t.Helper()
	for i := range 100 {
		id := fmt.Sprint("fill", bytes, "x", i)
		_, _, err := j.Create(t.Context(), weighing(id, bytes), "hash")
		if errors.Is(err, ErrStore) {
			return ids
		}
		if err != nil {
			t.Fatalf("job %s: %v, want it taken or refused because the store is full", id, err)
		}
		ids = append(ids, id)
	}
	t.Fatalf("100 jobs of %d bytes were taken", bytes)
	return nil
}

// TestStoreDoesNotStayFull checks that ended jobs take no room that new ones need, that queued jobs leave room for
// their own ends, and that a full store takes jobs again when its jobs have ended, with a known limit and with an
// unknown one.
func TestStoreDoesNotStayFull(t *testing.T) {
	for name, limit := range map[string]int64{"known": testSpace, "unknown": 0} {
		bubble.Part(t, name, func(t *testing.T) {
			j := tableOn(t, stockServer(t, testSpace), "a", limit)
			ctx := wiretest.Context(t)
			for i := range 24 {
				id := fmt.Sprint("done", i)
				if err := create(t, j, heavy(id)); err != nil {
					t.Fatalf("job %d of those that succeed: %v", i, err)
				}
				rec, _, _, err := j.Take(ctx, "w")
				if err == nil {
					_, err = force(ctx, j, id, rec.Rev, func(r *message.Record) { r.State = message.Done })
				}
				if err != nil {
					t.Fatal(err)
				}
				j.Append(id, -1, message.Event{Type: message.EventSuccess})
			}
			for i := range 24 {
				id := fmt.Sprint("fail", i)
				err := create(t, j, heavy(id))
				for limit == 0 && errors.Is(err, ErrStore) && ctx.Err() == nil { // only the refusal tells that it is full
					time.Sleep(100 * time.Millisecond)
					err = create(t, j, heavy(id))
				}
				if err != nil {
					t.Fatalf("job %d of those that fail: %v", i, err)
				}
				rec, _, _, err := j.Take(ctx, "w")
				if err != nil {
					t.Fatal(err)
				}
				_ = fail(ctx, j, rec)
				time.Sleep(time.Millisecond) // the oldest is the first whose request goes
			}
			if _, err := j.Retry(ctx, "fail0"); fault.From(err) == nil || fault.From(err).Public() != fault.Expired {
				t.Errorf("retry of a job whose request is gone: %v, want expired", err)
			}
			waiting := fill(t, j, heavyBytes)
			if len(waiting) < 3 {
				t.Errorf("only %d jobs of %d bytes wait in %d bytes", len(waiting), heavyBytes, testSpace)
			}
			for _, bytes := range []int{heavyBytes / 16, heavyBytes / 256} { // to the last byte
				waiting = append(waiting, fill(t, j, bytes)...)
			}
			for _, id := range waiting {
				quick, stop := context.WithTimeout(ctx, AskTime)
				if _, did, err := j.Cancel(quick, id); err != nil || !did {
					t.Fatalf("cancel in a full store: %v, %v", did, err)
				}
				stop()
			}
			for err := create(t, j, heavy("after")); err != nil; err = create(t, j, heavy("after")) {
				if ctx.Err() != nil || !errors.Is(err, ErrStore) {
					t.Fatalf("the store stays full: %v", err)
				}
				time.Sleep(100 * time.Millisecond)
			}
		})
	}
}

// stalling is a stream of a server that does not answer some requests.
type stalling struct {
	jetstream.Stream
	left int
}

func (s *stalling) stalled() bool {
	s.left--
	return s.left >= 0
}

func (s *stalling) Info(ctx context.Context, opts ...jetstream.StreamInfoOpt) (*jetstream.StreamInfo, error) {
	if s.stalled() {
		return nil, context.DeadlineExceeded
	}
	return s.Stream.Info(ctx, opts...)
}

func (s *stalling) Purge(ctx context.Context, opts ...jetstream.StreamPurgeOpt) error {
	if s.stalled() {
		return context.DeadlineExceeded
	}
	return s.Stream.Purge(ctx, opts...)
}

// TestRoomIsMadeThoughTheServerStalls checks that a store that can make room is not called full because the server was
// slow to make it. If the server makes none in time, the error says that it does not answer.
func TestRoomIsMadeThoughTheServerStalls(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		j := tableOn(t, stockServer(t, testSpace), "a", testSpace)
		ctx := wiretest.Context(t)
		l := storeOf(j)
		for i := range 9 {
			mustCreate(t, j, heavy(fmt.Sprint("fail", i)))
			rec, _, _, err := j.Take(ctx, "w")
			if err == nil {
				err = fail(ctx, j, rec)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		bodies := &stalling{l.requestStream, 1 << 30}
		l.requestStream = bodies
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		_, _, err := j.Create(short, heavy("never"), "hash")
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrStore) {
			t.Errorf("nothing is answered: %v, want that, and not that the store is full", err)
		}
		for left := range 3 { // the list of requests, then the removal of one
			bodies.left = left
			if _, _, err := j.Create(ctx, heavy(fmt.Sprint("after", left)), "hash"); err != nil {
				t.Errorf("%d requests without an answer: %v", left, err)
			}
		}
	})
}

// failing is a bucket that takes some writes and then no more.
type failing struct {
	jetstream.KeyValue
	left int
}

func (f *failing) Put(ctx context.Context, key string, value []byte) (uint64, error) {
	if f.left--; f.left < 0 {
		return 0, nats.ErrTimeout
	}
	return f.KeyValue.Put(ctx, key, value)
}

// TestFailedCreateLeavesNothing checks that the pieces of a job that could not be stored are removed.
func TestFailedCreateLeavesNothing(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := jetstreamServer(t, false)
		j, _ := durable(t, e, "a")
		l := storeOf(j)
		ctx := wiretest.Context(t)
		real := l.requests
		l.requests = &failing{real, 2}
		if _, _, err := j.Create(ctx, heavy("half"), "hash"); err == nil {
			t.Fatal("a job was taken whose request is not whole")
		}
		l.requests = real
		for {
			info, err := l.requestStream.Info(ctx, jetstream.WithSubjectFilter("$KV."+message.RequestBucket+".half.>"))
			if err != nil {
				t.Fatalf("the pieces stay: %v", err)
			}
			if len(info.State.Subjects) == 0 {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		mustCreate(t, j, heavy("half"))
		if _, req, _, err := j.Take(ctx, "w"); err != nil || len(req.Inputs["a.png"]) != heavyBytes {
			t.Errorf("the job sent again: %v", err)
		}
	})
}
