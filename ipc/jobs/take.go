package jobs

import (
	"context"
	"errors"
	"time"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// precedence is how long the other daemons leave a waiting job to the one that has accepted it, so that they do not all
// try to take the same job at once.
const precedence = 5 * time.Millisecond

// retryTaking is the pause after a job could not be taken because the server was away for a moment.
const retryTaking = 500 * time.Millisecond

// Take waits for a job, moves it to running under the name of the worker and returns it with its request, whose Hold
// the caller must release, and a channel that is closed when the job is asked to stop. Only ctx ends the wait.
func (j *Table) Take(ctx context.Context, worker string) (message.Record, *message.RunRequest, <-chan struct{}, error) {
	for {
		id, err := j.next(ctx)
		if err != nil {
			return message.Record{}, nil, nil, err
		}
		rec, req, stop, err := j.takeThis(ctx, id, worker)
		again := err != nil && ctx.Err() == nil && !errors.Is(err, ErrNoJob) && !errors.Is(err, errMoved) &&
			!errors.Is(err, errLong)
		j.tried(id, again)
		if err == nil {
			return rec, req, stop, nil
		}
		if again {
			j.cfg.Log.Warn().Err(err).Str("job", id).Msg("not taken; it is tried again")
		}
	}
}

// next waits for a job that this daemon can run now, and marks it as being taken.
func (j *Table) next(ctx context.Context) (string, error) {
	for {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		j.mu.Lock()
		id, pause := j.pick(j.cfg.Now())
		wake := j.wake
		if id != "" {
			j.jobs[id].taking = true
		}
		j.mu.Unlock()
		if id != "" {
			return id, nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// lookAgain bounds how long next waits while nothing changes: files may have come to this daemon.
const lookAgain = time.Second

// pick returns the first waiting job that this daemon can run now; if there is none, "" and how long to wait before the
// next look. The caller must hold j.mu.
func (j *Table) pick(now time.Time) (string, time.Duration) {
	if j.paused {
		return "", lookAgain
	}
	if n := len(j.queue); n > 0 && j.turns.unhurriedFirst() {
		last := j.jobs[j.queue[n-1]].place
		for _, id := range j.queue {
			if e := j.jobs[id]; e.place.front == last.front && e.place.class == last.class && j.ready(e, now) == 0 {
				return id, 0
			}
		}
	}
	pause := lookAgain
	for _, id := range j.queue {
		wait := j.ready(j.jobs[id], now)
		if wait == 0 {
			return id, 0
		}
		pause = min(pause, wait)
	}
	return "", pause
}

// ready returns how long it takes until this daemon can try to take a waiting job; 0: it can now. The caller must hold
// j.mu.
func (j *Table) ready(e *tracked, now time.Time) time.Duration {
	switch wait := max(e.paused.Sub(now), e.notHere.Sub(now)); {
	case e.taking || j.coming[e.rec.Job] != nil: // the watch was faster than the answer of the store to create
		return lookAgain
	case wait > 0:
		return wait
	}
	if err := j.cfg.Resources.Lacks(e.rec.Files, e.rec.Memory); err != nil {
		e.notHere = now.Add(lookAgain)
		if !e.left {
			e.left = true
			j.cfg.Log.Info().Err(err).Str("job", e.rec.Job).Msg("the job waits for another daemon")
		}
		return lookAgain
	}
	return 0
}

// tried ends what next has begun; again says that the job is tried once more later.
func (j *Table) tried(id string, again bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e := j.jobs[id]
	if e == nil {
		return
	}
	e.taking = false
	if again {
		e.notHere = j.cfg.Now().Add(retryTaking)
	}
	if e.rec.State == message.Queued {
		j.signal()
	}
}

// takeThis moves a job to running. It returns errMoved if the job is no longer waiting.
func (j *Table) takeThis(ctx context.Context, id, worker string) (message.Record, *message.RunRequest,
	<-chan struct{}, error,
) {
	cur, err := j.Get(id)
	if err != nil {
		return message.Record{}, nil, nil, err
	}
	if cur.State != message.Queued {
		return message.Record{}, nil, nil, errMoved
	}
	// before the attempt begins, so that a request that cannot be fetched now costs none
	req, err := j.fetch(ctx, cur)
	if errors.Is(err, errGone) {
		_, _, _ = j.do(ctx, id, hopeless{fault.New(fault.Internal, "%v", err)})
		return message.Record{}, nil, nil, errMoved
	}
	if err != nil {
		return message.Record{}, nil, nil, err
	}
	rec, _, err := j.do(ctx, id, taken{worker, j.cfg.Owner, wire.NewID()})
	if err != nil {
		req.Hold.Release()
		return message.Record{}, nil, nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	e := j.entry(id)
	e.held = rec.Attempt
	return rec, req, e.cancel, nil
}

// fetch returns the request of a job, from the table or else from the store. The caller must release it.
func (j *Table) fetch(ctx context.Context, rec message.Record) (*message.RunRequest, error) {
	j.mu.Lock()
	if e := j.jobs[rec.Job]; e != nil && e.req != nil {
		defer j.mu.Unlock()
		e.req.Hold.Retain()
		return e.req, nil
	}
	j.mu.Unlock()
	return j.store.request(ctx, rec)
}

func (j *Table) bury(ctx context.Context, rec message.Record) {
	if err := j.store.bury(ctx, rec); err != nil {
		j.cfg.Log.Warn().Err(err).Str("job", rec.Job).Msg("no dead letter written; the record has the cause")
	}
}

// Expire ends the queued jobs that have waited longer than their queue_ttl_ms.
func (j *Table) Expire(ctx context.Context) {
	j.mu.Lock()
	now := j.cfg.Now()
	var due []message.Record
	for _, id := range j.queue {
		if e := j.jobs[id]; e.rec.ExpireAt > 0 && !now.Before(e.expires) {
			due = append(due, e.rec)
		}
	}
	j.mu.Unlock()
	for _, r := range due {
		_, _, _ = j.do(ctx, r.Job, overdue{r.ExpireAt})
	}
}
