// Package comm moves tensors between the ranks of a group: what they may exchange (Comm), how a group is connected
// (Transport), and the transport of ranks that share a process (Local). It knows tensors and memory, no model, no plan
// and no axis.
package comm

import (
	"time"

	"patchbay/engine"
)

// Comm is one rank's end of a group that exchanges tensors. Calls are issued in the same order by all ranks of the
// group and matched by that order, as NCCL does. Tensors are contiguous; dst and src do not overlap. A broken rule or
// an aborted group panics with *Error, which ends as the error of the request, so that the code between two exchanges
// needs no error paths; what a device finds out later is an error of its Ops' next wait.
//
// Calls are ordered with the calls of the rank's Ops: on a device they are enqueued on its stream and return, on the
// CPU they have happened when they return. So Run and SendRecv may read and write any memory of the rank. Offer, Post
// and Begin go on beside what the rank does next; what they are given is communication memory, which nothing else
// touches until they are over.
//
// Bytes are counted as sent to other ranks; what a rank keeps for itself is not traffic.
type Comm interface {
	Rank() int
	Size() int
	// Run does a collective.
	Run(c *Call)
	// Begin is Run of an AllToAll or AllGather beside what follows: it begins when the calls issued before have run, and
	// Dst may be read after Fetched. One at a time; no other call of this end comes in between.
	Begin(c *Call)
	// Fetched holds the calls that follow back until what has begun is over.
	Fetched()
	// SendRecv sends src to rank to and receives dst from rank from in one call, so a ring of them cannot deadlock; -1
	// leaves a side out.
	SendRecv(dst engine.Tensor, from int, src engine.Tensor, to int)
	// Offer copies src into slot and sends slot to rank to beside what follows; src may be overwritten by the next call.
	// An Offer of a slot that is still being sent waits until it is not. The peer receives offers by Post and Await alone,
	// in their order.
	Offer(slot, src engine.Tensor, to int)
	// Post receives the next Offer of rank from into slot beside what follows, once earlier readers of slot are done.
	Post(slot engine.Tensor, from int)
	// Await copies the oldest slot posted for rank from to dst once it is filled; the slot may be posted again then.
	Await(dst engine.Tensor, from int)
	// Abort wakes every rank that waits in this group, and every later call, with cause. It is safe from any goroutine,
	// any number of times.
	Abort(cause error)
	// Traffic returns what this rank has sent through this end so far.
	Traffic() Traffic
	// Waiting says in words what this rank waits for, "" if it does not. It is safe from any goroutine.
	Waiting() string
}

// Group is ranks that exchange with each other.
type Group struct {
	Team     uint64        // tells the groups of one team from those of the next
	Name     string        // the axis, for errors
	Ranks    []int         // numbers of the members among all ranks of the plan, in the order of the group
	Deadline time.Duration // of every wait for a peer, 0: none
	Pipe     bool          // members use Offer, Post and Await, each to send to the next one
	// Processes are the numbers of the processes that the members live in; nil: they share one.
	Processes []int
}

// Transport connects groups of ranks.
type Transport interface {
	// Connect makes the ends of one group, one for each of ops: calls of an end are ordered with the calls of its Ops. A
	// member that lives in another process has no Ops here, and no end.
	Connect(g Group, ops []engine.Ops) ([]Comm, error)
	// Interruptible reports whether a rank may leave calls out that its peers have issued, and the group be aborted: a
	// cancelled run then ends before the next block. Otherwise everything that was queued runs to its end, and the group
	// serves the next run.
	Interruptible() bool
}

// Traffic counts what one rank sent on one axis.
type Traffic struct {
	Calls int64
	Bytes int64         // to other ranks
	Wait  time.Duration // spent waiting for other ranks
	// Posted counts messages received by Await.
	Posted int64
}

// Add adds what another has counted.
func (t *Traffic) Add(o Traffic) {
	t.Calls, t.Bytes, t.Wait, t.Posted = t.Calls+o.Calls, t.Bytes+o.Bytes, t.Wait+o.Wait, t.Posted+o.Posted
}

// Less is what was counted since.
func (t Traffic) Less(since Traffic) Traffic {
	return Traffic{t.Calls - since.Calls, t.Bytes - since.Bytes, t.Wait - since.Wait, t.Posted - since.Posted}
}

// Sent adds a call that sent so many elements.
func (t *Traffic) Sent(elements int, d engine.DType) {
	t.Calls++
	t.Bytes += int64(elements * d.Size())
}

// Error is the panic value of a Comm: ranks that disagree, a group that was aborted, a peer that did not come in time.
type Error struct {
	Text  string
	Cause error // of an abort
}

// Error returns the text and the cause.
func (e *Error) Error() string {
	if e.Cause != nil {
		return e.Text + ": " + e.Cause.Error()
	}
	return e.Text
}

// Unwrap returns the cause of an abort.
func (e *Error) Unwrap() error { return e.Cause }
