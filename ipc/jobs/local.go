package jobs

import (
	"context"
	"slices"

	"patchbay/fault"
	"patchbay/ipc/message"
)

// KindSample is the Kind of a record for a run of the verb sample.
const KindSample = "sample"

// Begin adds a job that is already running and belongs to its connection: it is never queued, is not written to a store
// and ends with this process. It returns ErrHash if a job with that ID exists, unless that was such a job and has
// ended, and ErrClosed after Close. The returned channel is closed when the job is asked to stop.
func (j *Table) Begin(id, kind, worker string) (<-chan struct{}, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if old, ok := j.jobs[id]; ok {
		if old.rec.Kind == "" || old.rec.EndSeq == 0 {
			return nil, ErrHash
		}
		j.ended = slices.DeleteFunc(j.ended, func(q string) bool { return q == id })
		delete(j.jobs, id)
		j.own.tend(context.Background(), nil, []message.Record{old.rec})
	}
	if j.closed {
		return nil, ErrClosed
	}
	now := j.cfg.Now().UnixMilli()
	e := j.entry(id)
	e.held = 1
	e.rec, _, _ = j.own.keep(context.Background(), message.Record{
		V: message.ProtocolVersion, Job: id, Kind: kind, State: message.Running, Attempt: 1,
		Worker: worker, Owner: j.cfg.Owner, Created: now, Started: now, Tied: true,
	}, nil)
	j.append(e, message.Event{Type: message.EventQueued, Data: map[string]any{"prompt_id": id, "position": 0}})
	j.append(e, message.Event{Type: message.EventStart, Data: map[string]any{"prompt_id": id, "timestamp": now}})
	return e.cancel, nil
}

// Finish ends a job started by Begin: done if failure is nil, otherwise cancelled or failed with it.
func (j *Table) Finish(ctx context.Context, id string, failure *fault.Error, metrics map[string]any) {
	_, _, _ = j.do(ctx, id, ended{attempt: attempt{1, j.cfg.Owner}, failure: failure, metrics: metrics})
}
