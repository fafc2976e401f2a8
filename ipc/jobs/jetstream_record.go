package jobs

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// longRecord is the length in bytes above which a record is compressed: lists of many files are repetitive.
const longRecord = 32 << 10

// encodeRecord encodes a record as the bucket stores it: JSON, compressed with gzip if it is long.
func encodeRecord(rec message.Record) ([]byte, error) {
	b, err := plainRecord(rec)
	if err != nil || len(b) <= longRecord {
		return b, err
	}
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestSpeed) // a tenth longer than at the default level, in half the time
	if err == nil {
		_, err = z.Write(b)
	}
	if err == nil {
		err = z.Close()
	}
	return out.Bytes(), err
}

// plainRecord returns the JSON of a record without its revision and its position in the queue.
func plainRecord(rec message.Record) ([]byte, error) {
	rec.Rev, rec.Position = 0, 0
	b, err := json.Marshal(rec)
	if err != nil {
		return nil, fmt.Errorf("encode record of job %s: %w", rec.Job, err)
	}
	return b, nil
}

func decodeRecord(job string, value []byte, rev uint64) (message.Record, error) {
	var rec message.Record
	var err error
	lim := wire.DefaultLimits()
	if bytes.HasPrefix(value, []byte{0x1f, 0x8b}) {
		var z *gzip.Reader
		if z, err = gzip.NewReader(bytes.NewReader(value)); err == nil {
			value, err = io.ReadAll(io.LimitReader(z, int64(lim.Bytes)))
		}
	}
	if err == nil {
		err = wire.Read(value, wire.JSON, lim, &rec)
	}
	if err != nil || rec.Job != job {
		return message.Record{}, fmt.Errorf("record of job %s cannot be read: %w", job, err)
	}
	rec.Rev = rev
	return rec, nil
}

// keep implements Store: a job is written within the time that writable allows, or not at all.
func (l *JetStream) keep(ctx context.Context, rec message.Record,
	req *message.RunRequest,
) (message.Record, bool, error) {
	if err := l.full(); err != nil {
		return rec, false, err
	}
	body, err := wire.Encode(req, wire.Msgpack)
	if err != nil {
		return rec, false, err
	}
	within, cancel := l.writable(ctx, len(body))
	defer cancel()
	if err := l.spaceFor(within, len(body)); err != nil {
		return rec, false, err
	}
	rec, created, err := l.create(within, rec, body)
	if noRoom(err) {
		l.crowded(ctx)
		return rec, false, fmt.Errorf("%w: %w", ErrStore, err)
	}
	if full := l.full(); err != nil && full != nil {
		return rec, false, full
	}
	if errors.Is(err, context.DeadlineExceeded) && l.nc.IsConnected() {
		err = fmt.Errorf("%w (the NATS server answers and takes no writes: is its disk full? then it wants a restart when "+
			"there is space)", err)
	}
	return rec, created, err
}

// full returns why the store cannot take new jobs; nil if it can or this is not known.
func (l *JetStream) full() error {
	if l.cfg.Full == nil {
		return nil
	}
	if err := l.cfg.Full(); err != nil {
		return fmt.Errorf("%w: %w", ErrStore, err)
	}
	return nil
}

// writable returns the context in which a client's job of n bytes is written: it lasts AskTime and a second for every
// 16 MiB, but ends as soon as the store turns out to be full.
func (l *JetStream) writable(ctx context.Context, n int) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, AskTime+time.Duration(n>>24)*time.Second)
	if l.cfg.Full == nil {
		return ctx, cancel
	}
	go func() {
		defer cancel()
		for l.cfg.Full() == nil && wire.Pause(ctx, 50*time.Millisecond) == nil {
		}
	}()
	return ctx, cancel
}

