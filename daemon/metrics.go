package daemon

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	"patchbay/ipc/message"
	"patchbay/ipc/meter"
	"patchbay/ipc/wire"
)

// runningShown bounds the running jobs that stats looks at.
const runningShown = 256

// stats returns what the meter does not know: jobs, workers and the store.
func (d *daemon) stats() message.Stats {
	s := message.Stats{Daemon: d.owner, Version: semantic(d.version), Devices: d.cfg.places()}
	s.Queued, s.Running = d.jobs.Busy()
	s.Paused = d.jobs.Paused()
	at := map[string][]string{}
	running, counts := d.jobs.List(message.Running, runningShown)
	s.Jobs = counts
	for _, r := range running {
		if r.Owner == "" || r.Owner == d.owner { // other daemons on the server have workers of the same names
			at[r.Worker] = append(at[r.Worker], r.Job)
		}
	}
	for _, c := range d.children {
		s.Workers = append(s.Workers, message.WorkerStats{
			Name: c.Name(), PID: c.PID(), Restarts: c.Restarts(),
			Job: strings.Join(at[c.Name()], ", "),
		})
		s.WorkerPIDs = append(s.WorkerPIDs, c.PID())
	}
	if d.store != nil {
		s.Store = d.store.Space()
	}
	return s
}

// faults lists what keeps jobs from being accepted and run.
func (d *daemon) faults() []string {
	var out []string
	switch {
	case d.nats.Up() && (d.store == nil || d.store.Up()):
	case d.embedded != nil:
		out = append(out, "nats: the server inside does not answer")
	default:
		out = append(out, "nats: not connected to "+wire.Redact(d.cfg.NATS))
	}
	if d.store != nil && d.store.Up() {
		if err := d.store.Fault(); err != nil {
			out = append(out, "store: the NATS server keeps no jobs: "+err.Error())
		}
	}
	up := 0
	for _, c := range d.children {
		if c.PID() != 0 {
			up++
		}
	}
	if up == 0 {
		out = append(out, fmt.Sprintf("workers: none of %d is up", len(d.children)))
	}
	return out
}

// openMetrics opens the endpoint of metrics and health, if one is configured.
func (d *daemon) openMetrics() error {
	if d.cfg.Metrics == "" {
		return nil
	}
	var err error
	d.metrics, err = meter.Listen(d.cfg.Metrics, d.meter, d.faults)
	if err != nil {
		return &InputError{Err: err}
	}
	d.log.Info().Str("metrics", "http://"+d.metrics.Address()+"/metrics").Str("health",
		"http://"+d.metrics.Address()+"/healthz").Msg("listening")
	return nil
}

// semantic turns the version of the build into the form that NATS services need: 1.2.3 with an optional suffix.
func semantic(v string) string {
	plain := strings.TrimPrefix(v, "v")
	if regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`).MatchString(plain) {
		return plain
	}
	return "0.0.0-" + regexp.MustCompile(`[^0-9A-Za-z-]`).ReplaceAllString(cmp.Or(plain, "dev"), "-")
}
