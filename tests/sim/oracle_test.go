package sim

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"patchbay/fault"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
)

// oracle knows what clients were told and which runs began, and judges from that what is left in the end.
type oracle struct {
	w *world

	mu   sync.Mutex
	jobs map[string]*seen
	kv   jetstream.KeyValue

	ranks map[int]int // see urgency
}

// seen is what the oracle has seen of a job.
type seen struct {
	receipt   string         // hash of the body for which there is a receipt; empty: there is none
	torn      bool           // there are receipts for both bodies: the store has lost the first
	asked     bool           // a client has asked to cancel it, since it was retried
	asking    int            // clients that ask just now
	cancelled message.State  // what a client was told when it was cancelled; empty: it was not, or was retried since
	told      time.Time      // when a client was told so
	readers   int            // that have not come to its end
	reviving  int            // retries by hand that go on
	revived   int            // retries by hand
	moved     bool           // a client has asked to move it in the queue
	dropping  bool           // a client has asked to delete its files
	dropped   bool           // a client was told that they are deleted
	attempts  map[int]string // the daemon at which each attempt was run
	running   map[int]*node  // the attempts that are going on
	ended     *message.Record
	passed    map[*jobs.Table]*passes
	ran       map[string]bool // the bodies with which it was run
	// A client that has left a tied job: when it handed it in, and when it left.
	tied, left time.Time
	kept       map[string]bool // the evaluations that are in a log, by daemon, body and number
	heard      string          // the end that a client has read
	files      [][]byte        // that it has got with that
}

func newOracle(w *world) *oracle {
	return &oracle{w: w, jobs: map[string]*seen{}, ranks: map[int]int{}}
}

// moves notes that a client asks to move a job in the queue.
func (o *oracle) moves(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.job(id).moved = true
}

// drops notes that a client asks to delete the files of a job, or was told that they are deleted.
func (o *oracle) drops(id string, done bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.job(id).dropping, o.job(id).dropped = true, done
}

// dropping reports whether a client has asked to delete the files of a job.
func (o *oracle) dropping(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.job(id).dropping
}

// elsewhere reports whether the files of a job are in the folder of a twin: once that is gone, nobody can fetch them.
func (o *oracle) elsewhere(id string) bool {
	o.w.mu.Lock()
	defer o.w.mu.Unlock()
	return slices.ContainsFunc(o.w.twins, func(n *node) bool {
		files, _ := filepath.Glob(filepath.Join(n.folder("output"), id+"_*"))
		return len(files) > 0
	})
}

// job returns what is known of a job. The caller must hold o.mu.
func (o *oracle) job(id string) *seen {
	if o.jobs[id] == nil {
		o.jobs[id] = &seen{
			attempts: map[int]string{}, running: map[int]*node{}, passed: map[*jobs.Table]*passes{}, ran: map[string]bool{},
			kept: map[string]bool{},
		}
	}
	return o.jobs[id]
}

// The two bodies with which a job may be submitted, by their hash, under an ID or a unique key.
func bodyOf(name, hash string) string { return "body " + hash + " of " + name }

var hashes = []string{"one", "two"}

// bodiesOf returns the bodies that a job may have.
func bodiesOf(id string) (out []string) {
	names := []string{id}
	if numberOf(id) < 0 {
		names = names[1:]
		for key := 1; key <= keys; key++ {
			names = append(names, fmt.Sprint("key", key))
		}
	}
	for _, name := range names {
		for _, hash := range hashes {
			out = append(out, bodyOf(name, hash))
		}
	}
	return out
}

// leaves notes that a client leaves a job that is tied to it, which it has handed in at a time.
func (o *oracle) leaves(id string, handed time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.job(id).tied, o.job(id).left = handed, time.Now()
}

// hears notes that a client has read the end of a job, and the files that came with it.
func (o *oracle) hears(id string, end message.Event, files []message.File) {
	o.mu.Lock()
	defer o.mu.Unlock()
	j := o.job(id)
	j.heard, j.files = end.Type, nil
	for _, f := range files {
		j.files = append(j.files, f.Data)
	}
	if end.Type == message.EventSuccess && len(files) != 1 && !j.dropping {
		o.w.violated("a client of %s has read its end, and %d files", id, len(files))
	}
}

// receipt notes that a client has a receipt for a job.
func (o *oracle) receipt(id, hash string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	j := o.job(id)
	if j.receipt != "" && j.receipt != hash && !o.w.lossy() {
		o.w.violated("%s has receipts for two bodies", id)
	}
	j.torn = j.torn || j.receipt != "" && j.receipt != hash
	j.receipt = hash
}

// hash returns the hash of the body of which a receipt was given.
func (o *oracle) hash(id string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.job(id).receipt
}

