package jobs

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"

	"patchbay/ipc/message"
)

// This file decides which waiting job is next. Like step.go it knows no clock, network, disk or lock.

// spot is where a job waits. Jobs put in front come first, the newest of them ahead. Behind them come the priorities,
// and among jobs of one priority clients take turns, however many jobs each has waiting.
type spot struct {
	front bool
	class int   // message.PriorityRank
	turn  int64 // of its client, see turns
	order int64 // of arrival
}

// before compares two places; a negative result means that p comes first.
func (p spot) before(q spot) int {
	switch {
	case p.front && q.front:
		return cmp.Compare(q.order, p.order)
	case p.front != q.front:
		if p.front {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(p.class, q.class), cmp.Compare(p.turn, q.turn), cmp.Compare(p.order, q.order))
}

// ageing is the number of jobs after which the least urgent ones are asked first once, so that no job starves.
const ageing = 8

// turns gives jobs their places. Each job of a client has a turn behind that of its last one, and none behind the turn
// that is being served: start-time fair queuing with jobs of equal cost (Goyal, Vin and Cheng, SIGCOMM 1996).
type turns struct {
	arrived int64
	taken   int           // jobs taken so far
	served  map[int]int64 // by class: the turn of the job taken last
	last    map[waiter]int64
}

// waiter is one client in one class.
type waiter struct {
	class int
	name  string
}

// give returns the place of a job that arrives.
func (t *turns) give(r *message.Record) spot {
	if t.last == nil {
		t.served, t.last = map[int]int64{}, map[waiter]int64{}
	}
	t.arrived++
	p := spot{front: r.Front, class: message.PriorityRank(r.Priority), order: t.arrived}
	if p.front {
		return p
	}
	who := waiter{p.class, r.From}
	p.turn = t.served[p.class]
	if last, ok := t.last[who]; ok {
		p.turn = max(p.turn, last+1)
	}
	if len(t.last) > 1000 { // clients that have had all their turns
		for c, turn := range t.last {
			if turn < t.served[c.class] {
				delete(t.last, c)
			}
		}
	}
	t.last[who] = p.turn
	return p
}

// take notes that the job at a place begins to run.
func (t *turns) take(p spot) {
	t.taken++
	if !p.front && t.served != nil {
		t.served[p.class] = max(t.served[p.class], p.turn)
	}
}

// unhurriedFirst reports whether the least urgent job is asked first this time.
func (t *turns) unhurriedFirst() bool { return t.taken%ageing == ageing-1 }

// sameByKey reports whether a request that has the unique key of a job is for that job, at a time in Unix milliseconds:
// while it waits or runs, and for window milliseconds after it was handed in, unless it ended without a result.
func sameByKey(r *message.Record, window int, at int64) bool {
	return !r.State.Final() || r.State == message.Done && at-r.Created < int64(window)
}

// idOfKey returns the ID of a job with a unique key. earlier is the last job with that key, "" if there is none. All
// daemons make the same ID of it, so that only one of them can create the job.
func idOfKey(from, key, earlier string) string {
	sum := sha256.Sum256([]byte(from + "\x00" + key + "\x00" + earlier))
	return "u-" + hex.EncodeToString(sum[:12])
}
