package jobs

import (
	"context"
	"time"

	"patchbay/ipc/message"
)

// AskTime bounds how long the request of a client waits for the store.
const AskTime = 5 * time.Second

// Open reads all records of the store and follows them from then on. Dispatcher.Recover repairs what a crash of this
// daemon has left.
func (j *Table) Open(ctx context.Context) error {
	return j.store.open(ctx, j)
}

// observe takes in a record as it is in the store.
func (j *Table) observe(rec message.Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, known := j.jobs[rec.Job]
	e := j.entry(rec.Job)
	if !known {
		e.cold = true
	}
	if known && rec.Rev == e.rec.Rev && !alike(rec, e.rec) {
		e.rec.Rev = 0 // the store has lost what it had under this number, and has given it again
	}
	j.applyRecord(e, rec)
}

// alike reports whether two records of one revision are one write. Of two writes, one has another run, or an end.
func alike(a, b message.Record) bool {
	return a.State == b.State && a.Attempt == b.Attempt && a.Owner == b.Owner && a.Claim == b.Claim &&
		a.Finished == b.Finished && a.EndSeq == b.EndSeq
}

// clock translates the times of r, the next record of e, to the clock of this process. The system clock may jump
// later, so only a daemon that starts has to trust it. The caller must hold j.mu.
func (j *Table) clock(e *tracked, r message.Record) {
	now := j.cfg.Now()
	if e.rec.Job == "" {
		age := now.UnixMilli() - max(r.Created, r.Started, r.Finished)
		e.since = now.Add(-time.Duration(max(age, 0)) * time.Millisecond)
	} else if !r.State.Final() || r.Finished != e.rec.Finished { // what is noted after its end makes a job no younger
		e.since = now
	}
	most := longestPause
	if r.Attempt == 0 { // asked for, so it may be long
		most = time.Duration(r.NotBefore-r.Created) * time.Millisecond
	}
	e.paused = now.Add(until(r.NotBefore, now, most))
	if r.ExpireAt != e.rec.ExpireAt {
		e.expires = now.Add(until(r.ExpireAt, now, time.Duration(r.ExpireAt-r.Created)*time.Millisecond))
	}
}

// until returns the time from now to a moment in Unix milliseconds, limited to the range from 0 to most.
func until(ms int64, now time.Time, most time.Duration) time.Duration {
	return min(max(time.UnixMilli(ms).Sub(now), 0), most)
}

// written returns every record that is in the store, as the table has it.
func (j *Table) written() []message.Record {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := make([]message.Record, 0, len(j.jobs))
	for _, e := range j.jobs {
		if j.storeFor(e) == j.store && e.rec.Rev > 0 {
			out = append(out, e.rec.Clone())
		}
	}
	return out
}

// turnBack makes rec the table's record of a job that is still at revision was, even if rec is older: the store has
// lost the newer one.
func (j *Table) turnBack(was uint64, rec message.Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e := j.jobs[rec.Job]; e != nil && e.rec.Rev == was {
		e.rec.Rev = 0
		j.applyRecord(e, rec)
	}
}

// vanish removes a job whose record was removed from the store.
func (j *Table) vanish(id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.jobs[id]
	if !ok {
		return
	}
	j.remove(id)
	e.gone = true
	closeOnce(e.cancel)
	j.touch(e)
}

func (j *Table) knows(id string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.jobs[id] != nil
}

// warm loads the events of a job that are in the stream and not here.
func (j *Table) warm(ctx context.Context, e *tracked) error {
	ctx, cancel := context.WithTimeout(ctx, AskTime)
	defer cancel()
	select {
	case e.warming <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-e.warming }()
	j.mu.Lock()
	id, cold := e.rec.Job, e.cold
	j.mu.Unlock()
	if !cold {
		return nil
	}
	log, err := j.store.log(ctx, id)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, ev := range e.log { // those that arrived meanwhile
		log, _ = followed(log, ev)
	}
	e.log, e.cold = log, false
	e.seq = max(e.seq, 1) // number 1 is the queued event, even if it is still on its way
	if len(log) > 0 {
		e.seq = max(e.seq, log[len(log)-1].Seq)
	}
	switch n := len(log); {
	case e.rec.EndSeq > 0:
		e.completeLog()
	case n > 0 && message.Terminal(log[n-1].Type): // its record is on its way: who reads an end may ask for the record
		e.log = log[:n-1]
	}
	j.touch(e)
	return nil
}

