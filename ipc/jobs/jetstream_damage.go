package jobs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"patchbay/ipc/message"
	"patchbay/ipc/register"
	"patchbay/ipc/wire"
)

// named returns the jobs that have a queued event in the store, and whether each has a success event too.
func (l *JetStream) named(ctx context.Context) (map[string]bool, error) {
	out := map[string]bool{}
	for _, kind := range []string{message.EventQueued, message.EventSuccess} {
		events, err := l.events.Info(ctx, jetstream.WithSubjectFilter(message.EventSubject("*", kind)))
		if err != nil {
			return nil, fmt.Errorf("list events: %w", err)
		}
		before, after, _ := strings.Cut(message.EventSubject("*", kind), "*")
		for subject := range events.State.Subjects {
			id := strings.TrimSuffix(strings.TrimPrefix(subject, before), after)
			if _, began := out[id]; began || kind == message.EventQueued {
				out[id] = kind == message.EventSuccess
			}
		}
	}
	return out, nil
}

// missing notes and logs which of the named jobs have no record, and what the server itself reports as lost: the
// server silently drops what it cannot read.
func (l *JetStream) missing(ctx context.Context, named, there map[string]bool) {
	lost, done := map[string]bool{}, 0
	for id, ended := range named {
		if there[id] {
			continue
		}
		if rec, err := l.get(ctx, id); !errors.Is(err, ErrNoJob) { // the watch was behind
			if err == nil {
				l.table.observe(rec)
			}
			continue
		}
		lost[id] = true
		if ended {
			done++
		}
	}
	hurt, err := l.damaged(ctx)
	if err != nil {
		l.cfg.Log.Warn().Err(err).Msg("the server was not asked what it has lost")
	}
	l.mu.Lock()
	l.lost, l.hurt = lost, hurt
	l.mu.Unlock()
	if len(hurt) > 0 {
		l.cfg.Log.Error().Strs("streams", hurt).Msg("the NATS server has lost messages: files of the store are damaged")
	}
	if len(lost) == 0 {
		return
	}
	ids := slices.Sorted(maps.Keys(lost))
	l.cfg.Log.Error().Int("jobs", len(ids)).Int("done", done).Strs("first", ids[:min(len(ids), 20)]).Msg(
		"records of jobs are lost: the files of the store are damaged; submit again those that were not done")
}

// manyGaps is the number of removed messages above which damaged skips a stream: the reply would list them all.
const manyGaps = 100_000

// damaged returns the streams of which the server has lost messages, with the number of bytes lost.
func (l *JetStream) damaged(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, serverPatience)
	defer cancel()
	var out []string
	for _, name := range message.Streams() {
		stream, err := l.js.Stream(ctx, name)
		if err != nil {
			return out, fmt.Errorf("ask for the state of %s: %w", name, err)
		}
		if stream.CachedInfo().State.NumDeleted > manyGaps {
			continue
		}
		m, err := l.nc.RequestWithContext(ctx, "$JS.API.STREAM.INFO."+name, []byte(`{"deleted_details":true}`))
		if err != nil {
			return out, fmt.Errorf("ask for the state of %s: %w", name, err)
		}
		var info struct {
			State struct {
				Lost *struct {
					Bytes uint64 `json:"bytes"`
				} `json:"lost"`
			} `json:"state"`
			Error *jetstream.APIError `json:"error"`
		}
		if err = json.Unmarshal(m.Data, &info); err == nil && info.Error != nil {
			err = errors.New(info.Error.Description)
		}
		if err != nil {
			return out, fmt.Errorf("state of %s: %w", name, err)
		}
		if lost := info.State.Lost; lost != nil {
			out = append(out, fmt.Sprintf("%s: %d bytes", name, lost.Bytes))
		}
	}
	return out, nil
}

const (
	healthEvery = 5           // in calls of tend
	compareAll  = time.Minute // between two comparisons of all records with the table
)

