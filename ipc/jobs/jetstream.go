package jobs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"patchbay/ipc/message"
	"patchbay/ipc/register"
	"patchbay/ipc/wire"
)

// Times and sizes of the JetStream store.
const (
	keepEvents     = 24 * time.Hour
	keepDead       = 30 * 24 * time.Hour
	eventBytes     = 512 << 20
	requestPiece   = 512 << 10
	serverPatience = 2 * time.Second // timeout of one request to the server
)

// JetStreamConfig configures a JetStream store.
type JetStreamConfig struct {
	URL       string
	Access    wire.Access
	InProcess nats.InProcessConnProvider // the server inside this process; nil: URL is dialed
	Owner     string                     // name of this daemon: unique, and the same after a restart
	Replicas  int                        // of every stream. 0: 3 on a cluster that has as many servers, otherwise 1
	Full      func() error               // returns why the server cannot write its store; nil: not known
	Limit     int64                      // bytes that the server's files may take; 0: the limit of the account
	Resources *Resources                 // what this daemon has for jobs; nil: it takes any job
	Log       zerolog.Logger
}

// onServer are the streams, buckets and consumers of a store. The server finds each by its name, so that a handle works
// for one that is made anew too.
type onServer struct {
	jobs, requests              jetstream.KeyValue
	events                      jetstream.Stream
	recordStream, requestStream jetstream.Stream // the streams behind jobs and requests
}

// JetStream keeps the jobs of a table on a NATS server. The record of a job is one key of the bucket patchbay-jobs: it
// is authoritative, and its revision fences every change. The work-queue stream holds references that wake a daemon
// up; losing or repeating one neither loses nor repeats a job. Acknowledgments prove nothing, and nothing relies on
// them. JetStream is safe for concurrent use.
type JetStream struct {
	cfg JetStreamConfig
	nc  *nats.Conn
	js  jetstream.JetStream

	onServer
	machines *register.Register

	end   context.CancelFunc
	ctx   context.Context
	wg    sync.WaitGroup
	lost  map[string]bool // jobs that had no record when the table was opened
	hurt  []string        // streams of which the server had lost messages by then
	table follower        // set by open

	tending sync.Mutex
	tends   int // calls of tend

	tidying       chan struct{}        // semaphore of one: its holder runs tidy
	tidied        time.Time            // when requests were last scanned; guarded by tidying
	orphanedSince map[string]time.Time // jobs that have pieces of a request but no record, and since when

	mu    sync.Mutex
	used  int64 // size of the store's files in bytes
	limit int64 // upper bound of used; 0: not known
	// refusedAt is when the server refused a write for lack of room, refusedWith how many bytes were used then.
	refusedAt   time.Time
	refusedWith int64
	failing     time.Time // since when heartbeats fail at the current server; zero: they get through
	failed      int       // heartbeats since the last that got through
	heartbeat   error     // what the last heartbeat failed with
	broken      error     // why streams that are gone could not be made anew; nil: they were, or none is gone

	// State of the watch of the records, of audit and of health.
	records  *wire.Watch
	audited  time.Time // when all records were last compared; watchOver only, as the next two
	leader   string    // of the stream of records at that time
	behind   time.Time // since when the watch of the records has lagged behind the stream
	doubtful bool      // the next audit must compare all records
	restored int       // records that the server had lost and that were written again
	trouble  []string  // what is wrong with the replicas of streams
	copies   int       // replicas of the stream of records
}

// OpenJetStream connects and creates missing streams and buckets. If the server has no JetStream, the error says what
// to do.
func OpenJetStream(ctx context.Context, cfg JetStreamConfig) (*JetStream, error) {
	l := &JetStream{
		cfg: cfg, records: wire.NewWatch(), tidying: make(chan struct{}, 1),
	}
	var err error
	if l.nc, err = wire.Connect(cfg.URL, cfg.Access, cfg.InProcess, "patchbay jobs", nats.ReconnectBufSize(-1),
		nats.ReconnectWait(100*time.Millisecond), nats.PingInterval(10*time.Second),
		nats.ReconnectHandler(func(*nats.Conn) { l.Returned() })); err != nil {
		return nil, err
	}
	l.ctx, l.end = context.WithCancel(context.WithoutCancel(ctx))
	if err := l.prepare(ctx); err != nil {
		l.Close()
		if errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) ||
			errors.Is(err, nats.ErrNoResponders) {
			return nil, fmt.Errorf("the NATS server has no JetStream, where jobs are kept; start it with `nats-server -js`, "+
				"or serve with --queue memory: %w", err)
		}
		return nil, fmt.Errorf("open job store: %w", err)
	}
	return l, nil
}

