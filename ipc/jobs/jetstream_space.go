package jobs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// The files of a store are bounded, by the server or by the limits of its account. Most of them are requests. New jobs
// are refused once only the room is left that the records and ends of existing jobs need. The requests of done jobs
// are purged at once, those of other ended jobs when room is short.

const (
	tidyEvery = time.Minute // between scans for requests that are no longer needed
	// orphanAge is the age from which pieces of a request without a record are taken for those of a job that was never
	// created.
	orphanAge = time.Minute
	// believe is how long what was used when the server refused a write is taken for the limit.
	believe = 10 * time.Minute
	// reserveBytes are reserved in a store whose limit is not known, and freed when it is full.
	reserveBytes = 1 << 20
	reserveKey   = "reserve.x"
)

// Space returns how much of the store is used, and what is known to be lost or damaged.
func (l *JetStream) Space() *message.StoreStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	ids := slices.Sorted(maps.Keys(l.lost))
	return &message.StoreStats{
		Bytes: l.used, Limit: l.limit, Full: l.tight(0), Head: l.head(),
		Lost: len(ids), LostJobs: ids[:min(len(ids), 20)], Damaged: slices.Clone(l.hurt),
		Copies: l.copies, Trouble: slices.Clone(l.trouble), Restored: l.restored,
	}
}

// head returns the part of the limit that new jobs leave to existing ones. The caller must hold l.mu.
func (l *JetStream) head() int64 { return min(l.limit/8, 256<<20) }

// tight reports whether there is no room for a new job of n bytes. The caller must hold l.mu.
func (l *JetStream) tight(n int) bool {
	return l.limit > 0 && l.used+int64(n) > l.limit-l.head()
}

// measure reads how much of the store is used, and its limit.
func (l *JetStream) measure(ctx context.Context) error {
	info, err := l.js.AccountInfo(ctx)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used, l.limit = int64(info.Store), l.cfg.Limit
	if most := info.Limits.MaxStore; most > 0 && (l.limit == 0 || most < l.limit) {
		l.limit = most
	}
	if time.Since(l.refusedAt) < believe && (l.limit == 0 || l.refusedWith < l.limit) {
		l.limit = l.refusedWith
	}
	return nil
}

