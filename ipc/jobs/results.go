package jobs

import (
	"context"
	"errors"
	"os"
	"slices"

	"patchbay/ipc/message"
	"patchbay/node/files"
)

// Reuse answers a new job from the newest done job of this daemon with the same content: the same hash and the same
// input files. The new record names the old job and shares its files, which must be unchanged; nodes are the node IDs
// of the workflow. It returns false if there is no such job and the new one has to run.
func (j *Table) Reuse(ctx context.Context, outs *Outputs, req *message.RunRequest, hash string,
	nodes []string,
) (message.Record, bool, error) {
	if j.knows(req.ID) {
		return message.Record{}, false, nil // the job is not new
	}
	for _, old := range j.alike(req, hash) {
		if outs.Share(old.Job, req.ID) != nil {
			continue
		}
		rec, created, err := j.create(ctx, req, hash, message.Running)
		if err != nil {
			outs.Forget(req.ID)
		}
		if created {
			rec = j.answer(ctx, rec, old, nodes)
		}
		return rec, created, err
	}
	return message.Record{}, false, nil
}

// alike returns the done jobs of this daemon with the same content as a request, newest first.
func (j *Table) alike(req *message.RunRequest, hash string) []message.Record {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []message.Record
	for _, e := range j.jobs {
		r := e.rec
		if r.EndSeq > 0 && r.State == message.Done && r.Dropped == 0 && r.Hash == hash && r.Owner == j.cfg.Owner &&
			slices.Equal(r.Files, req.Files) && !slices.ContainsFunc(r.Files, unread) {
			out = append(out, r.Clone())
		}
	}
	slices.SortFunc(out, func(a, b message.Record) int { return int(b.Finished - a.Finished) })
	return out
}

// answer ends a job with the results of an old one. If it cannot write that, Reconcile hands the job back, and it runs.
func (j *Table) answer(ctx context.Context, rec, old message.Record, nodes []string) message.Record {
	now := j.cfg.Now().UnixMilli()
	tell := func(kind string, data map[string]any) {
		data["prompt_id"], data["timestamp"] = rec.Job, now
		j.Append(rec.Job, -1, message.Event{Type: kind, Data: data})
	}
	tell(message.EventStart, map[string]any{})
	tell("execution_cached", map[string]any{"nodes": nodes})
	for _, ev := range executedEvents(rec.Job, old.Outputs, nil) {
		j.Append(rec.Job, -1, ev)
	}
	done, _, err := j.do(ctx, rec.Job, answered{old})
	if err != nil {
		j.cfg.Log.Warn().Err(err).Str("job", rec.Job).Msg("not answered from an old job; it runs")
		return rec
	}
	return done
}

// unread reports whether the content of a file is unknown.
func unread(f files.NeededFile) bool { return f.Hash == "" }

// dropFiles removes the files of a job. Its record stays and says so, which is written first so that nobody is promised
// a file that is being removed.
func (j *Table) dropFiles(ctx context.Context, outs *Outputs, rec message.Record) (files int, size int64, err error) {
	if _, _, err = j.do(ctx, rec.Job, filesDropped{attemptOf(&rec)}); err == nil {
		files, size = outs.Drop(rec.Job)
	}
	return files, size, err
}

// trim removes the files of the oldest jobs beyond the limits of size and age.
func (d *Dispatcher) trim(ctx context.Context) {
	for _, rec := range d.Jobs.surplus() {
		if _, _, err := d.Jobs.dropFiles(ctx, d.Outputs, rec); err != nil {
			if !errors.Is(err, errMoved) {
				d.Log.Warn().Err(err).Str("job", rec.Job).Msg("its files are kept although they are over the limit")
			}
			continue
		}
		d.Log.Info().Str("job", rec.Job).Msg("its files were dropped: older than --keep-results or over --keep-bytes")
	}
}

// surplus returns the jobs of this daemon whose files exceed the limits, oldest first. The files of the newest job are
// kept whatever their size.
func (j *Table) surplus() []message.Record {
	if j.cfg.KeepBytes == 0 && j.cfg.KeepResults == 0 {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	var withFiles []*tracked
	for _, e := range j.jobs {
		mine := e.rec.Owner == j.cfg.Owner
		if mine && e.rec.EndSeq > 0 && e.rec.Dropped == 0 && len(e.rec.Outputs) > 0 {
			withFiles = append(withFiles, e)
		}
	}
	slices.SortFunc(withFiles, func(a, b *tracked) int { return b.since.Compare(a.since) })
	now, sum := j.cfg.Now(), int64(0)
	for i, e := range withFiles {
		for _, ref := range e.rec.Outputs {
			sum += int64(ref.Bytes)
		}
		over := j.cfg.KeepBytes > 0 && sum > j.cfg.KeepBytes && i > 0
		old := j.cfg.KeepResults > 0 && now.Sub(e.since) > j.cfg.KeepResults
		if over || old {
			var out []message.Record
			for _, e := range slices.Backward(withFiles[i:]) {
				out = append(out, e.rec)
			}
			return out
		}
	}
	return nil
}

// Drop removes the files of a job, those with final names too, and returns how many there were and their bytes. A file
// that is not as the job made it belongs to somebody else by now and stays.
func (s *Outputs) Drop(job string) (gone int, size int64) {
	outputs := slices.Clone(s.of(job))
	for i := range outputs {
		f := &outputs[i]
		if f.path != "" {
			if data, err := os.ReadFile(f.path); err == nil && message.Checksum(data) == f.Ref.CRC32C {
				if os.Remove(f.path) == nil {
					gone, size = gone+1, size+int64(len(data))
				}
			}
		}
		f.Data, f.missing = nil, true
	}
	s.Forget(job)
	s.put(job, outputs)
	return gone, size
}
