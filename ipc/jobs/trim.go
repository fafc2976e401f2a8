package jobs

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"patchbay/ipc/message"
)

// trim drops the files of the oldest jobs over the limits of bytes and time. Their records stay and say so: that is
// written first, so that nobody is promised a file that is being removed.
func (d *Dispatcher) trim(ctx context.Context) {
	for _, rec := range d.Jobs.surplus() {
		if _, err := d.Jobs.Update(ctx, rec.Job, rec.Rev,
			func(r *message.Record) { r.Dropped = d.Jobs.cfg.Now().UnixMilli() }); err != nil {
			if !errors.Is(err, errConflict) {
				d.Log.Warn().Err(err).Str("job", rec.Job).Msg("its files are kept although they are over the limit")
			}
			continue
		}
		d.Outputs.Drop(rec.Job)
		d.Log.Info().Str("job", rec.Job).Msg("its files were dropped: older than --keep-results or over --keep-bytes")
	}
}

// surplus returns the jobs of this daemon whose files are over the limits, oldest first. The files of the newest job
// are kept whatever their size.
func (j *Table) surplus() []message.Record {
	if j.cfg.KeepBytes == 0 && j.cfg.KeepResults == 0 {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	var kept []message.Record
	for _, e := range j.jobs {
		mine := e.rec.Owner == j.store.Owner()
		if mine && e.ended && e.rec.State.Final() && e.rec.Dropped == 0 && len(e.rec.Outputs) > 0 {
			kept = append(kept, e.rec)
		}
	}
	slices.SortFunc(kept, func(a, b message.Record) int { return int(b.Finished - a.Finished) })
	now, sum := j.cfg.Now(), int64(0)
	for i, rec := range kept {
		for _, ref := range rec.Outputs {
			sum += int64(ref.Bytes)
		}
		over := j.cfg.KeepBytes > 0 && sum > j.cfg.KeepBytes && i > 0
		old := j.cfg.KeepResults > 0 && now.Sub(time.UnixMilli(rec.Finished)) > j.cfg.KeepResults
		if over || old {
			out := slices.Clone(kept[i:])
			slices.Reverse(out)
			return out
		}
	}
	return nil
}

// Drop removes the files of a job, named ones too. A file that is not as the job made it is somebody else's by now and
// stays.
func (s *Outputs) Drop(job string) {
	s.mu.Lock()
	list := s.jobs[job]
	s.mu.Unlock()
	kept := slices.Clone(list)
	for i := range kept {
		f := &kept[i]
		if f.path != "" {
			if data, err := os.ReadFile(f.path); err == nil && message.Checksum(data) == f.Ref.CRC32C {
				_ = os.Remove(f.path)
			}
		}
		f.Data, f.gone = nil, true
	}
	s.Forget(job)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jobs[job] = kept
}
