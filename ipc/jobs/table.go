package jobs

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// Config configures a Table.
type Config struct {
	MaxQueued int // waiting jobs; more are refused with queue_full. 0: 10000
	// jobs of one client that have not ended; more are refused with queue_full. 0: no limit
	MaxPerClient int
	// ended jobs that are remembered; the oldest are forgotten first. 0: 1000
	Keep int
	// called for every event, in order within a job; must not block or call the Table
	OnEvent   func(message.Event)
	OnPreview func(job, node string, jpeg []byte) // called for every preview; must not block or call the Table
	OnForget  func(string)                        // called with the ID of a forgotten job; must not call the Table
	Now       func() time.Time

	Store Store  // where jobs are persisted; nil: in memory only
	Owner string // name under which this daemon takes jobs, the same after a restart; empty: no others share the store
	// Machines tells which other daemons share the store and what they have; nil: there are none.
	Machines    Machines
	Resources   *Resources // what this daemon has for jobs; nil: it takes any job
	Log         zerolog.Logger
	MaxAttempts int           // attempts that end in a retriable fault before a job fails. 0: 3
	KeepFor     time.Duration // ended jobs are forgotten after this long. 0: only by number
	KeepResults time.Duration // files of ended jobs are removed after this long, their records stay. 0: never
	KeepBytes   int64         // total size of those files; the oldest are removed above it. 0: no limit
	// a file that is there while the table is paused, so that it is after a restart too; empty: a pause ends with the
	// process
	PauseFile string
}

// Table is the table of jobs: records, waiting requests and event logs. Every carrier submits to it, one dispatcher
// takes from it, and every reply and event is read from it. Every change is written to the Store first, by
// compare-and-swap, and the table follows: from the answer or from the store's notifications (watch.go), whichever
// comes first. Other daemons on the same store do the same, so each knows every job. Table is safe for concurrent use.
type Table struct {
	cfg   Config
	store Store
	own   *memory // of jobs that are not in the store
	rules rules

	mu     sync.Mutex
	jobs   map[string]*tracked
	queue  []string            // ids of waiting jobs, next first
	turns  turns               // gives them their places
	away   time.Time           // when the store came back, until the ends of jobs are checked again
	gone   []message.Record    // jobs that the table has forgotten and the store still has
	ended  []string            // ids of ended jobs, oldest first
	coming map[string]*arrival // jobs that are being written to the store
	wake   chan struct{}
	closed bool
	paused bool
}

// arrival is a job that is being written to the store. It counts against its client's limit until done is closed.
type arrival struct {
	from string
	done chan struct{}
}

// tracked is one job with its request and log.
type tracked struct {
	rec          message.Record
	req          *message.RunRequest
	log          []message.Event
	seq          uint64
	place        spot // in the queue; the last one while it does not wait
	gone         bool // the store has the job no more
	endPublished bool // the terminal event is known to be among those that were published
	// On the clock of this process, which does not jump: when the record last changed, until when the job pauses
	// before its next attempt, and when it expires.
	since, paused, expires time.Time
	notHere                time.Time // until when this process leaves the job to others, or tries it no more
	revived                time.Time // when the record last left an end: the job was retried by hand
	held                   int       // the attempt that is running in this process; 0: none
	taking                 bool      // a worker of this process tries to take the job
	// fenced is the last attempt of this process that another daemon has taken over: its events are dropped.
	fenced  int
	cold    bool          // the log is in the store and has not been loaded
	left    bool          // this daemon cannot run the job and has logged that
	warming chan struct{} // semaphore of one: its holder loads the log
	cancel  chan struct{}
	changed chan struct{} // closed and replaced at every change
	preview *message.Preview
	shown   uint64 // number of previews so far
	viewers int    // cursors that want previews
}

// maxLog bounds the number of events kept per job; progress events are dropped first.
const maxLog = 2048

