package jobs

import (
	"context"
	"slices"

	"patchbay/ipc/message"
	"patchbay/node/files"
)

// Reuse answers a new job from the newest one of this daemon that is done and had the same content: the same hash and
// the same files to read. Its record names that job, its files are that job's, found unchanged; nodes are the workflow's.
// False: there is none, and the job has to run.
func (j *Table) Reuse(ctx context.Context, outs *Outputs, req *message.RunRequest, hash string,
	nodes []string,
) (message.Record, bool, error) {
	if j.knows(req.ID) {
		return message.Record{}, false, nil // it is that job
	}
	for _, old := range j.alike(req, hash) {
		if outs.Share(old.Job, req.ID) != nil {
			continue
		}
		rec, created, err := j.create(ctx, req, hash, &old)
		if err != nil {
			outs.Forget(req.ID)
		}
		if created {
			j.answered(ctx, rec, nodes)
		}
		return rec, created, err
	}
	return message.Record{}, false, nil
}

// alike returns the done jobs of this daemon with the content of a request, newest first.
func (j *Table) alike(req *message.RunRequest, hash string) []message.Record {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []message.Record
	for _, e := range j.jobs {
		r := e.rec
		if e.ended && r.State == message.Done && r.Dropped == 0 && r.Hash == hash && r.Owner == j.store.Owner() &&
			slices.Equal(r.Files, req.Files) && !slices.ContainsFunc(r.Files, unread) {
			out = append(out, r.Clone())
		}
	}
	slices.SortFunc(out, func(a, b message.Record) int { return int(b.Finished - a.Finished) })
	return out
}

// answeredFrom makes the record of a new job one that is done, with what an old one has made.
func answeredFrom(rec *message.Record, old message.Record) {
	rec.State, rec.Started, rec.Finished = message.Done, rec.Created, rec.Created
	rec.Outputs, rec.Reused, rec.NodeError = old.Outputs, old.Job, old.NodeError
	if old.Reused != "" {
		rec.Reused = old.Reused
	}
}

// answered appends the events of a job that nothing ran for.
func (j *Table) answered(ctx context.Context, rec message.Record, nodes []string) {
	now := j.cfg.Now().UnixMilli()
	tell := func(kind string, data map[string]any) {
		data["prompt_id"], data["timestamp"] = rec.Job, now
		j.Append(ctx, rec.Job, -1, message.Event{Type: kind, Data: data})
	}
	tell(message.EventStart, map[string]any{})
	tell("execution_cached", map[string]any{"nodes": nodes})
	for _, ev := range executedEvents(rec.Job, rec.Outputs, nil) {
		j.Append(ctx, rec.Job, -1, ev)
	}
	j.Append(ctx, rec.Job, -1, idle(rec.Job))
	tell(message.EventSuccess, map[string]any{"outputs": rec.Outputs, "reused": rec.Reused})
}

// Share lets a job have the files of another. All must still be as they were made.
func (s *Outputs) Share(from, to string) error {
	s.mu.Lock()
	list := slices.Clone(s.jobs[from])
	s.mu.Unlock()
	for i := range list {
		f := &list[i]
		data, err := s.Read(from, i)
		if err == nil && f.staged { // it goes with the other job
			f.path = s.staged(to, i, f.Ref)
			err = s.patiently(func() error { return message.WriteSynced(f.path, data) })
		}
		if err != nil {
			s.Forget(to)
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jobs[to] = list
	return nil
}

// unread reports whether it is not known what is in a file.
func unread(f files.NeededFile) bool { return f.Hash == "" }
