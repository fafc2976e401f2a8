package jobs

import (
	"context"
	"errors"
	"fmt"

	"patchbay/fault"
	"patchbay/ipc/message"
)

// Cancel ends a queued job or asks a running one to stop, and returns the resulting state; the bool is false if the
// job had already ended. A running job has ended only once its terminal event is in the log.
func (j *Table) Cancel(ctx context.Context, id string) (message.State, bool, error) {
	ctx, stop := context.WithTimeout(ctx, AskTime)
	defer stop()
	for {
		rec, err := j.Get(id)
		if err != nil {
			return "", false, err
		}
		if rec.State.Final() {
			return rec.State, false, nil
		}
		var next message.Record
		if rec.State == message.Running {
			next, err = j.Update(ctx, id, rec.Rev, func(r *message.Record) { r.Cancel = true })
		} else {
			next, err = j.end(ctx, rec, message.Cancelled, Cancelled())
		}
		if !errors.Is(err, errConflict) {
			return next.State, true, err
		}
	}
}

// Cancelled returns the error of a job that was cancelled.
func Cancelled() *fault.Error { return fault.New(fault.Cancelled, "the job was cancelled") }

// FailQueued ends all waiting jobs with fault. It serves a table in memory, which does not survive the daemon.
func (j *Table) FailQueued(ctx context.Context, failure *fault.Error) {
	list, _ := j.List(message.Queued, j.cfg.MaxQueued)
	for _, rec := range list {
		_, _ = j.end(ctx, rec, message.Failed, failure)
	}
}

// end ends a job that no worker holds, if its record has not changed since was, and appends the terminal event.
func (j *Table) end(ctx context.Context, was message.Record, state message.State, failure *fault.Error,
) (message.Record, error) {
	rec, err := j.Update(ctx, was.Job, was.Rev,
		func(r *message.Record) { r.State, r.Error, r.Finished = state, failure, j.cfg.Now().UnixMilli() })
	if err != nil {
		return rec, err
	}
	j.Append(rec.Job, -1, terminalOf(rec))
	if state == message.Failed {
		j.bury(ctx, rec)
	}
	return rec, nil
}

// terminalOf makes the terminal event of a job from its record.
func terminalOf(rec message.Record) message.Event {
	data := map[string]any{"prompt_id": rec.Job, "timestamp": rec.Finished}
	switch rec.State {
	case message.Done:
		data["outputs"] = rec.Outputs
		return message.Event{Type: message.EventSuccess, Data: data}
	case message.Expired:
		return message.Event{Type: message.EventExpired, Error: rec.Error, Data: data}
	}
	failure := rec.Error
	if failure == nil {
		failure = fault.New(fault.Internal, "the job is %s", rec.State)
	}
	if len(rec.Outputs) > 0 && rec.Dropped == 0 {
		data["outputs"] = rec.Outputs
	}
	kind := message.EventError
	if rec.State == message.Cancelled {
		kind = message.EventInterrupted
	}
	return message.Event{Type: kind, Error: failure, NodeErrors: rec.NodeError, Data: endData(failure, data)}
}

// Retry queues a job again that failed, was cancelled or expired. It gets all of MaxAttempts again.
func (j *Table) Retry(ctx context.Context, id string) (message.Record, error) {
	for {
		rec, err := j.Get(id)
		if err != nil {
			return message.Record{}, err
		}
		if rec.Kind != "" {
			return message.Record{}, fault.New(fault.BadRequest,
				"job %s is a %s, which belongs to its connection; send it again", id, rec.Kind)
		}
		if rec.State.Revived() == nil {
			return message.Record{}, fault.New(fault.BadRequest,
				"job %s is %s; retry is for jobs that failed, were cancelled or have expired", id, rec.State)
		}
		if err := j.store.requestMissing(ctx, rec); err != nil {
			return message.Record{}, err
		}
		cause := fmt.Sprintf("it was %s", rec.State)
		rec, err = j.update(ctx, id, rec.Rev, message.State.Revived, func(r *message.Record) {
			if r.Error != nil {
				r.Because(r.Error.Error())
				cause = r.Error.Text
			}
			r.Outputs, r.Dropped = nil, 0 // those files have their names and do not belong to the next attempt
			r.State, r.Error, r.NodeError, r.Finished, r.ExpireAt, r.Cancel = message.Queued, nil, nil, 0, 0, false
			r.Earlier, r.HandedBack = r.Attempt, 0
		})
		if errors.Is(err, errConflict) {
			continue
		}
		if err == nil {
			j.Append(id, -1, message.Event{
				Type: message.EventRetrying,
				Data: map[string]any{"prompt_id": id, "cause": "retry was asked for; before, " + cause},
			})
		}
		return rec, err
	}
}
