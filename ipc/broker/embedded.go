package broker

import (
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"patchbay/ipc/rights"
	"patchbay/ipc/wire"
)

// EmbeddedConfig configures the NATS server embedded in a daemon.
type EmbeddedConfig struct {
	Listen string // host:port; port 0 takes a free one
	Token  string // clients must send it; it or Users is required unless the host is a loopback address
	// Users is a nats-server configuration file with an authorization block (rights.ServerConfig writes one); empty:
	// every client may do everything.
	Users string
	// Cert and Key are PEM files of the server's certificate. CA is a PEM file of the authorities that sign the
	// certificates of clients; empty: clients need no certificate.
	Cert, Key, CA string
	// Store is the folder of JetStream's files, which nothing else may use; empty: no JetStream.
	Store string
	// SyncAlways waits for the disk at every write of a job. Without it writes reach the disk within two minutes, and
	// a power failure loses those that have not.
	SyncAlways bool
	Log        zerolog.Logger
}

// Embedded is a running NATS server.
type Embedded struct {
	cfg    EmbeddedConfig
	srv    *server.Server
	url    string
	inside string

	logins *logins // nil: none of its users has a password

	logs             *natsLog
	closing, watched chan struct{}
	mu               sync.Mutex
	onRecovered      func()
	records          os.FileInfo // folder of the records when it was first seen; nil before
	fault            string      // why the store cannot be written; empty if it can
}

// embeddedPayload is the largest message of the embedded server; NATS advises no more than 8 MiB.
const embeddedPayload = 8 << 20

// EmbeddedStore and embeddedMemory bound, in bytes, what JetStream may keep in files and in memory.
const (
	EmbeddedStore  = 8 << 30
	embeddedMemory = 64 << 20
)

// StartEmbedded starts a server and waits until it accepts connections. If the port is in use, the error says so.
func StartEmbedded(cfg EmbeddedConfig) (*Embedded, error) {
	host, port, err := splitListen(cfg.Listen)
	if err != nil {
		return nil, err
	}
	if ip := net.ParseIP(host); cfg.Token == "" && cfg.Users == "" && host != "localhost" &&
		(ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("listen %s: an address that others can reach needs a token or users; give --token-file or "+
			"--users-file, or listen on 127.0.0.1", cfg.Listen)
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	logs := &natsLog{faults: make(chan string, 1), log: cfg.Log.With().Str("component", "nats").Logger()}
	opts := &server.Options{
		ServerName: "patchbay-" + strings.ToLower(wire.NewID()[16:]), Host: host, Port: port, Authorization: cfg.Token,
		NoSigs: true, MaxPayload: embeddedPayload, MaxClosedClients: 16, DisableJetStreamBanner: true,
		JetStream: cfg.Store != "", StoreDir: cfg.Store, SyncAlways: cfg.SyncAlways, JetStreamMaxMemory: embeddedMemory,
		JetStreamMaxStore: EmbeddedStore,
	}
	inside, err := cfg.admit(opts)
	if err != nil {
		return nil, err
	}
	var users *logins
	if inside != "" {
		users = newLogins(opts.Users[:len(opts.Users)-1]) // the last one is this process
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("start NATS server: %w", err)
	}
	srv.SetLoggerV2(logs, false, false, false)
	srv.Start()
	ready := false
	// Start returns even after a fatal log line, and the server is then never ready
	for wait := 0; wait < 100 && !ready && logs.fatal() == ""; wait++ {
		ready = srv.ReadyForConnections(100 * time.Millisecond)
	}
	if !ready {
		srv.Shutdown()
		srv.WaitForShutdown()
		why := logs.fatal()
		if why == "" {
			why = "it was not ready within 10 s"
		}
		if strings.Contains(why, "address already in use") {
			return nil, fmt.Errorf("listen %s: address already in use; is another daemon running? stop it, choose another "+
				"address with --listen, or use it with --nats", cfg.Listen)
		}
		return nil, fmt.Errorf("start NATS server on %s: %s", cfg.Listen, why)
	}
	if cfg.Store != "" && !srv.JetStreamEnabled() {
		srv.Shutdown()
		srv.WaitForShutdown()
		return nil, fmt.Errorf("start NATS server: no job store in %s: %s", cfg.Store, logs.fatal())
	}
	addr := srv.Addr().String()
	if cfg.Token != "" {
		addr = cfg.Token + "@" + addr
	}
	e := &Embedded{
		cfg: cfg, srv: srv, url: "nats://" + addr, logins: users, logs: logs, closing: make(chan struct{}),
		watched: make(chan struct{}),
	}
	if e.inside = e.url; inside != "" {
		e.inside = "nats://" + inside + "@" + addr
	}
	go e.watchStore()
	return e, nil
}

// admit fills in who may connect and how. If users have rights, this process becomes one of them, under a random name
// and password, which are returned as name:password.
func (cfg *EmbeddedConfig) admit(opts *server.Options) (inside string, err error) {
	if cfg.Users != "" {
		if err := cfg.unread(); err != nil {
			return "", fmt.Errorf("users of the NATS server: %s: %w", cfg.Users, err)
		}
		from, err := server.ProcessConfigFile(cfg.Users)
		if err != nil {
			return "", fmt.Errorf("users of the NATS server: %w", err)
		}
		if len(from.Users)+len(from.Nkeys) == 0 {
			return "", fmt.Errorf("users of the NATS server: %s has no users in an authorization block; `patchbay serve "+
				"--print-permissions` prints one", cfg.Users)
		}
		opts.Users, opts.Nkeys, opts.AuthTimeout = from.Users, from.Nkeys, from.AuthTimeout
		name, password := wire.NewID(), rand.Text()
		permissions := rights.Permissions(rights.RoleDaemon, name)
		opts.Users = append(opts.Users, &server.User{Username: name, Password: password, Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: permissions.Publish},
			Subscribe: &server.SubjectPermission{Allow: permissions.Subscribe},
		}})
		inside = name + ":" + password
	}
	if cfg.Cert == "" {
		return inside, nil
	}
	conf, err := server.GenTLSConfig(&server.TLSConfigOpts{
		CertFile: cfg.Cert, KeyFile: cfg.Key, CaFile: cfg.CA,
		Verify: cfg.CA != "",
	})
	if err != nil {
		return "", fmt.Errorf("certificate of the NATS server: %w", err)
	}
	opts.TLSConfig, opts.TLS, opts.TLSVerify, opts.TLSTimeout = conf, true, cfg.CA != "", 5
	return inside, nil
}

