package jobs

import (
	"context"
	"errors"

	"patchbay/fault"
	"patchbay/ipc/message"
)

// Take waits for a job, moves it to running under the name of the worker and returns it with its request, whose Hold
// the caller must release, and a channel that is closed when the job is asked to stop. Only ctx ends the wait.
func (j *Table) Take(ctx context.Context, worker string) (message.Record, *message.RunRequest, <-chan struct{}, error) {
	for {
		ref, err := j.store.next(ctx, j)
		if err != nil {
			return message.Record{}, nil, nil, err
		}
		rec, req, stop, err := j.takeThis(ctx, ref.job, worker)
		switch {
		case err == nil:
			ref.drop()
			return rec, req, stop, nil
		// dropped, ended, or taken by another daemon: the reference is stale
		case errors.Is(err, ErrNoJob), errors.Is(err, errMoved), errors.Is(err, errLong):
			ref.drop()
		default: // its files are not here, or the server was away for a moment
			ref.giveBack()
			if ctx.Err() == nil && !errors.Is(err, errLacking) {
				j.cfg.Log.Warn().Err(err).Str("job", ref.job).Msg("not taken; its reference comes again")
			}
		}
	}
}

// first returns the next job of this table; if none waits, "" and a channel that is closed when one arrives.
func (j *Table) first() (string, <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.queue) == 0 {
		return "", j.wake
	}
	return j.queue[0], nil
}

// wants reports whether this daemon could run one of the waiting jobs, of which it checks the first 64. It also returns
// true if more are waiting, or none: a new job may not be in the table yet.
func (j *Table) wants() bool {
	j.mu.Lock()
	waiting := make([]message.Record, 0, min(len(j.queue), 64))
	for _, id := range j.queue[:min(len(j.queue), 64)] {
		waiting = append(waiting, j.jobs[id].rec)
	}
	all := len(waiting) == len(j.queue)
	j.mu.Unlock()
	for _, rec := range waiting {
		if j.store.lacks(rec) == nil {
			return true
		}
	}
	return len(waiting) == 0 || !all
}

// takeThis moves a job to running. It returns errMoved if the job is no longer waiting.
func (j *Table) takeThis(ctx context.Context, id, worker string) (message.Record, *message.RunRequest,
	<-chan struct{}, error,
) {
	if !j.knows(id) {
		rec, err := j.store.get(ctx, id)
		if err != nil {
			return message.Record{}, nil, nil, err
		}
		j.observe(rec)
	}
	cur, err := j.Get(id)
	if err != nil {
		return message.Record{}, nil, nil, err
	}
	if cur.State != message.Queued {
		return message.Record{}, nil, nil, errMoved
	}
	if err := j.store.lacks(cur); err != nil {
		j.logSkipped(id, err)
		return message.Record{}, nil, nil, errLacking
	}
	// before the attempt begins, so that a request that cannot be fetched now costs none
	fetched, err := j.fetch(ctx, cur)
	if errors.Is(err, errGone) {
		_, _, _ = j.do(ctx, id, hopeless{fault.New(fault.Internal, "%v", err)})
		return message.Record{}, nil, nil, errMoved
	}
	if err != nil {
		return message.Record{}, nil, nil, err
	}
	rec, req, stop, err := j.start(ctx, id, worker)
	if req == nil {
		req = fetched
	}
	return rec, req, stop, err
}

// start moves a waiting job to running. The store may be slow to answer, and meanwhile Reconcile may see that the job
// runs here: taking keeps it from counting as lost.
func (j *Table) start(ctx context.Context, id, worker string) (message.Record, *message.RunRequest,
	<-chan struct{}, error,
) {
	j.mu.Lock()
	e := j.entry(id)
	e.taking++
	j.mu.Unlock()
	rec, _, err := j.do(ctx, id, taken{worker, j.store.Owner()})
	j.mu.Lock()
	defer j.mu.Unlock()
	e.taking--
	if err != nil {
		return message.Record{}, nil, nil, err
	}
	e = j.entry(id)
	e.held = rec.Attempt
	if e.req != nil {
		e.req.Hold.Retain()
	}
	return rec, e.req, e.cancel, nil
}

// fetch reads the request of a job from the store; nil if the table has it.
func (j *Table) fetch(ctx context.Context, rec message.Record) (*message.RunRequest, error) {
	j.mu.Lock()
	e := j.jobs[rec.Job]
	hasRequest := e != nil && e.req != nil
	j.mu.Unlock()
	if hasRequest {
		return nil, nil
	}
	return j.store.request(ctx, rec)
}

// logSkipped logs, once per job, why it is left to another daemon.
func (j *Table) logSkipped(id string, why error) {
	j.mu.Lock()
	e := j.entry(id)
	logged := e.left
	e.left = true
	j.mu.Unlock()
	if !logged {
		j.cfg.Log.Info().Err(why).Str("job", id).Msg("the job waits for another daemon")
	}
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
