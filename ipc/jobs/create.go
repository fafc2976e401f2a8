package jobs

import (
	"context"
	"errors"

	"patchbay/ipc/message"
)

// Create adds a queued job and its queued event. If a job with that ID exists, Create returns its record and false, or
// ErrHash if its hash differs. It returns ErrFull, ErrCrowd or ErrClosed if no job can be added.
//
// A request with UniqueKey gets its ID here. If a job of its client has that key and the request is for the same,
// Create returns that job's record and false, whatever its hash.
func (j *Table) Create(ctx context.Context, req *message.RunRequest, hash string) (message.Record, bool, error) {
	if req.UniqueKey == "" {
		return j.create(ctx, req, hash, message.Queued)
	}
	for old := j.ofKey(req); ; {
		if old.Job != "" && sameByKey(&old, req.UniqueMS, j.cfg.Now().UnixMilli()) {
			return old, false, nil
		}
		req.ID = idOfKey(req.From, req.UniqueKey, old.Job)
		rec, created, err := j.create(ctx, req, hash, message.Queued)
		if created || err != nil && !errors.Is(err, ErrHash) {
			return rec, created, err
		}
		if old, err = j.Get(req.ID); err != nil { // another daemon was faster, and the table has heard of its job
			return rec, false, err
		}
	}
}

// ofKey returns the newest job of a client with the key of a request; one without an ID if there is none.
func (j *Table) ofKey(req *message.RunRequest) (newest message.Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.jobs {
		if r := &e.rec; r.Unique == req.UniqueKey && r.From == req.From && r.Created >= newest.Created {
			newest = j.view(e)
		}
	}
	return newest
}

// create is Create with an initial state: a job that is answered at once starts as running and never waits.
func (j *Table) create(ctx context.Context, req *message.RunRequest, hash string, state message.State,
) (message.Record, bool, error) {
	j.mu.Lock()
	for j.coming[req.ID] != nil {
		done := j.coming[req.ID].done
		j.mu.Unlock()
		select {
		case <-ctx.Done():
			return message.Record{}, false, ctx.Err()
		case <-done:
		}
		j.mu.Lock()
	}
	if e, ok := j.jobs[req.ID]; ok {
		defer j.mu.Unlock()
		if e.rec.Hash != hash {
			return message.Record{}, false, ErrHash
		}
		return j.view(e), false, nil
	}
	if err := j.room(req.From); err != nil {
		j.mu.Unlock()
		return message.Record{}, false, err
	}
	j.coming[req.ID] = &arrival{req.From, make(chan struct{})}
	rec := j.fresh(req, hash)
	if rec.State = state; state == message.Running {
		rec.Started = rec.Created
	}
	j.mu.Unlock()
	defer j.arrived(req.ID)
	rec, created, err := j.store.keep(ctx, rec, req)
	switch {
	case err != nil:
		return message.Record{}, false, err
	case !created:
		j.observe(rec)
		if rec.Hash != hash {
			return message.Record{}, false, ErrHash
		}
		return rec, false, nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.added(rec, req), true, nil
}

// room returns why no job of a client can be added, or nil. The caller must hold j.mu.
func (j *Table) room(from string) error {
	if j.closed {
		return ErrClosed
	}
	waiting, fromClient := len(j.queue), 0
	for id, a := range j.coming {
		if j.jobs[id] == nil {
			waiting++
			if a.from == from {
				fromClient++
			}
		}
	}
	if waiting >= j.cfg.MaxQueued {
		return ErrFull
	}
	if limit := j.cfg.MaxPerClient; limit > 0 && fromClient+j.load(from) >= limit {
		return ErrCrowd
	}
	return nil
}

// load counts the jobs of a client that have not ended. The caller must hold j.mu.
func (j *Table) load(from string) int {
	n := 0
	for _, e := range j.jobs {
		if e.rec.From == from && e.rec.State != "" && !e.rec.State.Final() {
			n++
		}
	}
	return n
}

// arrived frees the place that a job occupied while it was being written to the store, and lets it be taken.
func (j *Table) arrived(id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	close(j.coming[id].done)
	delete(j.coming, id)
	j.signal()
}

// fresh returns the record of a new job.
func (j *Table) fresh(req *message.RunRequest, hash string) message.Record {
	now := j.cfg.Now().UnixMilli()
	rec := message.Record{
		V: message.ProtocolVersion, Job: req.ID, State: message.Queued, Rev: 1, Created: now, Hash: hash, Client: req.Client,
		Tied: req.Tied, Front: req.Front, Priority: req.Priority, From: req.From, NotBefore: req.NotBefore,
		Unique: req.UniqueKey, Number: req.Number, TraceParent: req.TraceParent,
		Files: req.Files, About: req.About, Model: req.Model, Plan: message.Clipped(req.Plan), Owner: j.cfg.Owner,
	}
	for _, f := range req.Files {
		if f.Shared() {
			rec.Memory = max(rec.Memory, f.Bytes)
		}
	}
	if req.Webhook != "" {
		rec.Webhook = &message.Hook{URL: req.Webhook}
	}
	if req.QueueTTLMS > 0 {
		rec.ExpireAt = now + int64(req.QueueTTLMS)
	}
	return rec
}

// added enters a new job into the table and appends its queued event. The caller must hold j.mu.
func (j *Table) added(rec message.Record, req *message.RunRequest) message.Record {
	e := j.entry(rec.Job)
	e.req = req
	e.cold = false
	j.applyRecord(e, rec)
	if len(e.log) == 0 { // or another daemon has begun with it
		e.seq = 0 // warm skips number 1, which comes only now
		data := map[string]any{"prompt_id": rec.Job, "position": j.position(rec.Job)}
		if len(req.Titles) > 0 {
			data["titles"] = req.Titles
		}
		j.append(e, message.Event{Type: message.EventQueued, Data: data})
	}
	return j.view(e)
}
