// Package daemon is what the daemon and its workers are made of: it wires carriers, jobs, outputs and worker processes
// together, and knows no command line.
//
// From the bottom up: settings.go is what can be set, limits.go what clients may ask for, memory.go how much memory
// there is, machine.go reads measured rates, ops_cgo.go and ops_nocgo.go choose the operations of a build, devices.go
// finds devices, transport.go how their ranks exchange data. children.go starts a process for each rank,
// portable_model.go and hosts.go reach those of other machines; engine.go puts these together. rank.go and host.go are
// the other side. On it worker.go executes jobs. state.go is what a daemon holds: store.go files in its own folder,
// resume.go evaluations of open jobs in it, register.go hosts that come and go, metrics.go counts and health, http.go
// ComfyUI's HTTP API, webhooks.go reports of ends, traces.go traces, run.go serves and shuts down. complete.go checks
// settings, daemon.go opens everything in order. collector.go relaxes garbage collection while payloads arrive.
package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/mattn/go-isatty"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"patchbay/ipc/broker"
	"patchbay/ipc/jobs"
	"patchbay/ipc/meter"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire"
	"patchbay/ipc/worker"
	"patchbay/node/classes"
	"patchbay/node/files"
	"patchbay/node/graph"
)

// Run runs a daemon until a signal, until parent ends, or until a carrier or a worker fails for good. cfg must have
// been through CompleteDaemon; version is that of the program. If the daemon cannot start, the error is
// wire.ErrNoServer for a NATS server that cannot be reached, else an *InputError (a file or folder, an address or a
// store that is in use).
func Run(parent context.Context, cfg *Config, log zerolog.Logger, version string) error {
	unlock, err := lockStore(cfg.Store)
	if err != nil {
		return &InputError{Err: err}
	}
	defer unlock()
	log.Info().Str("version", version).Str("nats", cmp.Or(wire.Redact(cfg.NATS), "inside")).Interface("config", cfg).Msg(
		"daemon starts")
	d := &daemon{cfg: cfg, log: log, version: version, meter: meter.New()}
	if err := d.open(parent); err != nil {
		d.close()
		if errors.Is(err, wire.ErrNoServer) {
			return err
		}
		return &InputError{Err: err}
	}
	defer d.close()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	return d.run(parent, signals)
}

// open opens everything, in order of dependency; close undoes what was done.
func (d *daemon) open(ctx context.Context) error {
	cfg := d.cfg
	url, err := d.server()
	if err != nil {
		return err
	}
	access := d.access()
	owner, err := ownName(cfg.Store)
	if err != nil {
		return err
	}
	d.owner = owner
	nc := serve.NATSConfig{
		URL: url, Access: access, Version: semantic(d.version), Log: d.log,
		Stats: func() any { return d.meter.Stats() }, Owner: owner, Facts: map[string]string{
			"devices": cfg.Devices, "workers": fmt.Sprint(cfg.Workers), "comfy_compat": graph.Compat, "protocol": "v1",
		}, Bulk: new(collector).relax,
	}
	if d.embedded != nil {
		nc.Listens, nc.InProcess = d.embedded.Listens, d.embedded.InProcess()
	}
	if d.nats, err = serve.ConnectNATS(nc); err != nil {
		if cfg.NATS != "" && cfg.NATS == os.Getenv("PATCHBAY_NATS_URL") {
			err = fmt.Errorf("%w (PATCHBAY_NATS_URL names this server; with --listen ADDRESS the daemon carries its own)", err)
		}
		var network net.Error
		if errors.Is(err, nats.ErrNoServers) || errors.Is(err, nats.ErrTimeout) || errors.As(err, &network) {
			err = fmt.Errorf("%w at %s: %w", wire.ErrNoServer, wire.Redact(url), err)
		}
		return err
	}
	if cfg.Socket != "off" {
		if d.socket, err = serve.ListenSocket(cfg.Socket); err != nil {
			return err
		}
	}
	stage := filepath.Join(cfg.Output, ".patchbay-stage-"+shortName(cfg.Store))
	if err := os.RemoveAll(cfg.Temp); err != nil {
		return fmt.Errorf("clear temp: %w", err)
	}
	if d.outputs, err = jobs.NewOutputs(jobs.OutputsConfig{
		Stage: stage, Output: cfg.Output, Temp: cfg.Temp,
		Keep: cfg.Queue == QueueDurable, Log: d.log,
	}); err != nil {
		return err
	}
	if err := d.openWebhooks(); err != nil {
		return err
	}
	if err := d.openTraces(ctx); err != nil {
		return err
	}
	if err := d.openHTTP(); err != nil {
		return err
	}
	if err := d.openJobs(ctx, url, owner); err != nil {
		return err
	}
	if err := d.follow(ctx, url); err != nil {
		return err
	}
	workerCfg := *cfg
	workerCfg.Private = true
	var executors []jobs.Executor
	for i := range cfg.Workers {
		child := worker.NewChild(worker.ChildConfig{
			Name: fmt.Sprintf("worker-%d", i), Command: WorkerCommand(&workerCfg),
			Log: d.log,
		})
		d.children = append(d.children, child)
		executors = append(executors, child)
	}
	var also func(string) []string
	if d.store != nil {
		also = d.jobs.ModelsElsewhere
	}
	var sc serve.ServiceConfig
	sc.Classes = worker.Classes(classes.All(), cfg.Roots(), d.place.Index, also)
	sc.Devices = cfg.places()
	sc.Jobs, sc.Outputs, sc.Executors, sc.Log, sc.Meter = d.jobs, d.outputs, executors, d.log, d.meter
	sc.Forward = true
	if d.webhooks != nil {
		sc.Webhook = d.webhooks.Check
	}
	if d.store != nil {
		sc.Fetch = d.nats.Fetch
	}
	if sc.Limits, err = cfg.Limits.Check(); err != nil {
		return err
	}
	d.meter.Watch(d.stats)
	if err := d.openMetrics(); err != nil {
		return err
	}
	if d.http != nil {
		d.http.On(d.jobs, sc.Classes)
	}
	d.svc = serve.NewService(sc)
	return nil
}

