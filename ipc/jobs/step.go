package jobs

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"patchbay/fault"
	"patchbay/ipc/message"
)

// This file decides how a job proceeds. Its functions depend on nothing but their arguments: no clock, network, disk or
// lock. Table.do applies them.

// rules are the limits that decisions depend on.
type rules struct {
	attempts int // attempts that count, after which a job fails
	// pauses has the errors after which an attempt is followed by another one, with the pause before the first such.
	pauses map[string]time.Duration
}

// durablePauses are those of a store that outlives workers and daemons, and a full disk may get room again. With jobs
// in memory nothing outlives the daemon. A model file that was written to is read anew, once somebody may be done with
// it.
func durablePauses() map[string]time.Duration {
	return map[string]time.Duration{
		fault.WorkerLost: 200 * time.Millisecond, fault.DiskFull: 2 * time.Second, fault.Draining: 0,
		fault.FileChanged: 2 * time.Second,
	}
}

func memoryPauses() map[string]time.Duration {
	return map[string]time.Duration{fault.WorkerLost: 0, fault.FileChanged: 2 * time.Second}
}

// maxHandedBack is how often a job may lose its daemon before it fails: the job itself may be what kills them.
const maxHandedBack = 20

// longestPause bounds the pause before another attempt.
const longestPause = 30 * time.Second

// change is something that happens to a job.
type change interface {
	// from lists the states in which it can happen.
	from() []message.State
	// fits reports whether it is about the job as it is: an attempt may have been followed by another one.
	fits(r *message.Record) bool
	// apply changes the record at a time in Unix milliseconds.
	apply(r *message.Record, at int64, by rules) effects
}

// effects are what follows once a changed record is written.
type effects struct {
	events []message.Event // are appended to the log
	files  bool            // the files of the job get their names before its log ends
	ends   bool            // the log ends, as endOf says
	bury   bool            // a dead letter is written
}

// attempt is one attempt at a job. A daemon may have one of the same number as another, after the store has lost
// records.
type attempt struct {
	number int
	owner  string // the daemon that runs it
}

// attemptOf returns the attempt that a record is about.
func attemptOf(r *message.Record) attempt { return attempt{r.Attempt, r.Owner} }

func (a attempt) fits(r *message.Record) bool { return a == attemptOf(r) }

// The changes.
type (
	// taken: a worker of a daemon begins an attempt.
	taken struct{ worker, owner, claim string }
	// ended: an attempt has ended, in failure if that is not nil. What it made is kept either way.
	ended struct {
		attempt
		failure *fault.Error
		metrics map[string]any
		outputs []message.OutputRef
		ui      map[string]map[string]any // what nodes show besides files
	}
	// answered: the job has the same content as an earlier one and gets its results.
	answered struct{ earlier message.Record }
	// named: the files of an attempt have their final names, or never get any, for the reason in warning.
	named struct {
		attempt
		outputs []message.OutputRef
		warning string
	}
	// toldBefore: the end of a job in a store of an earlier version is in the stream, as the event of that number.
	toldBefore struct {
		attempt
		number uint64
	}
	// abandoned: the daemon that ran an attempt is gone.
	abandoned struct {
		attempt
		cause string
	}
	// cancelAsked: somebody wants the job to end.
	cancelAsked struct{}
	// moveAsked: somebody wants a waiting job to be ahead of all others, or behind those of a priority.
	moveAsked struct {
		front    bool
		priority string // as in a record
	}
	// retryAsked: somebody wants a job to run again that ended without a result.
	retryAsked struct{}
	// overdue: the job has waited until the time in its record, which is its ExpireAt.
	overdue struct{ expireAt int64 }
	// hopeless: a waiting job can never run.
	hopeless struct{ failure *fault.Error }
	// filesDropped: the files of an attempt are about to be removed.
	filesDropped struct{ attempt }
	// reported: the receiver of a webhook has acknowledged the end of that number.
	reported struct{ number uint64 }
	// tooLong: the store will never take the next record.
	tooLong struct {
		next message.Record
		why  error
	}
)

// changes returns one of each kind.
func changes() []change {
	return []change{
		taken{},
		ended{},
		answered{},
		named{},
		toldBefore{},
		abandoned{},
		cancelAsked{},
		moveAsked{},
		retryAsked{},
		overdue{},
		hopeless{},
		filesDropped{},
		reported{},
		tooLong{},
	}
}

// errMoved says that a change does not fit the state that a job is in by now.
var errMoved = errors.New("the job has moved on")

