package jobs

import (
	"context"
	"errors"
	"time"

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// Cancel ends a queued job or asks a running one to stop, and returns the state it then has; false if it had ended
// already. A running job has ended when its terminal event is in the log.
func (j *Table) Cancel(ctx context.Context, id string) (message.State, bool, error) {
	ctx, stop := context.WithTimeout(ctx, AskTime)
	defer stop()
	for {
		rec, err := j.Get(ctx, id)
		if err != nil {
			return "", false, err
		}
		if rec.State.Final() {
			return rec.State, false, nil
		}
		fault := wire.Errorf(wire.ErrCancelled, "the job was cancelled")
		next, err := j.Update(ctx, id, rec.Rev, func(r *message.Record) {
			if r.State == message.Running {
				r.Cancel = true
				return
			}
			r.State, r.Error, r.Finished = message.Cancelled, fault, time.Now().UnixMilli()
		})
		if errors.Is(err, errConflict) {
			continue
		}
		if err == nil && next.State == message.Cancelled {
			j.Append(ctx, id, -1, message.Event{
				Type: message.EventInterrupted, Error: fault,
				Data: endData(fault, map[string]any{"prompt_id": id}),
			})
		}
		return next.State, true, err
	}
}

// FailQueued ends all waiting jobs with fault: a table in memory does not survive the daemon.
func (j *Table) FailQueued(ctx context.Context, fault *wire.Error) {
	list, _, _ := j.List(ctx, message.Queued, j.cfg.MaxQueued)
	for _, rec := range list {
		_, err := j.Update(ctx, rec.Job, rec.Rev,
			func(r *message.Record) { r.State, r.Error, r.Finished = message.Failed, fault, time.Now().UnixMilli() })
		if err == nil {
			j.Append(ctx, rec.Job, -1, message.Event{
				Type: message.EventError, Error: fault,
				Data: endData(fault, map[string]any{"prompt_id": rec.Job}),
			})
		}
	}
}