// audit compares the records in the store with those of the table: if the server was away, if the stream has another
// leader or ends before something that was in it, and at intervals. It writes again what the server has lost.
func (l *JetStream) audit(ctx context.Context, known []message.Record) {
	heard := l.records.Heard.Load() // read first: the server has had all of it
	info, err := l.recordStream.Info(ctx)
	if errors.Is(err, jetstream.ErrStreamNotFound) && l.remake(ctx) == nil {
		info, err = l.recordStream.Info(ctx)
	}
	if err != nil {
		return // the server is away
	}
	last, leader := info.State.LastSeq, ""
	if info.Cluster != nil {
		leader = info.Cluster.Leader
	}
	newest := heard
	for _, rec := range known {
		newest = max(newest, rec.Rev)
	}
	switch {
	case last < newest:
		l.cfg.Log.Error().Uint64("was", newest).Uint64("is", last).Str("leader", leader).Msg(
			"the NATS server has lost records that it had acknowledged")
		l.records.Heard.Store(last)
		l.records.Again()
	case last <= heard:
		l.behind = time.Time{}
	case l.behind.IsZero():
		l.behind = time.Now()
	case time.Since(l.behind) > register.DeadAfter:
		l.behind = time.Time{}
		l.records.Heard.Store(last)
		l.records.Again()
	}
	l.mu.Lock()
	doubt := l.doubtful || last < newest || leader != l.leader || time.Since(l.audited) > compareAll
	l.doubtful = false
	l.mu.Unlock()
	if !doubt {
		return
	}
	root := "$KV." + message.JobBucket + "."
	if info, err = l.recordStream.Info(ctx, jetstream.WithSubjectFilter(root+">")); err != nil {
		l.doubt()
		return
	}
	there, dropped, err := l.revisions(ctx)
	began := time.Now()
	l.leader = leader
	for _, rec := range known {
		// the stream assigns lost numbers again, and may be beyond them
		gone := info.State.Subjects[root+rec.Job] == 0 || rec.Rev > info.State.LastSeq
		if gone || there[rec.Job] < rec.Rev && (err == nil || errors.Is(err, errStalled)) {
			if err := l.restore(ctx, rec, began); err != nil {
				l.cfg.Log.Error().Err(err).Str("job", rec.Job).Msg("the NATS server has lost the record; it is written again later")
				l.doubt()
				return
			}
		}
	}
	if passedOver(known, there, dropped, heard) {
		l.records.Again()
	}
	if l.audited = began; err != nil {
		l.doubt() // not all were compared
	}
}

// passedOver reports whether the watch has not delivered a record although it has come to a higher revision: the server
// has given lost numbers again before anybody saw that they were lost.
func passedOver(known []message.Record, there map[string]uint64, dropped map[string]bool, heard uint64,
) bool {
	has := make(map[string]uint64, len(known))
	for _, rec := range known {
		has[rec.Job] = rec.Rev
	}
	for id, rev := range there {
		if rev <= heard && rev > has[id] && !dropped[id] {
			return true
		}
	}
	return false
}

// errStalled says that the server counts records that it does not deliver: it may have lost them.
var errStalled = errors.New("the server does not deliver all records")

// revisions returns the newest revision of every record, and which of them were dropped, according to some server of
// the stream, which may be behind. With errStalled there may be others.
func (l *JetStream) revisions(ctx context.Context) (map[string]uint64, map[string]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, serverPatience)
	defer cancel()
	entries, err := wire.Updates(ctx, l.nc, message.JobBucket, wire.Names)
	if err != nil {
		return nil, nil, err
	}
	out, dropped := map[string]uint64{}, map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-time.After(serverPatience / 2):
			return out, dropped, errStalled
		case e, ok := <-entries:
			switch {
			case !ok:
				return nil, nil, errors.New("the records cannot be read")
			case e == nil: // all existing records were delivered
				return out, dropped, nil
			}
			out[e.Key] = e.Revision
			if e.Gone {
				dropped[e.Key] = true
			}
		}
	}
}

// doubt makes the next audit compare all records.
func (l *JetStream) doubt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.doubtful = true
}

// isLost reports whether the server has lost the record of an ended job, as opposed to its having been dropped. A
// record that was dropped leaves a tombstone for markerTime: without one it is lost if the last comparison was since
// then. After a longer silence the first event of the job decides, which drop removes before the record.
func (l *JetStream) isLost(ctx context.Context, rec message.Record, now time.Time) (bool, error) {
	if now.Sub(l.audited) < markerTime {
		return true, nil
	}
	ev, err := l.last(ctx, rec.Job, message.EventQueued)
	return ev != nil, err
}