// step returns the record of a job after a change at a time in Unix milliseconds, and what follows from it. It returns
// errMoved if the change does not fit.
func step(was message.Record, c change, at int64, by rules) (message.Record, effects, error) {
	if !slices.Contains(c.from(), was.State) || !c.fits(&was) {
		return message.Record{}, effects{}, fmt.Errorf("%w: job %s is %s in attempt %d", errMoved, was.Job, was.State,
			was.Attempt)
	}
	r := was.Clone()
	return r, c.apply(&r, at, by), nil
}

func (taken) from() []message.State        { return []message.State{message.Queued} }
func (ended) from() []message.State        { return []message.State{message.Running} }
func (answered) from() []message.State     { return []message.State{message.Running} }
func (named) from() []message.State        { return finals() }
func (toldBefore) from() []message.State   { return finals() }
func (abandoned) from() []message.State    { return []message.State{message.Running} }
func (cancelAsked) from() []message.State  { return []message.State{message.Queued, message.Running} }
func (moveAsked) from() []message.State    { return []message.State{message.Queued} }
func (overdue) from() []message.State      { return []message.State{message.Queued} }
func (hopeless) from() []message.State     { return []message.State{message.Queued} }
func (filesDropped) from() []message.State { return finals() }
func (reported) from() []message.State     { return finals() }

func (retryAsked) from() []message.State {
	return []message.State{message.Failed, message.Cancelled, message.Expired}
}

func (tooLong) from() []message.State {
	return []message.State{message.Queued, message.Running, message.Failed}
}

func finals() []message.State {
	return slices.DeleteFunc(message.States(), func(s message.State) bool { return !s.Final() })
}

func (taken) fits(*message.Record) bool            { return true }
func (answered) fits(*message.Record) bool         { return true }
func (cancelAsked) fits(*message.Record) bool      { return true }
func (moveAsked) fits(*message.Record) bool        { return true }
func (retryAsked) fits(r *message.Record) bool     { return r.Kind == "" }
func (c overdue) fits(r *message.Record) bool      { return c.expireAt == r.ExpireAt }
func (hopeless) fits(*message.Record) bool         { return true }
func (tooLong) fits(*message.Record) bool          { return true }
func (c toldBefore) fits(r *message.Record) bool   { return c.attempt.fits(r) && r.EndSeq == 0 }
func (c filesDropped) fits(r *message.Record) bool { return c.attempt.fits(r) && r.Dropped == 0 }

func (c reported) fits(r *message.Record) bool {
	return r.Webhook != nil && r.EndSeq == c.number && r.Webhook.Reported != c.number
}

func (c taken) apply(r *message.Record, at int64, _ rules) effects {
	r.State, r.Worker, r.Owner, r.Claim = message.Running, c.worker, c.owner, c.claim
	r.Started, r.NotBefore = at, 0
	r.Attempt++
	return effects{}
}

func (c ended) apply(r *message.Record, at int64, by rules) effects {
	failure := c.failure
	if r.Cancel && failure != nil && (failure.Public() == fault.WorkerLost || failure.Public() == fault.Draining) {
		failure = Cancelled() // that was asked for, and the run is gone
	}
	if retry, counts := by.again(r, failure); retry {
		return by.requeue(r, failure, counts, at)
	}
	r.State, r.Finished, r.Error = EndOf(failure), at, failure
	if failure != nil {
		r.NodeError = failure.NodeErrors
	}
	r.Metrics, r.Outputs, r.UI = c.metrics, c.outputs, message.BoundedUI(c.ui, c.outputs)
	files := len(r.Outputs) > 0
	return effects{files: files, ends: !files, bury: r.State == message.Failed}
}

func (c answered) apply(r *message.Record, at int64, _ rules) effects {
	r.State, r.Finished, r.Outputs, r.NodeError = message.Done, at, c.earlier.Outputs, c.earlier.NodeError
	r.Reused, r.UI = c.earlier.Reused, c.earlier.UI
	if r.Reused == "" {
		r.Reused = c.earlier.Job
	}
	return effects{ends: true}
}

func (c named) apply(r *message.Record, _ int64, _ rules) effects {
	r.Outputs, r.Warning = c.outputs, c.warning
	return effects{ends: r.EndSeq == 0}
}

func (c toldBefore) apply(r *message.Record, _ int64, _ rules) effects {
	r.EndSeq = c.number
	return effects{}
}

