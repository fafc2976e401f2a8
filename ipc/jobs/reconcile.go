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

// Reconcile repairs, until ctx ends, what an interruption between two writes has left behind: running jobs
// whose daemon is gone, ended jobs without a terminal event. It also forgets jobs
// that have been kept long enough.
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

// republishFor is how long after its end a job has its terminal event published again if that was lost.
const republishFor = 10 * time.Minute

// doubt makes republish check the ends of jobs again once the store is back for a while: it may have lost some.
func (j *Table) doubt() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.away.IsZero() || time.Since(j.away) < settled {
		return
	}
	j.away = time.Time{}
	for _, e := range j.jobs {
		e.endPublished = false
	}
}

// republish publishes again the terminal events of jobs of this daemon that ended a short while ago, if the stream
// lacks them.
func (j *Table) republish(ctx context.Context) {
	j.mu.Lock()
	last := map[*tracked]message.Event{}
	for _, e := range j.jobs {
		since := j.cfg.Now().Sub(e.since)
		if e.endPublished || !e.ended || !e.rec.State.Final() || e.rec.Owner != j.cfg.Owner || len(e.log) == 0 ||
			since < settled || since > republishFor {
			continue
		}
		if ev := e.log[len(e.log)-1]; message.Terminal(ev.Type) {
			last[e] = ev
		}
	}
	j.mu.Unlock()
	for e, ev := range last {
		j.mu.Lock()
		rec := e.rec.Clone()
		j.mu.Unlock()
		published, err := j.store.endPublished(ctx, rec)
		if err != nil {
			return
		}
		if !published {
			j.cfg.Log.Warn().Str("job", ev.Job).Str("type",
				ev.Type).Msg("the stream lacks the terminal event of the job; it is published again")
			j.cfg.OnEvent(ev)
			continue
		}
		j.mu.Lock()
		e.endPublished = true
		j.mu.Unlock()
	}
}

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
		if err := j.appendEnd(ctx, rec); err != nil {
			j.cfg.Log.Warn().Err(err).Str("job", rec.Job).Msg("the terminal event of the job cannot be added to its log yet")
			return
		}
	}
	j.sweep(now)
}

// appendEnd adds the terminal event to the log of an ended job: from the stream, or made anew if the daemon that should
// have sent it no longer can.
func (j *Table) appendEnd(ctx context.Context, rec message.Record) error {
	published, err := j.store.endPublished(ctx, rec)
	if err != nil || !published && rec.Owner != j.cfg.Owner && j.alive(rec.Owner) {
		return err
	}
	j.mu.Lock()
	if e := j.jobs[rec.Job]; e != nil && published {
		e.cold = true // the event did not arrive here
	}
	j.mu.Unlock()
	if err := j.rewarm(ctx, rec.Job); err != nil || published {
		return err
	}
	j.Append(rec.Job, -1, terminalOf(rec))
	return nil
}

// suspects returns the jobs that look wrong and have not changed for a while.
func (j *Table) suspects(now time.Time) (lost, silent []message.Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.jobs {
		r, old := e.rec, now.Sub(e.since) > settled
		switch {
		case r.State == message.Running && e.held == 0 && !e.taking && old &&
			(r.Owner == j.cfg.Owner || !j.alive(r.Owner)):
			lost = append(lost, r.Clone())
		case r.State.Final() && !e.ended && e.held == 0 && old:
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

// reopen marks an ended job as one that still lacks its terminal event.
func (j *Table) reopen(ctx context.Context, job string) error {
	if err := j.rewarm(ctx, job); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entry(job).ended = false
	j.ended = slices.DeleteFunc(j.ended, func(id string) bool { return id == job })
	return nil
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
// again, tied jobs end, files of done jobs get their names, and every ended job gets its one terminal event.
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
	published, err := d.Jobs.store.endPublished(ctx, rec)
	if err != nil {
		return fmt.Errorf("look for the end of job %s: %w", rec.Job, err)
	}
	if published {
		unnamed := func(r message.OutputRef) bool { return r.Filename == "" && d.Outputs.folder(r.Type) != "" }
		if rec.Dropped == 0 && slices.ContainsFunc(rec.Outputs, unnamed) { // another daemon has told the end meanwhile
			_, _ = d.named(ctx, rec)
		}
		return nil
	}
	if err := d.Jobs.reopen(ctx, rec.Job); err != nil {
		return fmt.Errorf("read events of job %s: %w", rec.Job, err)
	}
	d.ended(ctx, rec, &Outcome{})
	return nil
}
