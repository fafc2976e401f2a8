package jobs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"patchbay/ipc/message"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/bubble"
	"patchbay/tests/natsproxy"
)

// TestAnyMessageLost drops one message from a running daemon to its server, or cuts the connection in the middle of it,
// and checks that, whichever message it is, jobs that were taken are done once, in one attempt, and have one terminal
// event after the next start.
func TestAnyMessageLost(t *testing.T) {
	var opened, all int
	bubble.Part(t, "quiet", func(t *testing.T) {
		opened, all = lossy(t, func(int, string) natsproxy.Fault { return natsproxy.Pass })
	})
	if all < opened+15 {
		t.Fatalf("a quiet run has %d messages, %d of them to begin: too few", all, opened)
	}
	const seed = 7
	rnd := rand.New(rand.NewPCG(seed, seed))
	t.Logf("%d messages in a quiet run, the first %d to begin; seed %d", all, opened, seed)
	bubble.Part(t, "the first end lost", func(t *testing.T) {
		lost := false
		lossy(t, func(_ int, subject string) natsproxy.Fault {
			if lost || !strings.HasSuffix(subject, "."+message.EventSuccess) {
				return natsproxy.Pass
			}
			lost = true
			return natsproxy.Drop
		})
	})
	// longer than Reconcile tolerates a running job that no worker holds
	bubble.Part(t, "a start in doubt", func(t *testing.T) {
		puts, asked := 0, 0
		lossy(t, func(_ int, subject string) natsproxy.Fault {
			switch subject {
			case "$KV." + message.JobBucket + ".p0":
				if puts++; puts == 2 {
					return natsproxy.Mute
				}
			case "$JS.API.STREAM.MSG.GET.KV_" + message.JobBucket:
				if asked++; asked <= 4 {
					return natsproxy.Drop
				}
			}
			return natsproxy.Pass
		})
	})
	for i := range proxyRuns {
		at, failure, name := opened+1+rnd.IntN(all-opened), natsproxy.Drop, "lost"
		if i%2 == 1 {
			failure, name = natsproxy.Cut, "cut"
		}
		bubble.Part(t, fmt.Sprint(at, " ", name), func(t *testing.T) {
			lossy(t, func(n int, _ string) natsproxy.Fault {
				if n == at {
					return failure
				}
				return natsproxy.Pass
			})
		})
	}
}

// TestFollowBesideLoss checks a follower of another daemon's job while none of its events can be read, or only some.
// The follower is not told that there is no such job, and gets all events from the first once the network is whole
// again.
func TestFollowBesideLoss(t *testing.T) {
	for _, part := range []string{".CONSUMER.CREATE.", ".CONSUMER.MSG.NEXT."} {
		bubble.Part(t, strings.Trim(part, "."), func(t *testing.T) {
			e := jetstreamServer(t, false)
			var on atomic.Bool
			var lost atomic.Int64
			p := natsproxy.Within(t, e, func(_ int, subject string) natsproxy.Fault {
				if on.Load() && strings.Contains(subject, part) {
					lost.Add(1)
					return natsproxy.Drop
				}
				return natsproxy.Pass
			})
			ctx := wiretest.Context(t)
			made, _ := durable(t, e, "b")
			mustCreate(t, made, &message.RunRequest{ID: "p"})
			eventually(ctx, t, "its first event is in the stream", func() bool {
				log, err := storeOf(made).log(ctx, "p")
				return err == nil && len(log) > 0
			})
			j, end := proxied(ctx, t, p)
			defer end()
			on.Store(true)
			short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			defer cancel()
			cur, err := j.Follow(short, "p", 0, false)
			if err != nil {
				t.Fatalf("follow: %v", err)
			}
			defer cur.Close()
			ev := message.Event{Job: "p", Type: message.EventProgress, Seq: 7, Attempt: 1}
			j.Hear(ev) // what came meanwhile is not delivered before what came first
			for again := true; again; again = lost.Load() == 0 {
				if it, err := cur.Next(short); err == nil {
					t.Fatalf("%+v was given while the log could not be read", it.Event)
				}
				if ctx.Err() != nil {
					t.Fatalf("no message with %s was lost", part)
				}
				short, cancel = context.WithTimeout(ctx, 200*time.Millisecond)
				defer cancel()
			}
			on.Store(false)
			for _, want := range []string{message.EventQueued, message.EventProgress} {
				it, err := cur.Next(ctx)
				if err != nil || it.Event == nil || it.Event.Type != want {
					t.Fatalf("next is %+v, %v, want %s", it.Event, err, want)
				}
			}
		})
	}
}

