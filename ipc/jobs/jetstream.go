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
	"patchbay/ipc/wire"
)

// The times and sizes of the durable side.
const (
	ackWait        = 5 * time.Second       // from fetching a reference to the swap to running; nothing longer hangs on it
	beatEvery      = 3 * time.Second       // heartbeat of a daemon
	deadAfter      = 12 * time.Second      // without one, its running jobs are taken from it
	silence        = deadAfter - beatEvery // between two of our own: this process was stopped meanwhile
	keepEvents     = 24 * time.Hour
	keepDead       = 30 * 24 * time.Hour
	eventBytes     = 512 << 20
	requestPiece   = 512 << 10
	serverPatience = 2 * time.Second // of one try at the server
)

// JetStreamConfig says where jobs are written down.
type JetStreamConfig struct {
	URL       string
	Access    wire.Access
	InProcess nats.InProcessConnProvider // the server inside this process; nil: URL is dialled
	Owner     string                     // name of this daemon, the same after a restart, no other daemon's
	Replicas  int                        // of every stream. 0: 3 on a cluster that has as many servers, or else 1
	Full      func() error               // why the store of the server cannot be written; nil: nobody knows
	Limit     int64                      // bytes that the files of the server may have; 0: what the account says
	Resources *Resources                 // what this daemon has for jobs; nil: it takes any
	Log       zerolog.Logger
}

// JetStream keeps the jobs of a table on a NATS server. The record of a job is one key of the bucket patchbay-jobs: the
// truth, and by its revision the fence of every change. The work-queue stream holds references that wake a daemon up;
// losing or repeating one loses or repeats no job. Acknowledgements prove nothing and nothing is built on them. Safe
// for concurrent use.
type JetStream struct {
	cfg JetStreamConfig
	nc  *nats.Conn
	js  jetstream.JetStream

	jobs, requests, daemons jetstream.KeyValue
	queue, events           jetstream.Stream
	book, bodies            jetstream.Stream     // under jobs and requests
	classes                 []jetstream.Consumer // high, normal, low

	turn  chan struct{} // holds one token: who has it asks the server for the next reference
	hint  chan struct{}
	hand  chan string // a new job to whoever waits in next: it needs no reference
	taken uint64      // references given out, under turn
	end   context.CancelFunc
	ctx   context.Context
	back  chan struct{} // the server was away and is there again
	wg    sync.WaitGroup
	lost  map[string]bool // jobs without a record when the table was opened
	hurt  []string        // streams that the server had lost messages of then
	table *Table          // that asks for the records, from open on

	tidying sync.Mutex
	tidied  time.Time            // when requests were looked through last, under tidying
	strange map[string]time.Time // pieces of requests that no record names, and since when

	mu     sync.Mutex
	seen   map[string]time.Time    // last heartbeat of every daemon, by our clock
	places map[string]resourceNote // what the other daemons say they have
	// What announce has said; only beat uses these.
	has           []byte
	looked, noted time.Time

	gone  []message.Record // jobs that the table has forgotten and that are still here
	used  int64            // bytes of the store's files
	limit int64            // that they may have; 0: not known
	// refusedAt is when the server refused a write for want of room, and how many bytes were used then.
	refusedAt   time.Time
	refusedWith int64
	steady      time.Time // since when our own heartbeats get through; zero: they do not
	beaten      time.Time // when the last one did
	failing     time.Time // since when they do not, on the server of now; zero: they do

	// Of the watches of records and daemons.
	records, nodes following
	audited        time.Time            // when all records were compared last; watchOver only, as the next three
	leader         string               // of the records, then
	behind         time.Time            // since when the watch of the records has not told of all of them
	reused         uint64               // the first number that the server has lost, and gives out again; 0: none is known
	doubtful       bool                 // the server was away since
	renumbered     map[string][2]uint64 // what a record's number was that was lost, and is, by job
	restored       int                  // records that the server had lost, and that were written again
	trouble        []string             // what is wrong with the copies of streams
	copies         int                  // of the records
}

