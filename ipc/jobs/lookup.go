package jobs

import (
	"context"
	"errors"

	"patchbay/ipc/message"
)

// Listed is a job as Select returns it.
type Listed struct {
	message.Record
	// Ended reports whether the terminal event is in the log. A record is final before that, while its files get names.
	Ended bool
}

// Select returns the jobs that keep accepts, those that wait in the order in which they will be taken, the others in
// none. keep must not change the record or call the Table.
func (j *Table) Select(keep func(r *message.Record, ended bool) bool) []Listed {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []Listed
	add := func(e *tracked, position int) {
		if keep(&e.rec, e.rec.EndSeq > 0) {
			r := e.rec.Clone()
			r.Position = position
			out = append(out, Listed{r, e.rec.EndSeq > 0})
		}
	}
	for i, id := range j.queue {
		add(j.jobs[id], i)
	}
	for _, e := range j.jobs {
		if e.rec.State != message.Queued {
			add(e, 0)
		}
	}
	return out
}

// Find returns one job; ok is false if there is none of that ID.
func (j *Table) Find(id string) (found Listed, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.jobs[id]
	if !ok {
		return Listed{}, false
	}
	return Listed{j.view(e), e.rec.EndSeq > 0}, true
}

// Request returns what a job asks for, as it was validated. The caller must not change it. A store in memory has it
// only until the job ends.
func (j *Table) Request(ctx context.Context, id string) (*message.RunRequest, error) {
	j.mu.Lock()
	e, ok := j.jobs[id]
	if !ok {
		j.mu.Unlock()
		return nil, ErrNoJob
	}
	req, rec, store := e.req, e.rec.Clone(), j.storeFor(e)
	j.mu.Unlock()
	if req != nil {
		return req, nil
	}
	ctx, stop := context.WithTimeout(ctx, AskTime)
	defer stop()
	return store.request(ctx, rec)
}

// Reported notes in the record of a job that its end of that number was reported to its webhook. It is no error if the
// job is gone or has moved on.
func (j *Table) Reported(ctx context.Context, id string, number uint64) error {
	_, _, err := j.do(ctx, id, reported{number})
	if errors.Is(err, errMoved) || errors.Is(err, ErrNoJob) {
		return nil
	}
	return err
}

// Forget forgets a job that has ended, as happens to the oldest ones. It returns false if there is none of that ID, or
// it has not ended. Files under their final names stay.
func (j *Table) Forget(id string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.jobs[id]
	if !ok || e.rec.EndSeq == 0 || !e.rec.State.Final() {
		return false
	}
	j.gone = append(j.gone, e.rec)
	j.remove(id)
	return true
}
