package ipc

import (
	"errors"
	"fmt"
	"slices"

	"patchbay/node/files"
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

// states returns all states.
func states() []State { return []State{Queued, Running, Done, Failed, Cancelled, Expired} }

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

// revived lists where a retry by hand may take a job: only one that ended without a result begins again.
func (s State) revived() []State {
	if s == Failed || s == Cancelled || s == Expired {
		return []State{Queued}
	}
	return nil
}

// Record is what is known of a job: the value that status returns.
type Record struct {
	V         int            `json:"v"`
	Job       string         `json:"job"`
	Kind      string         `json:"kind,omitempty"` // "sample"; empty: a workflow
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
	Dropped   int64          `json:"dropped,omitempty"` // when its files were removed, in Unix milliseconds
	Metrics   map[string]any `json:"metrics,omitempty"`
	Error     *Error         `json:"error,omitempty"`
	NodeError map[string]any `json:"node_errors,omitempty"`
	Client    any            `json:"client,omitempty"`
	Cancel    bool           `json:"cancel,omitempty"` // a running job was asked to stop

	Files  []files.NeededFile `json:"files,omitempty"`  // that it reads: a daemon without them does not take it
	Memory int64              `json:"memory,omitempty"` // bytes of its largest model file: the least that a worker must have

	Priority   string   `json:"priority,omitempty"`    // high or low; empty: normal
	Owner      string   `json:"owner,omitempty"`       // daemon that runs it or ran it last; it has the files. While queued: the one that took it in
	NotBefore  int64    `json:"not_before,omitempty"`  // a retry waits until then
	HandedBack int      `json:"handed_back,omitempty"` // attempts that ended with their daemon or before a retry by hand: they do not count
	Causes     []string `json:"causes,omitempty"`      // why earlier attempts ended, the last ones
	Tied       bool     `json:"tied,omitempty"`        // ends with the connection it came on
	From       string   `json:"from,omitempty"`        // client that it counts for
	Pieces     int      `json:"pieces,omitempty"`      // of the request, in the bucket patchbay-requests
}

// maxCauses bounds Record.Causes.
const maxCauses = 10

// because notes why an attempt ended.
func (r *Record) because(cause string) {
	r.Causes = append(r.Causes, fmt.Sprintf("attempt %d: %s", r.Attempt, cause))
	r.Causes = r.Causes[max(0, len(r.Causes)-maxCauses):]
}

// priorities are the classes of jobs, most urgent first.
func priorities() []string { return []string{"high", "normal", "low"} }

func orNormal(priority string) string {
	if priority == "" {
		return "normal"
	}
	return priority
}

// rank is the place of a class among the others, 0 first.
func rank(priority string) int { return slices.Index(priorities(), orNormal(priority)) }

func (r Record) clone() Record {
	r.Outputs, r.Causes = slices.Clone(r.Outputs), slices.Clone(r.Causes)
	return r
}

// Faults of Jobs that callers act on.
var (
	errNoJob    = errors.New("no such job")
	errConflict = errors.New("the record was changed by someone else")
	errFull     = errors.New("the queue is full")
	errCrowd    = errors.New("the client has too many jobs")
	errHash     = errors.New("a job of that id exists with another body")
	errLacking  = errors.New("files of the job are not here")
	errStore    = errors.New("the job store cannot be written")
	errClosed   = errors.New("no new jobs are taken")
)