// OpenJetStream connects and makes the streams and buckets that are missing. A server without JetStream is an error
// that says what to do.
func OpenJetStream(ctx context.Context, cfg JetStreamConfig) (*JetStream, error) {
	l := &JetStream{
		cfg: cfg, turn: make(chan struct{}, 1), hint: make(chan struct{}, 1), hand: make(chan string),
		back: make(chan struct{}, 1), seen: map[string]time.Time{}, places: map[string]resourceNote{},
		records: following{again: make(chan struct{}, 1)}, nodes: following{again: make(chan struct{}, 1)},
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

// prepareTime is how long the servers may take for all of prepare: those of a cluster that starts too elect who leads
// each stream and consumer, and until then do not answer what is asked of it.
const prepareTime = time.Minute

// prepare makes streams, buckets and consumers, and starts the heartbeat.
func (l *JetStream) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, prepareTime)
	defer cancel()
	var err error
	if l.js, err = jetstream.New(l.nc); err != nil {
		return err
	}
	n, err := l.makeQueue(ctx)
	if err != nil {
		return err
	}
	if err := l.makeEvents(ctx, n); err != nil {
		return err
	}
	if _, err = l.stream(ctx, jetstream.StreamConfig{
		Name: message.DeadStream, Subjects: []string{message.DeadRoot + "*"}, Storage: jetstream.FileStorage, Replicas: n,
		MaxAge: keepDead, MaxMsgsPerSubject: 16,
		Description: "records of jobs that failed for good",
	}); err != nil {
		return err
	}
	if err := l.makeBuckets(ctx, n); err != nil {
		return err
	}
	for _, p := range message.Priorities() {
		c, err := insist(ctx, func(ctx context.Context) (jetstream.Consumer, error) {
			return l.queue.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
				Durable: "patchbay-" + p, FilterSubject: message.QueueRoot + p + ".any.*", AckPolicy: jetstream.AckExplicitPolicy,
				AckWait: ackWait, MaxDeliver: -1, MaxAckPending: -1,
			})
		})
		if err != nil {
			return err
		}
		l.classes = append(l.classes, c)
	}
	if _, err := l.nc.Subscribe(message.HintSubject, func(*nats.Msg) { l.poke() }); err != nil {
		return err
	}
	measured := func(ctx context.Context) (struct{}, error) { return struct{}{}, l.measure(ctx) }
	if _, err := insist(ctx, measured); err != nil {
		return err
	}
	requests := l.requests
	l.wg.Go(func() { l.beat(requests) })
	return l.follow(ctx, l.daemons, &l.nodes, func(e jetstream.KeyValueEntry) {
		if e != nil {
			l.noticed(e)
		}
	})
}

