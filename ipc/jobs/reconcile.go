package jobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// settled is how long something must look wrong before Reconcile repairs it, so that an operation in progress has
// finished by then.
const settled = 5 * time.Second

// handBack takes a running job from a daemon that is gone: the job is queued again, or ends if cancellation was
// requested, if it was tied to a connection, or if it has lost too many daemons.
func (j *Table) handBack(ctx context.Context, rec message.Record, cause string) {
	_, _, err := j.do(ctx, rec.Job, abandoned{attemptOf(&rec), cause})
	if err != nil && !errors.Is(err, errMoved) {
		j.cfg.Log.Error().Err(err).Msg("job not handed back")
	}
}

// Reconcile repairs, until ctx ends, what an interruption between two writes has left behind: running jobs whose daemon
// is gone, ended jobs whose log has no end, ends that were not published. It also forgets jobs that have been kept long
// enough.
func (j *Table) Reconcile(ctx context.Context) {
	var tending sync.WaitGroup
	defer tending.Wait()
	tending.Go(func() { // beside the rest, since a server that is away makes it wait
		for range wire.Every(ctx, tendEvery) {
			j.tend(ctx)
		}
	})
	for range wire.Every(ctx, 2*time.Second) {
		j.reconcile(ctx)
		if j.cfg.Store != nil {
			j.doubt()
			j.republish(ctx)
		}
	}
}

// tendEvery is how often the store is tended.
const tendEvery = 2 * time.Second

// tend lets the store see to itself and removes forgotten jobs from it.
func (j *Table) tend(ctx context.Context) {
	j.mu.Lock()
	forgotten := j.gone
	j.gone = nil
	j.mu.Unlock()
	j.own.tend(ctx, nil, forgotten)
	if j.cfg.Store == nil {
		return
	}
	stored := slices.DeleteFunc(forgotten, func(r message.Record) bool { return r.Kind != "" })
	left := j.store.tend(ctx, j.written(), stored)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.gone = append(j.gone, left...)
}

// republishFor is how long after its end a job has its terminal event published again if the store has lost it.
const republishFor = 10 * time.Minute

// doubt makes republish check the last ends of jobs again once the store is back for a while: it may have lost some.
func (j *Table) doubt() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.away.IsZero() || time.Since(j.away) < settled {
		return
	}
	j.away = time.Time{}
	for _, e := range j.jobs {
		e.endPublished = e.endPublished && j.cfg.Now().Sub(e.since) > republishFor
	}
}

// republish publishes the terminal events of jobs of this daemon, or of one that is gone, if the store lacks them.
func (j *Table) republish(ctx context.Context) {
	j.mu.Lock()
	var unsure []message.Record
	for _, e := range j.jobs {
		if !e.endPublished && e.rec.EndSeq > 0 && j.cfg.Now().Sub(e.since) > settled && j.forsaken(&e.rec) {
			unsure = append(unsure, e.rec.Clone())
		}
	}
	j.mu.Unlock()
	for _, rec := range unsure {
		told, err := j.store.told(ctx, rec)
		if err != nil {
			return
		}
		j.mu.Lock()
		if e := j.jobs[rec.Job]; e != nil && e.rec.EndSeq == rec.EndSeq && told > 0 {
			e.endPublished = true
		} else if e != nil && e.rec.EndSeq == rec.EndSeq {
			end := endOf(rec)
			j.cfg.Log.Warn().Str("job", rec.Job).Msg("the stream lacks the terminal event of the job; it is published again")
			j.cfg.OnEvent(end[len(end)-1])
		}
		j.mu.Unlock()
	}
}

// forsaken reports whether what is left to do for a job is for this daemon: it has run the job, or the one that has is
// gone.
func (j *Table) forsaken(r *message.Record) bool { return r.Owner == j.cfg.Owner || !j.alive(r.Owner) }

func (j *Table) reconcile(ctx context.Context) {
	now := j.cfg.Now()
	lost, silent := j.suspects(now)
	for _, rec := range lost {
		cause := fmt.Sprintf("daemon %s shows no sign of life", rec.Owner)
		if rec.Owner == j.cfg.Owner {
			cause = "the daemon lost sight of the job"
		}
		j.handBack(ctx, rec, cause)
	}
	for _, rec := range silent {
		if err := j.endLog(ctx, rec); err != nil {
			j.cfg.Log.Warn().Err(err).Str("job", rec.Job).Msg("the log of the job cannot be ended yet")
			return
		}
	}
	j.sweep(now)
}

// endLog ends the log of an ended job whose daemon has not done so.
func (j *Table) endLog(ctx context.Context, rec message.Record) error {
	if told, err := j.wasTold(ctx, rec); told || err != nil {
		return err
	}
	if _, _, err := j.do(ctx, rec.Job, named{attemptOf(&rec), rec.Outputs, rec.Warning}); !errors.Is(err, errMoved) {
		return err
	}
	return nil
}