// prepareTime bounds all of prepare. The servers of a cluster that is starting up elect a leader for each stream and
// consumer, and until then leave requests to it unanswered.
const prepareTime = time.Minute

// prepare creates what is missing on the server, and starts the heartbeat.
func (l *JetStream) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, prepareTime)
	defer cancel()
	var err error
	if l.js, err = jetstream.New(l.nc); err != nil {
		return err
	}
	var n int
	if l.onServer, n, err = l.makeStore(ctx); err != nil {
		return err
	}
	measured := func(ctx context.Context) (struct{}, error) { return struct{}{}, l.measure(ctx) }
	if _, err := wire.Insist(ctx, measured); err != nil {
		return err
	}
	rc := register.Config{Name: l.cfg.Owner, Replicas: n, Log: l.cfg.Log}
	if l.cfg.Resources != nil {
		rc.Note = l.cfg.Resources.note
	}
	if l.machines, err = register.Open(ctx, l.js, rc); err != nil {
		return err
	}
	requests := l.requests
	l.wg.Go(func() { l.beat(requests) })
	return nil
}

// makeStore creates the streams, buckets and consumers that are missing, and returns them with their replica count.
func (l *JetStream) makeStore(ctx context.Context) (h onServer, n int, err error) {
	if n, err = l.makeDead(ctx); err != nil {
		return h, n, err
	}
	if h.events, err = l.makeEvents(ctx, n); err != nil {
		return h, n, err
	}
	if h.jobs, h.recordStream, err = l.makeBucket(ctx, jetstream.KeyValueConfig{
		Bucket: message.JobBucket, Description: "record of every job", LimitMarkerTTL: markerTime, Replicas: n,
	}); err != nil {
		return h, n, err
	}
	if h.requests, h.requestStream, err = l.makeBucket(ctx, jetstream.KeyValueConfig{
		Bucket: message.RequestBucket, Description: "what every job asks for, in pieces", Replicas: n,
	}); err != nil {
		return h, n, err
	}
	return h, n, nil
}

// makeDead creates the stream of dead letters. It returns the replica count of every stream: the configured one or, if
// none is configured, the existing one, raised to 3 on a cluster, or 1 if the cluster has too few servers with room.
func (l *JetStream) makeDead(ctx context.Context) (int, error) {
	cluster, n := l.nc.ConnectedClusterName(), l.cfg.Replicas
	if n > 1 && cluster == "" {
		return 0, fmt.Errorf("--replicas %d: the NATS server at %s is alone, not one of a cluster; leave the option "+
			"out, or give 1", n, wire.Redact(l.nc.ConnectedUrl()))
	}
	if cluster != "" {
		if err := l.led(ctx); err != nil {
			return 0, fmt.Errorf("the NATS cluster %s has no leader: do most of its servers run, and see each other? %w",
				cluster, err)
		}
	}
	if n == 0 {
		n = 1
		if s, err := l.existing(ctx, message.DeadStream); err == nil {
			n = s.CachedInfo().Config.Replicas
		}
		if cluster != "" {
			n = max(n, 3)
		}
	}
	for {
		_, err := l.stream(ctx, jetstream.StreamConfig{
			Name: message.DeadStream, Subjects: []string{message.DeadRoot + "*"}, Storage: jetstream.FileStorage, Replicas: n,
			MaxAge: keepDead, MaxMsgsPerSubject: 16,
			Description: "records of jobs that failed for good",
		})
		switch few := noPlace(err); {
		case few && l.cfg.Replicas == 0 && n > 1:
			l.cfg.Log.Warn().Err(err).Str("cluster", cluster).Msgf("the jobs have one copy: the NATS cluster has no %d servers "+
				"that run JetStream and have room; when it has, start the daemon again", n)
			n = 1
		case few:
			return 0, fmt.Errorf("--replicas %d: the NATS cluster %s has not so many servers that run JetStream and have "+
				"room: %w", n, cluster, err)
		default:
			return n, err
		}
	}
}