func (c abandoned) apply(r *message.Record, at int64, by rules) effects {
	failure := fault.New(fault.Draining, "%s", c.cause)
	retry, counts := by.again(r, failure)
	switch {
	case r.Cancel || r.Tied:
		return end(r, message.Cancelled, Cancelled(), at)
	case !retry:
		return end(r, message.Failed, fault.New(fault.WorkerLost, "%d daemons ended while the job ran; the last one: %s",
			r.HandedBack+1, c.cause), at)
	}
	return by.requeue(r, failure, counts, at)
}

func (cancelAsked) apply(r *message.Record, at int64, _ rules) effects {
	if r.State == message.Queued {
		return end(r, message.Cancelled, Cancelled(), at)
	}
	r.Cancel = true // the job ends when its run has stopped
	return effects{}
}

func (c moveAsked) apply(r *message.Record, _ int64, _ rules) effects {
	if r.Front = c.front; !c.front {
		r.Priority = c.priority
	}
	r.Moves++ // a job at the front may be moved there again
	return effects{}
}

func (retryAsked) apply(r *message.Record, _ int64, _ rules) effects {
	cause := fmt.Sprintf("it was %s", r.State)
	if r.Error != nil {
		r.Because(r.Error.Error())
		cause = r.Error.Text
	}
	// those files have their names and do not belong to the next attempt
	r.Outputs, r.UI, r.Warning, r.Dropped, r.EndSeq = nil, nil, "", 0, 0
	r.State, r.Error, r.NodeError, r.Finished, r.ExpireAt, r.Cancel = message.Queued, nil, nil, 0, 0, false
	r.Earlier, r.HandedBack, r.NotBefore = r.Attempt, 0, 0
	r.Tied = false // its client has had its end
	return effects{events: []message.Event{retrying(r, "retry was asked for; before, "+cause, nil)}}
}

func (overdue) apply(r *message.Record, at int64, _ rules) effects {
	return end(r, message.Expired, fault.New(fault.Expired, "the job waited longer than its queue_ttl_ms"), at)
}

func (c hopeless) apply(r *message.Record, at int64, _ rules) effects {
	return end(r, message.Failed, c.failure, at)
}

func (filesDropped) apply(r *message.Record, at int64, _ rules) effects {
	r.Dropped = at
	return effects{}
}

func (c reported) apply(r *message.Record, _ int64, _ rules) effects {
	r.Webhook = &message.Hook{URL: r.Webhook.URL, Reported: c.number}
	return effects{}
}

func (c tooLong) apply(r *message.Record, at int64, _ rules) effects {
	*r = c.next.Closed(fault.New(fault.TooLarge, "%v", c.why))
	if r.EndSeq == 0 {
		r.Finished = at
	}
	return effects{ends: r.EndSeq == 0, bury: r.State == message.Failed}
}

// end ends a job that no worker holds.
func end(r *message.Record, state message.State, failure *fault.Error, at int64) effects {
	r.State, r.Error, r.Finished = state, failure, at
	return effects{ends: true, bury: state == message.Failed}
}

// again reports whether another attempt follows the one that ended with fault, and whether the ended one counts toward
// the limit.
func (by rules) again(r *message.Record, failure *fault.Error) (retry, counts bool) {
	if failure == nil || r.Cancel {
		return false, false
	}
	_, retry = by.pauses[failure.Public()]
	switch {
	case !retry:
		return false, false
	case failure.Public() == fault.Draining:
		return !r.Tied && r.HandedBack < maxHandedBack, false
	}
	return r.Counted() < by.attempts, true
}

// requeue prepares a record for its next attempt. After an attempt that counts, the job pauses, twice as long per
// attempt up to half a minute.
func (by rules) requeue(r *message.Record, failure *fault.Error, counts bool, at int64) effects {
	r.Because(failure.Text)
	r.State = message.Queued
	first := by.pauses[failure.Public()]
	switch {
	case !counts:
		r.HandedBack++
	case first > 0:
		n := min(max(0, r.Counted()-1), 8)
		r.NotBefore = at + min(first<<n, longestPause).Milliseconds()
	}
	return effects{events: []message.Event{retrying(r, failure.Text, failure)}}
}

// retrying returns the event of a job that is queued for another attempt.
func retrying(r *message.Record, cause string, failure *fault.Error) message.Event {
	return message.Event{
		Type: message.EventRetrying, Data: map[string]any{"prompt_id": r.Job, "cause": cause}, Error: failure,
	}
}
