package jobs

import (
	"context"
	"errors"
	"os"

	"patchbay/fault"
	"patchbay/ipc/message"
)

// Pause lets waiting jobs stay where they are, or go on. What runs is not stopped, and other daemons on the same store
// go on taking jobs.
func (j *Table) Pause(paused bool) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if path := j.cfg.PauseFile; path != "" && paused {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return message.StoreError(err)
		}
	} else if path != "" {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return message.StoreError(err)
		}
	}
	j.paused = paused
	j.signal()
	return nil
}

// Paused reports whether waiting jobs stay where they are.
func (j *Table) Paused() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.paused
}

// Move moves a waiting job ahead of all others, or behind those of a priority, and returns its record.
func (j *Table) Move(ctx context.Context, id string, front bool, priority string) (message.Record, error) {
	rec, _, err := j.do(ctx, id, moveAsked{front, priority})
	if errors.Is(err, errMoved) {
		if rec, err = j.Get(id); err == nil {
			err = fault.New(fault.BadRequest, "job %s is %s; only jobs that wait can be moved", id, rec.State)
		}
	}
	return rec, err
}

// Delete removes the files of a job that has ended. They must be with this daemon.
func (j *Table) Delete(ctx context.Context, outs *Outputs, id string) (message.DeleteReply, error) {
	rec, err := j.Get(id)
	out := message.DeleteReply{V: message.ProtocolVersion, Job: id, State: rec.State}
	switch {
	case err != nil:
		return out, err
	case rec.EndSeq == 0:
		return out, fault.New(fault.BadRequest, "job %s is %s; only jobs that have ended have files to delete", id,
			rec.State)
	case rec.Owner != j.cfg.Owner:
		return out, fault.New(fault.NoCapacity, "the files of job %s are with the daemon %s, which is away", id, rec.Owner)
	}
	if len(rec.Outputs) > 0 {
		out.Files, out.Bytes, err = j.dropFiles(ctx, outs, rec)
	}
	if errors.Is(err, errMoved) {
		err = fault.New(fault.Expired, "the files of job %s are gone", id)
	}
	return out, err
}
