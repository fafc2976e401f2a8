package serve

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"patchbay/fault"
	"patchbay/ipc/jobs"
)

// Life is what a daemon runs with its service, and how it ends.
type Life struct {
	Carriers []Carrier
	// Beside are run until all else has ended. The error of one ends the daemon.
	Beside []func(ctx context.Context) error
	// Parallel is how many jobs each executor runs at the same time. 0: one.
	Parallel int
	// Drain is how long running jobs may go on once the daemon is to end.
	Drain time.Duration
	// GiveUp is called when the store does not answer for a while at the end. nil: there is no store, and jobs that wait
	// then fail.
	GiveUp func()
}

// How long the end may take once no job runs: until a store that does not answer is given up, until the streams of
// jobs that wait are ended, and until all requests are.
const (
	storeAnswers = 5 * time.Second
	streamsEnd   = time.Second
	requestsEnd  = 3 * time.Second
)

// Live runs the jobs of the table and serves the carriers until a signal, or an error of a carrier or of something
// beside, which it returns. The first signal lets running jobs finish, a second one cuts them off. The order is: no new
// jobs, wait for those that run, carriers, what is beside. The end of ctx ends everything at once.
func (s *Service) Live(ctx context.Context, signals <-chan os.Signal, l Life) error {
	take, stopTaking := context.WithCancel(ctx)
	defer stopTaking()
	running, cut := context.WithCancel(ctx)
	defer cut()
	carry, stopCarriers := context.WithCancel(ctx)
	defer stopCarriers()
	drain, stopDrain := context.WithCancel(ctx)
	defer stopDrain()
	alive, stopBeside := context.WithCancel(ctx)
	defer stopBeside()
	var beside, carriers sync.WaitGroup
	failed := make(chan error, len(l.Beside)+len(l.Carriers))
	for _, run := range l.Beside {
		beside.Go(func() {
			if err := run(alive); err != nil {
				failed <- err
			}
		})
	}
	table, log := s.cfg.Jobs, s.cfg.Log
	dispatcher := &jobs.Dispatcher{Jobs: table, Outputs: s.cfg.Outputs, Log: log}
	if err := dispatcher.Recover(running); err != nil {
		stopBeside()
		beside.Wait()
		return err
	}
	beside.Go(func() { table.Reconcile(alive) })
	for _, c := range l.Carriers {
		carriers.Go(func() {
			if err := c.Serve(carry, drain, s); err != nil {
				failed <- fmt.Errorf("%s: %w", c.Name(), err)
			}
		})
		log.Info().Str("carrier", c.Name()).Msg("listening")
	}
	var executors []jobs.Executor
	for range max(l.Parallel, 1) {
		executors = append(executors, s.cfg.Executors...)
	}
	worked := make(chan struct{})
	go func() {
		dispatcher.Work(take, running, executors)
		close(worked)
	}()
	var err error
	select {
	case <-ctx.Done():
	case got := <-signals:
		log.Info().Stringer("signal", got).Dur("drain", l.Drain).Msg(
			"no new jobs; running ones may finish, a second signal ends them")
	case err = <-failed:
	}
	table.Close()
	stopTaking()
	if l.GiveUp == nil {
		table.FailQueued(context.WithoutCancel(ctx), fault.New(fault.Draining, "the daemon was stopped before the job began"))
	}
	select {
	case <-worked:
	case <-signals:
		log.Warn().Msg("second signal: running jobs are ended")
	case <-time.After(l.Drain):
		log.Warn().Msg("drain time is over: running jobs are ended")
	}
	cut()
	if l.GiveUp != nil {
		defer time.AfterFunc(storeAnswers, l.GiveUp).Stop()
	}
	<-worked
	stopCarriers()
	closing := time.AfterFunc(streamsEnd, s.Close) // the streams of waiting jobs, which nobody runs now
	last := time.AfterFunc(requestsEnd, stopDrain)
	carriers.Wait()
	closing.Stop()
	last.Stop()
	s.Close()
	stopBeside()
	beside.Wait()
	return err
}
