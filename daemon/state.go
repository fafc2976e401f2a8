package daemon

import (
	"github.com/rs/zerolog"

	"patchbay/ipc/broker"
	"patchbay/ipc/jobs"
	"patchbay/ipc/meter"
	"patchbay/ipc/serve"
	"patchbay/ipc/traces"
	"patchbay/ipc/web"
	"patchbay/ipc/webhook"
	"patchbay/ipc/wire"
	"patchbay/ipc/worker"
)

// daemon holds everything that serve starts.
type daemon struct {
	cfg      *Config
	log      zerolog.Logger
	store    *jobs.JetStream // nil: jobs are in memory only
	place    *jobs.Resources // files and memory of this machine, for jobs in the store
	jobs     *jobs.Table
	svc      *serve.Service
	outputs  *jobs.Outputs
	embedded *broker.Embedded // nil with an external server
	nats     *serve.NATS
	socket   *serve.Socket   // nil: off
	http     *web.HTTP       // nil: off
	webhooks *webhook.Sender // nil: off
	traces   *traces.Tracer  // nil: off
	children []*worker.Child
	unfollow func() // stops following a cluster of hosts; nil: none is followed
	owner    string // the daemon's name
	version  string // of the program
	meter    *meter.Meter
	metrics  *meter.Endpoint // nil: off
}

// access returns how the daemon authenticates to its server; the embedded one asks for nothing.
func (d *daemon) access() wire.Access {
	if d.embedded != nil {
		return wire.Access{}
	}
	return d.cfg.Access
}