// create writes the request and then the record of a new job. It returns the record and false if the job exists.
func (l *JetStream) create(ctx context.Context, rec message.Record, body []byte) (message.Record, bool, error) {
	if value, err := encodeRecord(rec); err != nil || len(value) > l.room()/2 { // it grows as the job proceeds
		return rec, false, errors.Join(err, fault.New(fault.TooLarge,
			"the record of the job has %d bytes, of %d that it may have: shorten client, or the names of files", len(value),
			l.room()/2))
	}
	size, last := min(requestPiece, int(l.nc.MaxPayload())/2), uint64(0)
	for at := 0; at < len(body); at += size {
		seq, err := wire.Insist(ctx, func(ctx context.Context) (uint64, error) {
			return l.requests.Put(ctx, pieceKey(rec, rec.Pieces), body[at:min(at+size, len(body))])
		})
		if err != nil {
			l.unmade(rec, last)
			return rec, false, fmt.Errorf("keep request of job %s: %w", rec.Job, err)
		}
		last = seq
		rec.Pieces++
	}
	value, err := encodeRecord(rec)
	if err != nil {
		return rec, false, err
	}
	rec.Rev, err = wire.Insist(ctx, func(ctx context.Context) (uint64, error) {
		return l.jobs.Create(ctx, rec.Job, value)
	})
	if err == nil {
		return rec, true, nil
	}
	if noRoom(err) {
		l.unmade(rec, last)
		return rec, false, err
	}
	old, getErr := l.get(ctx, rec.Job) // another daemon was faster, or it was stored although the answer was lost
	if getErr != nil {
		return rec, false, fmt.Errorf("keep record of job %s: %w", rec.Job, errors.Join(err, getErr))
	}
	for i := 0; i < rec.Pieces && old.Hash != rec.Hash; i++ { // pieces of a request that is refused
		_ = l.requests.Purge(ctx, pieceKey(rec, i))
	}
	return old, same(old, value), nil
}

// unmade purges the pieces of a job that could not be created, up to sequence number last, unless another daemon has
// created the job meanwhile. The pieces of a new try have higher numbers.
func (l *JetStream) unmade(rec message.Record, last uint64) {
	if last == 0 {
		return
	}
	l.wg.Go(func() {
		ctx, cancel := context.WithTimeout(l.ctx, serverPatience)
		defer cancel()
		if _, err := l.get(ctx, rec.Job); errors.Is(err, ErrNoJob) {
			_ = l.purgePieces(ctx, rec.Job, jetstream.WithPurgeSequence(last+1)) // otherwise tidy does it
		}
	})
}

// pieceKey returns the key of piece i of a request. It contains the hash, so that two bodies that compete for one ID
// do not get mixed.
func pieceKey(rec message.Record, i int) string {
	return fmt.Sprintf("%s.%s.%d", rec.Job, rec.Hash[:min(16, len(rec.Hash))], i)
}

func (l *JetStream) request(ctx context.Context, rec message.Record) (*message.RunRequest, error) {
	var body []byte
	for i := range rec.Pieces {
		var piece []byte
		e, err := l.requests.Get(ctx, pieceKey(rec, i))
		if err == nil {
			piece = e.Value()
		} else if errors.Is(err, jetstream.ErrKeyNotFound) { // perhaps only on the server that answered
			if piece, _, err = l.latest(ctx, message.RequestBucket, pieceKey(rec, i)); errors.Is(err, ErrNoJob) {
				return nil, errors.Join(fault.New(fault.Expired,
					"what job %s asked for was dropped, as when the job store is full; submit it again", rec.Job), errGone)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("read request of job %s, piece %d: %w", rec.Job, i, err)
		}
		body = append(body, piece...)
	}
	req := &message.RunRequest{}
	lim := wire.DefaultLimits()
	lim.Bytes = len(body) // it came within the limits of its carrier, perhaps beside a message
	if err := wire.Read(body, wire.Msgpack, lim, req); err != nil {
		return nil, fmt.Errorf("read request of job %s: %w: %w", rec.Job, errGone, err)
	}
	return req, nil
}

func (l *JetStream) get(ctx context.Context, job string) (message.Record, error) {
	value, rev, err := l.latest(ctx, message.JobBucket, job)
	if err != nil {
		return message.Record{}, err
	}
	return decodeRecord(job, value, rev)
}

// latest reads a key of a bucket and its revision from the leader of the stream: the Get of the bucket may be answered
// by a server that is behind and does not know the key yet. It returns ErrNoJob if there is no such key.
func (l *JetStream) latest(ctx context.Context, bucket, key string) ([]byte, uint64, error) {
	m, err := l.stored(ctx, "KV_"+bucket, map[string]any{"last_by_subj": "$KV." + bucket + "." + key})
	if err == nil && len(m.Hdrs) > 0 && len(m.Data) == 0 { // a deletion marker
		err = ErrNoJob
	}
	return m.Data, m.Seq, err
}

type storedMessage struct {
	Subject string `json:"subject"`
	Seq     uint64 `json:"seq"`
	Hdrs    []byte `json:"hdrs"`
	Data    []byte `json:"data"`
}

// stored reads one message of a stream from its leader. Any other server may be behind, or may have what most servers
// have lost. It returns ErrNoJob if there is no such message.
func (l *JetStream) stored(ctx context.Context, stream string, which map[string]any) (storedMessage, error) {
	var got struct {
		Message storedMessage       `json:"message"`
		Error   *jetstream.APIError `json:"error"`
	}
	ask, err := json.Marshal(which)
	if err != nil {
		return got.Message, err
	}
	ctx, cancel := context.WithTimeout(ctx, AskTime)
	defer cancel()
	m, err := l.nc.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+stream, ask)
	if err == nil {
		err = json.Unmarshal(m.Data, &got)
	}
	if err == nil && got.Error != nil {
		if err = got.Error; got.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound {
			return got.Message, ErrNoJob
		}
	}
	if err != nil {
		err = fmt.Errorf("read %s of %s: %w", ask, stream, err)
	}
	return got.Message, err
}