// stream creates a stream or updates its configuration.
func (l *JetStream) stream(ctx context.Context, cfg jetstream.StreamConfig) (jetstream.Stream, error) {
	return wire.Insist(ctx, func(ctx context.Context) (jetstream.Stream, error) {
		return l.js.CreateOrUpdateStream(ctx, cfg)
	})
}

// existing looks up a stream.
func (l *JetStream) existing(ctx context.Context, name string) (jetstream.Stream, error) {
	return wire.Insist(ctx, func(ctx context.Context) (jetstream.Stream, error) { return l.js.Stream(ctx, name) })
}

// noPlace reports whether too few servers exist for a stream, or too few that have room for it.
func noPlace(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == 10005
}

// led waits until the servers of the cluster have elected a leader.
func (l *JetStream) led(ctx context.Context) error {
	for {
		try, cancel := context.WithTimeout(ctx, serverPatience)
		_, err := l.js.AccountInfo(try)
		cancel()
		var api *jetstream.APIError
		if err == nil || errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.As(err, &api) && api.Code < 500 {
			return nil // the next request reports any other problem
		}
		if wire.Pause(ctx, 100*time.Millisecond) != nil {
			return err
		}
	}
}

// makeEvents creates the stream of events, smaller if the server has no room for the usual size.
func (l *JetStream) makeEvents(ctx context.Context, n int) (jetstream.Stream, error) {
	ec := jetstream.StreamConfig{
		Name: message.EventStream, Subjects: []string{message.EventSubject("*", "*")}, Storage: jetstream.FileStorage,
		Replicas: n, AllowDirect: true,
		MaxAge: keepEvents, MaxBytes: eventBytes, MaxMsgsPerSubject: maxLog, Duplicates: 10 * time.Minute,
		Description: "events, for replay",
	}
	if s, err := l.existing(ctx, message.EventStream); err == nil { // its mode is fixed, and async allows one replica
		if ec.PersistMode = s.CachedInfo().Config.PersistMode; ec.PersistMode == jetstream.AsyncPersistMode {
			ec.Replicas = 1
		}
	} else if l.nc.ConnectedClusterName() == "" {
		// events can be rebuilt from the record, so they need not wait for the disk
		ec.PersistMode = jetstream.AsyncPersistMode
	}
	for {
		events, err := l.stream(ctx, ec)
		if !noRoom(err) && !noPlace(err) || ec.MaxBytes < 1<<20 {
			return events, err
		}
		ec.MaxBytes /= 3 // a third at a time, so that it does not take all the room
	}
}

// makeBucket creates a bucket and returns it with the stream behind it.
func (l *JetStream) makeBucket(ctx context.Context,
	cfg jetstream.KeyValueConfig,
) (jetstream.KeyValue, jetstream.Stream, error) {
	kv, err := wire.Insist(ctx, func(ctx context.Context) (jetstream.KeyValue, error) {
		return l.js.CreateOrUpdateKeyValue(ctx, cfg)
	})
	if err != nil {
		return nil, nil, err
	}
	s, err := l.existing(ctx, "KV_"+cfg.Bucket)
	return kv, s, err
}

// Machines returns the register in which this daemon announces itself.
func (l *JetStream) Machines() *register.Register { return l.machines }

// Owner is the name under which this daemon takes jobs.
func (l *JetStream) Owner() string { return l.cfg.Owner }

// Returned tells the store that the server could not be reached or could not write its store for a while: what was
// published meanwhile may be lost.
func (l *JetStream) Returned() {
	l.doubt()
	l.records.Again() // it may have lost records and given their numbers to others
	l.mu.Lock()
	table := l.table
	l.mu.Unlock()
	if table != nil {
		table.wasAway()
	}
}

// GiveUp aborts every write that is still trying to reach the server.
func (l *JetStream) GiveUp() { l.end() }

