package jobs

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sort"
	"time"

	"patchbay/ipc/message"
)

// Cursor reads the event log of one job in order, starting at a sequence number, and ends after the terminal event. It
// is not safe for concurrent use.
type Cursor struct {
	jobs    *Table
	e       *tracked
	next    uint64 // first sequence number not yet returned
	shown   uint64 // previews returned or skipped
	preview bool
	ended   bool // the terminal event was returned
}

// ErrEnd is returned by Cursor.Next after the terminal event.
var ErrEnd = errors.New("the job has ended")

// Follow returns a cursor on the log of a job; from 0 or 1 starts at the beginning. With preview, Next also returns
// the newest preview when there is one. The caller must call Close. The only error is ErrNoJob: if the log cannot be
// read yet, Next tries again.
func (j *Table) Follow(ctx context.Context, id string, from uint64, preview bool) (*Cursor, error) {
	if err := j.rewarm(ctx, id); err != nil && !errors.Is(err, ErrNoJob) && ctx.Err() == nil {
		j.cfg.Log.Warn().Err(err).Str("job", id).Msg("its events cannot be read yet; trying again")
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.jobs[id]
	if !ok {
		return nil, ErrNoJob
	}
	if preview {
		e.viewers++
	}
	return &Cursor{jobs: j, e: e, next: max(from, 1), preview: preview}, nil
}

// Close ends the interest in previews. A second call does nothing.
func (c *Cursor) Close() {
	if c.preview {
		c.jobs.mu.Lock()
		c.e.viewers--
		c.jobs.mu.Unlock()
		c.preview = false
	}
}

// Item is what Next returns: exactly one of its fields is set.
type Item struct {
	Event   *message.Event
	Preview *message.Preview
}

// Next waits for the next event or preview. After the terminal event it returns ErrEnd.
func (c *Cursor) Next(ctx context.Context) (Item, error) {
	for {
		c.jobs.mu.Lock()
		e := c.e
		changed, cold := e.changed, e.cold
		if !cold {
			if it, err := c.have(); err != nil || it != (Item{}) {
				c.jobs.mu.Unlock()
				return it, err
			}
		}
		c.jobs.mu.Unlock()
		var again <-chan time.Time
		if cold { // another daemon has or created the job: the log here lacks its beginning
			if c.jobs.warm(ctx, e) == nil {
				continue
			}
			again = time.After(time.Second)
		}
		select {
		case <-ctx.Done():
			return Item{}, ctx.Err()
		case <-changed:
		case <-again:
		}
	}
}

// have returns the item to return next, or neither an item nor an error if there is none yet. The caller must hold
// c.jobs.mu.
func (c *Cursor) have() (Item, error) {
	e := c.e
	i := sort.Search(len(e.log), func(i int) bool { return e.log[i].Seq >= c.next })
	if n := len(e.log); i == n && n > 0 && e.rec.EndSeq > 0 && !c.ended && message.Terminal(e.log[n-1].Type) {
		i-- // its number is below those of events of a lost attempt that were returned
	}
	switch {
	case i < len(e.log):
		ev := e.log[i]
		c.next, c.ended = max(c.next, ev.Seq+1), message.Terminal(ev.Type)
		if e.rec.Dropped > 0 && c.ended && ev.Type != message.EventSuccess { // a client would ask for its files in vain
			ev.Data = maps.Clone(ev.Data)
			delete(ev.Data, "outputs")
		}
		return Item{Event: &ev}, nil
	case e.rec.EndSeq > 0 || e.gone:
		return Item{}, ErrEnd
	case c.preview && e.preview != nil && e.shown > c.shown:
		c.shown = e.shown
		return Item{Preview: e.preview}, nil
	}
	return Item{}, nil
}

// Log returns what the log of a job has so far, and the newest preview of one that runs; nil: there is none. The caller
// must not change either.
func (j *Table) Log(ctx context.Context, id string) ([]message.Event, *message.Preview, error) {
	if err := j.rewarm(ctx, id); err != nil {
		return nil, nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.jobs[id]
	if !ok {
		return nil, nil, ErrNoJob
	}
	return slices.Clone(e.log), e.preview, nil
}

// Preview makes p the newest preview of its job; older ones are not kept.
func (j *Table) Preview(p message.Preview) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.jobs[p.Job]
	if !ok || e.rec.EndSeq > 0 {
		return
	}
	e.preview = &p
	e.shown++
	j.cfg.OnPreview(p.Job, p.Node, p.Data)
	if e.viewers > 0 {
		j.touch(e)
	}
}

// Append adds an event to the log of a job, stamped with sequence number, time and attempt. It returns false and drops
// the event if the attempt is not the current one, the log has ended, or the event is terminal: only records end logs.
// attempt < 0 means any.
func (j *Table) Append(id string, attempt int, ev message.Event) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.jobs[id]
	if !ok || e.rec.EndSeq > 0 || message.Terminal(ev.Type) ||
		attempt >= 0 && (e.rec.Attempt != attempt || attempt <= e.fenced) {
		return false
	}
	if attempt >= 0 && e.rec.State != message.Running && ev.Type != message.EventRetrying {
		return false // a late event of a run that has ended
	}
	j.append(e, ev)
	return true
}

// append is Append without its checks. The caller must hold j.mu.
func (j *Table) append(e *tracked, ev message.Event) {
	e.seq++
	ev.V, ev.Job, ev.Seq, ev.TS, ev.Attempt = message.ProtocolVersion, e.rec.Job, e.seq,
		j.cfg.Now().UnixMilli(), e.rec.Attempt
	e.log = append(bounded(e.log), ev)
	j.cfg.OnEvent(ev)
	j.touch(e)
}

// bounded makes room for an event in a log that is full: it drops the progress, or if that is not enough the older half
// but the first event, with which every log begins.
func bounded(log []message.Event) []message.Event {
	if len(log) < maxLog {
		return log
	}
	log = slices.DeleteFunc(log, func(old message.Event) bool { return old.Type == message.EventProgress })
	if len(log) >= maxLog {
		log = slices.Delete(log, 1, maxLog/2)
	}
	return log
}