// New returns an empty table.
func New(cfg Config) *Table {
	cfg.MaxQueued, cfg.Keep = cmp.Or(cfg.MaxQueued, 10000), cmp.Or(cfg.Keep, 1000)
	cfg.MaxAttempts = cmp.Or(cfg.MaxAttempts, 3)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.OnEvent == nil {
		cfg.OnEvent = func(message.Event) {}
	}
	if cfg.OnPreview == nil {
		cfg.OnPreview = func(string, string, []byte) {}
	}
	if cfg.OnForget == nil {
		cfg.OnForget = func(string) {}
	}
	j := &Table{
		cfg: cfg, store: cfg.Store, own: &memory{}, rules: rules{cfg.MaxAttempts, durablePauses()},
		jobs: map[string]*tracked{}, coming: map[string]*arrival{}, wake: make(chan struct{}),
	}
	if cfg.PauseFile != "" {
		_, err := os.Lstat(cfg.PauseFile)
		j.paused = err == nil
	}
	if j.store == nil {
		j.store, j.rules.pauses = j.own, memoryPauses()
	}
	return j
}

// Config returns the configuration of the table, with defaults filled in.
func (j *Table) Config() Config { return j.cfg }

// entry returns the entry of a job, creating it if there is none. The caller must hold j.mu.
func (j *Table) entry(id string) *tracked {
	e, ok := j.jobs[id]
	if !ok {
		e = &tracked{
			cancel: make(chan struct{}), changed: make(chan struct{}), warming: make(chan struct{}, 1),
		}
		j.jobs[id] = e
	}
	return e
}

// Get returns the record of a job, or ErrNoJob.
func (j *Table) Get(id string) (message.Record, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.jobs[id]
	if !ok {
		return message.Record{}, ErrNoJob
	}
	return j.view(e), nil
}

// List returns the records in a state ("": all), newest first, at most limit of them, and how many jobs are in each
// state.
func (j *Table) List(state message.State, limit int) ([]message.Record, map[message.State]int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	counts := map[message.State]int{}
	var found []*tracked
	for _, e := range j.jobs {
		counts[e.rec.State]++
		if state == "" || e.rec.State == state {
			found = append(found, e)
		}
	}
	slices.SortFunc(found, func(a, b *tracked) int {
		return cmp.Or(cmp.Compare(b.rec.Created, a.rec.Created), cmp.Compare(b.rec.Job, a.rec.Job))
	})
	places := make(map[string]int, len(j.queue)) // looked up once: the queue may be as long as the list
	for i, id := range j.queue {
		places[id] = i
	}
	var out []message.Record
	for _, e := range found[:min(limit, len(found))] {
		r := e.rec.Clone()
		if r.State == message.Queued {
			r.Position = places[r.Job]
		}
		out = append(out, r)
	}
	return out, counts
}

// do applies a change to a job, writes the record and sees to what follows from it. Other changes may come in between:
// do then applies its own to what they have made. It returns errMoved if the change no longer fits.
func (j *Table) do(ctx context.Context, id string, c change) (message.Record, effects, error) {
	var tried message.Record
	var then effects
	for {
		cur, err := j.Get(id)
		if err != nil {
			return message.Record{}, effects{}, err
		}
		next, follow, err := step(cur, c, j.cfg.Now().UnixMilli(), j.rules)
		if err != nil && tried.Job != "" && written(tried, cur) {
			j.follow(ctx, cur, then)
			return cur, then, nil
		}
		if err != nil {
			return message.Record{}, effects{}, err
		}
		tried, then = next, follow
		rec, err := j.write(ctx, cur, next, then)
		switch {
		case errors.Is(err, errConflict):
			continue
		case errors.Is(err, errLong):
			return message.Record{}, effects{}, errors.Join(err, j.tooLong(ctx, cur, tooLong{next, err}))
		case err != nil:
			return message.Record{}, effects{}, err
		}
		j.follow(ctx, rec, then)
		return rec, then, nil
	}
}

// written reports whether a record is what a write made of it that seemed to have failed: a server that has lost the
// leadership may report a conflict although it had passed the write on.
func written(tried, cur message.Record) bool {
	tried.Rev, tried.Finished, tried.Cancel, tried.Started = cur.Rev, cur.Finished, cur.Cancel, cur.Started
	tried.EndSeq = cur.EndSeq
	value, err := encodeRecord(tried)
	return err == nil && cur.State.Final() && same(cur, value)
}

// tooLong ends a job whose next record the store will never take.
func (j *Table) tooLong(ctx context.Context, cur message.Record, c tooLong) error {
	next, then, err := step(cur, c, j.cfg.Now().UnixMilli(), j.rules)
	if err != nil {
		return nil //nolint:nilerr // the job keeps the result that it has
	}
	rec, err := j.write(ctx, cur, next, then)
	if err == nil {
		j.follow(ctx, rec, then)
	}
	return err
}

