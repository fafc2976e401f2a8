package ipc

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// JobsConfig are the limits of a job table.
type JobsConfig struct {
	MaxQueued int                                 // waiting jobs; more are refused with queue_full. 0: 10000
	Keep      int                                 // ended jobs that are remembered; the oldest are forgotten first. 0: 1000
	OnEvent   func(Event)                         // called for every event, in order within a job; must not block or call Jobs
	OnPreview func(job, node string, jpeg []byte) // called for every preview; must not block or call Jobs
	OnForget  func(string)                        // called with the id of a job that was forgotten; must not call Jobs
	Now       func() time.Time
}

// Jobs is the table of jobs: records, waiting requests and event logs. Every carrier submits to it, one dispatcher takes from it, every reply
// and event is read from it. This implementation is in memory. Safe for concurrent use.
type Jobs struct {
	cfg JobsConfig

	mu     sync.Mutex
	jobs   map[string]*entry
	queue  []string // ids of waiting jobs, next first
	ended  []string // ids of ended jobs, oldest first
	wake   chan struct{}
	closed bool
}

// entry is one job with its request and log.
type entry struct {
	rec     Record
	req     *RunRequest
	log     []Event
	seq     uint64
	ended   bool // the terminal event is in the log
	cancel  chan struct{}
	changed chan struct{} // closed and replaced at every change
	preview *previewMessage
	shown   uint64 // number of previews so far
	viewers int    // cursors that want previews
}

// maxLog bounds the events kept of one job; progress is dropped first.
const maxLog = 2048

