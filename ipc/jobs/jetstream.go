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
	Replicas  int                        // of every stream, on a cluster. 0: 1
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
	queue, events, bodies   jetstream.Stream     // bodies is the stream under requests
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
}

// OpenJetStream connects and makes the streams and buckets that are missing. A server without JetStream is an error
// that says what to do.
func OpenJetStream(ctx context.Context, cfg JetStreamConfig) (*JetStream, error) {
	if cfg.Replicas == 0 {
		cfg.Replicas = 1
	}
	opts, err := cfg.Access.Options(cfg.URL)
	if err != nil {
		return nil, err
	}
	opts = append(opts,
		nats.Name("patchbay jobs"), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond),
		nats.ReconnectBufSize(-1),
		nats.PingInterval(10*time.Second),
	)
	if cfg.InProcess != nil {
		opts = append(opts, nats.InProcessServer(cfg.InProcess))
	}
	l := &JetStream{
		cfg: cfg, turn: make(chan struct{}, 1), hint: make(chan struct{}, 1), hand: make(chan string),
		back: make(chan struct{}, 1), seen: map[string]time.Time{}, places: map[string]resourceNote{},
	}
	opts = append(opts, nats.ReconnectHandler(func(*nats.Conn) { l.Returned() }))
	if l.nc, err = nats.Connect(cfg.URL, opts...); err != nil {
		return nil, fmt.Errorf("connect to NATS at %s: %w", wire.Redact(cfg.URL), wire.Trusted(err))
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

// prepare makes streams, buckets and consumers, and starts the heartbeat.
func (l *JetStream) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var err error
	if l.js, err = jetstream.New(l.nc); err != nil {
		return err
	}
	n := l.cfg.Replicas
	if l.queue, err = l.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: message.QueueStream, Subjects: []string{message.QueueRoot + "*.any.*"}, Retention: jetstream.WorkQueuePolicy,
		Storage: jetstream.FileStorage, Replicas: n,
		Discard: jetstream.DiscardNew, DiscardNewPerSubject: true, MaxMsgsPerSubject: 1,
		Description: "references to waiting jobs, one a job",
	}); err != nil {
		return err
	}
	ec := jetstream.StreamConfig{
		Name: message.EventStream, Subjects: []string{message.EventSubject("*", "*")}, Storage: jetstream.FileStorage,
		Replicas: n, AllowDirect: true,
		MaxAge: keepEvents, MaxBytes: eventBytes, MaxMsgsPerSubject: maxLog, Duplicates: 10 * time.Minute,
		Description: "events, for replay",
	}
	if n == 1 {
		// events can be made again from the record; they need not wait for the disk
		ec.PersistMode = jetstream.AsyncPersistMode
	}
	for { // a small server has no room for so many
		if l.events, err = l.js.CreateOrUpdateStream(ctx, ec); !noRoom(err) || ec.MaxBytes < 1<<20 {
			break
		}
		ec.MaxBytes /= 3 // and never all of it
	}
	if err != nil {
		return err
	}
	if _, err = l.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: message.DeadStream, Subjects: []string{message.DeadRoot + "*"}, Storage: jetstream.FileStorage, Replicas: n,
		MaxAge: keepDead, MaxMsgsPerSubject: 16,
		Description: "records of jobs that failed for good",
	}); err != nil {
		return err
	}
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
		if *b.kv, err = l.js.CreateOrUpdateKeyValue(ctx, b.cfg); err != nil {
			return err
		}
	}
	if l.bodies, err = l.js.Stream(ctx, "KV_"+message.RequestBucket); err != nil {
		return err
	}
	for _, p := range message.Priorities() {
		c, err := l.queue.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
			Durable: "patchbay-" + p, FilterSubject: message.QueueRoot + p + ".any.*", AckPolicy: jetstream.AckExplicitPolicy,
			AckWait: ackWait, MaxDeliver: -1, MaxAckPending: -1,
		})
		if err != nil {
			return err
		}
		l.classes = append(l.classes, c)
	}
	if _, err := l.nc.Subscribe(message.HintSubject, func(*nats.Msg) { l.poke() }); err != nil {
		return err
	}
	if err := l.measure(ctx); err != nil {
		return err
	}
	requests := l.requests
	l.wg.Go(func() { l.beat(requests) })
	return l.watchDaemons()
}

// Owner is the name under which this daemon takes jobs.
func (l *JetStream) Owner() string { return l.cfg.Owner }

// Returned says that the store of the server could not be reached or written for a while: what was published meanwhile
// may be lost.
func (l *JetStream) Returned() {
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
		l.mu.Unlock()
		select {
		case <-l.ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// watchDaemons notes the heartbeats of all daemons.
func (l *JetStream) watchDaemons() error {
	w, err := l.daemons.WatchAll(l.ctx)
	if err != nil {
		return err
	}
	l.wg.Go(func() {
		defer func() { _ = w.Stop() }()
		for {
			select {
			case <-l.ctx.Done():
				return
			case e, ok := <-w.Updates():
				if !ok {
					return
				}
				if e != nil {
					l.noticed(e)
				}
			}
		}
	})
	return nil
}

// alive reports whether a daemon shows signs of life. While our own heartbeats do not get through, or have begun to
// only just now, all are thought alive: neither a server that was away nor a pause of this process, in which it heard
// nobody, makes jobs change hands.
func (l *JetStream) alive(owner string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if owner == l.cfg.Owner || l.steady.IsZero() || time.Since(l.steady) < deadAfter || time.Since(l.beaten) > silence {
		return true
	}
	return time.Since(l.seen[owner]) < deadAfter
}

// Up reports whether the connection to the server stands.
func (l *JetStream) Up() bool { return l.nc.IsConnected() }

// returned implements Store.
func (l *JetStream) returned() <-chan struct{} { return l.back }

// ordered implements Store: the queue is the server's, whose daemons share it.
func (l *JetStream) ordered() bool { return false }

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
	l.tidy(ctx, 0)
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
