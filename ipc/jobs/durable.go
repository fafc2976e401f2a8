package jobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// What a job table does with a Store: the record is changed there first, and the table follows, from the answer or from
// the watch on the bucket, whichever comes first. Other daemons on the same server do the same, so that each knows
// every job.

// AskTime is how long a client's request may wait for the store.
const AskTime = 5 * time.Second

// Open reads all records of the store and follows them from then on. The jobs of a daemon that ended without a word are
// put right by Dispatcher.Recover.
func (j *Table) Open(ctx context.Context) error {
	loaded, err := j.cfg.Store.watch(j.observe, j.vanish)
	if err != nil {
		return err
	}
	if err := j.cfg.Store.hear(j.Hear); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-loaded:
		return nil
	}
}

// observe takes in a record as it stands in the store.
func (j *Table) observe(rec message.Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, known := j.jobs[rec.Job]
	e := j.entry(rec.Job)
	if !known {
		e.cold = true
		if rec.State.Final() { // its terminal event is in the stream, or Recover makes it
			e.ended = true
			j.ended = append(j.ended, rec.Job)
		}
	}
	j.settle(e, rec)
}

// vanish drops a job that somebody has dropped from the store.
func (j *Table) vanish(id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.jobs[id]
	if !ok {
		return
	}
	e.drop()
	delete(j.jobs, id)
	same := func(q string) bool { return q == id }
	j.queue, j.ended = slices.DeleteFunc(j.queue, same), slices.DeleteFunc(j.ended, same)
	e.ended = true
	closeOnce(e.cancel)
	j.touch(e)
	if j.cfg.OnForget != nil {
		j.cfg.OnForget(id)
	}
}

func (j *Table) createDurable(ctx context.Context, rec message.Record,
	req *message.RunRequest,
) (message.Record, bool, error) {
	l := j.cfg.Store
	if err := l.full(); err != nil {
		return message.Record{}, false, err
	}
	ctx, cancel := l.writable(ctx)
	defer cancel()
	hash := rec.Hash
	rec.Owner = l.Owner()
	rec, created, err := l.create(ctx, rec, req)
	if full := l.full(); err != nil && full != nil {
		return message.Record{}, false, full
	}
	if errors.Is(err, context.DeadlineExceeded) && l.nc.IsConnected() {
		return message.Record{}, false, fmt.Errorf("%w (the NATS server answers and takes no writes: is its disk full? "+
			"then it wants a restart when there is space)", err)
	}
	if err != nil {
		return message.Record{}, false, err
	}
	if !created {
		j.observe(rec)
		if rec.Hash != hash {
			return message.Record{}, false, ErrHash
		}
		return rec, false, nil
	}
	j.mu.Lock()
	out := j.added(rec, req)
	first := len(j.queue) > 0 && j.queue[0] == rec.Job
	j.mu.Unlock()
	if first && l.cfg.Resources.Lacks(rec.Files, rec.Memory) == nil && l.handOver(rec.Job) {
		return out, true, nil
	}
	if err := l.enqueue(ctx, rec); err != nil {
		l.cfg.Log.Warn().Err(err).Str("job", rec.Job).Msg("the job is kept, and queued when the server can be reached")
	}
	return out, true, nil
}

// full tells why the store cannot take new jobs; nil: it can, or nobody knows.
func (l *JetStream) full() error {
	if l.cfg.Full == nil {
		return nil
	}
	if err := l.cfg.Full(); err != nil {
		return fmt.Errorf("%w: %w", ErrStore, err)
	}
	return nil
}