// swap implements Store. While the server is away, swap keeps trying until ctx ends; it recognizes a write whose
// answer was lost by its bytes.
func (l *JetStream) swap(ctx context.Context, rec message.Record) (message.Record, error) {
	value, err := encodeRecord(rec)
	room := l.room()
	if rec.EndSeq > 0 {
		room += headRoom / 2 // that the log ends must fit wherever the end did
	}
	if err == nil && len(value) > room {
		err = fmt.Errorf("%w: %d bytes, and a message to the server has at most %d", errLong, len(value), room)
	}
	if err != nil {
		return message.Record{}, err
	}
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		try, cancel := context.WithTimeout(ctx, serverPatience)
		rev, err := l.jobs.Update(try, rec.Job, value, rec.Rev)
		if err != nil && isConflict(err) {
			rev, err = l.resolveConflict(try, rec, value)
		}
		if noRoom(err) {
			l.crowded(try)
		}
		cancel()
		if err == nil {
			rec.Rev = rev
			l.release(rec)
			return rec, nil
		}
		if errors.Is(err, errConflict) {
			return message.Record{}, errConflict
		}
		if refused(err) {
			return message.Record{}, fmt.Errorf("%w: %w", errLong, err)
		}
		if ctx.Err() != nil || l.ctx.Err() != nil || errors.Is(err, nats.ErrConnectionClosed) {
			return message.Record{}, fmt.Errorf("write record of job %s: %w", rec.Job, err)
		}
		l.cfg.Log.Warn().Err(err).Str("job", rec.Job).Msg("record not written; trying again")
		select {
		case <-ctx.Done():
		case <-l.ctx.Done():
		case <-time.After(pause):
		}
	}
}

// resolveConflict returns the revision of the record if what conflicts with a swap is that swap itself, whose answer
// was lost, and errConflict if it is another write, or if the revision that the swap expects was lost and the record
// written again. Any other error may be retried, such as that of a server that is behind: it has nothing newer than
// what the swap and the table expect.
func (l *JetStream) resolveConflict(ctx context.Context, rec message.Record, value []byte) (uint64, error) {
	there, rev, err := l.latest(ctx, message.JobBucket, rec.Job)
	switch {
	case errors.Is(err, ErrNoJob):
		return 0, errConflict
	case err != nil:
		return 0, err
	case rev <= rec.Rev:
		if now, err := l.table.Get(rec.Job); err != nil || now.Rev != rec.Rev {
			return 0, errConflict
		}
		return 0, fmt.Errorf("the record is at %d there, and was at %d", rev, rec.Rev)
	case !bytes.Equal(there, value):
		return 0, errConflict
	}
	return rev, nil
}