// isTorn reports whether receipts were given for both bodies of a job: either may be the one that is known.
func (o *oracle) isTorn(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.job(id).torn
}

// asks notes that a client asks to cancel a job, and returns a function that notes that it has.
func (o *oracle) asks(id string) (end func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	j := o.job(id)
	j.asked = true
	j.asking++
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		j.asking--
	}
}

// cancels notes that a client was told that a job is cancelled, or if it is running, that it is to stop.
func (o *oracle) cancels(id string, state message.State) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if j := o.job(id); j.reviving == 0 {
		j.cancelled, j.told = state, time.Now()
	}
}

// reads notes that a client begins to read the events of a job, or has come to its end.
func (o *oracle) reads(id string, more int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.job(id).readers += more
}

// revives notes that a client retries a job, and returns a function that notes whether it has.
func (o *oracle) revives(id string) (end func(retried bool)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	j := o.job(id)
	j.revived++
	j.reviving++
	j.cancelled, j.ended = "", nil
	return func(retried bool) {
		o.mu.Lock()
		defer o.mu.Unlock()
		j.reviving--
		if retried {
			j.asked = j.asking > 0
		}
	}
}

// judge waits until all jobs have ended and a while longer, in which the daemons repair what is left, and compares
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
	if o.kv, err = js.KeyValue(ctx, message.JobBucket); err != nil {
		o.w.violated("the records are not there: %v", err)
		return
	}
	if o.w.lossy() { // until then an end may be forgotten
		time.Sleep(repaired)
	}
	for end := time.Now().Add(15 * time.Minute); !o.allEnded(ctx) && time.Now().Before(end); {
		time.Sleep(500 * time.Millisecond)
	}
	o.w.note("all jobs have ended")
	time.Sleep(repaired)
	for end := time.Now().Add(5 * time.Minute); o.reading() && !o.w.lossy() && time.Now().Before(end); {
		time.Sleep(time.Second)
	}
	events, unique := o.events(ctx, js), map[string][]message.Record{}
	for id, j := range o.jobs {
		if j.receipt == "" {
			continue
		}
		rec, err := record(ctx, o.kv, id)
		if err != nil {
			o.w.violated("%s has a receipt and no record: %v", id, err)
			continue
		}
		o.judgeRecord(rec, j)
		o.judgeFiles(rec, nodes)
		o.judgeEvents(rec, j, events[id])
		if rec.Unique != "" {
			unique[rec.Unique] = append(unique[rec.Unique], rec)
		}
		for _, n := range nodes {
			in, err := n.up().Get(id)
			if in, rec := plain(in), plain(rec); err != nil || in != rec {
				o.w.violated("%s is %s, and in the table of %s %s, %v", id, rec, n.name, in, err)
			}
			o.judgeLog(ctx, rec, n)
		}
	}
	o.judgeUnique(unique)
	o.judgeLogs(nodes)
}

// repaired is how long after the end of all jobs everything is as it should be.
const repaired = time.Minute

// reading reports whether somebody has not come to the end of a job.
func (o *oracle) reading() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.ContainsFunc(slices.Collect(maps.Values(o.jobs)), func(j *seen) bool { return j.readers > 0 })
}

// allEnded notes the records of the jobs that have ended and reports whether all have.
func (o *oracle) allEnded(ctx context.Context) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := true
	for id, j := range o.jobs {
		if j.receipt == "" || j.ended != nil {
			continue
		}
		if rec, err := record(ctx, o.kv, id); err == nil && rec.State.Final() {
			j.ended = &rec
		} else {
			all = false
		}
	}
	return all
}

func record(ctx context.Context, kv jetstream.KeyValue, id string) (message.Record, error) {
	var rec message.Record
	e, err := kv.Get(ctx, id)
	if err == nil {
		err = json.Unmarshal(e.Value(), &rec)
		rec.Rev = e.Revision()
	}
	return rec, err
}

