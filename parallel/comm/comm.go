// Package comm moves tensors between the ranks of a group. It defines what they may exchange (Comm) and how a group is
// connected (Transport), and has the transport of ranks that share a process (Local). It knows tensors and memory, but
// no model, plan or axis.
package comm

import (
	"time"

	"patchbay/engine"
)

// Comm is one rank's end of a group that exchanges tensors. All ranks of a group must issue calls in the same order, by
// which they are matched, as in NCCL. Tensors must be contiguous; dst and src must not overlap. A broken rule or an
// aborted group panics with *Error, which becomes the error of the request, so that the code between two exchanges
// needs no error paths. What a device finds out later is an error of the next wait of its Ops.
//
// Calls are ordered with the calls of the rank's Ops: on a device they return once they are enqueued on its stream,
// on the CPU they are complete when they return. Run and SendRecv may therefore read and write any memory of the rank.
// Offer, Post and Begin run concurrently with what the rank does next; they take communication memory, which must not
// be touched otherwise until they are complete.
//
// Bytes are counted as sent to other ranks; what a rank keeps for itself is not traffic.
type Comm interface {
	Rank() int
	Size() int
	// Run performs a collective.
	Run(c *Call)
	// Begin starts an AllToAll or AllGather that runs concurrently with what follows: it starts after the calls issued
	// before, and Dst may be read after Fetched. Only one can be in progress, and until Fetched no other call may be
	// issued on this end.
	Begin(c *Call)
	// Fetched delays the calls that follow until the collective started by Begin is complete.
	Fetched()
	// SendRecv sends src to rank to and receives dst from rank from in one call, so a ring of them cannot deadlock;
	// rank -1 omits a side.
	SendRecv(dst engine.Tensor, from int, src engine.Tensor, to int)
	// Offer copies src into slot and sends slot to rank to concurrently with what follows; the next call may overwrite
	// src. If slot is still being sent, Offer waits for that first. The peer can receive offers only by Post and Await,
	// in order.
	Offer(slot, src engine.Tensor, to int)
	// Post receives the next Offer of rank from into slot concurrently with what follows, once earlier readers of slot
	// are done.
	Post(slot engine.Tensor, from int)
	// Await copies the oldest slot posted for rank from to dst once it is filled; then the slot may be posted again.
	Await(dst engine.Tensor, from int)
	// Abort makes every call of this group that waits, and every later one, fail with cause. It is safe for concurrent
	// use and may be called any number of times.
	Abort(cause error)
	// Traffic returns the traffic of this end so far.
	Traffic() Traffic
	// Waiting describes what this rank is waiting for, "" if it is not. It is safe for concurrent use.
	Waiting() string
}

// Group describes ranks that exchange with each other.
type Group struct {
	Team     uint64        // distinguishes the groups of successive teams
	Name     string        // name of the axis, for errors
	Ranks    []int         // the members' ranks in the plan, in group order
	Deadline time.Duration // limit of every wait for a peer; 0: none
	Pipe     bool          // members use Offer, Post and Await, each sending to the next one
	// Processes holds the process number of each member; nil: they share one process.
	Processes []int
}

// Transport connects groups of ranks.
type Transport interface {
	// Connect makes the ends of one group, one for each of ops: calls of an end are ordered with the calls of its Ops.
	// A member that lives in another process has nil Ops here, and a nil end.
	Connect(g Group, ops []engine.Ops) ([]Comm, error)
	// Interruptible reports whether a rank may skip calls that its peers have issued and the group then be aborted, so
	// that a canceled run ends before the next block. Otherwise everything that was queued runs to its end, and the
	// group serves the next run.
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

func (t *Traffic) Add(o Traffic) {
	t.Calls, t.Bytes, t.Wait, t.Posted = t.Calls+o.Calls, t.Bytes+o.Bytes, t.Wait+o.Wait, t.Posted+o.Posted
}

// Less returns what was counted since the snapshot since.
func (t Traffic) Less(since Traffic) Traffic {
	return Traffic{t.Calls - since.Calls, t.Bytes - since.Bytes, t.Wait - since.Wait, t.Posted - since.Posted}
}

// Sent counts a call that sent that many elements.
func (t *Traffic) Sent(elements int, d engine.DType) {
	t.Calls++
	t.Bytes += int64(elements * d.Size())
}

// Error is the panic value of a Comm: ranks that disagree, an aborted group, or a peer that did not arrive in time.
type Error struct {
	Text  string
	Cause error // cause of the abort, if any
}

// Error returns the text and the cause.
func (e *Error) Error() string {
	if e.Cause != nil {
		return e.Text + ": " + e.Cause.Error()
	}
	return e.Text
}

func (e *Error) Unwrap() error { return e.Cause }
