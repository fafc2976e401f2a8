package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"patchbay/ipc/broker"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/meter"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire"
	"patchbay/ipc/worker"
	"patchbay/node/classes"
	"patchbay/node/files"
	"patchbay/node/graph"
)

func serveCmd() *cobra.Command {
	var cfg config
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon",
		Long: `serve takes workflows over NATS and a unix socket and runs them in worker processes. Without --nats it carries a NATS server inside,
on 127.0.0.1 and without a password: every user of this machine can send jobs. SIGTERM and Ctrl-C let running jobs finish; a second one ends
them. Jobs are written down in JetStream and outlive the daemon: what waits is run after the next start, what ran begins again, nothing is recorded twice.`,
		Example: `  patchbay serve --comfyui ~/ComfyUI
  patchbay serve --nats nats://queue.example:4222 --models /models --output /pictures
  patchbay serve --listen 0.0.0.0:4222 --token-file /etc/patchbay/token
  patchbay serve --listen 0.0.0.0:4222 --users-file users.conf --tls-cert server.pem --tls-key server-key.pem
  patchbay serve --nats tls://queue.example --creds daemon.creds --tls-ca ca.pem`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.Permissions != "" {
				return printPermissions(cmd, cfg.Permissions)
			}
			if err := cfg.checkAccess(); err != nil {
				return err
			}
			cfg.Store = orElse(cfg.Store, filepath.Join(home(), "store"))
			cfg.Socket = orElse(cfg.Socket, defaultSocket())
			cfg.Temp = filepath.Join(cfg.Store, "temp")
			if err := cfg.checkJobs(); err != nil {
				return err
			}
			if _, err := cfg.Bounds.check(); err != nil {
				return err
			}
			if cfg.Workers < 1 || cfg.Workers > 64 {
				return &exitError{exitBadInput, fmt.Errorf("--workers %d: want 1 to 64", cfg.Workers)}
			}
			if err := cfg.complete(); err != nil {
				return err
			}
			if err := checkLevel(); err != nil {
				return err
			}
			return runServe(cmd.Context(), &cfg, cfg.logger(cmd.ErrOrStderr()))
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.NATS, "nats", os.Getenv("PATCHBAY_NATS_URL"), "URL of an external NATS server")
	f.StringVar(&cfg.Listen, "listen", "127.0.0.1:4222", "address of the NATS server inside; port 0 takes a free one")
	f.StringVar(&cfg.TokenFile, "token-file", "", "file with the token that clients of the server inside must send")
	f.StringVar(&cfg.UsersFile, "users-file", "", "nats-server configuration with the users of the server inside and their rights (see --print-permissions)")
	f.StringVar(&cfg.Permissions, "print-permissions", "", "print the rights of these users (client=NAME, daemon=NAME, admin=NAME) for a NATS server, and end")
	f.Lookup("print-permissions").NoOptDefVal = defaultUsers
	addAccess(f, &cfg.access)
	f.StringVar(&cfg.Store, "store", "", "folder of the daemon's own files (default PATCHBAY_HOME/store)")
	f.StringVar(&cfg.Socket, "socket", "", "unix socket, or off (default $PATCHBAY_SOCKET or $XDG_RUNTIME_DIR/patchbay.sock)")
	f.IntVar(&cfg.Workers, "workers", 1, "worker processes; each runs one job at a time")
	f.StringVar(&cfg.Metrics, "metrics", "", "host:port for /metrics (Prometheus) and /healthz; port 0 takes a free one (default: none)")
	f.DurationVar(&cfg.Drain, "drain", 30*time.Second, "how long running jobs may take to finish after SIGTERM")
	cfg.addFolders(f)
	cfg.addJobs(f)
	cfg.Bounds.add(f)
	cfg.Bounds.addJobs(f)
	return cmd
}