// makeQueue makes the stream of references, and returns how many copies every stream is to have: as many as were asked
// for, or three on a cluster that has as many servers. What has more copies keeps them.
func (l *JetStream) makeQueue(ctx context.Context) (int, error) {
	cluster, n := l.nc.ConnectedClusterName(), l.cfg.Replicas
	if n > 1 && cluster == "" {
		return 0, fmt.Errorf("--replicas %d: the NATS server at %s is alone, not one of a cluster; leave the option out, or "+
			"give 1", n, l.nc.ConnectedUrlRedacted())
	}
	if cluster != "" {
		if err := l.led(ctx); err != nil {
			return 0, fmt.Errorf("the NATS cluster %s has no leader: do most of its servers run, and see each other? %w",
				cluster, err)
		}
	}
	if n == 0 {
		n = 1
		if s, err := l.existing(ctx, message.QueueStream); err == nil {
			n = s.CachedInfo().Config.Replicas
		}
		if cluster != "" {
			n = max(n, 3)
		}
	}
	for {
		var err error
		l.queue, err = l.stream(ctx, jetstream.StreamConfig{
			Name: message.QueueStream, Subjects: []string{message.QueueRoot + "*.any.*"}, Retention: jetstream.WorkQueuePolicy,
			Storage: jetstream.FileStorage, Replicas: n,
			Discard: jetstream.DiscardNew, DiscardNewPerSubject: true, MaxMsgsPerSubject: 1,
			Description: "references to waiting jobs, one a job",
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

// stream makes a stream, or gives it its settings.
func (l *JetStream) stream(ctx context.Context, cfg jetstream.StreamConfig) (jetstream.Stream, error) {
	return insist(ctx, func(ctx context.Context) (jetstream.Stream, error) { return l.js.CreateOrUpdateStream(ctx, cfg) })
}

// existing looks a stream up.
func (l *JetStream) existing(ctx context.Context, name string) (jetstream.Stream, error) {
	return insist(ctx, func(ctx context.Context) (jetstream.Stream, error) { return l.js.Stream(ctx, name) })
}

// noPlace reports whether there are not enough servers for a stream, or not enough with room for it.
func noPlace(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == 10005
}

// led waits until the servers have chosen who leads them.
func (l *JetStream) led(ctx context.Context) error {
	for {
		try, cancel := context.WithTimeout(ctx, serverPatience)
		_, err := l.js.AccountInfo(try)
		cancel()
		var api *jetstream.APIError
		if err == nil || errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.As(err, &api) && api.Code < 500 {
			return nil // whatever is wrong is said by what comes next
		}
		if wire.Pause(ctx, 100*time.Millisecond) != nil {
			return err
		}
	}
}

// makeEvents makes the stream of events, smaller where a small server has no room for so many.
func (l *JetStream) makeEvents(ctx context.Context, n int) error {
	ec := jetstream.StreamConfig{
		Name: message.EventStream, Subjects: []string{message.EventSubject("*", "*")}, Storage: jetstream.FileStorage,
		Replicas: n, AllowDirect: true,
		MaxAge: keepEvents, MaxBytes: eventBytes, MaxMsgsPerSubject: maxLog, Duplicates: 10 * time.Minute,
		Description: "events, for replay",
	}
	if s, err := l.existing(ctx, message.EventStream); err == nil { // it stays as it was made, which allows one copy
		if ec.PersistMode = s.CachedInfo().Config.PersistMode; ec.PersistMode == jetstream.AsyncPersistMode {
			ec.Replicas = 1
		}
	} else if l.nc.ConnectedClusterName() == "" {
		// events can be made again from the record; they need not wait for the disk
		ec.PersistMode = jetstream.AsyncPersistMode
	}
	for {
		var err error
		l.events, err = l.stream(ctx, ec)
		if !noRoom(err) && !noPlace(err) || ec.MaxBytes < 1<<20 {
			return err
		}
		ec.MaxBytes /= 3 // and never all of it
	}
}

// makeBuckets makes the buckets of records, requests and daemons.
func (l *JetStream) makeBuckets(ctx context.Context, n int) error {
	for _, b := range []struct {
		kv  *jetstream.KeyValue
		cfg jetstream.KeyValueConfig
	}{
		{&l.jobs, jetstream.KeyValueConfig{
			Bucket: message.JobBucket, Description: "record of every job",
			LimitMarkerTTL: markerTime,
		}},
		{&l.requests, jetstream.KeyValueConfig{
			Bucket:      message.RequestBucket,
			Description: "what every job asks for, in pieces",
		}},
		// in memory it would not outlive the server,
		{&l.daemons, jetstream.KeyValueConfig{
			Bucket: message.DaemonBucket, Description: "heartbeats of daemons",
			TTL: 10 * deadAfter,
		}},
	} {
		b.cfg.Replicas = n
		var err error
		if *b.kv, err = insist(ctx, func(ctx context.Context) (jetstream.KeyValue, error) {
			return l.js.CreateOrUpdateKeyValue(ctx, b.cfg)
		}); err != nil {
			return err
		}
	}
	var err error
	if l.book, err = l.existing(ctx, "KV_"+message.JobBucket); err != nil {
		return err
	}
	l.bodies, err = l.existing(ctx, "KV_"+message.RequestBucket)
	return err
}

// Owner is the name under which this daemon takes jobs.
func (l *JetStream) Owner() string { return l.cfg.Owner }

// Returned says that the store of the server could not be reached or written for a while: what was published meanwhile
// may be lost.
func (l *JetStream) Returned() {
	l.doubt()
	select {
	case l.back <- struct{}{}:
	default:
	}
}

// GiveUp ends every write that still tries to reach the server.
func (l *JetStream) GiveUp() { l.end() }

// Close ends the connection. Nothing is written after it.
func (l *JetStream) Close() {
	l.farewell()
	l.end()
	_ = l.nc.FlushTimeout(time.Second)
	l.nc.Close()
	l.wg.Wait()
}

// farewell takes this daemon out of the list of those that are alive.
func (l *JetStream) farewell() {
	if l.daemons == nil || !l.nc.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	l.end()
	l.wg.Wait() // no heartbeat comes after it
	if l.daemons.Delete(ctx, l.cfg.Owner) == nil {
		_ = l.daemons.Delete(ctx, l.cfg.Owner+hasSuffix)
	}
}

// beat tells the other daemons that this one is alive, and keeps a reserve among the requests.
func (l *JetStream) beat(requests jetstream.KeyValue) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		ctx, cancel := context.WithTimeout(l.ctx, serverPatience)
		_, err := l.daemons.Put(ctx, l.cfg.Owner, []byte(time.Now().UTC().Format(time.RFC3339)))
		if err == nil {
			err = l.announce(ctx)
			_ = l.reserve(ctx, requests) // next time, then
		}
		cancel()
		l.mu.Lock()
		switch {
		case err != nil:
			l.steady, l.has = time.Time{}, nil // the server may come back without what it was told
		case l.steady.IsZero() || time.Since(l.beaten) > silence:
			l.steady = time.Now()
		}
		if err == nil {
			l.beaten = time.Now()
		}
		deaf := err == nil && time.Since(l.seen[l.cfg.Owner]) > deadAfter && time.Since(l.steady) > deadAfter
		l.mu.Unlock()
		if deaf { // ours is not among the heartbeats that we hear
			l.nodes.anew()
		}
		l.hop(err)
		select {
		case <-l.ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// hopAfter is how long our heartbeats fail at a server that answers before another one of the list is tried: a server
// may be cut off from the others, which have the store.
const hopAfter = 6 * time.Second

// hop leaves a server at which our heartbeats fail.
func (l *JetStream) hop(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.failing = time.Time{}
	case l.failing.IsZero() || l.nc.ConnectedUrl() == "":
		l.failing = time.Now()
	case time.Since(l.failing) > hopAfter && !noRoom(err):
		l.failing = time.Time{}
		leave(l.nc, err, l.cfg.Log)
	}
}

// leave has a connection go to another server of its list, if there is one.
func leave(nc *nats.Conn, err error, log zerolog.Logger) {
	if len(nc.Servers()) > 1 {
		log.Warn().Err(err).Str("server", nc.ConnectedUrlRedacted()).Msg(
			"the NATS server does not reach the job store; another one is tried")
		_ = nc.ForceReconnect()
	}
}

// Stay has a connection other than the store's own leave a server that does not reach JetStream: one that is cut off
// from the others, where clients of those are not heard. It returns when nc is closed.
func Stay(nc *nats.Conn, log zerolog.Logger) { stay(nc, log, beatEvery, hopAfter) }

// stay is Stay of a connection that asks so often, and leaves after so long without an answer.
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
			leave(nc, err, log)
		}
	}
}

// alive reports whether a daemon shows signs of life. While our own heartbeats do not get through or are not heard
// here, or have begun to only just now, all are thought alive: neither a server that was away nor a pause of this
// process, in which it heard nobody, makes jobs change hands.
func (l *JetStream) alive(owner string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if owner == l.cfg.Owner || l.steady.IsZero() || time.Since(l.steady) < deadAfter || time.Since(l.beaten) > silence ||
		time.Since(l.seen[l.cfg.Owner]) > silence {
		return true
	}
	return time.Since(l.seen[owner]) < deadAfter
}

// heard implements Store.
func (l *JetStream) heard(owner string, since time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen[owner].After(since)
}

// Up reports whether the connection to the server stands.
func (l *JetStream) Up() bool { return l.nc.IsConnected() }

// returned implements Store.
func (l *JetStream) returned() <-chan struct{} { return l.back }

// inside implements Store: records and queue are the server's, whose daemons share them.
func (l *JetStream) inside() bool { return false }

// retries implements Store: jobs outlive workers and daemons, and room on a disk may come back.
func (l *JetStream) retries(code string) (time.Duration, bool) {
	pause, ok := map[string]time.Duration{
		wire.ErrWorkerLost: 200 * time.Millisecond, wire.ErrDiskFull: 2 * time.Second, wire.ErrDraining: 0,
	}[code]
	return pause, ok
}

// forget implements Store.
func (l *JetStream) forget(rec message.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone = append(l.gone, rec)
}

// sweep implements Store.
func (l *JetStream) sweep(ctx context.Context) {
	_ = l.tidy(ctx, 0) // the next sweep tries again
	l.mu.Lock()
	gone := l.gone
	l.gone = nil
	l.mu.Unlock()
	for i := range gone {
		if err := l.drop(ctx, &gone[i]); err != nil {
			l.mu.Lock()
			l.gone = append(l.gone, gone[i:]...)
			l.mu.Unlock()
			return
		}
	}
}
