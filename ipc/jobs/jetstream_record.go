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

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// longRecord is the length from which on a record is packed: lists of many files are alike line by line.
const longRecord = 32 << 10

// encodeRecord writes a record as it stands in the bucket: JSON, packed by gzip if it is long.
func encodeRecord(rec message.Record) ([]byte, error) {
	b, err := plainRecord(rec)
	if err != nil || len(b) <= longRecord {
		return b, err
	}
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestSpeed) // a tenth longer than at the usual level, in half the time
	if err == nil {
		_, err = z.Write(b)
	}
	if err == nil {
		err = z.Close()
	}
	return out.Bytes(), err
}

// plainRecord is the JSON of a record without what the bucket itself knows.
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

// keep implements Store: a job is written down within AskTime or not at all.
func (l *JetStream) keep(ctx context.Context, rec message.Record,
	req *message.RunRequest,
) (message.Record, bool, error) {
	if err := l.full(); err != nil {
		return rec, false, err
	}
	rec.Owner = l.Owner()
	if req.Front {
		rec.Priority = "high"
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

// insist repeats a request that may be made twice while it, or the answer, is lost on the way, until ctx ends.
func insist[T any](ctx context.Context, request func(context.Context) (T, error)) (T, error) {
	for {
		try, cancel := context.WithTimeout(ctx, serverPatience)
		out, err := request(try)
		cancel()
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrReconnectBufExceeded) &&
			!errors.Is(err, nats.ErrDisconnected) {
			return out, err
		}
		_ = wire.Pause(ctx, 50*time.Millisecond)
	}
}

// full tells why the store cannot take new jobs; nil: it can, or nobody knows.
func (l *JetStream) full() error {
	if l.cfg.Full == nil {
		return nil
	}
	if err := l.cfg.Full(); err != nil {
		return fmt.Errorf("%w: %w", ErrStore, err)
	}
	return nil
}

// writable is the time that a client's job of n bytes may take to be written down; it ends at once when the store turns
// out to be full.
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

// create writes the request and then the record of a new job. If there is a job of that id, its record is returned,
// with false.
func (l *JetStream) create(ctx context.Context, rec message.Record, body []byte) (message.Record, bool, error) {
	if value, err := encodeRecord(rec); err != nil || len(value) > l.room()/2 { // it grows with what becomes of the job
		return rec, false, errors.Join(err, wire.Errorf(wire.ErrTooLarge,
			"the record of the job has %d bytes, of %d that it may have: shorten client, or the names of files", len(value),
			l.room()/2))
	}
	size, last := min(requestPiece, int(l.nc.MaxPayload())/2), uint64(0)
	for at := 0; at < len(body); at += size {
		seq, err := insist(ctx, func(ctx context.Context) (uint64, error) {
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
	rec.Rev, err = insist(ctx, func(ctx context.Context) (uint64, error) { return l.jobs.Create(ctx, rec.Job, value) })
	if err == nil {
		return rec, true, nil
	}
	if noRoom(err) {
		l.unmade(rec, last)
		return rec, false, err
	}
	old, getErr := l.get(ctx, rec.Job) // somebody was faster, or it was stored although the answer was lost
	if getErr != nil {
		return rec, false, fmt.Errorf("keep record of job %s: %w", rec.Job, errors.Join(err, getErr))
	}
	for i := 0; i < rec.Pieces && old.Hash != rec.Hash; i++ { // pieces of a request that is refused
		_ = l.requests.Purge(ctx, pieceKey(rec, i))
	}
	return old, same(old, value), nil
}

// unmade drops the pieces up to the one of number last of a job that could not be written down, unless another daemon
// has made it meanwhile. Those of the next try come after them.
func (l *JetStream) unmade(rec message.Record, last uint64) {
	if last == 0 {
		return
	}
	l.wg.Go(func() {
		ctx, cancel := context.WithTimeout(l.ctx, serverPatience)
		defer cancel()
		if _, err := l.get(ctx, rec.Job); errors.Is(err, ErrNoJob) {
			_ = l.purgePieces(ctx, rec.Job, jetstream.WithPurgeSequence(last+1)) // or else tidy does it
		}
	})
}

// pieceKey holds the hash: two bodies that compete for one id must not be mixed.
func pieceKey(rec message.Record, i int) string {
	return fmt.Sprintf("%s.%s.%d", rec.Job, rec.Hash[:min(16, len(rec.Hash))], i)
}

// request reads what a job asks for.
func (l *JetStream) request(ctx context.Context, rec message.Record) (*message.RunRequest, error) {
	var body []byte
	for i := range rec.Pieces {
		var piece []byte
		e, err := l.requests.Get(ctx, pieceKey(rec, i))
		if err == nil {
			piece = e.Value()
		} else if errors.Is(err, jetstream.ErrKeyNotFound) { // perhaps only where it was looked for
			if piece, _, err = l.latest(ctx, message.RequestBucket, pieceKey(rec, i)); errors.Is(err, ErrNoJob) {
				err = errGone
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

// get reads a record; ErrNoJob if there is none.
func (l *JetStream) get(ctx context.Context, job string) (message.Record, error) {
	value, rev, err := l.latest(ctx, message.JobBucket, job)
	if err != nil {
		return message.Record{}, err
	}
	return decodeRecord(job, value, rev)
}

// latest reads a key of a bucket, and its revision, as the leader of the stream has it: the bucket's own Get may be
// answered by a server that is behind it, and does not know the key yet. ErrNoJob if there is none.
func (l *JetStream) latest(ctx context.Context, bucket, key string) ([]byte, uint64, error) {
	m, err := l.stored(ctx, "KV_"+bucket, map[string]any{"last_by_subj": "$KV." + bucket + "." + key})
	if err == nil && len(m.Hdrs) > 0 && len(m.Data) == 0 { // it was dropped
		err = ErrNoJob
	}
	return m.Data, m.Seq, err
}

// storedMessage is one message of a stream.
type storedMessage struct {
	Subject string `json:"subject"`
	Seq     uint64 `json:"seq"`
	Hdrs    []byte `json:"hdrs"`
	Data    []byte `json:"data"`
}

// stored reads one message of a stream from its leader. Any other server may be behind, or have what most of them have
// lost. ErrNoJob if there is no such message.
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

// swap writes rec if the record is still at rec.Rev, and returns it with its new revision; errConflict otherwise. While
// the server is away it goes on trying until ctx ends: a write whose answer was lost is recognised by its bytes.
func (l *JetStream) swap(ctx context.Context, rec message.Record) (message.Record, error) {
	value, err := encodeRecord(rec)
	if err == nil && len(value) > l.room() {
		err = fmt.Errorf("%w: %d bytes, and a message to the server has at most %d", errLong, len(value), l.room())
	}
	if err != nil {
		return message.Record{}, err
	}
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		try, cancel := context.WithTimeout(ctx, serverPatience)
		rev, err := l.jobs.Update(try, rec.Job, value, rec.Rev)
		if err != nil && isConflict(err) {
			rev, err = l.ours(try, rec, value)
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
		if now, ok := l.renumberedTo(rec); ok {
			rec.Rev = now
			continue
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

// ours looks at what stands in the way of a swap: the write itself, of which the answer was lost, or another one, which
// is errConflict. A server that has nothing newer than what the swap expects is behind, and may be asked again.
func (l *JetStream) ours(ctx context.Context, rec message.Record, value []byte) (uint64, error) {
	there, rev, err := l.latest(ctx, message.JobBucket, rec.Job)
	switch {
	case errors.Is(err, ErrNoJob):
		return 0, errConflict
	case err != nil:
		return 0, err
	case rev <= rec.Rev:
		return 0, fmt.Errorf("the record is at %d there, and was at %d", rev, rec.Rev)
	case !bytes.Equal(there, value):
		return 0, errConflict
	}
	return rev, nil
}

// room is how long a value may be.
func (l *JetStream) room() int { return int(l.nc.MaxPayload()) - headRoom }

// refused reports whether the server will never take a write: what is sent is wrong, not the time.
func refused(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, nats.ErrMaxPayload) ||
		errors.As(err, &api) && api.Code == http.StatusBadRequest && !isConflict(err)
}

func isConflict(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, jetstream.ErrKeyExists) ||
		errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
			api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant) // the latter where there are copies
}

// markerTime is how long the bucket remembers that a job was dropped, for daemons that were not listening.
const markerTime = time.Minute

// drop forgets a job, its request and its events, unless its record was changed since: then it is a job again. Nothing
// of it stays: streams index their subjects in memory. Rev 0 says that the record is gone already.
func (l *JetStream) drop(ctx context.Context, rec *message.Record) error {
	bodies, err := l.bodies.Info(ctx)
	if err != nil {
		return err
	}
	if rec.Rev > 0 { // its first event goes before its record: who finds it without one has found damage
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
	if rec.Pieces > 0 { // and not those of a new job of that id
		err = errors.Join(err, l.purgePieces(ctx, rec.Job, jetstream.WithPurgeSequence(bodies.State.LastSeq+1)))
	}
	return err
}

// bury writes a job that failed for good to the dead letters, once an attempt.
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

// open implements Store: it returns when the table has every record of the bucket, and goes on telling it of changes
// and of what other daemons say.
func (l *JetStream) open(ctx context.Context, j *Table) error {
	l.table = j
	named, err := l.named(ctx) // first: every job that is named by now has a record
	if err != nil {
		return err
	}
	loaded := make(chan struct{})
	begin, cancel := context.WithTimeout(ctx, prepareTime)
	defer cancel()
	if err := l.follow(begin, l.jobs, &l.records, func(e jetstream.KeyValueEntry) {
		l.watched(e, j, loaded)
	}); err != nil {
		return fmt.Errorf("watch records: %w", err)
	}
	if err := l.hear(j.Hear); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-loaded:
	}
	l.missing(ctx, named, j)
	l.wg.Go(func() { l.watchOver(j) })
	if err := l.full(); err != nil { // asked for now so that the server knows its folders
		l.cfg.Log.Warn().Err(err).Msg("no new jobs")
	}
	return nil
}

func (l *JetStream) watched(e jetstream.KeyValueEntry, j *Table, loaded chan struct{}) {
	switch {
	case e == nil:
		closeOnce(loaded)
	case e.Operation() != jetstream.KeyValuePut:
		j.vanish(e.Key())
	default:
		rec, err := decodeRecord(e.Key(), e.Value(), e.Revision())
		if err != nil {
			l.cfg.Log.Error().Err(err).Msg("record left alone")
			return
		}
		j.observe(rec)
	}
}