// daemon is everything that serve starts.
type daemon struct {
	cfg      *config
	log      zerolog.Logger
	store    *jobs.JetStream // nil: jobs are in memory only
	place    *jobs.Resources // what is here for the jobs of the store
	jobs     *jobs.Table
	svc      *serve.Service
	outputs  *jobs.Outputs
	embedded *broker.Embedded // nil with an external server
	nats     *serve.NATS
	socket   *serve.Socket // nil: off
	children []*worker.Child
	owner    string // the daemon's name
	meter    *meter.Meter
	lookout  *meter.Endpoint // nil: nobody watches
}

// runServe runs a daemon until a signal or until a carrier fails.
func runServe(parent context.Context, cfg *config, log zerolog.Logger) error {
	unlock, err := lockStore(cfg.Store)
	if err != nil {
		return err
	}
	defer unlock()
	log.Info().Str("version", version).Interface("config", cfg).Msg("daemon starts")
	d := &daemon{cfg: cfg, log: log, meter: meter.New()}
	if err := d.open(parent); err != nil {
		d.close()
		return err
	}
	defer d.close()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	return d.run(parent, signals)
}

// open makes everything, in the order of need; close undoes what was done.
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
	nc := serve.NATSConfig{URL: url, Access: access, Version: semantic(version), Log: d.log, Stats: func() any { return d.meter.Stats() }, Owner: owner, Facts: map[string]string{
		"devices": cfg.Devices, "workers": fmt.Sprint(cfg.Workers), "comfy_compat": graph.Compat, "protocol": "v1",
	}, Bulk: new(collector).ease}
	if d.embedded != nil {
		nc.Listens, nc.InProcess = d.embedded.Listens, d.embedded.InProcess()
	}
	if d.nats, err = serve.ConnectNATS(nc); err != nil {
		if cfg.NATS != "" && cfg.NATS == os.Getenv("PATCHBAY_NATS_URL") {
			return fmt.Errorf("%w (PATCHBAY_NATS_URL names this server; with --nats '' the daemon carries its own)", err)
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
	if d.outputs, err = jobs.NewOutputs(jobs.OutputsConfig{Stage: stage, Output: cfg.Output, Temp: cfg.Temp, Keep: cfg.Queue == queueDurable}); err != nil {
		return err
	}
	if err := d.openJobs(ctx, url, owner); err != nil {
		return err
	}
	var executors []jobs.Executor
	for i := range cfg.Workers {
		child := worker.NewChild(worker.ChildConfig{Name: fmt.Sprintf("worker-%d", i), Command: workerCommand(cfg), Log: d.log})
		d.children = append(d.children, child)
		executors = append(executors, child)
	}
	var stock *files.Stock
	var also func(string) []string
	if d.store != nil {
		stock, also = d.place.Stock, d.store.Also
	}
	sc := worker.NodeService(classes.All(), cfg.roots(), stock, also)
	sc.Jobs, sc.Outputs, sc.Executors, sc.Log, sc.Meter = d.jobs, d.outputs, executors, d.log, d.meter
	sc.Forward = true
	if d.store != nil {
		sc.Fetch = d.nats.Fetch
	}
	if sc.Limits, err = cfg.Bounds.check(); err != nil {
		return err
	}
	d.meter.Watch(d.stats)
	if err := d.watched(); err != nil {
		return err
	}
	d.svc = serve.NewService(sc)
	return nil
}

// server starts the NATS server inside, if there is to be one, and returns the URL of the one to use.
func (d *daemon) server() (string, error) {
	cfg := d.cfg
	if cfg.NATS != "" {
		return cfg.NATS, nil
	}
	token, err := readToken(cfg.TokenFile)
	if err != nil {
		return "", err
	}
	ec := broker.EmbeddedConfig{
		Listen: cfg.Listen, Token: token, SyncAlways: cfg.Sync == syncAlways, Log: d.log, Users: cfg.UsersFile,
		Cert: cfg.access.Cert, Key: cfg.access.Key, CA: cfg.access.CA,
	}
	if cfg.Queue == queueDurable {
		ec.Store = filepath.Join(cfg.Store, "nats")
	}
	if d.embedded, err = broker.StartEmbedded(ec); err != nil {
		return "", err
	}
	if token == "" && cfg.UsersFile == "" {
		d.log.Info().Str("nats", d.embedded.Address()).Msg("NATS server inside: loopback only, no password; every user of this machine can send jobs")
	}
	return d.embedded.Inside(), nil
}

// access is how the daemon shows itself to its server: to its own one it need not.
func (d *daemon) access() wire.Access {
	if d.embedded != nil {
		return wire.Access{}
	}
	return d.cfg.access
}

// openJobs makes the table of jobs, and reads what an earlier run has left of it.
func (d *daemon) openJobs(ctx context.Context, url, owner string) error {
	cfg := d.cfg
	jc := jobs.Config{
		OnEvent: d.event, OnPreview: d.nats.Preview, OnForget: d.outputs.Forget, MaxAttempts: cfg.Attempts, Keep: cfg.KeepJobs, KeepFor: cfg.KeepFor,
		MaxQueued: cfg.Bounds.Queue, MaxPerClient: cfg.Bounds.Client,
		KeepResults: cfg.KeepFiles,
	}
	var err error
	if jc.KeepBytes, err = parseBytes(cfg.KeepBytes); err != nil {
		return err
	}
	if cfg.Queue == queueDurable {
		d.place = &jobs.Resources{Stock: files.NewStock(cfg.roots())}
		if d.place.Memory, err = parseBytes(cfg.Memory); err != nil {
			return err
		}
		lc := jobs.JetStreamConfig{URL: url, Access: d.access(), Owner: owner, Replicas: cfg.Replicas, Resources: d.place, Log: d.log}
		if d.embedded != nil {
			lc.InProcess, lc.Full = d.embedded.InProcess(), d.embedded.Full
		}
		if d.store, err = jobs.OpenJetStream(ctx, lc); err != nil {
			return err
		}
		jc.Store = d.store
		if d.embedded != nil {
			d.embedded.OnRecovered(d.store.Returned)
		}
	}
	d.jobs = jobs.New(jc)
	if d.store == nil {
		return nil
	}
	return d.jobs.Open(ctx)
}

// ownName is the name of the daemon of a store: made once, and kept, so that a daemon knows its jobs again after a restart.
func ownName(store string) (string, error) {
	path := filepath.Join(store, "daemon-name")
	if b, err := os.ReadFile(path); err == nil && len(b) > 0 {
		return string(b), nil
	}
	name := "d-" + wire.NewID()
	if err := os.WriteFile(path+".new", []byte(name), 0o600); err != nil {
		return "", fmt.Errorf("store: %w", err)
	}
	return name, os.Rename(path+".new", path)
}

// workerCommand starts this program again as a worker.
func workerCommand(cfg *config) func() *exec.Cmd {
	return func() *exec.Cmd {
		self, err := os.Executable()
		if err != nil {
			self = os.Args[0]
		}
		return exec.Command(self, cfg.workerArgs()...)
	}
}

// run serves until the end: a signal lets running jobs finish, a second one cuts them off. The order is: no new jobs, wait for running ones, carriers, workers.
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
	failed := make(chan error, 3+len(d.children))
	for _, c := range d.children {
		children.Go(func() {
			if err := c.Supervise(alive); err != nil {
				failed <- err
			}
		})
	}
	dispatcher := &jobs.Dispatcher{Jobs: d.jobs, Outputs: d.outputs, Log: d.log}
	if d.store != nil {
		if err := dispatcher.Recover(running); err != nil {
			stopChildren()
			children.Wait()
			return err
		}
		children.Go(func() { d.jobs.Reconcile(alive) })
	}
	for _, c := range d.carriers() {
		carriers.Go(func() {
			if err := c.Serve(carry, drain, d.svc); err != nil {
				failed <- fmt.Errorf("%s: %w", c.Name(), err)
			}
		})
		d.log.Info().Str("carrier", c.Name()).Msg("listening")
	}
	if d.lookout != nil {
		carriers.Go(func() {
			if err := d.lookout.Serve(); err != nil {
				failed <- err
			}
		})
		context.AfterFunc(carry, d.lookout.Close)
	}
	worked := make(chan struct{})
	go func() {
		dispatcher.Work(take, running, d.executors())
		close(worked)
	}()
	var err error
	select {
	case <-d.nats.Ready(): // whoever reads the runtime file finds somebody who answers
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
		d.log.Info().Stringer("signal", s).Dur("drain", d.cfg.Drain).Msg("no new jobs; running ones may finish, a second signal ends them")
	case err = <-failed:
	}
	d.jobs.Close()
	stopTaking()
	if d.store == nil {
		d.jobs.FailQueued(keep, wire.Errorf(wire.ErrDraining, "the daemon was stopped before the job began"))
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
		defer time.AfterFunc(5*time.Second, d.store.GiveUp).Stop() // a server that is away must not keep us
	}
	<-worked
	stopCarriers()
	told := time.AfterFunc(time.Second, d.svc.Close) // who follows a job that waits is told that nobody runs it now
	last := time.AfterFunc(3*time.Second, stopDrain)
	carriers.Wait()
	told.Stop()
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
	return out
}

