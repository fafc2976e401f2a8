package daemon

import (
	"context"
	"os"
	"syscall"

	"patchbay/ipc/message"
	"patchbay/ipc/register"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire"
)

// run serves until a signal, a failure or the end of parent, which is like a signal.
func (d *daemon) run(parent context.Context, signals chan os.Signal) error {
	defer context.AfterFunc(parent, func() {
		select {
		case signals <- syscall.SIGTERM:
		default:
		}
	})()
	l := serve.Life{
		Carriers: d.carriers(), Beside: d.beside(), Parallel: d.cfg.jobs(), Drain: d.cfg.Drain,
	}
	if d.store != nil {
		l.GiveUp = d.store.GiveUp
	}
	err := d.svc.Live(context.WithoutCancel(parent), signals, l)
	d.log.Info().Msg("daemon stopped")
	return err
}

// beside returns what runs until the service has ended.
func (d *daemon) beside() (out []func(context.Context) error) {
	runs := func(f func(ctx context.Context)) {
		out = append(out, func(ctx context.Context) error {
			f(ctx)
			return nil
		})
	}
	for _, c := range d.children {
		out = append(out, c.Supervise)
	}
	out = append(out, func(ctx context.Context) error {
		select {
		case <-d.nats.Ready(): // a daemon in the runtime file must already answer
			return d.announce()
		case <-ctx.Done():
			return nil
		}
	})
	if d.store != nil {
		out = append(out, func(ctx context.Context) error {
			select {
			case <-d.store.Machines().Rival():
				return register.RivalError(d.owner)
			case <-ctx.Done():
				return nil
			}
		})
	}
	if d.metrics != nil {
		out = append(out, func(ctx context.Context) error {
			defer context.AfterFunc(ctx, d.metrics.Close)()
			return d.metrics.Serve()
		})
	}
	if d.webhooks != nil {
		runs(func(ctx context.Context) { d.webhooks.Run(ctx, d.jobs) })
	}
	if d.traces != nil {
		runs(func(ctx context.Context) { d.traces.Run(ctx, d.jobs) })
	}
	runs(func(ctx context.Context) {
		for range wire.Every(ctx, sweepEvery) {
			d.sweepEvaluations()
		}
	})
	return out
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