// room returns how many bytes a value may have.
func (l *JetStream) room() int { return int(l.nc.MaxPayload()) - headRoom }

// refused reports whether the server will never accept a write: what is sent is wrong, not the time.
func refused(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, nats.ErrMaxPayload) ||
		errors.As(err, &api) && api.Code == http.StatusBadRequest && !isConflict(err)
}

func isConflict(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, jetstream.ErrKeyExists) ||
		errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
			api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant) // the latter if there are replicas
}

// markerTime is how long the bucket keeps the tombstone of a dropped job, for daemons that were not listening.
const markerTime = 10 * compareAll

// drop removes a job, its request and its events, unless its record was changed since: then the job is in use again.
// Nothing of it stays, since streams index their subjects in memory. drop sets rec.Rev to 0 once the record is gone.
func (l *JetStream) drop(ctx context.Context, rec *message.Record) error {
	info, err := l.requestStream.Info(ctx)
	if err != nil {
		return err
	}
	if rec.Rev > 0 { // its first event goes first: an event without a record means damage
		first := jetstream.WithPurgeSubject(message.EventSubject(rec.Job, message.EventQueued))
		if err := l.events.Purge(ctx, first); err != nil {
			return err
		}
		err := l.jobs.Purge(ctx, rec.Job, jetstream.PurgeTTL(markerTime), jetstream.LastRevision(rec.Rev))
		if err != nil && isConflict(err) {
			return nil
		}
		if err != nil {
			return err
		}
		rec.Rev = 0
	}
	err = l.events.Purge(ctx, jetstream.WithPurgeSubject(message.EventSubject(rec.Job, "*")))
	if rec.Pieces > 0 { // but not those of a new job with that ID
		err = errors.Join(err, l.purgePieces(ctx, rec.Job, jetstream.WithPurgeSequence(info.State.LastSeq+1)))
	}
	return err
}

// bury implements Store: at most one dead letter per attempt.
func (l *JetStream) bury(ctx context.Context, rec message.Record) error {
	b, err := plainRecord(rec)
	if err == nil && len(b) > l.room() {
		b, err = plainRecord(rec.Closed(rec.Error))
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, serverPatience)
	defer cancel()
	_, err = l.js.Publish(ctx, message.DeadRoot+rec.Job, b,
		jetstream.WithMsgID(fmt.Sprintf("%s.%d.dead", rec.Job, rec.Attempt)))
	return err
}

// open implements Store: it returns when the table has every record of the bucket, and keeps passing on changes and
// the events of other daemons.
func (l *JetStream) open(ctx context.Context, f follower) error {
	l.mu.Lock()
	l.table, l.audited, l.doubtful = f, time.Now(), true
	l.mu.Unlock()
	named, err := l.named(ctx) // first, so that every job it names has a record by now
	if err != nil {
		return err
	}
	loaded, there := make(chan struct{}), map[string]bool{}
	begin, cancel := context.WithTimeout(ctx, prepareTime)
	defer cancel()
	if err := l.records.Start(begin, l.ctx, l.nc, message.JobBucket, l.wg.Go, func(e *wire.Update) {
		l.watched(e, there, loaded)
	}); err != nil {
		return fmt.Errorf("watch records: %w", err)
	}
	if err := l.hear(f.Hear); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-loaded:
	}
	l.missing(ctx, named, there)
	if err := l.full(); err != nil { // asked now so that the server notes its folder
		l.cfg.Log.Warn().Err(err).Msg("no new jobs")
	}
	return nil
}

// watched passes on what the watch of the records has seen. Until all existing records were there it notes them.
func (l *JetStream) watched(e *wire.Update, there map[string]bool, loaded chan struct{}) {
	switch {
	case e == nil:
		closeOnce(loaded)
	case e.Gone:
		l.table.vanish(e.Key)
	default:
		rec, err := decodeRecord(e.Key, e.Value, e.Revision)
		if err != nil {
			l.cfg.Log.Error().Err(err).Msg("record left alone")
			return
		}
		select {
		case <-loaded:
		default:
			there[rec.Job] = true
		}
		l.table.observe(rec)
	}
}