// lossy runs a few jobs through a proxy, restarts the daemon without it, and checks the records. It returns the number
// of messages when the daemon was up, and at the end.
func lossy(t *testing.T, failure func(int, string) natsproxy.Fault) (opened, all int) {
	t.Helper()
	e := jetstreamServer(t, false)
	p := natsproxy.Within(t, e, failure)
	ctx := wiretest.Context(t)
	j, end := proxied(ctx, t, p)
	opened = p.Count()
	const jobs = 3
	for i := range jobs {
		req := &message.RunRequest{ID: fmt.Sprint("p", i), Workflow: "{}"}
		for _, _, err := j.Create(ctx, req, "hash"); err != nil; _, _, err = j.Create(ctx, req, "hash") {
			if ctx.Err() != nil { // a client without a receipt asks again
				t.Fatalf("%s was never taken in: %v", req.ID, err)
			}
		}
	}
	tend, stop := context.WithCancel(ctx)
	defer stop()
	go j.Reconcile(tend)
	for range jobs {
		rec, _, _, err := j.Take(ctx, "w")
		if err != nil {
			t.Fatalf("a job that was taken in is not given out: %v", err)
		}
		j.Append(rec.Job, rec.Attempt, message.Event{Type: message.EventStart})
		if _, err = force(ctx, j, rec.Job, rec.Rev, func(r *message.Record) {
			r.State, r.Finished = message.Done, time.Now().UnixMilli()
		}); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	all = p.Count()
	end()
	checkRestarted(ctx, t, e, jobs)
	return opened, all
}

// proxied returns the table of a daemon that reaches its server through a proxy. It retries a failed start, as init
// would.
func proxied(ctx context.Context, t *testing.T, p *natsproxy.Proxy) (*Table, func()) {
	t.Helper()
	for {
		l, err := OpenJetStream(ctx, JetStreamConfig{URL: p.URL, InProcess: p, Owner: "a", Log: zerolog.Nop()})
		if err != nil {
			if ctx.Err() != nil {
				t.Fatal(err)
			}
			continue
		}
		nc, err := nats.Connect(p.URL, nats.InProcessServer(p), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true))
		if err != nil {
			t.Fatal(err)
		}
		out := NewPublisher(nc, zerolog.Nop())
		j := New(l.On(Config{OnEvent: func(ev message.Event) {
			if m, err := EventMessage(ev, "a", 1<<20); err == nil {
				out.Put(m)
			}
		}}))
		closing := func() { out.Close(); _ = nc.FlushTimeout(time.Second); nc.Close(); l.Close() }
		if err := j.Open(ctx); err == nil {
			return j, closing
		}
		closing()
	}
}

// checkRestarted starts the daemon once more and compares what it finds with what was done.
func checkRestarted(ctx context.Context, t *testing.T, e *bubble.Server, jobs int) {
	t.Helper()
	j, end := durable(t, e, "a")
	outputs, err := NewOutputs(OutputsConfig{})
	if err == nil {
		err = (&Dispatcher{Jobs: j, Outputs: outputs, Log: zerolog.Nop()}).Recover(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	j.cfg.Now = func() time.Time { return time.Now().Add(2 * settled) }
	j.republish(ctx)
	_, counts := j.List("", 0)
	if counts[message.Done] != jobs || len(counts) != 1 {
		t.Errorf("jobs are %v, want %d done", counts, jobs)
	}
	for i := range jobs {
		if rec, err := j.Get(fmt.Sprint("p", i)); err != nil || rec.Attempt != 1 {
			t.Errorf("%s took %d attempts, %v", rec.Job, rec.Attempt, err)
		}
	}
	end()
	for i := range jobs {
		checkTerminal(t, e, fmt.Sprint("p", i), message.EventSuccess)
	}
}