// wasTold reports whether the end of a job was told before its record says so, as the daemons of earlier versions did,
// and records that.
func (j *Table) wasTold(ctx context.Context, rec message.Record) (bool, error) {
	number, err := j.store.told(ctx, rec)
	if err != nil {
		return false, fmt.Errorf("look for the end of job %s: %w", rec.Job, err)
	}
	if number > 0 {
		_, _, err = j.do(ctx, rec.Job, toldBefore{attemptOf(&rec), number})
	}
	if errors.Is(err, errMoved) {
		err = nil
	}
	return number > 0, err
}

// suspects returns the jobs that look wrong and have not changed for a while.
func (j *Table) suspects(now time.Time) (lost, silent []message.Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.jobs {
		r, old := e.rec, now.Sub(e.since) > settled
		switch {
		case r.State == message.Running && e.held == 0 && !e.taking && old &&
			j.forsaken(&r):
			lost = append(lost, r.Clone())
		case r.State.Final() && r.EndSeq == 0 && e.held == 0 && old && j.forsaken(&r):
			silent = append(silent, r.Clone())
		}
	}
	return lost, silent
}

// sweep forgets ended jobs beyond the limits of number and age.
func (j *Table) sweep(now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.forget()
	for j.cfg.KeepFor > 0 && len(j.ended) > 0 && now.Sub(j.jobs[j.ended[0]].since) > j.cfg.KeepFor {
		j.forgetOldest()
	}
}

// orphans returns the jobs that an earlier process of this daemon has left: running ones, queued ones of clients that
// are gone, and ended ones.
func (j *Table) orphans() (running, tied, ended []message.Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.jobs {
		r := e.rec.Clone()
		switch {
		case r.Owner != j.cfg.Owner:
		case r.State == message.Running:
			running = append(running, r)
		case r.State == message.Queued && r.Tied:
			tied = append(tied, r)
		case r.State.Final():
			ended = append(ended, r)
		}
	}
	return running, tied, ended
}

// nameless returns the ended jobs of this daemon whose records lack the name of a file, if nothing goes on with them.
func (j *Table) nameless() (out []message.Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.jobs {
		r := &e.rec
		if r.Owner == j.cfg.Owner && r.State.Final() && e.held == 0 && r.Dropped == 0 && names(r.Outputs) < len(r.Outputs) {
			out = append(out, r.Clone())
		}
	}
	return out
}

// elsewhere reports whether nothing that this daemon does will record the files of a job: another daemon runs it or has
// ended it, or it has ended without files.
func (j *Table) elsewhere(r *message.Record) bool {
	switch {
	case r.State == message.Queued:
		return false
	case r.Owner != j.cfg.Owner:
		return true
	}
	return r.State.Final() && r.EndSeq > 0 && len(r.Outputs) == 0
}

// rewarm loads the log of a job from the stream if it is not here.
func (j *Table) rewarm(ctx context.Context, job string) error {
	j.mu.Lock()
	e, ok := j.jobs[job]
	j.mu.Unlock()
	if !ok {
		return ErrNoJob
	}
	return j.warm(ctx, e)
}

// Recover repairs what an earlier process of this daemon has left, before any job is taken: running jobs are queued
// again, tied jobs end, files of ended jobs get their names, and the log of every ended job its end.
func (d *Dispatcher) Recover(ctx context.Context) error {
	running, tied, ended := d.Jobs.orphans()
	for _, rec := range running {
		d.Jobs.handBack(ctx, rec, "the daemon ended while the job ran")
	}
	for _, rec := range tied {
		if _, _, err := d.Jobs.Cancel(ctx, rec.Job); err != nil {
			return fmt.Errorf("end job %s, whose client is gone: %w", rec.Job, err)
		}
	}
	for _, rec := range ended {
		if err := d.finishEnded(ctx, rec); err != nil {
			return err
		}
	}
	d.Outputs.Sweep()
	if n := len(running) + len(tied); n > 0 {
		d.Log.Info().Int("running", len(running)).Int("tied",
			len(tied)).Msg("jobs from before the restart: running ones are queued again, those of clients that are gone " +
			"are cancelled")
	}
	return nil
}

// finishEnded does what is left to do for an ended job.
func (d *Dispatcher) finishEnded(ctx context.Context, rec message.Record) error {
	if len(rec.Outputs) > 0 {
		d.Outputs.Adopt(rec.Job, rec.Outputs)
		if rec.Dropped > 0 { // recorded, but perhaps not done yet
			d.Outputs.Drop(rec.Job)
		}
	}
	told := rec.EndSeq > 0
	if !told {
		var err error
		if told, err = d.Jobs.wasTold(ctx, rec); err != nil {
			return err
		}
	}
	unnamed := func(r message.OutputRef) bool { return r.Filename == "" && d.Outputs.folder(r.Type) != "" }
	if told && (rec.Dropped > 0 || !slices.ContainsFunc(rec.Outputs, unnamed)) {
		return nil
	}
	if err := d.Jobs.rewarm(ctx, rec.Job); err != nil {
		return fmt.Errorf("read events of job %s: %w", rec.Job, err)
	}
	d.ended(ctx, rec, nil, nil)
	return nil
}