// spaceFor reserves room for a new job of n bytes, until the next measure. It returns an error if tidy cannot make
// room before ctx ends.
func (l *JetStream) spaceFor(ctx context.Context, n int) error {
	l.mu.Lock()
	tight := l.tight(n)
	l.mu.Unlock()
	if tight {
		_, err := wire.Insist(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, l.tidy(ctx, n) })
		if err != nil {
			return fmt.Errorf("make room for the job: %w", err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limit > 0 && int64(n) > l.limit/2 {
		return fault.New(fault.TooLarge, "the request has %d bytes, the job store has room for %d", n, l.limit/2)
	}
	if !l.tight(n) {
		l.used += int64(n) // until the next measure
		return nil
	}
	return fmt.Errorf("%w: it is full: %d bytes are used of %d, and a part is kept for the ends of jobs", ErrStore, l.used,
		l.limit)
}

// noRoom reports whether the server refused a write because its files may not grow.
func noRoom(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (slices.Contains([]jetstream.ErrorCode{10002, 10023, 10047}, api.ErrorCode) ||
		strings.Contains(api.Description, "maximum bytes exceeded"))
}

// crowded notes that the server has refused a write, which reveals its limit, and frees the reserve for records.
func (l *JetStream) crowded(ctx context.Context) {
	_ = l.measure(ctx)
	l.mu.Lock()
	if time.Since(l.refusedAt) > believe {
		l.cfg.Log.Error().Int64("bytes", l.used).Msg("the NATS server has no room for more: new jobs wait for old ones to go")
	}
	l.refusedAt, l.refusedWith = time.Now(), l.used
	l.mu.Unlock()
	_ = l.purgePieces(ctx, reserveKey)
}

// reserve writes some bytes that crowded can free, if the limit is not known.
func (l *JetStream) reserve(ctx context.Context, requests jetstream.KeyValue) error {
	if s := l.Space(); s.Full || s.Limit > 0 {
		return nil
	}
	for i := range reserveBytes / requestPiece {
		key := fmt.Sprintf("%s.%d", reserveKey, i)
		if _, err := requests.Get(ctx, key); !errors.Is(err, jetstream.ErrKeyNotFound) {
			continue
		}
		if _, err := requests.Put(ctx, key, bytes.Repeat([]byte{'x'}, requestPiece)); err != nil {
			return err
		}
	}
	return nil
}

// purgePieces purges the request of a job, or what is kept under another prefix. It needs no room in the store.
func (l *JetStream) purgePieces(ctx context.Context, prefix string, opts ...jetstream.StreamPurgeOpt) error {
	subject := jetstream.WithPurgeSubject("$KV." + message.RequestBucket + "." + prefix + ".>")
	return l.requestStream.Purge(ctx, append(opts, subject)...)
}

// release purges the request of a job that is done: nothing asks for it again.
func (l *JetStream) release(rec message.Record) {
	if rec.State != message.Done || rec.Pieces == 0 {
		return
	}
	l.wg.Go(func() {
		ctx, cancel := context.WithTimeout(l.ctx, serverPatience)
		defer cancel()
		_ = l.purgePieces(ctx, rec.Job) // otherwise tidy does it
	})
}

// tidy purges requests that are no longer needed: of jobs that are done or were never created and, while there is no
// room for n more bytes, of other ended jobs, oldest first. An error means that the server does not answer.
func (l *JetStream) tidy(ctx context.Context, n int) error {
	select {
	case l.tidying <- struct{}{}:
	case <-ctx.Done(): // the server is slow to answer another one
		return ctx.Err()
	}
	defer func() { <-l.tidying }()
	tight := func() (bool, error) {
		if err := l.measure(ctx); err != nil {
			return false, err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.tight(n), nil
	}
	if short, err := tight(); err != nil || !short && time.Since(l.tidied) < tidyEvery {
		return err
	}
	root := "$KV." + message.RequestBucket + "."
	info, err := l.requestStream.Info(ctx, jetstream.WithSubjectFilter(root+">"))
	if err != nil {
		return err
	}
	l.tidied = time.Now()
	var ended []message.Record
	var stuck error
	orphaned := map[string]time.Time{}
	seen := map[string]bool{}
	for subject := range info.State.Subjects {
		id, _, _ := strings.Cut(strings.TrimPrefix(subject, root), ".")
		if seen[id] || strings.HasPrefix(reserveKey, id+".") {
			continue
		}
		seen[id] = true
		rec, err := l.table.Get(id)
		since := l.orphanedSince[id]
		switch {
		case l.lost[id]: // leave what remains of a lost job
		case err != nil && since.IsZero():
			orphaned[id] = time.Now()
		case err != nil && time.Since(since) < orphanAge:
			orphaned[id] = since
		case err != nil && !l.absent(ctx, id): // the watch has not delivered its record yet
		case err != nil || rec.State == message.Done:
			stuck = cmp.Or(stuck, l.purgePieces(ctx, id))
		case rec.State.Final():
			ended = append(ended, rec)
		}
	}
	l.orphanedSince = orphaned
	if stuck != nil {
		return stuck
	}
	slices.SortFunc(ended, func(a, b message.Record) int { return cmp.Compare(a.Finished, b.Finished) })
	for _, rec := range ended {
		if short, err := tight(); err != nil || !short {
			return err
		}
		if err := l.purgePieces(ctx, rec.Job); err != nil {
			return err
		}
		l.cfg.Log.Warn().Str("job", rec.Job).Msg("room is short: the job has ended and cannot be retried any more")
	}
	return nil
}

// absent reports whether the store is known to have no record of a job.
func (l *JetStream) absent(ctx context.Context, id string) bool {
	_, err := l.get(ctx, id)
	return errors.Is(err, ErrNoJob)
}