// followed appends an event to a log and reports whether it did. A daemon that was frozen or cut off goes on for a
// moment as if it still had its job: its events are not appended after those of the next attempt, and are replaced by
// them. After an end only a retry or the next attempt follows.
func followed(log []message.Event, ev message.Event) ([]message.Event, bool) {
	n := len(log)
	if n > 0 && message.Terminal(log[n-1].Type) && ev.Type != message.EventRetrying && ev.Attempt <= log[n-1].Attempt {
		return log, false
	}
	for ; n > 0; n-- {
		last := log[n-1]
		if ev.Attempt < last.Attempt || ev.Attempt == last.Attempt && ev.Seq <= last.Seq {
			return log, false
		}
		if ev.Seq > last.Seq {
			break
		}
	}
	return append(log[:n], ev), true
}

// lose stops the run of a job that another daemon has taken over. The log of the job is read from the stream again.
// The caller must hold j.mu.
func (j *Table) lose(e *tracked) {
	closeOnce(e.cancel)
	e.cancel = make(chan struct{})
	e.fenced, e.held = e.held, 0
	e.log, e.seq, e.cold, e.preview = nil, 0, true, nil
	e.drop()
}

// holds reports whether an attempt of this process is the one that the record is about: no other daemon has taken it
// over.
func (j *Table) holds(id string, attempt int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	e := j.jobs[id]
	return e != nil && e.held == attempt
}

// release marks an attempt as no longer running here although its end, or the names of its files, were not recorded:
// Reconcile hands the job back, or ends its log.
func (j *Table) release(id string, attempt int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e := j.jobs[id]; e != nil && e.held == attempt {
		e.held = 0
	}
}

// Hear takes in an event of another daemon. The end of a log comes with its record, which says what it is.
func (j *Table) Hear(ev message.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.jobs[ev.Job]
	if !ok || e.held != 0 || e.rec.EndSeq > 0 || message.Terminal(ev.Type) {
		return
	}
	log, news := followed(e.log, ev)
	if !news || len(e.log) == 0 && ev.Seq <= e.seq {
		return
	}
	e.seq = ev.Seq
	e.log = append(bounded(log[:len(log)-1]), ev)
	j.touch(e)
}

// Pending reports whether a job is known and has not ended.
func (j *Table) Pending(id string) bool {
	rec, err := j.Get(id)
	return err == nil && !rec.State.Final()
}

// Mine reports whether this daemon owns a job.
func (j *Table) Mine(id string) bool {
	owner, ok := j.owner(id)
	return ok && owner == j.cfg.Owner
}

// Holder returns the other daemon that owns a job and counts as alive; "" if there is none.
func (j *Table) Holder(id string) (daemon string) {
	owner, ok := j.owner(id)
	if !ok || owner == j.cfg.Owner || !j.alive(owner) {
		return ""
	}
	return owner
}

// SignsOfLife reports whether a daemon counts as alive, and whether it has shown signs of life after the given time.
func (j *Table) SignsOfLife(daemon string, since time.Time) (alive, heard bool) {
	if j.cfg.Machines == nil {
		return true, true
	}
	return j.cfg.Machines.Alive(daemon), j.cfg.Machines.Heard(daemon, since)
}

// Revived reports whether a job was retried by hand after the given time.
func (j *Table) Revived(id string, since time.Time) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	e := j.jobs[id]
	return e != nil && e.revived.After(since)
}

// owner returns the daemon that the record of a job names.
func (j *Table) owner(id string) (daemon string, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e := j.jobs[id]; e != nil {
		return e.rec.Owner, true
	}
	return "", false
}

// alive reports whether a daemon shows signs of life.
func (j *Table) alive(owner string) bool { return j.cfg.Machines == nil || j.cfg.Machines.Alive(owner) }

// wasAway implements follower.
func (j *Table) wasAway() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.away = time.Now()
}
