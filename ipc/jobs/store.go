package jobs

import (
	"context"

	"patchbay/ipc/message"
)

// Store is where a Table persists its jobs: in the memory of this process (memory), or on a NATS server (JetStream).
// Its records are authoritative, and every change to one is a compare-and-swap at an expected revision. The Table
// drives the store, and hears from it only through the follower that it gives to open. TestStores says what every store
// does.
type Store interface {
	// open passes every job in the store to f, and from its return on the changes that anybody makes.
	open(ctx context.Context, f follower) error

	// keep writes a new job and its request. If a job with that ID exists, keep returns its record and false.
	keep(ctx context.Context, rec message.Record, req *message.RunRequest) (message.Record, bool, error)
	// swap writes rec if the record is still at rec.Rev and returns it at its new revision. Otherwise it returns
	// errConflict.
	swap(ctx context.Context, rec message.Record) (message.Record, error)
	// get reads a record. It returns ErrNoJob if there is none.
	get(ctx context.Context, job string) (message.Record, error)
	// request reads what a job asks for. It returns errGone if that is missing for good or cannot be decoded.
	request(ctx context.Context, rec message.Record) (*message.RunRequest, error)

	// log reads the events of a job that were published. told returns the number of the terminal event among them that
	// belongs to the end in its record; 0: there is none.
	log(ctx context.Context, job string) ([]message.Event, error)
	told(ctx context.Context, rec message.Record) (uint64, error)
	// bury writes a job that failed for good to the dead-letter stream.
	bury(ctx context.Context, rec message.Record) error

	// tend is called every few seconds. It removes the forgotten jobs, unless their records were changed since, and
	// returns those that it could not remove; it makes room, and writes records of known again that the store has lost.
	tend(ctx context.Context, known, forgotten []message.Record) []message.Record
}

// follower hears what happens to the jobs in a store. Its methods do not block.
type follower interface {
	Get(job string) (message.Record, error) // what it has heard of a job last; ErrNoJob: nothing
	observe(rec message.Record)             // a record as it is in the store
	vanish(job string)                      // a job was removed
	// turnBack says that a record which was at a revision is now this one, even if that is older: it was lost.
	turnBack(was uint64, rec message.Record)
	Hear(ev message.Event) // an event of another daemon
	wasAway()              // the store could not be reached for a while: what was published may be lost
}