// Close ends the connection. Nothing is written after it.
func (l *JetStream) Close() {
	l.end()
	if l.machines != nil {
		l.wg.Wait() // no heartbeat may follow the removal
		l.machines.Close()
	}
	_ = l.nc.FlushTimeout(time.Second)
	l.nc.Close()
	l.wg.Wait()
}

// beat sends the heartbeat of this daemon and maintains the reserve among the requests.
func (l *JetStream) beat(requests jetstream.KeyValue) {
	tick := time.NewTicker(register.BeatEvery)
	defer tick.Stop()
	for {
		ctx, cancel := context.WithTimeout(l.ctx, serverPatience)
		err := l.machines.Beat(ctx)
		if err == nil {
			_ = l.reserve(ctx, requests) // tried again at the next beat
		}
		cancel()
		l.hop(err)
		select {
		case <-l.ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// hopAfter is how long our heartbeats may fail at a server that is connected before another one of the list is tried:
// it may be cut off from the servers that have the store.
const hopAfter = 6 * time.Second

// hop leaves the server if heartbeats keep failing there; err is the result of the last one.
func (l *JetStream) hop(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed++
	l.heartbeat = err
	switch {
	case err == nil:
		l.failing, l.failed = time.Time{}, 0
	case l.failing.IsZero() || l.nc.ConnectedUrl() == "":
		l.failing = time.Now()
	case time.Since(l.failing) > hopAfter && !noRoom(err):
		l.failing = time.Time{}
		switchServer(l.nc, err, l.cfg.Log)
	}
}

// switchServer makes a connection switch to another server of its list, if there is one.
func switchServer(nc *nats.Conn, err error, log zerolog.Logger) {
	if len(nc.Servers()) > 1 {
		log.Warn().Err(err).Str("server", wire.Redact(nc.ConnectedUrl())).Msg(
			"the NATS server does not reach the job store; another one is tried")
		_ = nc.ForceReconnect()
	}
}

// LeaveCutOffServers makes a connection other than the store's own leave a server that does not reach JetStream: one
// that is cut off from the rest of its cluster, whose clients get no answers there. It returns when nc is closed.
func LeaveCutOffServers(nc *nats.Conn, log zerolog.Logger) {
	stay(nc, log, register.BeatEvery, hopAfter)
}

// stay is LeaveCutOffServers with the interval of its requests and the time without an answer after which it leaves.
func stay(nc *nats.Conn, log zerolog.Logger, every, after time.Duration) {
	js, err := jetstream.New(nc)
	if err != nil {
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for reached := time.Now(); !nc.IsClosed(); <-tick.C {
		ctx, cancel := context.WithTimeout(context.Background(), every)
		_, err := js.AccountInfo(ctx)
		cancel()
		switch {
		case err == nil || !nc.IsConnected():
			reached = time.Now()
		case time.Since(reached) > after:
			reached = time.Now()
			switchServer(nc, err, log)
		}
	}
}

// Up reports whether the connection to the server is up.
func (l *JetStream) Up() bool { return l.nc.IsConnected() }

// Fault returns why the server keeps no jobs although the connection is up; nil if it does. One heartbeat that fails
// is no fault yet: the disk may be busy.
func (l *JetStream) Fault() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken == nil && l.failed > 1 {
		return l.heartbeat
	}
	return l.broken
}

// On returns the configuration of a table whose jobs are in this store.
func (l *JetStream) On(cfg Config) Config {
	cfg.Store, cfg.Owner, cfg.Machines, cfg.Resources = l, l.cfg.Owner, l.machines, l.cfg.Resources
	return cfg
}

// tend implements Store.
func (l *JetStream) tend(ctx context.Context, known, forgotten []message.Record) []message.Record {
	l.tending.Lock()
	defer l.tending.Unlock()
	l.tends++
	try, cancel := context.WithTimeout(ctx, 2*serverPatience)
	l.audit(try, known)
	cancel()
	if l.tends%healthEvery == 1 {
		l.health(ctx)
	}
	_ = l.tidy(ctx, 0) // the next call tries again
	for i := range forgotten {
		if err := l.drop(ctx, &forgotten[i]); err != nil {
			return forgotten[i:]
		}
	}
	return nil
}