// follow sees to what follows from a change, except for files, which only their Dispatcher can name.
func (j *Table) follow(ctx context.Context, rec message.Record, then effects) {
	for _, ev := range then.events {
		j.Append(rec.Job, -1, ev)
	}
	if then.ends {
		j.publishEnd(rec)
	}
	if then.bury {
		j.bury(ctx, rec)
	}
}

// publishEnd publishes the end of the log of a job.
func (j *Table) publishEnd(rec message.Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, ev := range endOf(rec) {
		j.cfg.OnEvent(ev)
	}
}

// betweenConflicts is the pause before a swap is tried again at a store that has no record to compare with.
const betweenConflicts = 250 * time.Millisecond

// write replaces a record, or returns errConflict if the job is not at its revision any more. then is what follows.
func (j *Table) write(ctx context.Context, cur, next message.Record, then effects) (message.Record, error) {
	j.mu.Lock()
	e, ok := j.jobs[cur.Job]
	if !ok || e.rec.Rev != cur.Rev {
		j.mu.Unlock()
		if !ok {
			return message.Record{}, ErrNoJob
		}
		return message.Record{}, errConflict
	}
	store := j.storeFor(e)
	j.mu.Unlock()
	if err := j.warm(ctx, e); err != nil { // the events of a change continue the numbers of the log
		return message.Record{}, err
	}
	if then.ends {
		j.mu.Lock()
		next.EndSeq = e.seq + uint64(len(endOf(next)))
		j.mu.Unlock()
	}
	r, err := store.swap(ctx, next)
	if errors.Is(err, errConflict) {
		now, err := store.get(ctx, cur.Job)
		if err == nil {
			j.observe(now)
		} else { // dropped, which the table is about to hear, or lost, and about to be written again
			_ = wire.Pause(ctx, betweenConflicts)
		}
	}
	if err != nil {
		return message.Record{}, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.jobs[cur.Job] == nil && r.State.Final() { // the table has forgotten the job meanwhile
		return r, nil
	}
	e = j.entry(cur.Job)
	j.applyRecord(e, r)
	if e.rec.Rev != r.Rev { // somebody has changed it since
		return r, nil
	}
	return j.view(e), nil
}

// storeFor returns the store in which a job is. The caller must hold j.mu.
func (j *Table) storeFor(e *tracked) Store {
	if e.rec.Kind != "" {
		return j.own
	}
	return j.store
}

// applyRecord makes r the record of an entry and updates what depends on it: the queue, the cancel channel, waiting
// readers. It ignores a record that is not newer than the entry's. The caller must hold j.mu.
func (j *Table) applyRecord(e *tracked, r message.Record) {
	if r.Rev <= e.rec.Rev {
		return
	}
	was, end, back, moved := e.rec.State, e.rec.EndSeq, r.HandedBack > e.rec.HandedBack, r.Moves != e.rec.Moves
	// a job whose end was lost may have ended again with the same number
	same := end == r.EndSeq && (end == 0 || e.rec.Finished == r.Finished && e.rec.Owner == r.Owner)
	j.clock(e, r)
	e.rec = r
	if was != "" && was.Final() && !r.State.Final() {
		e.revived = time.Now()
	}
	if e.held != 0 && (r.Attempt != e.held || r.Owner != j.cfg.Owner) {
		j.lose(e)
	}
	if was == message.Queued {
		j.queue = slices.DeleteFunc(j.queue, func(q string) bool { return q == r.Job })
		if r.State == message.Running {
			j.begins(e)
		}
	}
	if r.State == message.Queued {
		if moved || was != message.Queued && (was != message.Running || back || e.place == (spot{})) {
			e.place = j.turns.give(&e.rec)
		}
		j.insertQueued(e, was)
	}
	if was != "" && was != message.Queued && r.State == message.Queued { // queued again
		closeOnce(e.cancel) // stop a run whose attempt was ended elsewhere
		e.cancel = make(chan struct{})
		e.held = 0
	}
	if r.Cancel {
		closeOnce(e.cancel)
	}
	j.touch(e)
	if same {
		return
	}
	if end > 0 { // the job goes on, or it did and has ended again: what happened meanwhile is in the store
		e.cold, e.endPublished = true, false
		j.ended = slices.DeleteFunc(j.ended, func(id string) bool { return id == r.Job })
	}
	if r.EndSeq > 0 {
		j.end(e)
	}
}

// begins notes that a job that waited runs, here or at another daemon. Jobs came to that one at other moments and have
// other turns there: those that still wait here and come before the job have not been served. The caller must hold
// j.mu.
func (j *Table) begins(e *tracked) {
	at := e.place
	if e.rec.Owner != j.cfg.Owner {
		first := slices.IndexFunc(j.queue, func(id string) bool {
			p := j.jobs[id].place
			return !p.front && p.class == at.class
		})
		if first >= 0 {
			at.turn = min(at.turn, j.jobs[j.queue[first]].place.turn)
		}
	}
	j.turns.take(at)
}

// end ends the log of a job whose record says so. The caller must hold j.mu.
func (j *Table) end(e *tracked) {
	closeOnce(e.cancel) // stop a run whose attempt was ended elsewhere
	e.preview, e.held = nil, 0
	e.drop()
	if !e.cold {
		e.completeLog()
	}
	j.ended = append(j.ended, e.rec.Job)
	j.forget()
}

// completeLog puts the end of the log in place of events that were told since by a daemon that did not know of it. The
// caller must hold the lock of the table.
func (e *tracked) completeLog() {
	end := endOf(e.rec)
	late := func(ev message.Event) bool { return ev.Seq >= end[0].Seq }
	e.log = append(slices.DeleteFunc(bounded(e.log), late), end...)
	e.seq = end[len(end)-1].Seq
}

// insertQueued inserts a job into the queue at its place. The caller must hold j.mu.
func (j *Table) insertQueued(e *tracked, was message.State) {
	if was != message.Queued {
		e.notHere = time.Time{}
		if owner := e.rec.Owner; owner != j.cfg.Owner && j.alive(owner) {
			e.notHere = j.cfg.Now().Add(precedence)
		}
	}
	i, _ := slices.BinarySearchFunc(j.queue, e, func(id string, e *tracked) int {
		return j.jobs[id].place.before(e.place)
	})
	j.queue = slices.Insert(j.queue, i, e.rec.Job)
	j.signal()
}

func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// forget drops the oldest ended jobs beyond the limit. The caller must hold j.mu.
func (j *Table) forget() {
	for len(j.ended) > j.cfg.Keep {
		j.forgetOldest()
	}
}

func (j *Table) forgetOldest() {
	e := j.jobs[j.ended[0]]
	j.gone = append(j.gone, e.rec)
	j.remove(e.rec.Job)
}

// remove takes a job out of the table. The caller must hold j.mu.
func (j *Table) remove(id string) {
	e := j.jobs[id]
	e.drop()
	delete(j.jobs, id)
	same := func(q string) bool { return q == id }
	j.queue, j.ended = slices.DeleteFunc(j.queue, same), slices.DeleteFunc(j.ended, same)
	j.cfg.OnForget(id)
}

// drop releases the request of a job. The caller must hold j.mu.
func (e *tracked) drop() {
	if e.req != nil {
		e.req.Hold.Release()
	}
	e.req = nil
}

// Close makes Create refuse new jobs.
func (j *Table) Close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed = true
}

