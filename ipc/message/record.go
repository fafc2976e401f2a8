package message

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"patchbay/fault"
	"patchbay/ipc/wire"
	"patchbay/node/files"
)

// State is the state of a job. Every change is one compare-and-swap on its Record.
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

// States returns all states.
func States() []State { return []State{Queued, Running, Done, Failed, Cancelled, Expired} }

// Final reports whether a job in this state has ended.
func (s State) Final() bool { return s != Queued && s != Running }

// Next returns the states that may follow. A final state stays, but its record may still be completed (file names).
func (s State) Next() []State {
	switch s {
	case Queued:
		return []State{Queued, Running, Cancelled, Expired, Failed}
	case Running:
		return []State{Running, Queued, Done, Failed, Cancelled}
	}
	return []State{s}
}

// Revived returns the states that a manual retry may move a job to: only a job that ended without a result runs again.
func (s State) Revived() []State {
	if s == Failed || s == Cancelled || s == Expired {
		return []State{Queued}
	}
	return nil
}

// Record is what is known about a job: the value that status returns.
type Record struct {
	V         int            `json:"v"`
	Job       string         `json:"job"`
	Kind      string         `json:"kind,omitempty"` // "sample"; empty: a workflow
	State     State          `json:"state"`
	Rev       uint64         `json:"rev"`     // grows with every change; Update compares it
	Attempt   int            `json:"attempt"` // 1 for the first run, 0 while never started
	Worker    string         `json:"worker,omitempty"`
	Created   int64          `json:"created"`            // Unix milliseconds, as are the next three
	Started   int64          `json:"started,omitempty"`  // of the last attempt
	Finished  int64          `json:"finished,omitempty"` //
	ExpireAt  int64          `json:"expire_at,omitempty"`
	Position  int            `json:"position,omitempty"` // jobs ahead in the queue
	Hash      string         `json:"hash"`               // of the request
	About     string         `json:"about,omitempty"`    // start of the prompt, for lists
	Model     string         `json:"model,omitempty"`    // first model file that the workflow names
	Plan      string         `json:"plan,omitempty"`
	Outputs   []OutputRef    `json:"outputs,omitempty"`
	Reused    string         `json:"reused,omitempty"`  // the job that made Outputs, if this one reuses them
	Warning   string         `json:"warning,omitempty"` // why files of a job that is done have no names
	Dropped   int64          `json:"dropped,omitempty"` // when its files were removed, in Unix milliseconds
	Metrics   map[string]any `json:"metrics,omitempty"`
	Error     *fault.Error   `json:"error,omitempty"`
	NodeError map[string]any `json:"node_errors,omitempty"`
	Client    any            `json:"client,omitempty"`
	Cancel    bool           `json:"cancel,omitempty"` // a running job was asked to stop
	// number of the terminal event in the log; 0: the job has not ended, or its files have no names yet
	EndSeq uint64 `json:"end_seq,omitempty"`

	Files []files.NeededFile `json:"files,omitempty"` // read by the job: a daemon without them does not take it
	// bytes of its largest model file: the least memory that a worker must have
	Memory int64 `json:"memory,omitempty"`

	Front    bool   `json:"front,omitempty"`    // ahead of all waiting jobs
	Priority string `json:"priority,omitempty"` // high or low; empty: normal
	Moves    int    `json:"moves,omitempty"`    // how often it was moved in the queue
	// daemon that runs the job or ran it last, and has its files; while queued, the daemon that accepted it
	Owner     string `json:"owner,omitempty"`
	Claim     string `json:"claim,omitempty"`      // differs between attempts, so that a daemon knows its own again
	NotBefore int64  `json:"not_before,omitempty"` // Unix milliseconds; it does not run before
	// attempts that do not count against the limit: those that a manual retry followed, and later ones whose daemon ended
	Earlier    int      `json:"earlier_attempts,omitempty"`
	HandedBack int      `json:"handed_back,omitempty"`
	Causes     []string `json:"causes,omitempty"`     // why the latest attempts ended
	Tied       bool     `json:"tied,omitempty"`       // ends with the connection of its client
	From       string   `json:"from,omitempty"`       // client that it counts for
	Unique     string   `json:"unique_key,omitempty"` // see RunRequest.UniqueKey
	Pieces     int      `json:"pieces,omitempty"`     // pieces of the request in the bucket patchbay-requests
	Number     float64  `json:"number,omitempty"`     // see RunRequest.Number
	// of the request, so that whichever daemon ends the job can continue its client's trace
	TraceParent string `json:"traceparent,omitempty"`
	Webhook     *Hook  `json:"webhook,omitempty"`
	// what nodes show besides files, such as texts, by node; see BoundedUI
	UI map[string]map[string]any `json:"ui,omitempty"`
}

