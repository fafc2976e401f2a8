package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"patchbay/ipc/message"
)

// oracle knows what clients were told and which runs began, and judges from that what is left in the end.
type oracle struct {
	w *world

	mu        sync.Mutex
	receipts  map[string]string // hash of the body, by job
	cancelled map[string]bool   // jobs of which a client was told that they are cancelled
	retried   map[string]int    // retries by hand, by job
	starts    map[string]int    // runs that began, by job
	ended     map[string]message.Record
}

func newOracle(w *world) *oracle {
	return &oracle{
		w: w, receipts: map[string]string{}, cancelled: map[string]bool{}, retried: map[string]int{},
		starts: map[string]int{}, ended: map[string]message.Record{},
	}
}

// The two bodies with which a job may be submitted, by their hash.
func bodyOf(id, hash string) string { return "body " + hash + " of " + id }

var hashes = []string{"one", "two"}

// runs notes that a run begins.
func (o *oracle) runs(id string, attempt int, body string) {
	o.w.note("run of %s begins, attempt %d", id, attempt)
	o.mu.Lock()
	o.starts[id]++
	_, over := o.ended[id]
	o.mu.Unlock()
	if over {
		o.w.violated("a run of %s begins after its end", id)
	}
	if !slices.ContainsFunc(hashes, func(h string) bool { return bodyOf(id, h) == body }) {
		o.w.violated("%s runs with the body %q, which nobody has submitted", id, body)
	}
}

// receipt notes that a client has a receipt for a job.
func (o *oracle) receipt(id, hash string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if old := o.receipts[id]; old != "" && old != hash {
		go o.w.violated("%s has receipts for two bodies", id)
	}
	o.receipts[id] = hash
}

// hash returns the hash of the body of which a receipt was given.
func (o *oracle) hash(id string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.receipts[id]
}

func (o *oracle) told(id string, retried bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if retried {
		o.retried[id]++
	} else {
		o.cancelled[id] = true
	}
}

// judge waits until all jobs have ended and a minute longer, in which the daemons repair what is left, and compares
// records, files, events and tables with what clients were told. Nothing else goes on meanwhile.
func (o *oracle) judge(nodes []*node) {
	nc, err := nats.Connect("nats://sim", nats.InProcessServer(way{o.w, nil}))
	if err != nil {
		o.w.violated("the server is not there in the end: %v", err)
		return
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	kv, err := js.KeyValue(ctx, message.JobBucket)
	if err != nil {
		o.w.violated("the records are not there: %v", err)
		return
	}
	for end := time.Now().Add(15 * time.Minute); !o.allEnded(ctx, kv) && time.Now().Before(end); {
		time.Sleep(500 * time.Millisecond)
	}
	o.w.note("all jobs have ended")
	time.Sleep(time.Minute)
	events := o.events(ctx, js)
	for id, hash := range o.receipts {
		rec, err := record(ctx, kv, id)
		if err != nil {
			o.w.violated("%s has a receipt and no record: %v", id, err)
			continue
		}
		o.judgeRecord(rec, hash)
		o.judgeFiles(rec, nodes)
		o.judgeEvents(rec, events[id])
		for _, n := range nodes {
			if seen, err := n.up().Get(id); err != nil || seen.State != rec.State || seen.Attempt != rec.Attempt {
				o.w.violated("%s is %s/%d, and the table of %s says %s/%d, %v", id, rec.State, rec.Attempt, n.name, seen.State,
					seen.Attempt, err)
			}
		}
	}
}

// allEnded notes the records of the jobs that have ended and reports whether all have.
func (o *oracle) allEnded(ctx context.Context, kv jetstream.KeyValue) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id := range o.receipts {
		if _, ok := o.ended[id]; ok {
			continue
		}
		rec, err := record(ctx, kv, id)
		if err == nil && rec.State.Final() {
			o.ended[id] = rec
		}
	}
	return len(o.ended) == len(o.receipts)
}

func record(ctx context.Context, kv jetstream.KeyValue, id string) (message.Record, error) {
	var rec message.Record
	e, err := kv.Get(ctx, id)
	if err == nil {
		err = json.Unmarshal(e.Value(), &rec)
	}
	return rec, err
}