// plain is all that a record says.
func plain(rec message.Record) string {
	rec.Position = 0
	b, err := json.Marshal(rec)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// name is what is in the body of a job.
func name(rec message.Record) string { return cmp.Or(rec.Unique, rec.Job) }

// drawn reports whether data is the picture of a job with the body that it was accepted with. A server that forgets a
// job may accept it with the other one.
func (o *oracle) drawn(rec message.Record, data []byte) bool {
	return slices.ContainsFunc(bodiesOf(rec.Job), func(body string) bool {
		return bytes.Equal(data, picture(rec.Job, body)) &&
			(o.w.lossy() || body == bodyOf(name(rec), o.jobs[rec.Job].receipt))
	})
}

// judgeRecord checks that a job has ended once, for a reason that there was, and as clients were told.
func (o *oracle) judgeRecord(rec message.Record, j *seen) {
	id := rec.Job
	ttl, hurried := o.w.plan.has(numberOf(id), hurry)
	switch {
	case !rec.State.Final():
		o.w.violated("%s never ends: %s, attempt %d, owner %s", id, rec.State, rec.Attempt, rec.Owner)
	case j.ended != nil && (j.ended.State != rec.State || j.ended.Attempt != rec.Attempt):
		o.w.violated("%s ended as %s and is %s later", id, j.ended.State, rec.State)
	case !o.w.lossy() && (len(j.ran) > 1 || len(j.ran) == 1 && !j.ran[bodyOf(name(rec), j.receipt)]):
		o.w.violated("%s has a receipt for body %s, and has run with %v", id, j.receipt, j.ran)
	case j.cancelled == message.Cancelled && rec.State != message.Cancelled && !o.w.lossy():
		o.w.violated("%s: a client was told that it is cancelled, and it is %s", id, rec.State)
	case rec.State == message.Cancelled && !j.asked && !o.w.lossy():
		o.w.violated("%s is cancelled, and nobody has asked for that", id)
	case rec.State == message.Expired &&
		(!hurried || !o.w.has(ahead) && rec.Finished-rec.Created < ttl.lasts.Milliseconds()):
		o.w.violated("%s expires %d ms after it was created, and may wait %s", id, rec.Finished-rec.Created, ttl.lasts)
	case j.readers > 0 && !o.w.lossy():
		o.w.violated("%s has ended, and %d readers do not know that", id, j.readers)
	case rec.Counted() > attempts || rec.HandedBack > handedBack:
		o.w.violated("%s has %d attempts, %d earlier and %d handed back", id, rec.Attempt, rec.Earlier, rec.HandedBack)
	case rec.State == message.Failed && rec.Error != nil && strings.Contains(rec.Error.Text, workerDied) &&
		rec.Counted() < attempts:
		o.w.violated("%s is given up after %d attempts of %d", id, rec.Counted(), attempts)
	case rec.Tied && rec.HandedBack > 0:
		o.w.violated("%s is tied to a client, and was run again after its daemon had died", id)
	case rec.State == message.Failed && rec.Tied && rec.Error.Public() == fault.Draining && o.w.has(ends):
		// its client hears that and hands it in again
	case rec.State == message.Failed && !madeUp(rec) && !(o.w.lossy() && strings.Contains(rec.Error.Text, lost)):
		o.w.violated("%s failed: %v, causes %v", id, rec.Error, rec.Causes)
	case len(j.attempts) > rec.Attempt && !o.w.lossy():
		o.w.violated("%s has %d attempts and was run %d times", id, rec.Attempt, len(j.attempts))
	case len(j.running) > 0:
		o.w.violated("%s has ended, and attempts %v of it are running", id, j.running)
	}
}

// The limits that docs/reliability.md promises: attempts that count, and those that end with their daemon.
const (
	attempts   = 3
	handedBack = 20
)

// lost is what the error of a job says whose request the server has lost.
const lost = "what the job asks for is not there any more"

// madeUp reports whether a job failed with a failure that a worker made up.
func madeUp(rec message.Record) bool {
	return rec.Error != nil &&
		slices.ContainsFunc([]string{nodeFailed, workerDied, workerHung, noStop}, func(why string) bool {
			return strings.Contains(rec.Error.Text, why)
		})
}

// judgeFiles checks that a job that is done, or that ended otherwise after it had saved its file, has one file, with
// what it draws and under the name in its record, at the daemon that has run it, unless a client has deleted it, and
// that any other job has none. Of runs that the server has forgotten, files may be left.
func (o *oracle) judgeFiles(rec message.Record, nodes []*node) {
	var found []string
	owner, earlier := "", 0
	for _, n := range append(o.w.twins, nodes...) {
		files, err := filepath.Glob(filepath.Join(n.folder("output"), rec.Job+"_*"))
		if err != nil {
			panic(err)
		}
		if o.w.lossy() && (rec.State != message.Done || n.name != rec.Owner) {
			continue
		}
		if rec.Dropped > 0 && slices.Contains(o.w.twins, n) { // it was gone, and could not delete them
			continue
		}
		for _, file := range files {
			if earlier < o.jobs[rec.Job].revived && !recorded(rec, n, file) {
				earlier++ // it belongs to an end before the last retry by hand
				continue
			}
			found, owner = append(found, file), n.name
		}
	}
	if rec.State != message.Done && len(rec.Outputs) == 0 {
		if len(found) > 0 {
			o.w.violated("%s is %s, its record names no file, and it has the files %v", rec.Job, rec.State, found)
		}
		return
	}
	j := o.jobs[rec.Job]
	switch {
	case o.w.lossy() && j.dropping:
		return
	case j.dropped && rec.Dropped == 0:
		o.w.violated("a client was told that the files of %s are deleted, and its record does not say so", rec.Job)
	case rec.Dropped > 0 && !j.dropping:
		o.w.violated("the files of %s are dropped, and nobody has asked for that", rec.Job)
	case rec.Dropped > 0 && len(found) > 0:
		o.w.violated("the files of %s are dropped, and are there: %v", rec.Job, found)
	}
	if rec.Dropped > 0 {
		return
	}
	if named := len(rec.Outputs) == 1; named && len(found) > 1 && o.w.lossy() {
		found = slices.DeleteFunc(found, func(path string) bool { return filepath.Base(path) != rec.Outputs[0].Filename })
	}
	if len(found) != 1 || len(rec.Outputs) != 1 || rec.Outputs[0].Filename != filepath.Base(found[0]) ||
		owner != rec.Owner {
		o.w.violated("%s is %s by %s, its record names %v, and its files are %v", rec.Job, rec.State, rec.Owner,
			rec.Outputs, found)
		return
	}
	if b, err := os.ReadFile(found[0]); err != nil || !o.drawn(rec, b) {
		o.w.violated("%s has another picture: %q, %v", rec.Job, b, err)
	}
}

// recorded reports whether a record names a file at a node.
func recorded(rec message.Record, n *node, path string) bool {
	return rec.Owner == n.name && rec.Dropped == 0 && slices.ContainsFunc(rec.Outputs, func(r message.OutputRef) bool {
		return r.Filename == filepath.Base(path)
	})
}

// judgeLog checks that the log of a job ends at a daemon as its record says.
func (o *oracle) judgeLog(ctx context.Context, rec message.Record, n *node) {
	cur, err := n.up().Follow(ctx, rec.Job, 0, false)
	if err != nil {
		o.w.violated("the log of %s cannot be read at %s: %v", rec.Job, n.name, err)
		return
	}
	defer cur.Close()
	var last message.Event
	for {
		it, err := cur.Next(ctx)
		if err != nil {
			if !errors.Is(err, jobs.ErrEnd) || !message.Terminal(last.Type) || last.Seq != rec.EndSeq ||
				last.TS != rec.Finished {
				o.w.violated("the log of %s at %s ends with %+v, %v; its record says number %d", rec.Job, n.name, last, err,
					rec.EndSeq)
			}
			return
		}
		last = *it.Event
	}
}

// judgeEvents checks that the end of a job is told, and once for every end that it had. It does not look at the order:
// a daemon that was cut off sends what it had to say when it is back, perhaps after the end.
func (o *oracle) judgeEvents(rec message.Record, j *seen, events []message.Event) {
	var ends []string
	for _, ev := range events {
		if message.Terminal(ev.Type) {
			ends = append(ends, ev.Type)
		}
	}
	want := map[message.State]string{
		message.Done: message.EventSuccess, message.Failed: message.EventError, message.Cancelled: message.EventInterrupted,
		message.Expired: message.EventExpired,
	}[rec.State]
	if j.heard != "" && j.heard != want && j.revived == 0 && !o.w.lossy() {
		o.w.violated("a client of %s has read %s, and it is %s", rec.Job, j.heard, rec.State)
	}
	for _, data := range j.files {
		if !o.drawn(rec, data) {
			o.w.violated("a client of %s has got another picture: %q", rec.Job, data)
		}
	}
	last := slices.Contains(ends, want)
	if !o.w.lossy() { // a lost end may be told again behind that of the next run: readers go by the record
		last = last && len(ends) <= 1+j.revived && ends[len(ends)-1] == want
	}
	if !last {
		o.w.violated("the ends of %s are told as %v, want 1 to %d, the last one %s", rec.Job, ends, 1+j.revived, want)
	}
}

// events returns the events in the stream, by job.
func (o *oracle) events(ctx context.Context, js jetstream.JetStream) map[string][]message.Event {
	out := map[string][]message.Event{}
	stream, err := js.Stream(ctx, message.EventStream)
	var info *jetstream.StreamInfo
	if err == nil {
		info, err = stream.Info(ctx)
	}
	for seq := uint64(1); err == nil && seq <= info.State.LastSeq; seq++ {
		m, getErr := stream.GetMsg(ctx, max(seq, info.State.FirstSeq))
		if errors.Is(getErr, jetstream.ErrMsgNotFound) { // removed, or damaged
			continue
		}
		var ev message.Event
		if err = getErr; err == nil {
			seq = m.Sequence
			err = json.Unmarshal(m.Data, &ev)
			out[ev.Job] = append(out[ev.Job], ev)
		}
	}
	if err != nil {
		o.w.violated("the events cannot be read: %v", err)
	}
	return out
}
