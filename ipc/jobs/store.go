package jobs

import (
	"context"
	"errors"
	"time"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/node/files"
)

// Store is where a Table persists its jobs: in the memory of this process, or on a NATS server (JetStream). Its
// records are authoritative, and every change to one is a compare-and-swap at an expected revision.
type Store interface {
	// Owner is the name under which this daemon takes jobs, the same after a restart; empty if no others share the
	// store.
	Owner() string
	// open loads every job in the store into the table and from then on the changes that other daemons make.
	open(ctx context.Context, j *Table) error
	// alive reports whether the daemon with that name shows signs of life.
	alive(owner string) bool
	// heard reports whether a daemon has shown signs of life after the given time.
	heard(owner string, since time.Time) bool
	// returned yields a value after the store was unreachable for a while: what was published may be lost. The channel
	// is nil if that cannot happen.
	returned() <-chan struct{}

	// admit refuses a job whose files no daemon has. lacks returns why this daemon cannot run a job, or nil. searchedIn
	// says where files that no daemon has were searched for; empty if the store does not track files.
	admit(needed []files.NeededFile) *fault.Error
	lacks(rec message.Record) error
	searchedIn(files []string) string

	// keep writes a new job and its request. If a job with that ID exists, keep returns its record and false.
	keep(ctx context.Context, rec message.Record, req *message.RunRequest) (message.Record, bool, error)
	// swap writes rec if the record is still at rec.Rev and returns it at its new revision. Otherwise it returns
	// errConflict.
	swap(ctx context.Context, rec message.Record) (message.Record, error)
	// get reads a record. It returns ErrNoJob if there is none.
	get(ctx context.Context, job string) (message.Record, error)
	// request reads what a job asks for. It returns errGone if that is missing for good or cannot be decoded.
	// requestMissing returns why a request is missing, or nil if it is complete.
	request(ctx context.Context, rec message.Record) (*message.RunRequest, error)
	requestMissing(ctx context.Context, rec message.Record) error
	// forget schedules a job to be dropped, at the next sweep at the latest. It does not block.
	forget(rec message.Record)
	sweep(ctx context.Context)

	// memoryOnly reports whether jobs exist in this table only.
	memoryOnly() bool
	// pauses has the errors after which an attempt is followed by another one, with the pause before the first such.
	pauses() map[string]time.Duration

	// log reads the events of a job. endPublished reports whether they include the terminal event for the end in its
	// record.
	log(ctx context.Context, job string) ([]message.Event, error)
	endPublished(ctx context.Context, rec message.Record) (bool, error)
	// bury writes a job that failed for good to the dead-letter stream.
	bury(ctx context.Context, rec message.Record) error
}

// memory is the Store of jobs that end with their process.
type memory struct{}

func (m memory) Owner() string                                              { return "" }
func (m memory) open(context.Context, *Table) error                         { return nil }
func (m memory) alive(string) bool                                          { return true }
func (m memory) heard(string, time.Time) bool                               { return true }
func (m memory) returned() <-chan struct{}                                  { return nil }
func (m memory) admit([]files.NeededFile) *fault.Error                      { return nil }
func (m memory) lacks(message.Record) error                                 { return nil }
func (m memory) searchedIn([]string) string                                 { return "" }
func (m memory) sweep(context.Context)                                      {}
func (m memory) memoryOnly() bool                                           { return true }
func (m memory) forget(message.Record)                                      {}
func (m memory) bury(context.Context, message.Record) error                 { return nil }
func (m memory) log(context.Context, string) ([]message.Event, error)       { return nil, nil }
func (m memory) endPublished(context.Context, message.Record) (bool, error) { return false, nil }

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
	return nil, errors.Join(errGone, m.requestMissing(ctx, rec))
}

func (m memory) requestMissing(context.Context, message.Record) error {
	return fault.New(fault.Expired,
		"the jobs of this daemon are kept in memory only, without what they asked for; submit the job again")
}

// pauses implements Store: nothing outlives the daemon, so only the loss of a worker allows another attempt.
func (m memory) pauses() map[string]time.Duration {
	return map[string]time.Duration{fault.WorkerLost: 0}
}