// judgeRecord checks that a job has ended once, for a reason that there was, and as clients were told.
func (o *oracle) judgeRecord(rec message.Record, hash string) {
	id := rec.Job
	was, ended := o.ended[id]
	switch {
	case !rec.State.Final():
		o.w.violated("%s never ends: %s, attempt %d, owner %s", id, rec.State, rec.Attempt, rec.Owner)
	case ended && (was.State != rec.State || was.Attempt != rec.Attempt):
		o.w.violated("%s ended as %s and is %s later", id, was.State, rec.State)
	case rec.Hash != hash:
		o.w.violated("%s has a receipt for body %s, and its record is of %s", id, hash, rec.Hash)
	case o.cancelled[id] && o.retried[id] == 0 && rec.State != message.Cancelled:
		o.w.violated("%s: a client was told that it is cancelled, and it is %s", id, rec.State)
	case rec.State == message.Failed && !madeUp(rec):
		o.w.violated("%s failed: %v, causes %v", id, rec.Error, rec.Causes)
	case o.starts[id] > rec.Attempt:
		o.w.violated("%s has %d attempts and was run %d times", id, rec.Attempt, o.starts[id])
	}
}

// madeUp reports whether a job failed with a failure that a worker made up.
func madeUp(rec message.Record) bool {
	return rec.Error != nil &&
		(strings.Contains(rec.Error.Text, nodeFailed) || strings.Contains(rec.Error.Text, workerDied))
}

// judgeFiles checks that a job that is done has one file, with what it draws and under the name in its record, and
// that any other job has none.
func (o *oracle) judgeFiles(rec message.Record, nodes []*node) {
	var found []string
	for _, n := range nodes {
		files, err := filepath.Glob(filepath.Join(n.folder("output"), rec.Job+"_*"))
		if err != nil {
			panic(err)
		}
		found = append(found, files...)
	}
	if rec.State != message.Done {
		if len(found) > 0 {
			o.w.violated("%s is %s and has the files %v", rec.Job, rec.State, found)
		}
		return
	}
	if len(found) != 1 || len(rec.Outputs) != 1 || rec.Outputs[0].Filename != filepath.Base(found[0]) {
		o.w.violated("%s is done, its record names %v, and its files are %v", rec.Job, rec.Outputs, found)
		return
	}
	if b, err := os.ReadFile(found[0]); err != nil || !bytes.Equal(b, picture(rec.Job, bodyOf(rec.Job, rec.Hash))) {
		o.w.violated("%s has another picture: %q, %v", rec.Job, b, err)
	}
}

// judgeEvents checks that the end of a job is told, and once for every end that it had. It does not look at the order:
// a daemon that was cut off sends what it had to say when it is back, perhaps after the end.
func (o *oracle) judgeEvents(rec message.Record, events []message.Event) {
	ends := 0
	for _, ev := range events {
		if message.Terminal(ev.Type) {
			ends++
		}
	}
	if most := 1 + o.retried[rec.Job]; ends < 1 || ends > most {
		o.w.violated("the end of %s is told %d times, want 1 to %d", rec.Job, ends, most)
	}
}

// events returns the events in the stream, by job.
func (o *oracle) events(ctx context.Context, js jetstream.JetStream) map[string][]message.Event {
	out := map[string][]message.Event{}
	c, err := js.OrderedConsumer(ctx, message.EventStream, jetstream.OrderedConsumerConfig{})
	if err != nil {
		o.w.violated("the events cannot be read: %v", err)
		return nil
	}
	for {
		batch, err := c.Fetch(500, jetstream.FetchMaxWait(2*time.Second))
		if err != nil {
			o.w.violated("the events cannot be read: %v", err)
			return nil
		}
		n := 0
		for m := range batch.Messages() {
			n++
			var ev message.Event
			if err := json.Unmarshal(m.Data(), &ev); err != nil {
				o.w.violated("an event cannot be read: %v", err)
			}
			out[ev.Job] = append(out[ev.Job], ev)
		}
		if n == 0 {
			return out
		}
	}
}
