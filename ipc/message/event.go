package message

import (
	"slices"

	"patchbay/fault"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// Event is one entry of a job's log: a reply to run, and a message on patchbay.v1.events.<job>.<type>.
type Event struct {
	V          int            `json:"v"`
	Type       string         `json:"type"`
	Job        string         `json:"job"`
	Seq        uint64         `json:"seq"` // 1, 2, ... within the job
	TS         int64          `json:"ts"`  // Unix milliseconds
	Attempt    int            `json:"attempt"`
	Node       string         `json:"node,omitempty"`
	Data       map[string]any `json:"data,omitempty"` // data of ComfyUI's websocket message of that type
	Error      *fault.Error   `json:"error,omitempty"`
	NodeErrors map[string]any `json:"node_errors,omitempty"`
}

// The types of events. Package node also makes execution_cached.
const (
	EventQueued      = "queued"
	EventRetrying    = "retrying"
	EventStart       = "execution_start"
	EventExecuting   = "executing" // node "": no node runs any more
	EventProgress    = "progress"
	EventExecuted    = "executed"
	EventMetrics     = "metrics"
	EventSuccess     = "execution_success"
	EventError       = "execution_error"
	EventInterrupted = "execution_interrupted"
	EventExpired     = "expired"
)

// Terminal reports whether an event type ends a job. Every job has exactly one such event, and another after each
// retry.
func Terminal(eventType string) bool {
	return slices.Contains([]string{EventSuccess, EventError, EventInterrupted, EventExpired}, eventType)
}

// Short returns the event without lists and maps, which can be long, and with left_out: true in its data.
func (e Event) Short() any {
	data := map[string]any{"left_out": true}
	for k, v := range e.Data {
		switch x := v.(type) {
		case nil, bool, int, int64, uint64, float64:
			data[k] = v
		case string:
			data[k] = wire.Shown(x)
		}
	}
	e.Data, e.Error, e.NodeErrors = data, wire.Short(e.Error), nil
	return e
}

// EventOf decodes an event.
func EventOf(o *pyjson.Object) (*Event, error) {
	ev := &Event{}
	err := wire.BindReply(o, ev)
	if ev.Error != nil {
		ev.Error.NodeErrors = ev.NodeErrors
	}
	return ev, err
}