func (d *daemon) executors() []jobs.Executor {
	out := make([]jobs.Executor, len(d.children))
	for i, c := range d.children {
		out[i] = c
	}
	return out
}

// event counts and publishes an event.
func (d *daemon) event(ev message.Event) {
	d.meter.Event(ev)
	d.nats.Event(ev)
}

// runtimeFile tells other programs of this machine where a daemon listens.
type runtimeFile struct {
	PID     int    `json:"pid"`
	NATS    string `json:"nats"` // with the token, if there is one; therefore the file is 0600
	Socket  string `json:"socket,omitempty"`
	Metrics string `json:"metrics,omitempty"` // host:port
}

func runtimePath(store string) string { return filepath.Join(store, "daemon.json") }

func (d *daemon) announce() error {
	r := runtimeFile{PID: os.Getpid(), NATS: d.cfg.NATS}
	if d.embedded != nil {
		r.NATS = d.embedded.URL()
	}
	if d.socket != nil {
		r.Socket = d.cfg.Socket
	}
	if d.lookout != nil {
		r.Metrics = d.lookout.Address()
	}
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := runtimePath(d.cfg.Store)
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return fmt.Errorf("write runtime file: %w", err)
	}
	return os.Rename(path+".new", path)
}

// close gives back what open has made, in reverse.
func (d *daemon) close() {
	_ = os.Remove(runtimePath(d.cfg.Store))
	if d.outputs != nil {
		if err := d.outputs.Close(); err != nil {
			d.log.Warn().Err(err).Msg("stage not removed")
		}
	}
	if d.lookout != nil {
		d.lookout.Close()
	}
	if d.svc == nil { // open failed half-way: nobody serves these
		if d.socket != nil {
			_ = d.socket.Close()
		}
		if d.nats != nil {
			d.nats.Close()
		}
	}
	if d.store != nil {
		d.store.Close()
	}
	if d.embedded != nil {
		d.embedded.Close()
	}
}

// lockStore makes the store folder and takes its lock: two daemons on one store would destroy each other's files.
func lockStore(dir string) (func(), error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		busy := fmt.Errorf("store %s is used by another daemon; choose another with --store, or talk to that one", dir)
		return nil, errors.Join(busy, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

func readToken(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if len(token) < 16 || strings.ContainsAny(token, " @/:") {
		return "", fmt.Errorf("--token-file %s: want one token of 16 or more characters without space, at sign, slash and colon", path)
	}
	return token, nil
}