// restore writes a record again that the server has lost or has reverted to an older revision. A record that has moved
// on meanwhile stays as it is. now is when the records were compared.
func (l *JetStream) restore(ctx context.Context, rec message.Record, now time.Time) error {
	value, err := encodeRecord(rec)
	if err != nil {
		return err
	}
	there, err := l.get(ctx, rec.Job)
	switch {
	case errors.Is(err, ErrNoJob):
		if rec.State.Final() {
			if lost, err := l.isLost(ctx, rec, now); !lost || err != nil {
				return err
			}
		}
		if there.Rev, err = l.jobs.Create(ctx, rec.Job, value); isConflict(err) {
			there.Rev, err = l.overwrite(ctx, rec.Job, value)
		}
	case err != nil || there.Rev >= rec.Rev:
		return err
	case there.Attempt > rec.Attempt || there.State.Final() && !rec.State.Final() || asFar(there, rec) ||
		same(there, value):
		l.table.turnBack(rec.Rev, there)
		return nil
	default:
		there.Rev, err = l.jobs.Update(ctx, rec.Job, value, there.Rev)
	}
	if isConflict(err) || errors.Is(err, errConflict) { // another daemon was faster: the next audit looks at what it wrote
		l.doubt()
		return nil
	}
	if err != nil {
		return err
	}
	was := rec.Rev
	rec.Rev = there.Rev
	l.table.turnBack(was, rec)
	l.mu.Lock()
	l.restored++
	l.mu.Unlock()
	l.cfg.Log.Error().Str("job", rec.Job).Str("state", string(rec.State)).Msg(
		"the NATS server had lost the record of the job; it is written again")
	return nil
}

// overwrite writes a record over one that the server still counts and cannot read, if nothing was written to the stream
// meanwhile. It returns the new revision.
func (l *JetStream) overwrite(ctx context.Context, job string, value []byte) (uint64, error) {
	info, err := l.recordStream.Info(ctx)
	if err != nil {
		return 0, err
	}
	if _, err := l.get(ctx, job); !errors.Is(err, ErrNoJob) {
		return 0, cmp.Or(err, errConflict)
	}
	ack, err := l.js.Publish(ctx, "$KV."+message.JobBucket+"."+job, value,
		jetstream.WithExpectLastSequence(info.State.LastSeq))
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// asFar reports whether a record of a job that has ended says all that another one of that end does. Its revision does
// not tell, since the server gives lost numbers again.
func asFar(there, rec message.Record) bool {
	return there.State.Final() && rec.State.Final() && there.Attempt == rec.Attempt && there.Earlier == rec.Earlier &&
		names(there.Outputs) >= names(rec.Outputs) && (there.Dropped > 0 || rec.Dropped == 0)
}

// same reports whether rec is encoded as value: another daemon has written the same record again.
func same(rec message.Record, value []byte) bool {
	b, err := encodeRecord(rec)
	return err == nil && bytes.Equal(b, value)
}

// remake creates the streams, buckets and consumers that the server does not have any more: somebody has deleted them,
// or the server runs on another folder. What was in them is lost, but audit writes the records again that this daemon
// knows, and Reconcile the references to jobs that wait.
func (l *JetStream) remake(ctx context.Context) error {
	l.doubt()
	_, _, err := l.makeStore(ctx)
	l.mu.Lock()
	l.broken = err
	l.mu.Unlock()
	l.cfg.Log.Error().Err(err).Msg("streams of the job store are gone from the NATS server; they are made anew")
	return err
}

// health notes how many replicas the records have, which streams have no leader, and which servers are away or behind.
func (l *JetStream) health(ctx context.Context) {
	var trouble, gone []string
	copies, servers := 0, map[string][]string{}
	for i, name := range message.Streams() {
		try, cancel := context.WithTimeout(ctx, serverPatience)
		s, err := l.js.Stream(try, name)
		cancel()
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			gone = append(gone, name)
			continue
		}
		if err != nil {
			trouble = append(trouble, name+" cannot be read: no server leads it")
			continue
		}
		info := s.CachedInfo()
		if i == 0 {
			copies = info.Config.Replicas
		}
		if info.Cluster == nil {
			continue
		}
		for _, r := range info.Cluster.Replicas {
			if r.Offline || !r.Current { // a new leader cannot tell these apart
				servers[r.Name] = append(servers[r.Name], name)
			}
		}
	}
	if len(gone) > 0 {
		if err := l.remake(ctx); err != nil {
			trouble = append(trouble, fmt.Sprintf("%s: gone, and cannot be made anew: %v", strings.Join(gone, ", "), err))
		}
	}
	for _, s := range slices.Sorted(maps.Keys(servers)) {
		trouble = append(trouble, fmt.Sprintf("server %s is away or behind: %s", s, strings.Join(servers[s], ", ")))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trouble = trouble
	if copies > 0 {
		l.copies = copies
	}
}
