package jobs

import (
	"context"
	"fmt"

	"patchbay/ipc/message"
)

// Recover puts right what an earlier life of this daemon has left, before any job is taken: its running jobs wait
// again, its tied jobs end, files of jobs that are done get their names, and every job that has ended gets its one
// terminal event.
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
			len(tied)).Msg("jobs of the daemon's last life: running ones wait again, those of clients that are gone are " +
			"cancelled")
	}
	return nil
}

// finishEnded does what is left to do for a job that has ended.
func (d *Dispatcher) finishEnded(ctx context.Context, rec message.Record) error {
	if len(rec.Outputs) > 0 {
		d.Outputs.Adopt(rec.Job, rec.Outputs)
		if rec.Dropped > 0 { // perhaps only said so far
			d.Outputs.Drop(rec.Job)
		}
	}
	told, err := d.Jobs.store.told(ctx, rec)
	if err != nil {
		return fmt.Errorf("look for the end of job %s: %w", rec.Job, err)
	}
	if told {
		return nil
	}
	if err := d.Jobs.reopen(ctx, rec.Job); err != nil {
		return fmt.Errorf("read events of job %s: %w", rec.Job, err)
	}
	if rec.State == message.Done {
		d.complete(ctx, rec, &Outcome{Metrics: rec.Metrics})
		return nil
	}
	d.unfinished(ctx, rec, &Outcome{})
	return nil
}
