// Package comm moves tensors between the ranks of a group: what they may exchange (Comm), how a group is connected (Transport), and the transport of ranks
// that share a process (Local). It knows tensors and memory, no model, no plan and no axis.
package comm

import (
	"time"

	"patchbay/engine"
)

// Comm is one rank's end of a group that exchanges tensors. Calls are issued in the same order by all ranks of the group and matched by that
// order, as NCCL does. Every tensor is a contiguous view in the caller's communication arena; dst and src do not overlap. On a device a call is
// enqueued and returns; on the CPU it has happened when it returns. A broken rule or an aborted group panics with *Error, which ends as the
// error of the request (Recovered), so that the code between two exchanges needs no error paths.
//
// Bytes are counted as sent to other ranks; what a rank keeps for itself is not traffic.
type Comm interface {
	Rank() int
	Size() int
	// AllToAll sends send[i] elements of src to rank i, in rank order, and receives recv[i] elements from it into dst, in rank order.
	AllToAll(dst, src engine.Tensor, recv, send []int)
	// SendRecv sends src to rank to and receives dst from rank from in one call, so a ring of them cannot deadlock; -1 leaves a side out.
	SendRecv(dst engine.Tensor, from int, src engine.Tensor, to int)
	// Post offers dst for the next message of rank from, in the order of the calls; the sender then need not wait for this rank. Messages that
	// memory is posted for are received by Await alone.
	Post(dst engine.Tensor, from int)
	// Await blocks until the oldest memory posted for rank from is filled; it is the caller's again then.
	Await(from int)
	// AllGather receives every rank's src, counts[i] elements from rank i, in rank order into dst.
	AllGather(dst, src engine.Tensor, counts []int)
	// ReduceScatter sums src over the ranks and leaves part i, counts[i] elements, in dst of rank i. f32.
	ReduceScatter(dst, src engine.Tensor, counts []int)
	// AllReduce sums buf over the ranks in place. f32 or f64; every rank gets the same bits.
	AllReduce(buf engine.Tensor)
	// Broadcast copies buf of rank root to all.
	Broadcast(buf engine.Tensor, root int)
	// Abort wakes every rank that waits in this group, and every later call, with cause. It is safe from any goroutine, any number of times.
	Abort(cause error)
	// Traffic returns what this rank has sent through this end so far.
	Traffic() Traffic
	// Waiting says in words what this rank waits for, "" if it does not. It is safe from any goroutine.
	Waiting() string
}

// Transport connects groups of ranks.
type Transport interface {
	// Connect makes the ends of one group, one for each of ops: calls of an end are ordered with the calls of its Ops. name is the axis, for errors; deadline
	// bounds every wait for a peer (0: no bound).
	Connect(name string, ops []engine.Ops, deadline time.Duration) ([]Comm, error)
}

// Traffic counts what one rank sent on one axis.
type Traffic struct {
	Calls int64
	Bytes int64         // to other ranks
	Wait  time.Duration // spent waiting for other ranks
	// Posted counts messages received into memory that was posted before.
	Posted int64
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
