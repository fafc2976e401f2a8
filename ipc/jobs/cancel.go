package jobs

import (
	"context"
	"errors"
	"slices"

	"patchbay/fault"
	"patchbay/ipc/message"
)

// Cancel ends a queued job or asks a running one to stop, and returns the resulting state; the bool is false if the
// job had already ended. A running job has ended only once its terminal event is in the log.
func (j *Table) Cancel(ctx context.Context, id string) (message.State, bool, error) {
	ctx, stop := context.WithTimeout(ctx, AskTime)
	defer stop()
	rec, _, err := j.do(ctx, id, cancelAsked{})
	if errors.Is(err, errMoved) {
		rec, err = j.Get(id)
		return rec.State, false, err
	}
	return rec.State, err == nil, err
}

// FailQueued ends all waiting jobs with fault. It serves a table in memory, which does not survive the daemon.
func (j *Table) FailQueued(ctx context.Context, failure *fault.Error) {
	list, _ := j.List(message.Queued, j.cfg.MaxQueued)
	for _, rec := range list {
		_, _, _ = j.do(ctx, rec.Job, hopeless{failure})
	}
}

// Retry queues a job again that failed, was cancelled or expired. It gets all of MaxAttempts again.
func (j *Table) Retry(ctx context.Context, id string) (message.Record, error) {
	rec, err := j.Get(id)
	if err != nil {
		return message.Record{}, err
	}
	if err := retriable(rec); err != nil {
		return message.Record{}, err
	}
	if _, err := j.store.request(ctx, rec); err != nil { // better now than when it is taken
		return message.Record{}, err
	}
	rec, _, err = j.do(ctx, id, retryAsked{})
	if errors.Is(err, errMoved) {
		if rec, err = j.Get(id); err == nil {
			err = retriable(rec)
		}
	}
	return rec, err
}

// retriable returns why a job cannot be retried; nil if it can.
func retriable(rec message.Record) error {
	if rec.Kind != "" {
		return fault.New(fault.BadRequest, "job %s is a %s, which belongs to its connection; send it again", rec.Job,
			rec.Kind)
	}
	if !slices.Contains(retryAsked{}.from(), rec.State) {
		return fault.New(fault.BadRequest, "job %s is %s; retry is for jobs that failed, were cancelled or have expired",
			rec.Job, rec.State)
	}
	return nil
}
