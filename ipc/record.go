package ipc

import (
	"errors"
	"slices"
)

// State of a job. Every change is one compare-and-swap on its Record.
type State string

// The states. The last four are final.
const (
	Queued    State = "queued"
	Running   State = "running"
	Done      State = "done"
	Failed    State = "failed"
	Cancelled State = "cancelled"
	Expired   State = "expired"
)

// Final tells whether a job in this state has ended.
func (s State) Final() bool { return s != Queued && s != Running }

// next lists where a state may go. A final state stays; its record may still be completed (file names).
func (s State) next() []State {
	switch s {
	case Queued:
		return []State{Queued, Running, Cancelled, Expired, Failed}
	case Running:
		return []State{Running, Queued, Done, Failed, Cancelled}
	}
	return []State{s}
}

// Record is what is known of a job: the value that status returns.
type Record struct {
	V         int            `json:"v"`
	Job       string         `json:"job"`
	State     State          `json:"state"`
	Rev       uint64         `json:"rev"`     // grows with every change; the fence of Update
	Attempt   int            `json:"attempt"` // 1 for the first run, 0 while never started
	Worker    string         `json:"worker,omitempty"`
	Created   int64          `json:"created"`            // Unix milliseconds, as are the next three
	Started   int64          `json:"started,omitempty"`  // of the last attempt
	Finished  int64          `json:"finished,omitempty"` //
	ExpireAt  int64          `json:"expire_at,omitempty"`
	Position  int            `json:"position,omitempty"` // jobs ahead in the queue
	Hash      string         `json:"hash"`               // of the request
	Outputs   []OutputRef    `json:"outputs,omitempty"`
	Metrics   map[string]any `json:"metrics,omitempty"`
	Error     *Error         `json:"error,omitempty"`
	NodeError map[string]any `json:"node_errors,omitempty"`
	Client    any            `json:"client,omitempty"`
	Cancel    bool           `json:"cancel,omitempty"` // a running job was asked to stop
}

func (r Record) clone() Record {
	r.Outputs = slices.Clone(r.Outputs)
	return r
}

// Faults of Jobs that callers act on.
var (
	errNoJob    = errors.New("no such job")
	errConflict = errors.New("the record was changed by someone else")
	errFull     = errors.New("the queue is full")
	errHash     = errors.New("a job of that id exists with another body")
	errClosed   = errors.New("no new jobs are taken")
)
