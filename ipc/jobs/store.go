package jobs

import (
	"context"
	"errors"
	"time"

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/files"
)

// Store is where a Table writes its jobs down: the memory of this process, or a NATS server (JetStream). The record in
// it is the truth; every change of one is a swap at an expected revision.
type Store interface {
	// Owner is the name under which this daemon takes jobs, the same after a restart; empty: there are no others.
	Owner() string
	// open tells the table of every job in the store, and from then on of what others do with them.
	open(ctx context.Context, j *Table) error
	// alive reports whether the daemon of that name shows signs of life.
	alive(owner string) bool
	// heard reports whether a daemon has shown signs of life since then.
	heard(owner string, since time.Time) bool
	// returned gives a value when the store could not be reached for a while: what was published may be lost.
	returned() <-chan struct{}

	// admit refuses a job whose files no daemon has; lacks tells why this daemon cannot run one; sought where files that
	// are nowhere were looked for, empty where nobody looks.
	admit(needed []files.NeededFile) *wire.Error
	lacks(rec message.Record) error
	sought(files []string) string

	// keep writes a new job and its request. If there is a job of that id, its record is returned, with false.
	keep(ctx context.Context, rec message.Record, req *message.RunRequest) (message.Record, bool, error)
	// swap writes rec if the record is still at rec.Rev, and returns it at its new revision; errConflict otherwise.
	swap(ctx context.Context, rec message.Record) (message.Record, error)
	// get reads a record; ErrNoJob if there is none.
	get(ctx context.Context, job string) (message.Record, error)
	// request reads what a job asks for; errGone if that is not there or cannot be decoded, and will never be. kept tells
	// why it is not there.
	request(ctx context.Context, rec message.Record) (*message.RunRequest, error)
	kept(ctx context.Context, rec message.Record) error
	// forget drops a job, at the next sweep at the latest. It does not block.
	forget(rec message.Record)
	sweep(ctx context.Context)

	// inside reports whether all there is of a job is in this table. Jobs are taken in its order then, and one can be put
	// in front of all.
	inside() bool
	// offer tells those who take jobs of one that waits; first says that none is before it.
	offer(ctx context.Context, rec message.Record, first bool) error
	// next waits for a job that the table may take. Only ctx ends the wait.
	next(ctx context.Context, j *Table) (reference, error)
	// remind offers those of the waiting jobs once more that nobody was told of.
	remind(ctx context.Context, waiting []message.Record, now time.Time) error
	// retries reports whether an attempt that ended with an error of this code may be followed by another one, and the
	// pause before the first.
	retries(code string) (pause time.Duration, retry bool)

	// log reads the events of a job; told reports whether the end that its record tells of is among them.
	log(ctx context.Context, job string) ([]message.Event, error)
	told(ctx context.Context, rec message.Record) (bool, error)
	// bury writes a job that failed for good to the dead letters.
	bury(ctx context.Context, rec message.Record) error
}

// memory is the Store of jobs that end with their process.
type memory struct{}

func (m memory) Owner() string                                        { return "" }
func (m memory) open(context.Context, *Table) error                   { return nil }
func (m memory) alive(string) bool                                    { return true }
func (m memory) heard(string, time.Time) bool                         { return true }
func (m memory) returned() <-chan struct{}                            { return nil }
func (m memory) admit([]files.NeededFile) *wire.Error                 { return nil }
func (m memory) lacks(message.Record) error                           { return nil }
func (m memory) sought([]string) string                               { return "" }
func (m memory) sweep(context.Context)                                {}
func (m memory) inside() bool                                         { return true }
func (m memory) forget(message.Record)                                {}
func (m memory) offer(context.Context, message.Record, bool) error    { return nil }
func (m memory) bury(context.Context, message.Record) error           { return nil }
func (m memory) log(context.Context, string) ([]message.Event, error) { return nil, nil }
func (m memory) told(context.Context, message.Record) (bool, error)   { return false, nil }

func (m memory) remind(context.Context, []message.Record, time.Time) error { return nil }

func (m memory) get(context.Context, string) (message.Record, error) {
	return message.Record{}, ErrNoJob
}

func (m memory) keep(_ context.Context, rec message.Record, _ *message.RunRequest) (message.Record, bool, error) {
	return rec, true, nil
}

func (m memory) swap(context.Context, message.Record) (message.Record, error) {
	return message.Record{}, ErrNoJob
}

func (m memory) request(ctx context.Context, rec message.Record) (*message.RunRequest, error) {
	return nil, errors.Join(errGone, m.kept(ctx, rec))
}

func (m memory) kept(context.Context, message.Record) error {
	return wire.Errorf(wire.ErrExpired,
		"the jobs of this daemon are kept in memory only, without what they asked for; submit the job again")
}

func (m memory) next(ctx context.Context, j *Table) (reference, error) {
	for {
		id, wake := j.first()
		if id != "" {
			return reference{job: id}, ctx.Err()
		}
		select {
		case <-ctx.Done():
			return reference{}, ctx.Err()
		case <-wake:
		}
	}
}

// retries implements Store: nothing outlives the daemon, so only another worker may try.
func (m memory) retries(code string) (time.Duration, bool) { return 0, code == wire.ErrWorkerLost }