// server starts the embedded NATS server, unless an external one is configured, and returns the URL of the one to use.
func (d *daemon) server() (string, error) {
	cfg := d.cfg
	if cfg.NATS != "" {
		return cfg.NATS, nil
	}
	token, err := readToken("--token-file", cfg.TokenFile)
	if err != nil {
		return "", err
	}
	ec := broker.EmbeddedConfig{
		Listen: cfg.Listen, Token: token, SyncAlways: cfg.Sync == SyncAlways, Log: d.log, Users: cfg.UsersFile,
		Cert: cfg.Access.Cert, Key: cfg.Access.Key, CA: cfg.Access.CA,
	}
	if cfg.Queue == QueueDurable {
		ec.Store = filepath.Join(cfg.Store, "nats")
	}
	if d.embedded, err = broker.StartEmbedded(ec); err != nil {
		return "", err
	}
	if token == "" && cfg.UsersFile == "" {
		d.log.Info().Str("nats", d.embedded.Address()).Msg(
			"NATS server inside: loopback only, no password; every user of this machine has all rights, see --users-file")
	}
	return d.embedded.Inside(), nil
}

// openJobs creates the table of jobs, and loads what an earlier run has left in the store.
func (d *daemon) openJobs(ctx context.Context, url, owner string) error {
	cfg := d.cfg
	jc := jobs.Config{
		OnEvent: d.event, OnPreview: d.nats.Preview, OnForget: d.forget,
		MaxAttempts: cfg.Attempts, Keep: cfg.KeepJobs, KeepFor: cfg.KeepFor,
		MaxQueued: cfg.Limits.Queue, MaxPerClient: cfg.Limits.Client,
		KeepResults: cfg.KeepFiles, Log: d.log, PauseFile: filepath.Join(cfg.Store, "paused"),
	}
	var err error
	if jc.KeepBytes, err = ParseBytes(cfg.KeepBytes); err != nil {
		return err
	}
	d.place = &jobs.Resources{Index: files.NewIndex(cfg.Roots())}
	if cfg.Queue == QueueDurable {
		if d.place.Memory, err = ParseBytes(cfg.Memory); err != nil {
			return err
		}
		lc := jobs.JetStreamConfig{
			URL: url, Access: d.access(), Owner: owner, Replicas: cfg.Replicas, Resources: d.place,
			Log: d.log,
		}
		if d.embedded != nil {
			lc.InProcess, lc.Full, lc.Limit = d.embedded.InProcess(), d.embedded.Full, broker.EmbeddedStore
		}
		if d.store, err = jobs.OpenJetStream(ctx, lc); err != nil {
			return err
		}
		jc = d.store.On(jc)
		if d.embedded != nil {
			d.embedded.OnRecovered(d.store.Returned)
		} else {
			d.nats.Stay()
			// the server inside hears nobody before this daemon does
			if err = d.store.Machines().Alone(ctx); err != nil {
				return err
			}
		}
	}
	d.jobs = jobs.New(jc)
	if err := d.jobs.Open(ctx); err != nil {
		return err
	}
	d.sweepEvaluations()
	return nil
}

// WorkerCommand returns a function that makes a command to run this program as a worker.
func WorkerCommand(cfg *Config) func() *exec.Cmd {
	return func() *exec.Cmd {
		cmd := exec.Command(program(), "worker", "--config", cfg.forWorker().argument())
		if isatty.IsTerminal(os.Stderr.Fd()) {
			cmd.Env = append(os.Environ(), wire.TextLog+"=1") // the same form for all lines
		}
		return cmd
	}
}

// close closes what open has opened, in reverse.
func (d *daemon) close() {
	_ = os.Remove(RuntimePath(d.cfg.Store))
	if d.outputs != nil {
		if err := d.outputs.Close(); err != nil {
			d.log.Warn().Err(err).Msg("stage not removed")
		}
	}
	if d.metrics != nil {
		d.metrics.Close()
	}
	if d.svc == nil { // open failed halfway: no Serve will close these
		if d.socket != nil {
			_ = d.socket.Close()
		}
		if d.http != nil {
			d.http.Close()
		}
		if d.nats != nil {
			d.nats.Close()
		}
	}
	if d.unfollow != nil {
		d.unfollow()
	}
	if d.store != nil {
		d.store.Close()
	}
	if d.embedded != nil {
		d.embedded.Close()
	}
}
