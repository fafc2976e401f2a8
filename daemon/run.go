package daemon

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"patchbay/fault"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/register"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire"
)

// run serves until a signal, a failure or the end of parent. The first signal lets running jobs finish, a second one
// cuts them off. Shutdown goes in this order: no new jobs, wait for running ones, carriers, workers.
func (d *daemon) run(parent context.Context, signals <-chan os.Signal) error {
	keep := context.WithoutCancel(parent)
	take, stopTaking := context.WithCancel(parent)
	defer stopTaking()
	running, cut := context.WithCancel(keep)
	defer cut()
	carry, stopCarriers := context.WithCancel(keep)
	defer stopCarriers()
	drain, stopDrain := context.WithCancel(keep)
	defer stopDrain()
	alive, stopChildren := context.WithCancel(keep)
	defer stopChildren()
	var children, carriers sync.WaitGroup
	failed := make(chan error, 4+len(d.children))
	if d.store != nil {
		children.Go(func() {
			select {
			case <-d.store.Machines().Rival():
				failed <- register.RivalError(d.owner)
			case <-alive.Done():
			}
		})
	}
	for _, c := range d.children {
		children.Go(func() {
			if err := c.Supervise(alive); err != nil {
				failed <- err
			}
		})
	}
	dispatcher := &jobs.Dispatcher{Jobs: d.jobs, Outputs: d.outputs, Log: d.log}
	if err := dispatcher.Recover(running); err != nil {
		stopChildren()
		children.Wait()
		return err
	}
	children.Go(func() { d.jobs.Reconcile(alive) })
	if d.webhooks != nil {
		children.Go(func() { d.webhooks.Run(alive, d.jobs) })
	}
	if d.traces != nil {
		children.Go(func() { d.traces.Run(alive, d.jobs) })
	}
	children.Go(func() {
		for range wire.Every(alive, sweepEvery) {
			d.sweepEvaluations()
		}
	})
	for _, c := range d.carriers() {
		carriers.Go(func() {
			if err := c.Serve(carry, drain, d.svc); err != nil {
				failed <- fmt.Errorf("%s: %w", c.Name(), err)
			}
		})
		d.log.Info().Str("carrier", c.Name()).Msg("listening")
	}
	if d.metrics != nil {
		carriers.Go(func() {
			if err := d.metrics.Serve(); err != nil {
				failed <- err
			}
		})
		context.AfterFunc(carry, d.metrics.Close)
	}
	worked := make(chan struct{})
	go func() {
		dispatcher.Work(take, running, d.executors())
		close(worked)
	}()
	var err error
	select {
	case <-d.nats.Ready(): // a daemon in the runtime file must already answer
		err = d.announce()
	case err = <-failed:
	}
	if err != nil {
		failed <- err
		err = nil
	}
	select {
	case <-take.Done():
	case s := <-signals:
		d.log.Info().Stringer("signal", s).Dur("drain", d.cfg.Drain).Msg(
			"no new jobs; running ones may finish, a second signal ends them")
	case err = <-failed:
	}
	d.jobs.Close()
	stopTaking()
	if d.store == nil {
		d.jobs.FailQueued(keep, fault.New(fault.Draining, "the daemon was stopped before the job began"))
	}
	select {
	case <-worked:
	case <-signals:
		d.log.Warn().Msg("second signal: running jobs are ended")
	case <-time.After(d.cfg.Drain):
		d.log.Warn().Msg("drain time is over: running jobs are ended")
	}
	cut()
	if d.store != nil {
		defer time.AfterFunc(5*time.Second, d.store.GiveUp).Stop() // an unreachable server must not delay the end
	}
	<-worked
	stopCarriers()
	closeTimer := time.AfterFunc(time.Second, d.svc.Close) // ends the streams of waiting jobs, which nobody runs now
	last := time.AfterFunc(3*time.Second, stopDrain)
	carriers.Wait()
	closeTimer.Stop()
	last.Stop()
	d.svc.Close()
	stopChildren()
	children.Wait()
	d.log.Info().Msg("daemon stopped")
	return err
}

func (d *daemon) carriers() []serve.Carrier {
	out := []serve.Carrier{d.nats}
	if d.socket != nil {
		out = append(out, d.socket)
	}
	if d.http != nil {
		out = append(out, d.http)
	}
	return out
}

// executors lists each worker once for every job that it runs at the same time.
func (d *daemon) executors() (out []jobs.Executor) {
	for range d.cfg.jobs() {
		for _, c := range d.children {
			out = append(out, c)
		}
	}
	return out
}

// event counts and publishes an event.
func (d *daemon) event(ev message.Event) {
	d.meter.Event(ev)
	d.nats.Event(ev)
	d.ended(ev)
	if d.webhooks != nil {
		d.webhooks.Event(ev)
	}
	if d.traces != nil {
		d.traces.Event(ev)
	}
	if d.http != nil {
		d.http.Event(ev)
	}
}

// forget drops what is kept of a job that is forgotten.
func (d *daemon) forget(job string) {
	d.outputs.Forget(job)
	if d.http != nil {
		d.http.Forget(job)
	}
}