// writable is the time that a client's job may take to be written down; it ends at once when the store turns out to be
// full.
func (l *JetStream) writable(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, AskTime)
	if l.cfg.Full == nil {
		return ctx, cancel
	}
	go func() {
		defer cancel()
		for l.cfg.Full() == nil {
			select {
			case <-ctx.Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	return ctx, cancel
}

// updateDurable writes r, a changed record at its old revision.
func (j *Table) updateDurable(ctx context.Context, e *entry, was message.State,
	r message.Record,
) (message.Record, error) {
	l := j.cfg.Store
	if err := j.warm(ctx, e); err != nil { // a change is followed by events, and those by their numbers
		return message.Record{}, err
	}
	next, err := l.swap(ctx, r)
	if err != nil {
		if errors.Is(err, errConflict) {
			if cur, getErr := l.get(ctx, r.Job); getErr == nil {
				j.observe(cur)
			}
		}
		return message.Record{}, err
	}
	j.mu.Lock()
	j.settle(e, next)
	out := j.view(e)
	j.mu.Unlock()
	if was != message.Queued && next.State == message.Queued {
		j.post(next)
	}
	return out, nil
}

// post queues a job that is to run once more, when its pause is over.
func (j *Table) post(rec message.Record) {
	l := j.cfg.Store
	put := func() {
		if err := l.enqueue(l.ctx, rec); err != nil {
			l.cfg.Log.Warn().Err(err).Str("job", rec.Job).Msg("not queued yet") // Reconcile does it
		}
	}
	if pause := rec.NotBefore - j.cfg.Now().UnixMilli(); pause > 0 {
		time.AfterFunc(time.Duration(pause)*time.Millisecond, put)
		return
	}
	put()
}

func (j *Table) takeDurable(ctx context.Context, worker string) (message.Record, *message.RunRequest,
	<-chan struct{}, error,
) {
	l := j.cfg.Store
	for {
		ref, err := l.next(ctx, j.wants)
		if err != nil {
			return message.Record{}, nil, nil, err
		}
		rec, req, stop, err := j.takeThis(ctx, ref.job, worker)
		switch {
		case err == nil:
			ref.drop()
			return rec, req, stop, nil
		case errors.Is(err, errLacking):
			ref.giveBack(l)
		// dropped, ended, or taken by somebody else: the reference is stale
		case errors.Is(err, errNoJob), errors.Is(err, errConflict):
			ref.drop()
		case ctx.Err() == nil:
			l.cfg.Log.Warn().Err(err).Str("job", ref.job).Msg("not taken; its reference comes again")
		}
	}
}

// wants reports whether this daemon could run one of the waiting jobs. An empty queue may be one that has not been told
// of yet.
func (j *Table) wants() bool {
	if j.cfg.Store.cfg.Resources == nil {
		return true
	}
	j.mu.Lock()
	waiting := make([]message.Record, 0, min(len(j.queue), 64))
	for _, id := range j.queue[:min(len(j.queue), 64)] {
		waiting = append(waiting, j.jobs[id].rec)
	}
	all := len(waiting) == len(j.queue)
	j.mu.Unlock()
	for _, rec := range waiting {
		if j.cfg.Store.cfg.Resources.Lacks(rec.Files, rec.Memory) == nil {
			return true
		}
	}
	return len(waiting) == 0 || !all
}

// takeThis moves a job to running. errConflict: it does not wait any more.
func (j *Table) takeThis(ctx context.Context, id, worker string) (message.Record, *message.RunRequest,
	<-chan struct{}, error,
) {
	l := j.cfg.Store
	if !j.knows(id) {
		rec, err := l.get(ctx, id)
		if err != nil {
			return message.Record{}, nil, nil, err
		}
		j.observe(rec)
	}
	var rec message.Record
	for {
		cur, err := j.Get(ctx, id)
		if err != nil {
			return message.Record{}, nil, nil, err
		}
		if cur.State != message.Queued {
			return message.Record{}, nil, nil, errConflict
		}
		if err := l.cfg.Resources.Lacks(cur.Files, cur.Memory); err != nil {
			j.leave(id, err)
			return message.Record{}, nil, nil, errLacking
		}
		rec, err = j.Update(ctx, id, cur.Rev, func(r *message.Record) {
			r.State, r.Worker, r.Owner, r.Started, r.NotBefore = message.Running, worker, l.Owner(), j.cfg.Now().UnixMilli(), 0
			r.Attempt++
		})
		if err == nil {
			break
		}
		if !errors.Is(err, errConflict) {
			return message.Record{}, nil, nil, err
		}
	}
	j.mu.Lock()
	e := j.entry(id)
	e.held = true
	req, stop := e.req, e.cancel
	if req != nil {
		req.Hold.Retain()
	}
	j.mu.Unlock()
	if req == nil {
		var err error
		if req, err = l.request(ctx, rec); err != nil {
			j.fail(ctx, rec, wire.Errorf(wire.ErrInternal, "%v", err))
			return message.Record{}, nil, nil, errConflict
		}
	}
	return rec, req, stop, nil
}

// Ended returns the record of a job whose success has been told. The word of another daemon may be faster than its
// record, which is read then.
func (j *Table) Ended(ctx context.Context, id string) (message.Record, error) {
	rec, err := j.Get(ctx, id)
	if err != nil || j.cfg.Store == nil || rec.State.Final() && rec.Owner == j.cfg.Store.Owner() {
		return rec, err
	}
	ctx, cancel := context.WithTimeout(ctx, AskTime)
	defer cancel()
	if rec, err = j.cfg.Store.get(ctx, id); err == nil {
		j.observe(rec)
	}
	return rec, err
}

// leave says, once a job, why it is left to another daemon.
func (j *Table) leave(id string, why error) {
	j.mu.Lock()
	e := j.entry(id)
	said := e.left
	e.left = true
	j.mu.Unlock()
	if !said {
		j.cfg.Store.cfg.Log.Info().Err(why).Str("job", id).Msg("the job waits for another daemon")
	}
}

func (j *Table) knows(id string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.jobs[id] != nil
}

// warm reads the events of a job that are in the stream and not here.
func (j *Table) warm(ctx context.Context, e *entry) error {
	e.warming.Lock()
	defer e.warming.Unlock()
	j.mu.Lock()
	id, cold := e.rec.Job, e.cold
	j.mu.Unlock()
	if !cold {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, AskTime)
	defer cancel()
	log, err := j.cfg.Store.log(ctx, id)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, ev := range e.log { // those that came meanwhile
		if len(log) == 0 || ev.Seq > log[len(log)-1].Seq {
			log = append(log, ev)
		}
	}
	e.log, e.cold = log, false
	e.seq = max(e.seq, 1) // the event that it is queued has the first number, even if it is still on its way
	if len(log) > 0 {
		last := log[len(log)-1]
		e.seq = max(e.seq, last.Seq)
		if message.Terminal(last.Type) && e.rec.State.Final() && !e.ended {
			e.ended = true
			j.ended = append(j.ended, id)
		}
	}
	j.touch(e)
	return nil
}

// Hear takes in an event of another daemon.
func (j *Table) Hear(ev message.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.jobs[ev.Job]
	if !ok || ev.Seq <= e.seq || e.held {
		return
	}
	e.seq = ev.Seq
	if len(e.log) >= maxLog {
		e.log = slices.Delete(e.log, 0, maxLog/2)
	}
	e.log = append(e.log, ev)
	if message.Terminal(ev.Type) && !e.ended {
		e.ended = true
		j.ended = append(j.ended, ev.Job)
		j.forget()
	}
	j.touch(e)
}

// Mine reports whether this daemon is the one to answer for a job: it has it, or nobody else is there that could.
// Elsewhere: another live daemon has it.
func (j *Table) Mine(id string) (mine, elsewhere bool) {
	j.mu.Lock()
	e, ok := j.jobs[id]
	owner := ""
	if ok {
		owner = e.rec.Owner
	}
	j.mu.Unlock()
	l := j.cfg.Store
	if !ok || l == nil || owner == l.Owner() {
		return ok, false
	}
	return false, l.alive(owner)
}

// fail ends a job that was not given to any worker.
func (j *Table) fail(ctx context.Context, rec message.Record, fault *wire.Error) {
	rec, err := j.Update(ctx, rec.Job, rec.Rev,
		func(r *message.Record) { r.State, r.Error, r.Finished = message.Failed, fault, j.cfg.Now().UnixMilli() })
	if err == nil {
		j.Append(ctx, rec.Job, -1, terminalOf(rec))
		j.bury(ctx, rec)
	}
}

func (j *Table) bury(ctx context.Context, rec message.Record) {
	if l := j.cfg.Store; l != nil {
		if err := l.bury(ctx, rec); err != nil {
			l.cfg.Log.Warn().Err(err).Str("job", rec.Job).Msg("no dead letter written; the record has the cause")
		}
	}
}

// terminalOf makes the terminal event of a job from its record.
func terminalOf(rec message.Record) message.Event {
	data := map[string]any{"prompt_id": rec.Job}
	switch rec.State {
	case message.Done:
		data["timestamp"], data["outputs"] = time.Now().UnixMilli(), rec.Outputs
		return message.Event{Type: message.EventSuccess, Data: data}
	case message.Expired:
		return message.Event{Type: message.EventExpired, Error: rec.Error, Data: data}
	}
	fault := rec.Error
	if fault == nil {
		fault = wire.Errorf(wire.ErrInternal, "the job is %s", rec.State)
	}
	kind := message.EventError
	if rec.State == message.Cancelled {
		kind = message.EventInterrupted
	}
	return message.Event{Type: kind, Error: fault, NodeErrors: rec.NodeError, Data: endData(fault, data)}
}

// Retry queues a job once more that has failed, was cancelled or has expired, with all its attempts before it.
func (j *Table) Retry(ctx context.Context, id string) (message.Record, error) {
	if j.cfg.Store == nil {
		return message.Record{}, wire.Errorf(wire.ErrExpired,
			"the jobs of this daemon are kept in memory only, without what they asked for; submit the job again")
	}
	for {
		rec, err := j.Get(ctx, id)
		if err != nil {
			return message.Record{}, err
		}
		if rec.Kind != "" {
			return message.Record{}, wire.Errorf(wire.ErrBadRequest,
				"job %s is a %s, which belongs to its connection; send it again", id, rec.Kind)
		}
		if rec.State.Revived() == nil {
			return message.Record{}, wire.Errorf(wire.ErrBadRequest,
				"job %s is %s; retry is for jobs that failed, were cancelled or have expired", id, rec.State)
		}
		cause := fmt.Sprintf("it was %s", rec.State)
		rec, err = j.update(ctx, id, rec.Rev, message.State.Revived, func(r *message.Record) {
			if r.Error != nil {
				r.Because(r.Error.Error())
				cause = r.Error.Message
			}
			r.State, r.Error, r.NodeError, r.Finished, r.ExpireAt, r.Cancel, r.HandedBack = message.Queued, nil, nil, 0,
				0, false, r.Attempt
		})
		if errors.Is(err, errConflict) {
			continue
		}
		if err == nil {
			j.Append(ctx, id, -1, message.Event{
				Type: message.EventRetrying,
				Data: map[string]any{"prompt_id": id, "cause": "retry was asked for; before, " + cause},
			})
		}
		return rec, err
	}
}