func splitListen(listen string) (string, int, error) {
	host, text, err := net.SplitHostPort(listen)
	if err != nil {
		return "", 0, fmt.Errorf("listen %s: want host:port", listen)
	}
	port, err := strconv.Atoi(text)
	if err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("listen %s: the port is a number from 0 to 65535", listen)
	}
	if host == "" {
		host = "0.0.0.0"
	}
	return host, port, nil
}

// URL returns what clients connect to, token included.
func (e *Embedded) URL() string { return e.url }

// Inside returns the URL for connections from this process, made with InProcess.
func (e *Embedded) Inside() string { return e.inside }

// Address returns the URL without the token.
func (e *Embedded) Address() string { return "nats://" + e.srv.Addr().String() }

// InProcess returns the server as the provider of connections within this process.
func (e *Embedded) InProcess() nats.InProcessConnProvider { return e.srv }

// Listens reports whether any client subscribes to a subject.
func (e *Embedded) Listens(subject string) bool {
	return e.srv.GlobalAccount().SubscriptionInterest(subject)
}

// Close stops the server and waits for it.
func (e *Embedded) Close() {
	close(e.closing)
	<-e.watched
	e.srv.Shutdown()
	e.srv.WaitForShutdown()
}

// natsLog writes the server's log to zerolog. Fatal lines do not end the process: they are kept for the error of
// StartEmbedded.
type natsLog struct {
	log    zerolog.Logger
	faults chan string // the first unread line that says that the store cannot be written
	mu     sync.Mutex
	last   string
}

func (l *natsLog) fatal() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

func (l *natsLog) line(ev *zerolog.Event, format string, v []any) {
	text := strings.TrimSpace(fmt.Sprintf(format, v...))
	ev.Msg(text)
	if storeFault(text) {
		select {
		case l.faults <- text:
		default:
		}
	}
}

// Noticef implements server.Logger; the server's notices are our debug lines.
func (l *natsLog) Noticef(format string, v ...any) { l.line(l.log.Debug(), format, v) }

func (l *natsLog) Warnf(format string, v ...any) { l.line(l.log.Warn(), format, v) }

func (l *natsLog) Errorf(format string, v ...any) { l.line(l.log.Error(), format, v) }

func (l *natsLog) Debugf(format string, v ...any) { l.line(l.log.Debug(), format, v) }

func (l *natsLog) Tracef(format string, v ...any) { l.line(l.log.Trace(), format, v) }

func (l *natsLog) Fatalf(format string, v ...any) {
	l.mu.Lock()
	l.last = strings.TrimSpace(fmt.Sprintf(format, v...))
	l.mu.Unlock()
	l.line(l.log.Error().Bool("fatal", true), format, v)
}
