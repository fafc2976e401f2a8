package jobs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/bubble"
	"patchbay/tests/natsserver"
)

// jetstreamServer starts a server with JetStream in a folder of the test. If sync is set, it syncs every write.
func jetstreamServer(t testing.TB, sync bool) *bubble.Server {
	t.Helper()
	if sync {
		return bubble.Start(t, natsserver.Inside(""), natsserver.JetStream(t))
	}
	return bubble.Start(t, natsserver.Inside(t.TempDir()))
}

// durable returns the table of one daemon on a server. The function ends the daemon without changing any record.
func durable(t testing.TB, e *bubble.Server, owner string) (*Table, func()) {
	t.Helper()
	ctx := context.Background()
	l, err := OpenJetStream(ctx, JetStreamConfig{URL: e.URL, InProcess: e, Owner: owner, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(e.URL, nats.InProcessServer(e))
	if err != nil {
		t.Fatal(err)
	}
	out := NewPublisher(nc, zerolog.Nop())
	j := New(l.On(Config{OnEvent: func(ev message.Event) {
		if m, err := EventMessage(ev, owner, int(nc.MaxPayload())); err != nil {
			t.Error(err)
		} else {
			out.Put(m)
		}
	}}))
	if err := j.Open(ctx); err != nil {
		t.Fatal(err)
	}
	tending, stop := context.WithCancel(ctx)
	go func() {
		for range wire.Every(tending, tendEvery) {
			j.tend(tending)
		}
	}()
	var once sync.Once
	end := func() { once.Do(func() { stop(); out.Close(); nc.Close(); l.Close() }) }
	t.Cleanup(end)
	return j, end
}

// storeOf returns the store of a table on a server.
func storeOf(j *Table) *JetStream { return j.store.(*JetStream) }

// bodyOf returns a request as the store keeps it.
func bodyOf(t testing.TB, req *message.RunRequest) []byte {
	t.Helper()
	b, err := wire.Encode(req, wire.Msgpack)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mustCreate(t testing.TB, j *Table, req *message.RunRequest) message.Record {
	t.Helper()
	rec, created, err := j.Create(wiretest.Context(t), req, "hash")
	if err != nil || !created {
		t.Fatalf("create %s: %v, %v", req.ID, created, err)
	}
	return rec
}

func TestDurableJobsAreTakenOnceByTwoDaemons(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := jetstreamServer(t, false)
		a, _ := durable(t, e, "a")
		b, _ := durable(t, e, "b")
		ctx := wiretest.Context(t)
		const jobs = 60
		for i := range jobs {
			mustCreate(t, a, &message.RunRequest{ID: fmt.Sprint("j", i), Workflow: messagetest.Graph("Step 1")})
		}
		if _, created, err := b.Create(ctx, &message.RunRequest{ID: "j0"}, "hash"); created || err != nil {
			t.Errorf("the same job once more: %v %v", created, err)
		}
		if _, _, err := b.Create(ctx, &message.RunRequest{ID: "j0"}, "other"); !errors.Is(err, ErrHash) {
			t.Errorf("another job of the same id: %v", err)
		}
		var mu sync.Mutex
		taken := map[string]int{}
		take, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		for _, j := range []*Table{a, b, a, b} {
			wg.Go(func() {
				for {
					rec, req, _, err := j.Take(take, "w")
					if err != nil {
						return
					}
					if rec.Attempt != 1 || req.ID != rec.Job {
						t.Errorf("took %+v", rec)
					}
					mu.Lock()
					if taken[rec.Job]++; len(taken) == jobs {
						stop()
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		stop()
		if len(taken) != jobs {
			t.Errorf("%d of %d jobs were taken", len(taken), jobs)
		}
		for id, n := range taken {
			if n != 1 {
				t.Errorf("%s was taken %d times", id, n)
			}
		}
	})
}

func TestDurablePrioritiesAndLargeRequests(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := jetstreamServer(t, false)
		j, end := durable(t, e, "a")
		big := make([]byte, 9<<20) // more than a message may have
		for i := 0; i < len(big); i += 1000 {
			big[i] = byte(i >> 16) // pieces differ
		}
		mustCreate(t, j, &message.RunRequest{ID: "low", Priority: "low", Inputs: map[string][]byte{"big": big}})
		mustCreate(t, j, &message.RunRequest{ID: "normal"})
		mustCreate(t, j, &message.RunRequest{ID: "high", Priority: "high"})
		end()
		j, _ = durable(t, e, "a")
		for _, want := range []string{"high", "normal", "low"} {
			rec, req, _, err := j.Take(wiretest.Context(t), "w")
			if err != nil || rec.Job != want {
				t.Fatalf("took %s, %v, want %s", rec.Job, err, want)
			}
			if want == "low" && !bytes.Equal(req.Inputs["big"], big) {
				t.Error("a large input did not survive")
			}
		}
	})
}

// TestCrashBetweenSwapAndNames ends a daemon at every point between the swap to done and the last event, and checks
// that there is one file and one terminal event.
func TestCrashBetweenSwapAndNames(t *testing.T) {
	for point := range 3 {
		bubble.Part(t, fmt.Sprint("point ", point), func(t *testing.T) {
			e := jetstreamServer(t, false)
			out := t.TempDir()
			sc := OutputsConfig{Stage: filepath.Join(out, ".stage"), Output: out, Keep: true}
			j, end := durable(t, e, "a")
			ctx := wiretest.Context(t)
			mustCreate(t, j, &message.RunRequest{ID: "p"})
			rec, _, _, err := j.Take(ctx, "w")
			if err != nil {
				t.Fatal(err)
			}
			outputs, err := NewOutputs(sc)
			if err != nil {
				t.Fatal(err)
			}
			file := message.FileOf(messagetest.Picture("1", 1000))
			if err := outputs.Stage("p", []message.File{file}); err != nil {
				t.Fatal(err)
			}
			if rec, err = force(ctx, j, "p", rec.Rev,
				func(r *message.Record) { r.State, r.Outputs = message.Done, []message.OutputRef{file.Ref} }); err != nil {
				t.Fatal(err)
			}
			if point > 0 { // the file has its name, and no record of that exists
				refs, err := outputs.Commit("p")
				if err != nil {
					t.Fatal(err)
				}
				if point > 1 {
					if _, err := force(ctx, j, "p", rec.Rev, func(r *message.Record) { r.Outputs = refs }); err != nil {
						t.Fatal(err)
					}
				}
			}
			end()
			for range 2 { // the second restart finds nothing to do
				j, end := durable(t, e, "a")
				if outputs, err = NewOutputs(sc); err != nil {
					t.Fatal(err)
				}
				d := Dispatcher{Jobs: j, Outputs: outputs, Log: zerolog.Nop()}
				if err := d.Recover(ctx); err != nil {
					t.Fatal(err)
				}
				rec, err := j.Get("p")
				if err != nil || rec.State != message.Done || rec.Outputs[0].Filename != "fake_00001_.png" {
					t.Errorf("got %+v, %v", rec, err)
				}
				if data, err := outputs.Read("p", 0); err != nil || !bytes.Equal(data, file.Data) {
					t.Errorf("the file cannot be read: %v", err)
				}
				end()
			}
			names, err := filepath.Glob(filepath.Join(out, "fake*"))
			if left, _ := os.ReadDir(sc.Stage); err != nil || len(names) != 1 || len(left) != 0 {
				t.Errorf("got files %v and %d entries in the stage, want one file", names, len(left))
			}
			checkTerminal(t, e, "p", message.EventSuccess)
		})
	}
}

// checkTerminal compares the terminal events of a job in the stream with want.
func checkTerminal(t *testing.T, e *bubble.Server, job string, want ...string) {
	t.Helper()
	j, _ := durable(t, e, "reader")
	evs, err := storeOf(j).log(wiretest.Context(t), job)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, ev := range evs {
		if message.Terminal(ev.Type) {
			got = append(got, ev.Type)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got terminal events %v, want %v", got, want)
	}
}

// TestReconcileRepairs checks that a job that is in the store is taken although nobody announced it, and that reconcile
// hands running jobs back whose daemon is gone.
func TestReconcileRepairs(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := jetstreamServer(t, false)
		j, _ := durable(t, e, "a")
		ctx := wiretest.Context(t)
		l := storeOf(j)
		rec := j.fresh(&message.RunRequest{ID: "mute"}, "hash")
		if _, _, err := l.create(ctx, rec, bodyOf(t, &message.RunRequest{ID: "mute"})); err != nil {
			t.Fatal(err)
		}
		for !j.knows("mute") {
			time.Sleep(time.Millisecond)
		}
		if got, _, _, err := j.Take(ctx, "w"); err != nil || got.Job != "mute" {
			t.Fatalf("took %+v, %v; want the job that is in the store", got, err)
		}
		j.mu.Lock()
		j.jobs["mute"].held = 0 // as after a take whose answer was lost
		j.cfg.Now = func() time.Time { return time.Now().Add(2 * time.Minute) }
		j.mu.Unlock()
		j.reconcile(ctx)
		if rec, err := j.Get("mute"); err != nil || rec.State != message.Queued || rec.HandedBack != 1 ||
			len(rec.Causes) != 1 {
			t.Errorf("got %+v, %v; want a job that waits again", rec, err)
		}
		if rec, _, _, err := j.Take(ctx, "w"); err != nil || rec.Attempt != 2 {
			t.Errorf("took %+v, %v", rec, err)
		}
	})
}

// BenchmarkEnqueueToStart measures the time from the request to execution_start, through record, queue and swap.
func BenchmarkEnqueueToStart(b *testing.B) {
	for _, sync := range []bool{false, true} {
		b.Run(fmt.Sprintf("SyncAlways=%v", sync), func(b *testing.B) {
			j, _ := durable(b, jetstreamServer(b, sync), "a")
			var took []time.Duration
			for i := 0; b.Loop(); i++ {
				began := time.Now()
				mustCreate(b, j, &message.RunRequest{ID: fmt.Sprint("j", i), Workflow: "{}"})
				rec, _, _, err := j.Take(context.Background(), "w")
				if err != nil || !j.Append(rec.Job, 1, message.Event{Type: message.EventStart}) {
					b.Fatal(err)
				}
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}

// TestEndThatIsNotToldYet checks that a reader at a daemon that has never heard of a job waits for its end if the
// record says that it is done and its files have no names yet: its daemon has died between the two.
func TestEndThatIsNotToldYet(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := jetstreamServer(t, false)
		a, _ := durable(t, e, "a")
		ctx := wiretest.Context(t)
		mustCreate(t, a, &message.RunRequest{ID: "p"})
		rec, _, _, err := a.Take(ctx, "w")
		if err != nil {
			t.Fatal(err)
		}
		a.Append("p", 1, message.Event{Type: message.EventStart})
		files := []message.OutputRef{{Node: "9"}}
		if rec, _, err = a.do(ctx, "p", ended{attempt: attemptOf(&rec), outputs: files}); err != nil {
			t.Fatal(err)
		}
		eventually(ctx, t, "its first events are in the stream", func() bool {
			log, err := storeOf(a).log(ctx, "p")
			return err == nil && len(log) == 2
		})
		b, _ := durable(t, e, "b")
		cur, err := b.Follow(ctx, "p", 0, false)
		if err != nil {
			t.Fatal(err)
		}
		defer cur.Close()
		var got []string
		for len(got) < 4 {
			it, err := cur.Next(ctx)
			if err != nil {
				t.Fatalf("after %v the reader gets %v", got, err)
			}
			if got = append(got, it.Event.Type); len(got) == 2 {
				if _, _, err := a.do(ctx, "p", named{attemptOf(&rec), files, ""}); err != nil {
					t.Fatal(err)
				}
			}
		}
		want := []string{message.EventQueued, message.EventStart, message.EventExecuting, message.EventSuccess}
		if !slices.Equal(got, want) {
			t.Errorf("the reader gets %v, want %v", got, want)
		}
	})
}