// Hook is where the end of a job is reported, and how far that has come.
type Hook struct {
	URL      string `json:"url"`
	Reported uint64 `json:"reported,omitempty"` // EndSeq of the last end that was acknowledged
}

// maxCauses bounds the number of Record.Causes, maxCause the bytes of each.
const (
	maxCauses = 10
	maxCause  = 2000
)

// Counted returns the number of attempts that count against the limit, the current one among them.
func (r *Record) Counted() int { return r.Attempt - r.Earlier - r.HandedBack }

// Because adds a cause to r.Causes: why the current attempt ended.
func (r *Record) Because(cause string) {
	r.Causes = append(r.Causes, fmt.Sprintf("attempt %d: %s", r.Attempt, cause[:min(len(cause), maxCause)]))
	r.Causes = r.Causes[max(0, len(r.Causes)-maxCauses):]
}

// Priorities returns the priorities of jobs, most urgent first.
func Priorities() []string { return []string{"high", "normal", "low"} }

// OrNormal returns the priority of a request, which is "normal" if it names none.
func OrNormal(priority string) string { return cmp.Or(priority, "normal") }

// PriorityRank returns the position of a priority among all, 0 for the most urgent, and -1 for an unknown one.
func PriorityRank(priority string) int { return slices.Index(Priorities(), OrNormal(priority)) }

// Closed returns the bare record of an ended job: as it ended if it has an error, else failed with fault.
func (r Record) Closed(failure *fault.Error) Record {
	if r.Error == nil || !r.State.Final() {
		r.State, r.Error = Failed, failure
	}
	return r.bare()
}

// bare returns the record without its fields of unbounded length.
func (r Record) bare() Record {
	r.Error = wire.Short(r.Error)
	r.Outputs, r.Metrics, r.NodeError, r.Client, r.Files, r.Causes, r.UI = nil, nil, nil, nil, nil, nil, nil
	return r
}

// Clone returns a copy whose Outputs and Causes may be appended to.
func (r Record) Clone() Record {
	r.Outputs, r.Causes = slices.Clone(r.Outputs), slices.Clone(r.Causes)
	return r
}

// maxUI bounds Record.UI, in bytes of JSON.
const maxUI = 64 << 10

// BoundedUI returns what a record keeps of the ui dictionaries of nodes: what is no list of files, of as many nodes as
// fit in maxUI bytes.
func BoundedUI(ui map[string]map[string]any, outputs []OutputRef) map[string]map[string]any {
	kept, room := map[string]map[string]any{}, maxUI
	for _, node := range slices.Sorted(maps.Keys(ui)) {
		shown := maps.Clone(ui[node])
		for _, ref := range outputs {
			if ref.Node == node {
				delete(shown, ref.Kind)
			}
		}
		b, err := wire.Encode(shown, wire.JSON)
		if len(shown) == 0 || err != nil || len(b) > room {
			continue
		}
		room -= len(b)
		kept[node] = shown
	}
	if len(kept) == 0 {
		return nil
	}
	return kept
}