// NewJobs returns an empty table.
func NewJobs(cfg JobsConfig) *Jobs {
	if cfg.MaxQueued == 0 {
		cfg.MaxQueued = 10000
	}
	if cfg.Keep == 0 {
		cfg.Keep = 1000
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Jobs{cfg: cfg, jobs: map[string]*entry{}, wake: make(chan struct{})}
}

// Create adds a queued job and its queued event. A job of that id with the same hash is returned as it is, with false; with another hash it is errHash.
func (j *Jobs) Create(_ context.Context, req *RunRequest, hash string) (Record, bool, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e, ok := j.jobs[req.ID]; ok {
		if e.rec.Hash != hash {
			return Record{}, false, errHash
		}
		return j.view(e), false, nil
	}
	if j.closed {
		return Record{}, false, errClosed
	}
	if len(j.queue) >= j.cfg.MaxQueued {
		return Record{}, false, errFull
	}
	now := j.cfg.Now().UnixMilli()
	e := &entry{
		rec:     Record{V: ProtocolVersion, Job: req.ID, State: Queued, Rev: 1, Created: now, Hash: hash, Client: req.Client},
		req:     req,
		cancel:  make(chan struct{}),
		changed: make(chan struct{}),
	}
	if req.QueueTTLMS > 0 {
		e.rec.ExpireAt = now + int64(req.QueueTTLMS)
	}
	j.jobs[req.ID] = e
	if req.Front {
		j.queue = slices.Insert(j.queue, 0, req.ID)
	} else {
		j.queue = append(j.queue, req.ID)
	}
	j.append(e, Event{Type: EventQueued, Data: map[string]any{"prompt_id": req.ID, "position": j.position(req.ID)}})
	j.signal()
	return j.view(e), true, nil
}

// Get returns a record.
func (j *Jobs) Get(_ context.Context, id string) (Record, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.jobs[id]
	if !ok {
		return Record{}, errNoJob
	}
	return j.view(e), nil
}

// List returns the records in a state ("": all), newest first, at most limit of them, and how many jobs are in each state.
func (j *Jobs) List(_ context.Context, state State, limit int) ([]Record, map[State]int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	counts := map[State]int{}
	var out []Record
	for _, e := range j.jobs {
		counts[e.rec.State]++
		if state == "" || e.rec.State == state {
			out = append(out, j.view(e))
		}
	}
	slices.SortFunc(out, func(a, b Record) int {
		if a.Created != b.Created {
			return int(b.Created - a.Created)
		}
		return -compareText(a.Job, b.Job)
	})
	return out[:min(limit, len(out))], counts, nil
}

func compareText(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// Update changes a record if it is still at rev, and returns the new one; errConflict otherwise. change must not call Jobs. A change of state
// that is not allowed is an error and leaves the record alone.
func (j *Jobs) Update(_ context.Context, id string, rev uint64, change func(*Record)) (Record, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.jobs[id]
	if !ok {
		return Record{}, errNoJob
	}
	if e.rec.Rev != rev {
		return Record{}, errConflict
	}
	r := e.rec.clone()
	change(&r)
	if !slices.Contains(e.rec.State.next(), r.State) {
		return Record{}, fmt.Errorf("job %s cannot go from %s to %s", id, e.rec.State, r.State)
	}
	r.Rev++
	was := e.rec.State
	e.rec = r
	switch {
	case was == Queued && r.State != Queued:
		j.queue = slices.DeleteFunc(j.queue, func(q string) bool { return q == id })
	case was == Running && r.State == Queued: // a retry goes first
		j.queue = slices.Insert(j.queue, 0, id)
		e.cancel = make(chan struct{})
		j.signal()
	}
	if r.Cancel {
		closeOnce(e.cancel)
	}
	j.touch(e)
	return j.view(e), nil
}

func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// Append adds an event to the log of a job, stamped with number, time and attempt. An event of an attempt that is not the current one, or after the
// terminal event, is dropped and false returned. attempt < 0 means any.
func (j *Jobs) Append(_ context.Context, id string, attempt int, ev Event) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.jobs[id]
	if !ok || e.ended || attempt >= 0 && e.rec.Attempt != attempt {
		return false
	}
	if attempt >= 0 && !Terminal(ev.Type) && e.rec.State != Running && ev.Type != EventRetrying {
		return false // a late event of a run that has ended
	}
	j.append(e, ev)
	return true
}

// append is Append with the lock held.
func (j *Jobs) append(e *entry, ev Event) {
	e.seq++
	ev.V, ev.Job, ev.Seq, ev.TS, ev.Attempt = ProtocolVersion, e.rec.Job, e.seq, j.cfg.Now().UnixMilli(), e.rec.Attempt
	if len(e.log) >= maxLog {
		e.log = slices.DeleteFunc(e.log, func(old Event) bool { return old.Type == EventProgress })
		if len(e.log) >= maxLog {
			e.log = slices.Delete(e.log, 1, maxLog/2)
		}
	}
	e.log = append(e.log, ev)
	if j.cfg.OnEvent != nil {
		j.cfg.OnEvent(ev)
	}
	if Terminal(ev.Type) {
		e.ended = true
		e.preview, e.req = nil, nil
		j.ended = append(j.ended, e.rec.Job)
		j.forget()
	}
	j.touch(e)
}

// forget drops the oldest ended jobs over the limit.
func (j *Jobs) forget() {
	for len(j.ended) > j.cfg.Keep {
		id := j.ended[0]
		j.ended = j.ended[1:]
		delete(j.jobs, id)
		if j.cfg.OnForget != nil {
			j.cfg.OnForget(id)
		}
	}
}

// Take waits for a job, moves it to running under the name of the worker and returns it with its request and a channel that is closed when it is
// asked to stop. Only ctx ends the wait.
func (j *Jobs) Take(ctx context.Context, worker string) (Record, *RunRequest, <-chan struct{}, error) {
	for {
		j.mu.Lock()
		if len(j.queue) > 0 {
			id := j.queue[0]
			j.queue = j.queue[1:]
			e := j.jobs[id]
			e.rec.State, e.rec.Worker, e.rec.Started = Running, worker, j.cfg.Now().UnixMilli()
			e.rec.Attempt++
			e.rec.Rev++
			j.touch(e)
			rec, req, stop := j.view(e), e.req, e.cancel
			j.mu.Unlock()
			return rec, req, stop, nil
		}
		wake := j.wake
		j.mu.Unlock()
		select {
		case <-ctx.Done():
			return Record{}, nil, nil, ctx.Err()
		case <-wake:
		}
	}
}

// Expire ends the queued jobs whose time to wait is over.
func (j *Jobs) Expire(ctx context.Context) {
	j.mu.Lock()
	now := j.cfg.Now().UnixMilli()
	var due []Record
	for _, id := range j.queue {
		if e := j.jobs[id]; e.rec.ExpireAt > 0 && e.rec.ExpireAt <= now {
			due = append(due, e.rec)
		}
	}
	j.mu.Unlock()
	for _, r := range due {
		fault := Errorf(ErrExpired, "the job waited longer than its queue_ttl_ms")
		if _, err := j.Update(ctx, r.Job, r.Rev, func(r *Record) { r.State, r.Finished, r.Error = Expired, now, fault }); err == nil {
			j.Append(ctx, r.Job, -1, Event{Type: EventExpired, Error: fault, Data: map[string]any{"prompt_id": r.Job}})
		}
	}
}

// Close makes Create refuse new jobs.
func (j *Jobs) Close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed = true
}

// Busy returns how many jobs are queued and how many are running.
func (j *Jobs) Busy() (queued, running int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.jobs {
		if e.rec.State == Running {
			running++
		}
	}
	return len(j.queue), running
}

// view returns a copy of a record with its place in the queue.
func (j *Jobs) view(e *entry) Record {
	r := e.rec.clone()
	if r.State == Queued {
		r.Position = j.position(r.Job)
	}
	return r
}

func (j *Jobs) position(id string) int { return max(0, slices.Index(j.queue, id)) }

func (j *Jobs) touch(e *entry) {
	close(e.changed)
	e.changed = make(chan struct{})
}

func (j *Jobs) signal() {
	close(j.wake)
	j.wake = make(chan struct{})
}