// Busy returns how many jobs are queued and how many are running.
func (j *Table) Busy() (queued, running int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.jobs {
		if e.rec.State == message.Running {
			running++
		}
	}
	return len(j.queue), running
}

// view returns a copy of a record with its place in the queue. The caller must hold j.mu.
func (j *Table) view(e *tracked) message.Record {
	r := e.rec.Clone()
	if r.State == message.Queued {
		r.Position = j.position(r.Job)
	}
	return r
}

func (j *Table) position(id string) int { return max(0, slices.Index(j.queue, id)) }

func (j *Table) touch(e *tracked) {
	close(e.changed)
	e.changed = make(chan struct{})
}

func (j *Table) signal() {
	close(j.wake)
	j.wake = make(chan struct{})
}

// Errors of Table that callers act on.
var (
	ErrNoJob    = errors.New("no such job")
	errConflict = errors.New("the record was changed by someone else")
	ErrFull     = errors.New("the queue is full")
	ErrCrowd    = errors.New("the client has too many jobs")
	ErrHash     = errors.New("a job of that id exists with another body")
	errGone     = errors.New("what the job asks for is not there any more")
	errLong     = errors.New("the record is too long for the store")
	ErrStore    = errors.New("the job store cannot be written")
	ErrClosed   = errors.New("no new jobs are taken")
)
